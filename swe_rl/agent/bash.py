"""The agent of one tool: the model writes one bash block a turn and reads what the command said.

Invariants:
- The conversation is [system, user(task), assistant, user(observation), ...]; a message, once in it, never changes.
- Everything that the model said is in the history, format errors too.
- The agent's budget holds its completions and its commands; waiting for a place to run a command is not in it.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from swe_rl.agent.budget import Budget
from swe_rl.agent.client import ChatClient, ChatReply, ContextOverflow
from swe_rl.agent.command import parse_command
from swe_rl.agent.observation import format_observation
from swe_rl.agent.prompts import FORMAT_REMINDER, system_prompt
from swe_rl.agent.protocol import AgentResult, Exit, Task, Turn
from swe_rl.config.schema import AgentConfig
from swe_rl.sandbox.protocol import Sandbox


@dataclass(slots=True)
class _Attempt:
    """The state of one run."""

    base_url: str
    model: str
    sandbox: Sandbox
    budget: Budget
    turns: list[Turn] = field(default_factory=list)
    messages: list[dict[str, str]] = field(default_factory=list)
    format_errors_in_a_row: int = 0

    def say(self, role: str, content: str) -> None:
        self.messages.append({"role": role, "content": content})


class BashAgent:
    """Stateless between runs: one object serves any number of trajectories at a time.

    `temperature` and `max_tokens` go with every request where given; else the server decides.
    """

    name = "bash"

    def __init__(
        self,
        config: AgentConfig,
        *,
        max_turns: int,
        command_timeout_s: float,
        client: ChatClient,
        temperature: float | None = None,
        max_tokens: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._system_prompt = system_prompt(config.system_prompt)
        self._max_turns = max_turns
        self._command_timeout_s = command_timeout_s
        self._client = client
        self._temperature = temperature
        self._max_tokens = max_tokens
        self._clock = clock

    async def run(self, task: Task, *, base_url: str, model: str, sandbox: Sandbox, timeout_s: float) -> AgentResult:
        attempt = _Attempt(base_url, model, sandbox, Budget(timeout_s))
        attempt.say("system", self._system_prompt)
        attempt.say("user", task.prompt)
        end = Exit.STEP_LIMIT
        for _ in range(self._max_turns):
            reached = await self._turn(attempt)
            if reached is not None:
                end = reached
                break
        return AgentResult(end, attempt.turns, attempt.messages)

    async def _turn(self, attempt: _Attempt) -> Exit | None:
        """One completion and what follows from it; the exit that it leads to, or None to go on."""
        started_s = self._clock()
        try:
            reply = await self._complete(attempt)
        except ContextOverflow:
            return Exit.CONTEXT_OVERFLOW
        finally:
            completion_s = self._clock() - started_s
            attempt.budget.spend(completion_s)
        if reply is None:
            return Exit.AGENT_TIMEOUT
        attempt.say("assistant", reply.content)
        parsed = parse_command(reply.content)
        turn = Turn(len(attempt.turns), reply.content, parsed.command, None, completion_s=completion_s)
        attempt.turns.append(turn)
        if parsed.command is None:
            return self._answer_format_error(attempt, turn)
        attempt.format_errors_in_a_row = 0
        return Exit.SUBMITTED if parsed.submit else await self._execute(attempt, turn, parsed.command)

    async def _complete(self, attempt: _Attempt) -> ChatReply | None:
        """None when the budget ran out first; the request is then cancelled."""
        if attempt.budget.is_spent:
            return None
        try:
            async with asyncio.timeout(attempt.budget.left_s) as deadline:
                return await self._client.complete(
                    attempt.messages,
                    base_url=attempt.base_url,
                    model=attempt.model,
                    temperature=self._temperature,
                    max_tokens=self._max_tokens,
                )
        except TimeoutError:
            if not deadline.expired():
                raise
            return None

    def _answer_format_error(self, attempt: _Attempt, turn: Turn) -> Exit | None:
        turn.format_error = True
        attempt.format_errors_in_a_row += 1
        if attempt.format_errors_in_a_row > self._config.max_format_errors:
            return Exit.FORMAT_ERRORS
        turn.observation = FORMAT_REMINDER
        attempt.say("user", FORMAT_REMINDER)
        return None

    async def _execute(self, attempt: _Attempt, turn: Turn, command: str) -> Exit | None:
        if attempt.budget.is_spent:
            return Exit.AGENT_TIMEOUT
        limit_s = min(self._command_timeout_s, attempt.budget.left_s)
        result = await attempt.sandbox.exec(command, timeout_s=limit_s)
        attempt.budget.spend(result.duration_s)
        turn.exit_code, turn.command_s = result.exit_code, result.duration_s
        turn.observation = format_observation(result, self._config.max_observation_chars)
        attempt.say("user", turn.observation)
        return Exit.AGENT_TIMEOUT if attempt.budget.is_spent else None
