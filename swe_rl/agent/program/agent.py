"""This agent is a program: started in the sandbox, it speaks to the gateway by itself, in one of its dialects.

Invariants:
- The program finds its task on stdin, in the file $SWE_RL_TASK_FILE and (unless it is very long) in $SWE_RL_TASK, and
  the model in OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL, and in ANTHROPIC_ variables of these names.
- What we bring for it lies outside of the repository and never gets into the patch; neither do its own state folders.
- Its exit status and its time decide how the attempt ended, never what it prints: that is the policy's to choose. A
  signal that ended it alone is an end of its own; any other status that means nothing is a fault of the program, unless
  the gateway refused its last request for its length.
"""

import shlex
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from swe_rl.agent.agent import AgentResult, Assignment, Exit, Task, Turn, UnknownEndError
from swe_rl.agent.observation import shorten_text
from swe_rl.config.schema import AgentConfig
from swe_rl.errors import UserError
from swe_rl.sandbox.sandbox import ExecResult

NONE: Mapping[str, Any] = MappingProxyType({})
# Clients want a key even if the gateway wants none.
NO_KEY = "none"
# The files lie in the repository for as long as it takes to move them out.
_CARRIED = ".swe_rl_program"
_STATE_FOLDERS = (".qwen/", ".claude/", ".codex/", ".gemini/", ".opencode/", ".pi/", ".aider*", "node_modules/")
# Linux takes 128 KiB for one variable, and a character has at most four bytes.
_LONGEST_VARIABLE_CHARS = 30_000
# Shells report a signal as a status above this.
_BY_SIGNAL = 128
# A message shows so much of what the program printed.
_SHOWN_CHARS = 1500
_MAX_OUTPUT_BYTES = 4_000_000

# Some programs run commands by `bash -c` with their own environment. bash reads this file before each of them.
HIDDEN = b"unset BASH_ENV ${!OPENAI_*} ${!ANTHROPIC_*} ${!SWE_RL_*}\n"
HIDE = 'export BASH_ENV="$SWE_RL_FOLDER/hidden.sh"\n'
_START = """\
SWE_RL_FOLDER=$(mktemp -d "${{TMPDIR:-/tmp}}/program.XXXXXX") && mv {carried}/* "$SWE_RL_FOLDER" && rmdir {carried} \
|| exit 125
mkdir -p .git/info 2>/dev/null && printf '%s\\n' {folders} >> .git/info/exclude
export SWE_RL_FOLDER SWE_RL_TASK_FILE="$SWE_RL_FOLDER/task.md"
{path}exec bash "$SWE_RL_FOLDER/run.sh" < "$SWE_RL_TASK_FILE"
"""


class ProgramAgent:
    """Starts a program as the agent. It keeps no state between runs. `api_key` is the gateway's token, if it has one.

    A program of a known kind is a class below this one: `files` are put beside the task in $SWE_RL_FOLDER, `env` gives
    way to agent.env_vars, `setup` is bash that runs before the command, and `read_turns` reads what it prints.

    Raises UserError for an agent without a command, or for an unknown exit.
    """

    needs_door = True
    files: ClassVar[Mapping[str, bytes]] = NONE
    env: ClassVar[Mapping[str, str]] = NONE
    setup: str = ""

    def __init__(self, config: AgentConfig, *, max_turns: int, api_key: str | None = None) -> None:
        if not config.command:
            raise UserError(f"agent={config.name} needs agent.command: the program to start in the sandbox")
        self.name = config.name
        self._config = config
        self._exits = _exit_codes(config)
        self._max_turns = max_turns
        self._api_key = api_key or NO_KEY

    async def run(self, work: Assignment) -> AgentResult:
        task = work.task
        sandbox = work.sandbox
        for path, content in self._files(task).items():
            await sandbox.write_file(f"{_CARRIED}/{path}", content)
        path = f"export PATH={shlex.quote(self._config.program_path)}:$PATH\n" if self._config.program_path else ""
        start = _START.format(carried=_CARRIED, folders=" ".join(map(shlex.quote, _STATE_FOLDERS)), path=path)
        env = self._env(work, sandbox.door_url or work.base_url)
        done = await sandbox.exec(
            start, timeout_s=work.timeout_s, env=env, max_output_bytes=_MAX_OUTPUT_BYTES, waited=work.waited
        )
        end = self._exit(done)
        messages: list[dict[str, Any]] = [{"role": "user", "content": task.prompt}]
        result = AgentResult(end or Exit.CONTEXT_OVERFLOW, self._turns(done), messages)
        if end is None:
            raise UnknownEndError(self._unknown_end(task, done), result)
        return result

    @staticmethod
    def read_turns(output: str, max_observation_chars: int) -> list[Turn]:
        """Reads turns from what the program printed. An empty list means that nobody knows its form. It never raises,
        as the model has a hand in the text."""
        return []

    def _turns(self, done: ExecResult) -> list[Turn]:
        """Returns what is known of the program's completions and commands from outside: at least that it ran."""
        turns = self.read_turns(done.output, self._config.max_observation_chars)
        said = shorten_text(done.output, self._config.max_observation_chars)
        return turns or [Turn(0, "", self._config.command, said, exit_code=done.exit_code)]

    def _files(self, task: Task) -> dict[str, bytes]:
        return {
            **self.files,
            "task.md": task.prompt.encode("utf-8", "replace"),
            "run.sh": f"{self.setup}{self._config.command}\n".encode(),
        }

    def _env(self, work: Assignment, base_url: str) -> dict[str, str]:
        task = work.task
        env = {
            "OPENAI_BASE_URL": base_url,
            "OPENAI_API_BASE": base_url,
            "OPENAI_API_KEY": self._api_key,
            "OPENAI_MODEL": work.model,
            "ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": self._api_key,
            "ANTHROPIC_MODEL": work.model,
            "SWE_RL_MAX_TURNS": str(work.turns_of(self._max_turns)),
            "SWE_RL_INSTANCE_ID": task.instance_id,
        }
        if len(task.prompt) <= _LONGEST_VARIABLE_CHARS and "\0" not in task.prompt:
            env["SWE_RL_TASK"] = task.prompt.encode("utf-8", "replace").decode()
        return {**env, **self.env, **self._config.env_vars}

    def _exit(self, done: ExecResult) -> Exit | None:
        """Returns how the attempt ended, or None for a status that agent.exit_codes does not know."""
        if done.timed_out:
            return Exit.AGENT_TIMEOUT
        if done.exit_code in self._exits:
            return self._exits[done.exit_code]
        if done.exit_code > _BY_SIGNAL:
            return Exit.AGENT_CRASHED
        return None

    def _unknown_end(self, task: Task, done: ExecResult) -> str:
        missing = "; is it in the sandbox, and agent.program_path right?" if done.exit_code == 127 else ""
        return (
            f"{task.instance_id}: agent={self.name} ended with status {done.exit_code}{missing} It said at the end: "
            f"{done.output[-_SHOWN_CHARS:].strip() or 'nothing'}"
        )


def _exit_codes(config: AgentConfig) -> dict[int, Exit]:
    exits = {}
    for status, name in config.exit_codes.items():
        if name not in set(Exit) or not status.isdigit():
            raise UserError(
                f"agent.exit_codes: {status}: {name} is not an exit status and one of {', '.join(Exit)}; for example "
                "++agent.exit_codes.53=step_limit"
            )
        exits[int(status)] = Exit(name)
    return exits
