"""A dialect says how mini-swe-agent's model writes commands and reads what they said.

Invariants:
- The library's dialects use its own parser and templates: prompts and observations are those of its benchmark runs.
- OurDialect says, byte for byte, what agent=bash says.
- Nothing of the library is imported before it is asked for; it never reads or writes the user's own mini-swe-agent
  folder.
- litellm is not imported: our model class is the only one that is used.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from swe_rl.agent.client import ChatReply
from swe_rl.agent.command import parse_command
from swe_rl.agent.observation import format_observation
from swe_rl.agent.prompts import FORMAT_REMINDER, reminder_after
from swe_rl.errors import UserError
from swe_rl.sandbox.sandbox import ExecResult

SUBMIT_MARKER = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
# The library has a file of prompts for each agent.tools.
_PACKAGED = {"bash": "swebench_backticks.yaml", "bash_calls": "swebench.yaml"}
# The packaged prompts teach this fence.
_ACTION = r"```mswea_bash_command\s*\n(.*?)\n```"


class MiniSweMissingError(UserError):
    """mini-swe-agent is not installed, or is another generation of it."""


@dataclass(frozen=True, slots=True)
class Templates:
    """Holds what the library calls a configuration: Jinja texts and the environment of commands."""

    system: str
    instance: str
    observation: str
    format_error: str
    env: dict[str, str]
    action_pattern: str = _ACTION


@lru_cache(maxsize=1)
def load_library() -> Any:
    """Imports the package. Raises MiniSweMissingError."""
    try:
        with _nobodys_settings():
            import minisweagent
            import minisweagent.agents.default
            import minisweagent.config
            import minisweagent.exceptions
            import minisweagent.models.utils.actions_text
            import minisweagent.models.utils.actions_toolcall  # noqa: F401
    except ImportError as error:
        raise MiniSweMissingError(
            f"agent=mini_swe needs mini-swe-agent ({error}); pip install 'swe_rl[mini_swe]', or choose agent=bash, "
            "which holds the same conversation without it"
        ) from error
    return minisweagent


@contextmanager
def _nobodys_settings() -> Iterator[None]:
    """Keeps the library's import away from the user's settings: it prints a banner, makes a folder in the user's
    configuration and loads a .env file from there."""
    before = {name: os.environ.get(name) for name in ("MSWEA_SILENT_STARTUP", "MSWEA_GLOBAL_CONFIG_DIR")}
    with tempfile.TemporaryDirectory(prefix="swe_rl-mini-swe-") as empty:
        os.environ.update(MSWEA_SILENT_STARTUP="1", MSWEA_GLOBAL_CONFIG_DIR=empty)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


@lru_cache(maxsize=len(_PACKAGED))
def packaged_templates(tools: str) -> Templates:
    """Returns the library's own SWE-bench prompts: `bash` with fenced commands, `bash_calls` with function calls."""
    config = load_library().config.get_config_from_spec(_PACKAGED[tools])
    agent = config["agent"]
    model = config["model"]
    return Templates(
        system=agent["system_template"],
        instance=agent["instance_template"],
        observation=model["observation_template"],
        format_error=model["format_error_template"],
        env={name: str(value) for name, value in config["environment"]["env"].items()},
    )


class OurDialect:
    """Speaks the bash blocks and observations of agent=bash."""

    tools: Sequence[Mapping[str, Any]] = ()
    env: Mapping[str, str] = {}

    def __init__(self, max_observation_chars: int) -> None:
        self._max_chars = max_observation_chars
        self._format_error = load_library().exceptions.FormatError

    def actions(self, reply: ChatReply) -> list[dict[str, Any]]:
        parsed = parse_command(reply.content)
        if parsed.command is None:
            reminder = reminder_after(FORMAT_REMINDER, reply.cut_tokens)
            raise self._format_error({"role": "user", "content": reminder})
        return [{"command": parsed.command, "submit": parsed.submit}]

    def observations(self, actions: list[dict[str, Any]], outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {"role": "user", "content": format_observation(output["result"], self._max_chars)} for output in outputs
        ]

    def is_submitted(self, action: Mapping[str, Any], result: ExecResult | None) -> bool:
        return bool(action["submit"])


class FencedDialect:
    """Reads one fenced command a reply, as the library's text models write it."""

    tools: Sequence[Mapping[str, Any]] = ()

    def __init__(self, templates: Templates, max_observation_chars: int) -> None:
        self._templates = templates
        self._max_chars = max_observation_chars
        self._library = load_library().models.utils
        self.env: Mapping[str, str] = templates.env

    def actions(self, reply: ChatReply) -> list[dict[str, Any]]:
        actions: list[dict[str, Any]] = self._library.actions_text.parse_regex_actions(
            reply.content,
            action_regex=self._templates.action_pattern,
            format_error_template=self._templates.format_error,
            template_kwargs={"finish_reason": reply.finish_reason},
        )
        return actions

    def observations(self, actions: list[dict[str, Any]], outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = self._library.actions_text.format_observation_messages(
            [_shorten_output(output, self._max_chars) for output in outputs],
            observation_template=self._templates.observation,
        )
        return answers

    def is_submitted(self, action: Mapping[str, Any], result: ExecResult | None) -> bool:
        if result is None or result.exit_code:
            return False
        return result.output.lstrip().partition("\n")[0].strip() == SUBMIT_MARKER


class CallsDialect(FencedDialect):
    """Reads function calls of the one tool `bash`, several a reply if the model wants."""

    def __init__(self, templates: Templates, max_observation_chars: int) -> None:
        super().__init__(templates, max_observation_chars)
        self.tools = (self._library.actions_toolcall.BASH_TOOL,)

    def actions(self, reply: ChatReply) -> list[dict[str, Any]]:
        calls = [
            SimpleNamespace(id=call.call_id, function=SimpleNamespace(name=call.name, arguments=call.arguments))
            for call in reply.tool_calls
        ]
        actions: list[dict[str, Any]] = self._library.actions_toolcall.parse_toolcall_actions(
            calls,
            format_error_template=self._templates.format_error,
            template_kwargs={"finish_reason": reply.finish_reason},
        )
        return actions

    def observations(self, actions: list[dict[str, Any]], outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = self._library.actions_toolcall.format_toolcall_observation_messages(
            actions=actions,
            outputs=[_shorten_output(output, self._max_chars) for output in outputs],
            observation_template=self._templates.observation,
        )
        return answers


def _shorten_output(output: dict[str, Any], max_chars: int) -> dict[str, Any]:
    """Cuts a long output. The library's templates cut at 10,000 characters; agent.max_observation_chars may ask for
    less."""
    text = str(output["output"])
    if len(text) > max_chars:
        head = max_chars // 2
        tail = max_chars - max_chars // 2
        note = f"\n{len(text) - max_chars} characters elided\n"
        text = text[:head] + note + text[len(text) - tail :]
    return {**{key: value for key, value in output.items() if key != "result"}, "output": text}
