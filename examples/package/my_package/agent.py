"""The agent: how the model works on a task."""

from swe_rl.api import AgentResult, Assignment, ChatClient, Conversation, Exit, format_observation, parse_command

# The tiny model was trained with these words.
WORDS = "Fix the bug. Answer with one ```bash block per turn. Use `submit` as the command when done."


class MyPackageAgent:
    """Runs the model's commands until it submits. `max_chars` bounds what the model sees of a command's output."""

    name = "my_package"
    needs_door = False

    def __init__(self, client: ChatClient, max_turns: int, command_timeout_s: float, max_chars: int = 1000) -> None:
        self._client = client
        self._max_turns = max_turns
        self._command_timeout_s = command_timeout_s
        self._max_chars = max_chars

    async def run(self, work: Assignment) -> AgentResult:
        talk = Conversation(self._client, work, self._command_timeout_s)
        talk.say("system", WORDS)
        talk.say("user", work.task.prompt)

        async def act(reply, turn):
            """Does what a reply asks for. None goes on; an Exit ends the attempt."""
            parsed = parse_command(reply.content)
            turn.command = parsed.command
            if parsed.command is None:
                return talk.answer_format_error(turn, WORDS, max_in_a_row=3)
            if parsed.submit:
                return Exit.SUBMITTED
            done = await talk.execute(parsed.command, turn)
            if done is None:
                return Exit.AGENT_TIMEOUT
            turn.observation = format_observation(done, max_chars=self._max_chars)
            talk.say("user", turn.observation)
            return None

        return await talk.go_on(self._max_turns, act)
