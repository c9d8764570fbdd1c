"""One attempt's conversation with the model: the messages so far, what was done about them, and the time that is left.

Invariants:
- A message, once in it, never changes; every request extends the one before.
- Everything that the model said is in it, format errors too.
- The budget holds completions and commands, without what they waited for (see `budget`).
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swe_rl.agent.budget import Budget
from swe_rl.agent.client import ChatClient, ChatReply, ContextOverflow
from swe_rl.agent.protocol import AgentResult, Assignment, Exit, Turn
from swe_rl.sandbox.protocol import ExecResult


@dataclass(frozen=True, slots=True)
class Asking:
    """How the model is asked. `temperature` and `max_tokens` go with every request where given; else the server
    decides."""

    client: ChatClient
    tools: Sequence[Mapping[str, Any]] = ()
    temperature: float | None = None
    max_tokens: int | None = None
    clock: Callable[[], float] = time.monotonic


@dataclass(slots=True)
class Conversation:
    asking: Asking
    work: Assignment
    command_timeout_s: float
    budget: Budget = field(init=False)
    turns: list[Turn] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    format_errors_in_a_row: int = 0

    def __post_init__(self) -> None:
        self.budget = Budget(self.work.timeout_s, self.work.waited)

    def say(self, role: str, content: str, **fields: str) -> None:
        self.messages.append({"role": role, "content": content, **fields})

    async def go_on(self, max_turns: int, act: Callable[[ChatReply, Turn], Awaitable[Exit | None]]) -> AgentResult:
        """Turn after turn until an exit: `act` does what a reply asks for, and returns None to go on."""
        end: Exit | None = None
        while end is None and len(self.turns) < max_turns:
            asked = await self._ask()
            end = asked if isinstance(asked, Exit) else await act(*asked)
        return AgentResult(end or Exit.STEP_LIMIT, self.turns, self.messages, tuple(self.asking.tools))

    async def _ask(self) -> tuple[ChatReply, Turn] | Exit:
        """The reply, now the last message, and its turn; or the exit when there is no reply to be had."""
        started_s = self.asking.clock()
        try:
            reply = await self._complete()
        except ContextOverflow:
            return Exit.CONTEXT_OVERFLOW
        completion_s = self.asking.clock() - started_s
        if reply is None:
            return Exit.AGENT_TIMEOUT
        self.messages.append(reply.message)
        turn = Turn(len(self.turns), reply.content, None, None, completion_s=completion_s)
        self.turns.append(turn)
        return reply, turn

    async def execute(self, command: str, turn: Turn, timeout_s: float | None = None) -> ExecResult | None:
        """In the sandbox, within what is left of the budget; None when nothing is left."""
        if self.budget.is_spent:
            return None
        limit_s = min(timeout_s or self.command_timeout_s, self.budget.left_s)
        result = await self.work.sandbox.exec(command, timeout_s=limit_s)
        self.budget.spend(result.duration_s)
        turn.exit_code = result.exit_code
        turn.command_s += result.duration_s
        return result

    def answer_format_error(self, turn: Turn, reminder: str, max_in_a_row: int) -> Exit | None:
        """Of a turn that asked for nothing: the exit where it is one too many, else it is answered with `reminder`."""
        turn.format_error = True
        self.format_errors_in_a_row += 1
        if self.format_errors_in_a_row > max_in_a_row:
            return Exit.FORMAT_ERRORS
        turn.observation = reminder
        self.say("user", reminder)
        return None

    async def _complete(self) -> ChatReply | None:
        """None when the budget ran out first; the request is then cancelled."""
        return await self.budget.on(
            self.asking.client.complete(
                self.messages,
                base_url=self.work.base_url,
                model=self.work.model,
                tools=self.asking.tools,
                temperature=self.asking.temperature,
                max_tokens=self.asking.max_tokens,
            )
        )
