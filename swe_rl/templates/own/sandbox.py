"""This module compiles a checkpoint's chat template in a sandbox, with the names that chat templates expect.

Invariants:
- A template reads what it is given and writes text: it reaches no attribute that begins with an underscore, changes
  nothing that it is given, and reads no file.
- It renders what transformers renders (a test compares), apart from the date, which stays that of the first rendering.
- Whatever a template raises becomes a ChatTemplateError.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from swe_rl.errors import UserError
from swe_rl.templates.qwen import dump_json


class ChatTemplateError(UserError):
    """The tokenizer, the template or the name of a template does not fit."""


class _Generation(Extension):
    """Reads `{% generation %}`, with which templates mark replies. The text inside is rendered as it is, and a variable
    that is set inside is not known behind it, as in transformers."""

    tags = {"generation"}  # noqa: RUF012  (it is jinja's name for it)

    def parse(self, parser: Parser) -> nodes.Node:
        begun = next(parser.stream)
        inside = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(inside).set_lineno(begun.lineno)


class JinjaTemplate:
    """Renders messages as the template's text says. `now` is the date that it may write."""

    def __init__(self, text: str, now: datetime | None = None) -> None:
        """Raises ChatTemplateError for a text that is no template."""
        self.text = text
        self._template = _compiled(text)
        # A template that writes the date must write the same one in each turn of a conversation.
        self.now = now or datetime.now()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        prompt: bool,
        **variables: Any,
    ) -> str:
        """Renders messages, with the generation prompt if `prompt` says so. Raises ChatTemplateError."""
        try:
            text: str = self._template.render(
                messages=[dict(message) for message in messages],
                tools=[dict(tool) for tool in tools] if tools else None,
                documents=None,
                add_generation_prompt=prompt,
                strftime_now=self.now.strftime,
                **variables,
            )
            return text
        except Exception as error:
            # A template may fail in any way that Python code can.
            raise ChatTemplateError(f"it cannot be rendered ({type(error).__name__}: {error})") from error


@lru_cache(maxsize=8)
def _compiled(text: str) -> Any:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    try:
        return environment.from_string(text)
    except (TemplateError, RecursionError) as error:
        raise ChatTemplateError(f"it is no Jinja template ({type(error).__name__}: {error})") from error


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter writes some characters as HTML does.
    if indent is None and separators is None:
        return dump_json(value, ensure_ascii=ensure_ascii, sort_keys=sort_keys)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(reason: str) -> NoReturn:
    raise TemplateError(reason)
