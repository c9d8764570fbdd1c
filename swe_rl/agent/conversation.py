"""This module holds one attempt's conversation with the model: the messages so far, what was done about them, and the
time that is left.

Invariants:
- A message, once in it, never changes. Every request extends the one before, unless a compaction came between them.
- Everything that the model said is in it, format errors too.
- The budget holds completions and commands, without what they waited for (see `Budget`).
- A completion's time is what passed less what its calls waited meanwhile, for the router or the engines; a command's is
  what it ran for. Waiting for a place to run it is in neither.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from swe_rl.agent.agent import AgentResult, Assignment, Exit, Summary, Turn
from swe_rl.agent.client import ChatClient, ChatReply, ContextOverflow
from swe_rl.agent.compaction import Compaction
from swe_rl.agent.context import SUMMARY_CALL, CompactionPlan, Context
from swe_rl.agent.prompts import reminder_after
from swe_rl.config.schema import AgentConfig
from swe_rl.sandbox.sandbox import ExecResult, Waited, ends_within, no_wait

T = TypeVar("T")


class Budget:
    """Counts the seconds that are left to spend. `waited` returns how long the agent's calls waited so far."""

    def __init__(self, total_s: float, waited: Waited = no_wait, clock: Callable[[], float] = time.monotonic) -> None:
        self._left_s = total_s
        self._waited = waited
        self._clock = clock

    @property
    def left_s(self) -> float:
        """Returns the seconds that are left, at least 0."""
        return max(0.0, self._left_s)

    @property
    def is_spent(self) -> bool:
        """Tells whether nothing is left."""
        return self._left_s <= 0.0

    def spend(self, seconds_s: float) -> None:
        """Takes seconds off what is left."""
        self._left_s -= max(0.0, seconds_s)

    async def on(self, completion: Coroutine[Any, Any, T]) -> T | None:
        """Returns the completion's result, or None if the budget ran out first, and then cancels it. The completion's
        own time is spent."""
        if self.is_spent:
            completion.close()
            return None
        began_s = self._clock()
        before_s = self._waited()
        work = asyncio.ensure_future(completion)
        try:
            if not await ends_within(work, self.left_s, self._waited, self._clock):
                return None
            return work.result()
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
            self.spend(self._clock() - began_s - (self._waited() - before_s))


