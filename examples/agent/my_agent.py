"""An agent of your own: one bash block a turn, and an end where the model only repeats itself."""

from swe_rl.api import AgentResult, Assignment, ChatClient, Conversation, Exit, format_observation, parse_command

WORDS = "Fix the bug. Answer with one ```bash block per turn. Use `submit` as the command when done."


class MyAgent:
    """Runs the model's commands until it submits, or has said the same thing too often."""

    name = "my_agent"
    needs_door = False  # it runs outside of the sandbox and asks the gateway from there

    def __init__(self, client: ChatClient, max_turns: int, command_timeout_s: float, max_repeats: int = 3) -> None:
        self._client = client  # swe_rl gives what the signature names of the things at hand; the rest is `params`
        self._max_turns = max_turns
        self._command_timeout_s = command_timeout_s
        self._max_repeats = max_repeats

    async def run(self, work: Assignment) -> AgentResult:
        talk = Conversation(self._client, work, self._command_timeout_s)
        talk.say("system", WORDS)
        talk.say("user", work.task.prompt)
        commands: list[str] = []

        async def act(reply, turn):
            """Does what a reply asks for. None goes on; an Exit ends the attempt."""
            parsed = parse_command(reply.content)
            turn.command = parsed.command
            if parsed.command is None:
                return talk.answer_format_error(turn, WORDS, max_in_a_row=3)
            commands.append(parsed.command)
            if parsed.submit or commands.count(parsed.command) >= self._max_repeats:
                return Exit.SUBMITTED
            done = await talk.execute(parsed.command, turn)
            if done is None:
                return Exit.AGENT_TIMEOUT
            turn.observation = format_observation(done, max_chars=1000)
            talk.say("user", turn.observation)
            return None

        return await talk.go_on(self._max_turns, act)
