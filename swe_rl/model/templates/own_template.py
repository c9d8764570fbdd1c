"""A checkpoint's own chat template against ours, on the first turn of a conversation.

Invariants:
- Only compared, never used; a template that cannot be rendered is a difference, not an error.
- Later turns are not compared: there ours is append-only, which others are not.
"""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from swe_rl.model.templates.formats import chat_format, template_text
from swe_rl.model.templates.qwen import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_MESSAGES = ({"role": "system", "content": "Fix bugs.\n"}, {"role": "user", "content": "  Größe <b>&amp;\n\n"})
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Runs a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
_OFFERED: tuple[list[Any], ...] = ([], [_TOOL])
_SHOWN_CHARS = 24


def first_turn(
    template: str, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, thinking: bool
) -> str:
    """Our text of messages without a reply, generation prompt included. Raises ChatTemplateError."""
    form = chat_format(template)
    body = messages[1:] if messages and messages[0]["role"] == "system" else messages
    turns = [piece for message in body for piece in form.turn(message, None, None)]
    return "".join([*form.preamble(messages, tools), *turns, *form.generation_prompt(thinking)])


def difference(tokenizer: "PreTrainedTokenizerFast", template: str, *, thinking: bool) -> str | None:
    """The first place where the tokenizer's template and ours part, in words; None: nowhere, or it has none."""
    own = getattr(tokenizer, "chat_template", None)
    if not own or own == template_text(template):
        return None
    for tools in _OFFERED:
        where = "with tools" if tools else "without tools"
        try:
            theirs = tokenizer.apply_chat_template(
                [dict(message) for message in _MESSAGES],
                tools=tools or None,
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=thinking,
            )
        except Exception as error:  # a template may raise what it likes
            return f"{where} it cannot be rendered ({type(error).__name__})"
        ours = first_turn(template, _MESSAGES, tools, thinking=thinking)
        if theirs != ours:
            return f"{where}, {_parting(str(theirs), ours)}"
    return None


def _parting(theirs: str, ours: str) -> str:
    at = next(index for index, (a, b) in enumerate(zip_longest(theirs, ours)) if a != b)
    shown = [repr(text[at : at + _SHOWN_CHARS]) if text[at:] else "its end" for text in (theirs, ours)]
    return f"from character {at} on, the checkpoint's has {shown[0]} and ours {shown[1]}"