@dataclass(slots=True)
class Conversation:
    """Holds an attempt's conversation. `tools` are offered with every request. Sampling is the gateway's: the agent
    asks for nothing."""

    client: ChatClient  # Requests go through it.
    work: Assignment  # What the attempt is.
    command_timeout_s: float  # The longest time of one command, in seconds.
    tools: Sequence[Mapping[str, Any]] = ()
    budget: Budget = field(init=False)  # What is left of `work.timeout_s`.
    turns: list[Turn] = field(default_factory=list)  # All turns so far.
    messages: list[dict[str, Any]] = field(default_factory=list)  # The whole conversation so far, in OpenAI's shape.
    format_errors_in_a_row: int = 0  # So many replies before now could not be run.
    compaction: Compaction | None = None  # None: every request has all messages.
    agent: int = 0  # The conversation is that of the sub-agent with this number; 0: of the agent itself.
    _context: Context = field(init=False)

    def __post_init__(self) -> None:
        self.budget = Budget(self.work.timeout_s, self.work.waited)
        self._context = Context(self.compaction, self.agent)

    @property
    def acting_turns(self) -> int:
        """Returns the number of turns of this conversation so far, without those that wrote a summary."""
        return sum(not turn.summary and turn.sub_agent == self.agent for turn in self.turns)

    def begin_sub_agent(self, number: int) -> "Conversation":
        """Returns the conversation of a sub-agent, which is empty. It spends the budget of this one, and its turns are
        among the turns of this one."""
        sub_agent = Conversation(
            self.client,
            self.work,
            self.command_timeout_s,
            self.tools,
            turns=self.turns,
            compaction=self.compaction,
            agent=number,
        )
        sub_agent.budget = self.budget
        return sub_agent

    def say(self, role: str, content: str, **fields: str) -> None:
        """Adds a message to the conversation; `fields` are further fields of it."""
        self.messages.append({"role": role, "content": content, **fields})

    async def go_on(self, max_turns: int, act: Callable[[ChatReply, Turn], Awaitable[Exit | None]]) -> AgentResult:
        """Takes turn after turn until an exit. `act` does what a reply asks for, and returns None to go on."""
        end: Exit | None = None
        limit = self.work.turns_of(max_turns)
        while end is None and self.acting_turns < limit:
            try:
                asked = await self.ask()
            except ContextOverflow:
                end = Exit.CONTEXT_OVERFLOW
                break
            end = await act(*asked) if asked else Exit.AGENT_TIMEOUT
        return AgentResult(end or Exit.STEP_LIMIT, self.turns, self.messages, tuple(self.tools))

    async def ask(self) -> tuple[ChatReply, Turn] | None:
        """Returns the reply, now the last message, and its turn. Returns None if the budget ran out first, and cancels
        the request.

        With `compaction`, a conversation that nearly fills the context is compacted first. Raises ContextOverflow,
        EngineError.
        """
        if self._context.is_due(self.messages):
            await self._compact()
        try:
            asked = await self._complete(self._context.sent(self.messages), self._context.segment)
        except ContextOverflow:
            if not await self._compact(overflowed=True):
                raise
            asked = await self._complete(self._context.sent(self.messages), self._context.segment)
        if asked is None:
            return None
        reply, _ = asked
        self._context.note_reply(reply, self.messages)
        self.messages.append(reply.message)
        return asked

    async def _compact(self, *, overflowed: bool = False) -> bool:
        """Makes the context shorter, and returns whether it did. With `overflowed` as little as possible stays."""
        context = self._context
        plan = context.plan(self.messages, overflowed=overflowed)
        if plan is None:
            return False
        request = context.summary_request(self.messages)
        summary = ""
        if request is not None:
            summary = await self._summarize(request, plan)
        context.compact(plan, self.messages, summary)
        return True

    async def _summarize(self, request: Sequence[Mapping[str, Any]], plan: CompactionPlan) -> str:
        """Asks the model for a summary of its work. Returns an empty text if it gives none that can be used."""
        try:
            asked = await self._complete(request, SUMMARY_CALL)
        except ContextOverflow:
            return ""
        if asked is None:
            return ""
        reply, turn = asked
        turn.summary = plan.judge_summary(reply)
        if turn.summary == Summary.accepted:
            return reply.content.strip()
        return ""

    async def _complete(
        self, messages: Sequence[Mapping[str, Any]], segment: Mapping[str, Any] | None
    ) -> tuple[ChatReply, Turn] | None:
        """Sends messages, and returns the reply and its turn, or None if the budget ran out first."""
        started_s = time.monotonic()
        work = self.work
        said = self._context.describe_call(segment)
        reply = await self.budget.on(
            self.client.complete(messages, base_url=work.base_url, model=work.model, tools=self.tools, segment=said)
        )
        if reply is None:
            return None
        turn = Turn(
            len(self.turns),
            reply.content,
            None,
            None,
            completion_s=time.monotonic() - started_s,
            cut_tokens=reply.cut_tokens,
            sub_agent=self.agent,
        )
        self.turns.append(turn)
        return reply, turn

    async def execute(
        self, command: str, turn: Turn, timeout_s: float | None = None, **options: Any
    ) -> ExecResult | None:
        """Runs a command in the sandbox, within what is left of the budget. Returns None when nothing is left.
        `options` are `exec`'s."""
        if self.budget.is_spent:
            return None
        limit_s = min(timeout_s or self.command_timeout_s, self.budget.left_s)
        result = await self.work.sandbox.exec(command, timeout_s=limit_s, **options)
        self.budget.spend(result.duration_s)
        turn.exit_code = result.exit_code
        turn.command_s += result.duration_s
        return result

    def answer_format_error(self, turn: Turn, reminder: str, max_in_a_row: int) -> Exit | None:
        """Answers a turn that asked for nothing with `reminder`, and with what cut its reply if a limit did. Returns
        the exit if such turns are too many in a row, else None."""
        turn.format_error = True
        self.format_errors_in_a_row += 1
        if self.format_errors_in_a_row > max_in_a_row:
            return Exit.FORMAT_ERRORS
        turn.observation = reminder_after(reminder, turn.cut_tokens)
        self.say("user", turn.observation)
        return None


class ConversingAgent(ABC):
    """An agent that asks the gateway itself, in this process.

    It keeps no state between runs: one object serves any number of trajectories at a time. Raises UserError for a
    prompt or tools that the agent does not have.
    """

    needs_door = False

    def __init__(
        self,
        config: AgentConfig,
        *,
        max_turns: int,
        command_timeout_s: float,
        client: ChatClient,
        compaction: Compaction | None = None,
    ) -> None:
        self._config = config
        self._max_turns = max_turns
        self._command_timeout_s = command_timeout_s
        self._client = client
        self._compaction = compaction
        self._prepare()

    @abstractmethod
    def _prepare(self) -> None:
        """Makes what all attempts share of `self._config`: the prompt and the tools. Raises UserError."""

    def _begin(self, work: Assignment, tools: Sequence[Mapping[str, Any]]) -> Conversation:
        return Conversation(self._client, work, self._command_timeout_s, tools, compaction=self._compaction)


class TalkingAgent(ConversingAgent):
    """Begins with a system message and the task, and acts turn by turn."""

    _prompt: str  # This is the system message.
    _tools: Sequence[Mapping[str, Any]] = ()

    async def run(self, work: Assignment) -> AgentResult:
        talk = self._begin(work, self._tools)
        talk.say("system", self._prompt)
        talk.say("user", work.task.prompt)
        return await talk.go_on(self._max_turns, self._acting(talk))

    @abstractmethod
    def _acting(self, talk: Conversation) -> Callable[[ChatReply, Turn], Awaitable[Exit | None]]:
        """Returns the function that does, in one conversation, what a reply asks for."""
