"""This module lets an agent hand a part of its task, in words, to a sub-agent, which answers with a report.

Invariants:
- A sub-agent works in the sandbox of its agent and spends the same time, and knows nothing of its agent's conversation.
- An agent waits for its sub-agent: no two of them act at once.
- Whatever becomes of a sub-agent, its agent goes on, unless the time of the attempt is over.
- Sub-agents are numbered from 1 on in the order in which they begin: the same replies give the same numbers.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from swe_rl.agent.agent import Exit, Turn
from swe_rl.agent.client import ChatReply
from swe_rl.agent.conversation import Conversation
from swe_rl.agent.observation import shorten_text
from swe_rl.agent.prompts import sub_agent_prompt
from swe_rl.config.schema import AgentConfig

DELEGATE = "delegate"  # A block in this language hands a part of the task on.
REPORT = "report"  # A block in this language ends a sub-agent.
NO_SUBMIT = (
    "Only the agent that gave you this task can submit. End with one ```report block that says what you found or did."
)
_NONE_LEFT = "You had {calls} sub-agents, and there are no more. Do the rest yourself."
_WITHOUT_REPORT = "The sub-agent ended without a report: {why}. What it changed in the repository stays."
_WHY = {
    Exit.STEP_LIMIT: "it had no turns left",
    Exit.CONTEXT_OVERFLOW: "its conversation grew too long",
    Exit.FORMAT_ERRORS: "too many of its replies could not be run",
}
Act = Callable[["Member", ChatReply, Turn], Awaitable[Exit | None]]


@dataclass(slots=True)
class Delegation:
    """Holds what the sub-agents of one attempt have in common. `act` does what a reply of one of them asks for."""

    config: AgentConfig
    max_turns: int  # Each sub-agent has so many turns.
    act: Act
    begun: int = 0  # So many sub-agents began so far.


@dataclass(slots=True)
class Member:
    """Describes one of those who work on a task: the agent itself, or a sub-agent."""

    talk: Conversation
    delegation: Delegation
    depth: int = 0  # The agent itself has 0, its sub-agents have 1.
    report: str | None = field(default=None)  # A sub-agent said this at its end.

    @property
    def languages(self) -> tuple[str, ...]:
        """Returns the languages of blocks that this one may write."""
        languages = ["bash"]
        if self.depth < self.delegation.config.delegate.depth:
            languages.append(DELEGATE)
        if self.depth:
            languages.append(REPORT)
        return tuple(languages)

    async def delegate(self, task: str) -> str | None:
        """Hands a task to a sub-agent, and returns what is answered. Returns None if the time is over."""
        delegation = self.delegation
        delegate = delegation.config.delegate
        if delegation.begun >= delegate.max_calls:
            return _NONE_LEFT.format(calls=delegate.max_calls)
        delegation.begun += 1
        sub_agent = Member(self.talk.begin_sub_agent(delegation.begun), delegation, self.depth + 1)
        may_delegate = DELEGATE in sub_agent.languages
        sub_agent.talk.say("system", sub_agent_prompt(delegation.config.system_prompt, may_delegate=may_delegate))
        sub_agent.talk.say("user", task)
        end = await sub_agent.run()
        if self.talk.budget.is_spent or end is Exit.AGENT_TIMEOUT:
            return None
        if sub_agent.report is None:
            return _WITHOUT_REPORT.format(why=_WHY[end])
        return shorten_text(sub_agent.report, delegation.config.max_observation_chars)

    async def run(self) -> Exit:
        """Takes turn after turn, and returns how that ended: a report counts as `SUBMITTED`."""

        async def act(reply: ChatReply, turn: Turn) -> Exit | None:
            return await self.delegation.act(self, reply, turn)

        result = await self.talk.go_on(self.delegation.max_turns, act)
        return result.exit
