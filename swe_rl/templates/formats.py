"""This module has the chat formats by the name that `model.chat_template` gives them, and compares a checkpoint's own
template with them.

Invariants:
- A format's name is that of its Jinja template in this folder.
- A format renders pieces: see qwen.py.
- A checkpoint's own template is only compared, never used; one that cannot be rendered is a difference, not an error.
- It is compared on the first turn alone: later ours is append-only, which others are not.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swe_rl.templates import qwen, qwen_coder
from swe_rl.templates.names import OWN, TEMPLATES
from swe_rl.templates.own.sandbox import ChatTemplateError, JinjaTemplate
from swe_rl.templates.qwen import Message, Piece

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
# A difference is shown by so many characters of both texts.
_SHOWN_CHARS = 24


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """Renders a chat in one format. With `think_block`, every reply has a think block, which the generation prompt
    writes, empty, if thinking is off."""

    # Renders messages and tools.
    preamble: Callable[[Sequence[Message], Sequence[Mapping[str, Any]]], list[Piece]]
    # Renders a message that is not the assistant's, by its neighbours' roles.
    turn: Callable[[Message, str | None, str | None], list[Piece]]
    # Renders a reply, given whether its think block is written already.
    reply: Callable[[Message, bool], list[Piece]]
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


def chat_format(name: str) -> ChatFormat:
    """Returns the format of this name. Raises ChatTemplateError."""
    if name not in _FORMATS:
        raise ChatTemplateError(f"model.chat_template={name} is not known; choose one of {', '.join(TEMPLATES)}")
    return _FORMATS[name]


def template_text(name: str) -> str:
    """Returns the prefix-stable Jinja template, for `tokenizer.chat_template`. Raises ChatTemplateError."""
    chat_format(name)
    return (Path(__file__).parent / f"{name}.jinja").read_text(encoding="utf-8")


def first_turn(
    template: str, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, thinking: bool
) -> str:
    """Renders messages without a reply to our text, generation prompt included. Raises ChatTemplateError."""
    form = chat_format(template)
    if messages and messages[0]["role"] == "system":
        body = messages[1:]
    else:
        body = messages
    turns = [piece for message in body for piece in form.turn(message, None, None)]
    return "".join([*form.preamble(messages, tools), *turns, *form.generation_prompt(thinking)])


def difference_of(tokenizer: "PreTrainedTokenizerFast", template: str, *, thinking: bool) -> str | None:
    """Says where the tokenizer's template and ours first part. Returns None if they do not, or if the tokenizer has
    none."""
    theirs = getattr(tokenizer, "chat_template", None)
    if not isinstance(theirs, str) or not theirs:
        return None
    return difference(theirs, tokenizer.special_tokens_map, template, thinking=thinking)


def difference(theirs: str, variables: Mapping[str, Any], template: str, *, thinking: bool) -> str | None:
    """Says where a chat template's text and ours first part; `variables` are its special tokens by name."""
    if theirs == template_text(template):
        return None
    for tools in _OFFERED:
        where = "with tools" if tools else "without tools"
        try:
            jinja = JinjaTemplate(theirs)
            shown = jinja.render(_MESSAGES, tools, prompt=True, enable_thinking=thinking, **variables)
        except ChatTemplateError as error:
            return f"{where} {error}"
        ours = first_turn(template, _MESSAGES, tools, thinking=thinking)
        if shown != ours:
            return f"{where}, {_parting(shown, ours)}"
    return None


def recognized(theirs: str, variables: Mapping[str, Any]) -> str:
    """Returns which of our formats begins a conversation as a chat template's text does, or `own`."""
    for name in TEMPLATES:
        if all(difference(theirs, variables, name, thinking=thinking) is None for thinking in (False, True)):
            return name
    return OWN


def _parting(theirs: str, ours: str) -> str:
    at = next(index for index, (a, b) in enumerate(zip_longest(theirs, ours)) if a != b)
    shown = [repr(text[at : at + _SHOWN_CHARS]) if text[at:] else "its end" for text in (theirs, ours)]
    return f"from character {at} on, the checkpoint's has {shown[0]} and ours {shown[1]}"
