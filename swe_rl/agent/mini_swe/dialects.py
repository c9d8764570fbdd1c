"""How mini-swe-agent's model writes commands and reads what they said.

Invariants:
- The library's dialects use its own parser and templates: prompts and observations are those of its benchmark runs.
- OurDialect says, byte for byte, what agent=bash says.
"""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from swe_rl.agent.client import ChatReply
from swe_rl.agent.command import parse_command
from swe_rl.agent.mini_swe.library import SUBMIT_MARKER, Templates, load_library
from swe_rl.agent.observation import format_observation
from swe_rl.agent.prompts import FORMAT_REMINDER
from swe_rl.sandbox.protocol import ExecResult


class OurDialect:
    """The bash blocks and observations of agent=bash."""

    tools: Sequence[Mapping[str, Any]] = ()
    env: Mapping[str, str] = {}

    def __init__(self, max_observation_chars: int) -> None:
        self._max_chars = max_observation_chars
        self._format_error = load_library().exceptions.FormatError

    def actions(self, reply: ChatReply) -> list[dict[str, Any]]:
        parsed = parse_command(reply.content)
        if parsed.command is None:
            raise self._format_error({"role": "user", "content": FORMAT_REMINDER})
        return [{"command": parsed.command, "submit": parsed.submit}]

    def observations(self, actions: list[dict[str, Any]], outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {"role": "user", "content": format_observation(output["result"], self._max_chars)} for output in outputs
        ]

    def is_submitted(self, action: Mapping[str, Any], result: ExecResult | None) -> bool:
        return bool(action["submit"])


class FencedDialect:
    """One fenced command a reply, as the library's text models read it."""

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
            [_shortened(output, self._max_chars) for output in outputs],
            observation_template=self._templates.observation,
        )
        return answers

    def is_submitted(self, action: Mapping[str, Any], result: ExecResult | None) -> bool:
        if result is None or result.exit_code:
            return False
        return result.output.lstrip().partition("\n")[0].strip() == SUBMIT_MARKER


class CallsDialect(FencedDialect):
    """Function calls of the one tool `bash`, several a reply where the model wants."""

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
            outputs=[_shortened(output, self._max_chars) for output in outputs],
            observation_template=self._templates.observation,
        )
        return answers


def _shortened(output: dict[str, Any], max_chars: int) -> dict[str, Any]:
    """The library's templates cut at 10 000 characters; agent.max_observation_chars may ask for less."""
    text = str(output["output"])
    if len(text) > max_chars:
        head, tail = max_chars // 2, max_chars - max_chars // 2
        note = f"\n{len(text) - max_chars} characters elided\n"
        text = text[:head] + note + text[len(text) - tail :]
    return {**{key: value for key, value in output.items() if key != "result"}, "output": text}
