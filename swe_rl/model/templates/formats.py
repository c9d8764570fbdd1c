"""The chat formats by the name that `model.chat_template` gives them, and a checkpoint's own template against them.

Invariants:
- A format's name is that of its Jinja template in this folder.
- What a format renders are pieces: see qwen.py.
- A checkpoint's own template is only compared, never used; one that cannot be rendered is a difference, not an error.
- It is compared on the first turn alone: later ours is append-only, which others are not.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swe_rl.errors import UserError
from swe_rl.model.templates import qwen, qwen_coder
from swe_rl.model.templates.qwen import Message, Piece

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


class ChatTemplateError(UserError):
    """The tokenizer or the name does not fit a chat template of ours."""


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """`think_block`: every reply has one, which the generation prompt writes, empty, where thinking is off."""

    preamble: Callable[[Sequence[Message], Sequence[Mapping[str, Any]]], list[Piece]]  # of messages and tools
    turn: Callable[[Message, str | None, str | None], list[Piece]]  # not the assistant's; the neighbours' roles
    reply: Callable[[Message, bool], list[Piece]]  # and whether its think block is written already
    think_block: bool = False

    def generation_prompt(self, thinking: bool) -> list[Piece]:
        block: list[Piece] = [qwen.THINK, "\n\n", qwen.THINK_END, "\n\n"] if self.opens_block(thinking) else []
        return [qwen.IM_START, "assistant\n", *block]

    def opens_block(self, thinking: bool) -> bool:
        return self.think_block and not thinking


_FORMATS = {
    "qwen": ChatFormat(qwen.preamble, qwen.turn, partial(qwen.reply, True), think_block=True),
    "qwen_plain": ChatFormat(qwen.preamble, qwen.turn, partial(qwen.reply, False)),
    "qwen_coder": ChatFormat(qwen_coder.preamble, qwen_coder.turn, lambda message, opened: qwen_coder.reply(message)),
}
TEMPLATES = tuple(_FORMATS)


def chat_format(name: str) -> ChatFormat:
    """Raises ChatTemplateError."""
    if name not in _FORMATS:
        raise ChatTemplateError(f"model.chat_template={name} is not known; choose one of {', '.join(TEMPLATES)}")
    return _FORMATS[name]


def template_text(name: str) -> str:
    """The prefix-stable Jinja template, for `tokenizer.chat_template`. Raises ChatTemplateError."""
    chat_format(name)
    return (Path(__file__).parent / f"{name}.jinja").read_text(encoding="utf-8")


def first_turn(
    template: str, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, thinking: bool
) -> str:
    """Our text of messages without a reply, generation prompt included. Raises ChatTemplateError."""
    form = chat_format(template)
    body = messages[1:] if messages and messages[0]["role"] == "system" else messages
    turns = [piece for message in body for piece in form.turn(message, None, None)]
    return "".join([*form.preamble(messages, tools), *turns, *form.generation_prompt(thinking)])


def difference_of(tokenizer: "PreTrainedTokenizerFast", template: str, *, thinking: bool) -> str | None:
    """The first place where the tokenizer's template and ours part, in words; None: nowhere, or it has none."""
    theirs = getattr(tokenizer, "chat_template", None)
    if not theirs or theirs == template_text(template):
        return None
    for tools in _OFFERED:
        where = "with tools" if tools else "without tools"
        try:
            shown = tokenizer.apply_chat_template(
                [dict(message) for message in _MESSAGES],
                tools=tools or None,
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=thinking,
            )
        except Exception as error:  # a template may raise what it likes
            return f"{where} it cannot be rendered ({type(error).__name__})"
        ours = first_turn(template, _MESSAGES, tools, thinking=thinking)
        if shown != ours:
            return f"{where}, {_parting(str(shown), ours)}"
    return None


def _parting(theirs: str, ours: str) -> str:
    at = next(index for index, (a, b) in enumerate(zip_longest(theirs, ours)) if a != b)
    shown = [repr(text[at : at + _SHOWN_CHARS]) if text[at:] else "its end" for text in (theirs, ours)]
    return f"from character {at} on, the checkpoint's has {shown[0]} and ours {shown[1]}"
