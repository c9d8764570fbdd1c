"""The agent of one tool: the model writes one bash block a turn and reads what the command said.

Invariants:
- The conversation is [system, user(task), assistant, user(observation), ...]; a message, once in it, never changes.
- Everything that the model said is in the history, format errors too.
- The agent's budget holds its completions and its commands; waiting for a place to run a command is not in it.
"""

import time
from collections.abc import Callable

from swe_rl.agent.budget import Budget
from swe_rl.agent.client import ChatClient
from swe_rl.agent.command import parse_command
from swe_rl.agent.conversation import Asking, Conversation
from swe_rl.agent.observation import format_observation
from swe_rl.agent.prompts import FORMAT_REMINDER, system_prompt
from swe_rl.agent.protocol import AgentResult, Exit, Task, Turn
from swe_rl.config.schema import AgentConfig
from swe_rl.sandbox.own_time import Waited, no_wait
from swe_rl.sandbox.protocol import Sandbox


class BashAgent:
    """Stateless between runs: one object serves any number of trajectories at a time.

    `temperature` and `max_tokens` go with every request where given; else the server decides.
    """

    name = "bash"
    needs_door = False

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
        self._asking = Asking(client, temperature=temperature, max_tokens=max_tokens, clock=clock)

    async def run(
        self,
        task: Task,
        *,
        base_url: str,
        model: str,
        sandbox: Sandbox,
        timeout_s: float,
        waited: Waited = no_wait,
    ) -> AgentResult:
        talk = Conversation(self._asking, base_url, model, sandbox, Budget(timeout_s, waited), self._command_timeout_s)
        talk.say("system", self._system_prompt)
        talk.say("user", task.prompt)
        for _ in range(self._max_turns):
            reached = await self._turn(talk)
            if reached is not None:
                return talk.result(reached)
        return talk.result(Exit.STEP_LIMIT)

    async def _turn(self, talk: Conversation) -> Exit | None:
        """One completion and what follows from it; the exit that it leads to, or None to go on."""
        asked = await talk.ask()
        if isinstance(asked, Exit):
            return asked
        reply, turn = asked
        parsed = parse_command(reply.content)
        turn.command = parsed.command
        if parsed.command is None:
            return self._answer_format_error(talk, turn)
        talk.format_errors_in_a_row = 0
        return Exit.SUBMITTED if parsed.submit else await self._execute(talk, turn, parsed.command)

    def _answer_format_error(self, talk: Conversation, turn: Turn) -> Exit | None:
        if talk.is_beyond_format_errors(turn, self._config.max_format_errors):
            return Exit.FORMAT_ERRORS
        turn.observation = FORMAT_REMINDER
        talk.say("user", FORMAT_REMINDER)
        return None

    async def _execute(self, talk: Conversation, turn: Turn, command: str) -> Exit | None:
        result = await talk.execute(command, turn)
        if result is None:
            return Exit.AGENT_TIMEOUT
        turn.observation = format_observation(result, self._config.max_observation_chars)
        talk.say("user", turn.observation)
        return Exit.AGENT_TIMEOUT if talk.budget.is_spent else None
