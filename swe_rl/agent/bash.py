"""This agent has one tool: the model writes one bash block a turn and reads what the command said.

Invariants:
- The conversation is [system, user(task), assistant, user(observation), ...]; a message, once in it, never changes.
- Everything that the model said is in the history, format errors too.
- The agent's budget holds its completions and its commands; waiting for a place to run a command is not in it.
- With `agent.delegate.depth` it has a second tool: a block that hands a part of its task to a sub-agent
  (`agent/delegation.py`). Sub-agents act by the same rules, and end with a report.
"""

from collections.abc import Awaitable, Callable
from functools import partial

from swe_rl.agent.agent import Exit, Turn
from swe_rl.agent.client import ChatReply
from swe_rl.agent.command import parse_command
from swe_rl.agent.conversation import Conversation, TalkingAgent
from swe_rl.agent.delegation import DELEGATE, NO_SUBMIT, REPORT, Delegation, Member
from swe_rl.agent.observation import format_observation
from swe_rl.agent.prompts import format_reminder, system_prompt


class BashAgent(TalkingAgent):
    name = "bash"

    def _prepare(self) -> None:
        may_delegate = self._config.delegate.depth > 0
        self._prompt = system_prompt(self._config.system_prompt, may_delegate=may_delegate)

    def _acting(self, talk: Conversation) -> Callable[[ChatReply, Turn], Awaitable[Exit | None]]:
        max_turns = self._config.delegate.max_turns or self._max_turns
        return partial(self._turn, Member(talk, Delegation(self._config, max_turns, self._turn)))

    async def _turn(self, member: Member, reply: ChatReply, turn: Turn) -> Exit | None:
        talk = member.talk
        parsed = parse_command(reply.content, member.languages)
        if parsed.command is None:
            reminder = format_reminder(member.languages)
            return talk.answer_format_error(turn, reminder, self._config.max_format_errors)
        if parsed.language == REPORT:
            member.report = parsed.command
            return Exit.SUBMITTED
        if parsed.language == DELEGATE:
            talk.format_errors_in_a_row = 0
            return self._answer(talk, turn, await member.delegate(parsed.command))
        turn.command = parsed.command
        if parsed.submit and member.depth:
            return talk.answer_format_error(turn, NO_SUBMIT, self._config.max_format_errors)
        talk.format_errors_in_a_row = 0
        if parsed.submit:
            return Exit.SUBMITTED
        return self._answer(talk, turn, await self._execute(talk, turn, parsed.command))

    async def _execute(self, talk: Conversation, turn: Turn, command: str) -> str | None:
        """Runs a command, and returns what the model reads of it, or None if the time was over before."""
        result = await talk.execute(command, turn)
        if result is None:
            return None
        return format_observation(result, self._config.max_observation_chars)

    def _answer(self, talk: Conversation, turn: Turn, observation: str | None) -> Exit | None:
        """Answers a turn. Returns the exit if the time is over."""
        if observation is None:
            return Exit.AGENT_TIMEOUT
        turn.observation = observation
        talk.say("user", observation)
        if talk.budget.is_spent:
            return Exit.AGENT_TIMEOUT
        return None
