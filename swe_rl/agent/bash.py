"""This agent has one tool: the model writes one bash block a turn and reads what the command said.

Invariants:
- The conversation is [system, user(task), assistant, user(observation), ...]; a message, once in it, never changes.
- Everything that the model said is in the history, format errors too.
- The agent's budget holds its completions and its commands; waiting for a place to run a command is not in it.
"""

from collections.abc import Awaitable, Callable
from functools import partial

from swe_rl.agent.agent import Exit, Turn
from swe_rl.agent.client import ChatReply
from swe_rl.agent.command import parse_command
from swe_rl.agent.conversation import Conversation, TalkingAgent
from swe_rl.agent.observation import format_observation
from swe_rl.agent.prompts import FORMAT_REMINDER, system_prompt


class BashAgent(TalkingAgent):
    name = "bash"

    def _prepare(self) -> None:
        self._prompt = system_prompt(self._config.system_prompt)

    def _acting(self, talk: Conversation) -> Callable[[ChatReply, Turn], Awaitable[Exit | None]]:
        return partial(self._turn, talk)

    async def _turn(self, talk: Conversation, reply: ChatReply, turn: Turn) -> Exit | None:
        parsed = parse_command(reply.content)
        turn.command = parsed.command
        if parsed.command is None:
            return talk.answer_format_error(turn, FORMAT_REMINDER, self._config.max_format_errors)
        talk.format_errors_in_a_row = 0
        if parsed.submit:
            return Exit.SUBMITTED
        return await self._execute(talk, turn, parsed.command)

    async def _execute(self, talk: Conversation, turn: Turn, command: str) -> Exit | None:
        result = await talk.execute(command, turn)
        if result is None:
            return Exit.AGENT_TIMEOUT
        turn.observation = format_observation(result, self._config.max_observation_chars)
        talk.say("user", turn.observation)
        if talk.budget.is_spent:
            return Exit.AGENT_TIMEOUT
        return None
