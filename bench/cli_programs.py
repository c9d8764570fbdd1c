"""How each program of bench/cli_agents is started in each dialect that it speaks, and how the model calls its tools."""

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_Reply = dict[str, Any]


@dataclass(frozen=True)
class Program:
    name: str  # of the option of agent=
    program: str
    dialects: Mapping[str, tuple[str, ...]]  # overrides of each
    shell: Callable[[str], _Reply]  # a call of its tool that runs a command
    end: Callable[[], _Reply]
    child: Callable[[str], _Reply] | None = None  # a call of its tool that starts a sub-agent
    for_child: tuple[str, ...] = ()
    for_compact: tuple[str, ...] = ()
    version: tuple[str, ...] = ("--version",)

    def cases(self, dialect: str) -> tuple[str, ...]:
        """Sub-agents and compaction in the first dialect alone: they are no matter of the dialect."""
        more = (("child",) if self.for_child else ()) + (("compact",) if self.for_compact else ())
        return ("solve", "limit", *more) if dialect == next(iter(self.dialects)) else ("solve", "limit")

    def overrides(self, dialect: str, case: str) -> tuple[str, ...]:
        """The last of a key counts."""
        given = {"child": self.for_child, "compact": self.for_compact}.get(case, ())
        keys = {over.split("=", 1)[0]: over for over in (*self.dialects[dialect], *given)}
        return tuple(keys.values())

    def found(self) -> Path | None:
        beside = Path(sys.executable).parent
        near = beside if (beside / self.program).exists() and self.name != "openhands" else None
        if self.name == "openhands":
            near = Path(__file__).parents[1] / ".venv-openhands" / "bin"
        there = shutil.which(self.program)
        return near or (Path(there).parent if there else None)


def folders(program: Path) -> list[str]:
    """Of a program and what it needs, as mounts; what a sandbox sees anyhow is left out."""
    real = program.resolve()
    packages = {folder for folder in real.parents if folder.name == "node_modules"}
    wanted = {min(packages)} if packages else {program.parents[1], real.parents[1]}
    hidden = [folder for folder in wanted if folder.parts[:2] != ("/", "usr") and not folder.is_relative_to(sys.prefix)]
    return [f"{folder}:{folder}" for folder in sorted(hidden)]


def _call(name: str, **arguments: Any) -> _Reply:
    return {"tool_calls": [{"function": {"name": name, "arguments": arguments}}]}


def _said() -> _Reply:
    return {"content": "It is fixed."}


def _qwen(dialect: str, before: str = "") -> str:
    options = f"--yolo --auth-type {dialect} --max-session-turns 100 --output-format stream-json"
    return f"agent.command='{before}qwen {options}'"


def _opencode(package: str, **more: Any) -> str:
    limit = more.pop("limit", None)
    provider: dict[str, Any] = {"npm": package}
    if limit:
        provider["models"] = {"policy": {"limit": limit}}
    return "+agent.env_vars.OPENCODE_CONFIG_CONTENT=" + _quoted(json.dumps({"provider": {"gateway": provider}, **more}))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "\\'") + "'"


_CODEX = "codex exec --json --skip-git-repo-check"
PROGRAMS = (
    Program(
        "qwen_code",
        "qwen",
        {"chat": (_qwen("openai"),), "messages": (_qwen("anthropic"),)},
        lambda command: _call("run_shell_command", command=command, is_background=False),
        _said,
        lambda task: _call("agent", description="a child", prompt=task, subagent_type="general-purpose"),
        for_child=(_qwen("openai"),),
        for_compact=(_qwen("openai", 'sed -Ei "s/(Threshold...)0}/\\10.51}/" $QWEN_HOME/settings.json; '),),
    ),
    Program(
        "codex",
        "codex",
        {"responses": (f"agent.command='{_CODEX}'",)},
        lambda command: _call("exec_command", cmd=command),
        _said,
        lambda task: _call("multi_agent_v1.spawn_agent", message=task),
        for_child=(f"agent.command='{_CODEX} -c agents.enabled=true -c features.multi_agent=true'",),
        for_compact=(f"agent.command='{_CODEX} -c model_auto_compact_token_limit=26000'",),
    ),
    Program(
        "opencode",
        "opencode",
        {
            "chat": (_opencode("@ai-sdk/openai-compatible"),),
            "responses": (_opencode("@ai-sdk/openai"),),
            "messages": (_opencode("@ai-sdk/anthropic"),),
        },
        lambda command: _call("bash", command=command, description="a command"),
        _said,
        lambda task: _call("task", description="a child", prompt=task, subagent_type="general"),
        for_child=(_opencode("@ai-sdk/openai-compatible", permission={"task": "allow"}),),
        for_compact=(
            _opencode(
                "@ai-sdk/openai-compatible", limit={"context": 36_000, "output": 4000}, compaction={"auto": True}
            ),
            "+agent.env_vars.OPENCODE_DISABLE_AUTOCOMPACT=''",
        ),
    ),
    Program(
        "openhands",
        "python3",
        {
            dialect: (f"agent.command='openhands --dialect {dialect} --max-iterations 100'",)
            for dialect in ("chat", "responses", "messages")
        },
        lambda command: _call("terminal", command=command, security_risk="LOW", summary="a command"),
        lambda: _call("finish", message="It is fixed."),
        lambda task: _call("task", description="a child", prompt=task, subagent_type="general-purpose"),
        for_child=("agent.command='openhands --tools terminal,task'",),
        for_compact=("agent.command='openhands --condense-after 8'",),
        version=("-c", "import importlib.metadata as m; print(m.version('openhands-sdk'))"),
    ),
)
