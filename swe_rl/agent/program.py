"""An agent that is a program: started in the sandbox, it speaks to the gateway by itself, in one of its dialects.

Invariants:
- The program finds its task on stdin, in the file $SWE_RL_TASK_FILE and (unless it is very long) in $SWE_RL_TASK, and
  the model in OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL, and in ANTHROPIC_ variables of these names.
- What we bring for it lies outside of the repository and never gets into the patch; neither do its own state folders.
- Its exit status and its time decide how the attempt ended, never what it prints: that is the policy's to choose. A
  signal that ended it alone is an end of its own; any other status that means nothing is a fault of the program,
  unless the gateway refused its last request for its length.
- What runs is inside/openhands_run.py, in the sandbox's Python that has the SDK; nothing of the SDK is imported here.
- `agent.program_path` is where this Python is looked for. It is not in the PATH of the model's commands, which find the
  repository's own Python.
- How it ended is the runner's exit status alone: what it prints holds what the model has read.
"""

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from swe_rl.agent.observation import shorten
from swe_rl.agent.protocol import AgentResult, Assignment, Exit, Task, Turn, UnknownEndError
from swe_rl.config.schema import AgentConfig
from swe_rl.errors import UserError
from swe_rl.sandbox.protocol import ExecResult

NONE: Mapping[str, Any] = MappingProxyType({})
NO_KEY = "none"  # clients want a key where the gateway wants none
_CARRIED = ".swe_rl_program"  # in the repository for as long as it takes to move it out
_STATE_FOLDERS = (".qwen/", ".claude/", ".codex/", ".gemini/", ".opencode/", ".pi/", ".aider*", "node_modules/")
_LONGEST_VARIABLE_CHARS = 30_000  # at most four bytes each: Linux takes 128 KiB for one variable
_BY_SIGNAL = 128  # above it, as shells say it
_SHOWN_CHARS = 1500
_MAX_OUTPUT_BYTES = 4_000_000

_START = """\
SWE_RL_FOLDER=$(mktemp -d "${{TMPDIR:-/tmp}}/program.XXXXXX") && mv {carried}/* "$SWE_RL_FOLDER" && rmdir {carried} \
|| exit 125
mkdir -p .git/info 2>/dev/null && printf '%s\\n' {folders} >> .git/info/exclude
export SWE_RL_FOLDER SWE_RL_TASK_FILE="$SWE_RL_FOLDER/task.md"
{path}exec bash "$SWE_RL_FOLDER/run.sh" < "$SWE_RL_TASK_FILE"
"""


class ProgramAgent:
    """Stateless between runs. `api_key` is the gateway's token, where it has one; `env` gives way to agent.env_vars,
    `files` are put beside the task in $SWE_RL_FOLDER, and `setup` is bash that runs before the command.

    Raises UserError for an agent without a command, or an exit there is not.
    """

    needs_door = True
    prints_session = False  # in lines of JSON, which become turns

    def __init__(
        self,
        config: AgentConfig,
        *,
        max_turns: int,
        api_key: str | None = None,
        files: Mapping[str, bytes] = NONE,
        env: Mapping[str, str] = NONE,
        setup: str = "",
    ) -> None:
        if not config.command:
            raise UserError(f"agent={config.name} needs agent.command: the program to start in the sandbox")
        self.name = config.name
        self._config = config
        self._exits = _exits(config)
        self._max_turns = max_turns
        self._api_key = api_key or NO_KEY
        self._program_files = files
        self._program_env = {**env, **config.env_vars}
        self._setup = setup

    async def run(self, work: Assignment) -> AgentResult:
        task, sandbox = work.task, work.sandbox
        for path, content in self._files(task).items():
            await sandbox.write_file(f"{_CARRIED}/{path}", content)
        path = f"export PATH={shlex.quote(self._config.program_path)}:$PATH\n" if self._config.program_path else ""
        start = _START.format(carried=_CARRIED, folders=" ".join(map(shlex.quote, _STATE_FOLDERS)), path=path)
        env = self._env(task, sandbox.door_url or work.base_url, work.model)
        done = await sandbox.exec(
            start, timeout_s=work.timeout_s, env=env, max_output_bytes=_MAX_OUTPUT_BYTES, waited=work.waited
        )
        end = self._exit(done)
        messages: list[dict[str, Any]] = [{"role": "user", "content": task.prompt}]
        result = AgentResult(end or Exit.CONTEXT_OVERFLOW, self._turns(done), messages)
        if end is None:
            raise UnknownEndError(self._unknown_end(task, done), result)
        return result

    def _turns(self, done: ExecResult) -> list[Turn]:
        """What of its completions and commands is known from outside: at least that it ran."""
        turns = read_session(done.output, self._config.max_observation_chars) if self.prints_session else []
        said = shorten(done.output, self._config.max_observation_chars)
        return turns or [Turn(0, "", self._config.command, said, exit_code=done.exit_code)]

    def _files(self, task: Task) -> dict[str, bytes]:
        return {
            **self._program_files,
            "task.md": task.prompt.encode("utf-8", "replace"),
            "run.sh": f"{self._setup}{self._config.command}\n".encode(),
        }

    def _env(self, task: Task, base_url: str, model: str) -> dict[str, str]:
        env = {
            "OPENAI_BASE_URL": base_url,
            "OPENAI_API_BASE": base_url,
            "OPENAI_API_KEY": self._api_key,
            "OPENAI_MODEL": model,
            "ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": self._api_key,
            "ANTHROPIC_MODEL": model,
            "SWE_RL_MAX_TURNS": str(self._max_turns),
            "SWE_RL_INSTANCE_ID": task.instance_id,
        }
        if len(task.prompt) <= _LONGEST_VARIABLE_CHARS and "\0" not in task.prompt:
            env["SWE_RL_TASK"] = task.prompt.encode("utf-8", "replace").decode()
        return {**env, **self._program_env}

    def _exit(self, done: ExecResult) -> Exit | None:
        """None for a status that agent.exit_codes does not know."""
        if done.timed_out:
            return Exit.AGENT_TIMEOUT
        if done.exit_code in self._exits:
            return self._exits[done.exit_code]
        return Exit.AGENT_CRASHED if done.exit_code > _BY_SIGNAL else None

    def _unknown_end(self, task: Task, done: ExecResult) -> str:
        missing = "; is it in the sandbox, and agent.program_path right?" if done.exit_code == 127 else ""
        return (
            f"{task.instance_id}: agent={self.name} ended with status {done.exit_code}{missing} It said at the end: "
            f"{done.output[-_SHOWN_CHARS:].strip() or 'nothing'}"
        )


