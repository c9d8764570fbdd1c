"""The chat formats by the name that `model.chat_template` gives them.

Invariants:
- A format's name is that of its Jinja template in this folder.
- What a format renders are pieces: see qwen.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from swe_rl.errors import UserError
from swe_rl.model.templates import qwen, qwen_coder
from swe_rl.model.templates.qwen import Message, Piece


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