def _exits(config: AgentConfig) -> dict[int, Exit]:
    exits = {}
    for status, name in config.exit_codes.items():
        if name not in set(Exit) or not status.isdigit():
            raise UserError(
                f"agent.exit_codes: {status}: {name} is not an exit status and one of {', '.join(Exit)}; for example "
                "agent.exit_codes.53=step_limit"
            )
        exits[int(status)] = Exit(name)
    return exits


def read_session(output: str, max_observation_chars: int) -> list[Turn]:
    """One turn for each message of the assistant, with the results of its tools as observation; messages are as
    Anthropic's API has them. Never raises: whatever else is printed between the lines is passed over."""
    turns: list[Turn] = []
    for message in _messages(output):
        content = message.get("content")
        parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
        if message.get("role") == "assistant":
            said = "".join(str(part.get("text", "")) for part in parts if part.get("type") == "text")
            calls = [_call(part) for part in parts if part.get("type") == "tool_use"]
            turns.append(Turn(len(turns), said, "\n".join(calls) or None, None))
        elif turns:
            results = [_text(part.get("content")) for part in parts if part.get("type") == "tool_result"]
            joined = "\n".join([*filter(None, [turns[-1].observation]), *results])
            turns[-1].observation = shorten(joined, max_observation_chars) if results else turns[-1].observation
    return turns


def _messages(output: str) -> Iterator[dict[str, Any]]:
    for line in output.splitlines():
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and event.get("type") in ("assistant", "user"):
            message = event.get("message")
            if isinstance(message, dict):
                yield message


def _call(part: dict[str, Any]) -> str:
    return f"{part.get('name')} {json.dumps(part.get('input'), ensure_ascii=False)}"


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


RUNNER = Path(__file__).parent / "inside" / "openhands_run.py"
# -I: neither the repository nor the user's folder is where modules come from.
_SETUP = """\
openhands() {{
  local python
  python=$(PATH={path}"$PATH"; command -v python3) || {{ printf 'openhands: no python3 in %s\\n' {shown}; return 127; }}
  "$python" -I "$SWE_RL_FOLDER/openhands_run.py" "$@"
}}
"""


class OpenHandsAgent(ProgramAgent):
    prints_session = True

    def __init__(self, config: AgentConfig, *, max_turns: int, api_key: str | None = None) -> None:
        path = config.program_path
        setup = _SETUP.format(path=f"{shlex.quote(path)}:" if path else "", shown=shlex.quote(path or "PATH"))
        config = replace(config, program_path=None)
        files = {RUNNER.name: RUNNER.read_bytes()}
        super().__init__(config, max_turns=max_turns, api_key=api_key, files=files, setup=setup)
