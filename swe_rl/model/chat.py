"""Chat rendering, append-only: messages to token ids, without ever encoding again what was sampled.

Invariants:
- `start(m) + sampled + extend(sampled, new)` decodes to what the Jinja template of the same name renders for the
  whole conversation plus the generation prompt.
- Text of system, user and tool messages is encoded with special tokens out of reach: it cannot open or close a turn.
- Ids that are handed in are never encoded again, only appended to.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swe_rl.errors import UserError
from swe_rl.model.templates import qwen
from swe_rl.model.templates.qwen import Marker, Message, Piece

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TEMPLATES = ("qwen", "qwen_plain")
_CACHED_TEXTS = 1024


class ChatTemplateError(UserError):
    """The tokenizer or the name does not fit a chat template of ours."""


def template_text(name: str) -> str:
    """The prefix-stable Jinja template, for `tokenizer.chat_template`. Raises ChatTemplateError."""
    if name not in TEMPLATES:
        raise ChatTemplateError(f"model.chat_template={name} is not known; choose one of {', '.join(TEMPLATES)}")
    return (Path(qwen.__file__).parent / f"{name}.jinja").read_text(encoding="utf-8")


class ChatRenderer:
    """`template`: `qwen` (always a think block, empty in the generation prompt when `thinking` is off), or
    `qwen_plain` (none). Safe to use from several threads. Raises ChatTemplateError."""

    def __init__(self, tokenizer: "PreTrainedTokenizerFast", *, template: str = "qwen", thinking: bool = False) -> None:
        self.template = template_text(template)
        self._think_block = template == "qwen"
        self._opened = self._think_block and not thinking
        self._tokenizer: Any = tokenizer.backend_tokenizer
        self._special = {token.content: index for index, token in tokenizer.added_tokens_decoder.items()}
        for needed in (qwen.IM_START, qwen.IM_END):
            if needed not in self._special:
                raise ChatTemplateError(
                    f"model.chat_template={template} needs the special token {needed}, which the tokenizer of "
                    "model.path does not have; choose a Qwen-style tokenizer"
                )
        self._end_id = self._special[qwen.IM_END]
        ends = (qwen.IM_END, "<|endoftext|>")
        self.stop_token_ids = tuple(self._special[token] for token in ends if token in self._special)
        # A look-ahead finds overlapping occurrences too; cutting after the first character breaks each of them.
        tokens = sorted((re.escape(token) for token in self._special if len(token) > 1), key=len, reverse=True)
        self._reserved = re.compile(f"(?=({'|'.join(tokens)}))")
        self._encode_text = lru_cache(_CACHED_TEXTS)(self._encode_uncached)

    def start(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None) -> list[int]:
        """A conversation's prompt, generation prompt included."""
        ids, _, tail = self._conversation(qwen.preamble(messages, tools or ()), _body(messages))
        return ids + self._encode([*tail, *self._generation_prompt()])

    def extend(self, sampled_ids: Sequence[int], new_messages: Sequence[Message]) -> list[int]:
        """What follows prompt + `sampled_ids`: the reply's end where it was cut off, `new_messages`, the next
        generation prompt."""
        closed = bool(sampled_ids) and sampled_ids[-1] == self._end_id
        ids, _, tail = self._conversation(["\n"] if closed else [qwen.IM_END, "\n"], new_messages)
        return ids + self._encode([*tail, *self._generation_prompt()])

    def whole(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """A finished conversation encoded once, and the (start, end) of each assistant reply, end marker included."""
        ids, spans, tail = self._conversation(qwen.preamble(messages, tools or ()), _body(messages))
        return ids + self._encode(tail), spans

    def reply(self, message: Message) -> list[int]:
        """What a model would sample to say `message`, end marker included."""
        pieces = qwen.reply(message, think_block=self._think_block, opened=self._opened)
        return self._encode([*pieces, qwen.IM_END])

    def decode(self, sampled_ids: Sequence[int]) -> str:
        """The text of a reply: stop tokens at its end are left out, any other special token is spelled out."""
        end = len(sampled_ids)
        while end and sampled_ids[end - 1] in self.stop_token_ids:
            end -= 1
        return str(self._tokenizer.decode(list(sampled_ids[:end]), skip_special_tokens=False))

    def token_text(self, token_id: int) -> str:
        return str(self._tokenizer.decode([token_id], skip_special_tokens=False))

    def _conversation(
        self, pieces: list[Piece], messages: Sequence[Message]
    ) -> tuple[list[int], list[tuple[int, int]], list[Piece]]:
        """Ids so far, the replies' spans, and pieces not yet encoded: text is encoded up to a special token at once."""
        ids: list[int] = []
        spans = []
        roles = [qwen.role_of(message) for message in messages]
        for index, message in enumerate(messages):
            if roles[index] != "assistant":
                before = roles[index - 1] if index else None
                after = roles[index + 1] if index + 1 < len(roles) else None
                pieces = [*pieces, *qwen.turn(message, before, after)]
                continue
            # The reply is encoded apart from the prompt in front of it, as it would have been sampled.
            ids += self._encode([*pieces, *self._generation_prompt()])
            start = len(ids)
            ids += self.reply(message)
            spans.append((start, len(ids)))
            pieces = ["\n"]
        return ids, spans, pieces

    def _generation_prompt(self) -> list[Piece]:
        block: list[Piece] = [qwen.THINK, "\n\n", qwen.THINK_END, "\n\n"] if self._opened else []
        return [qwen.IM_START, "assistant\n", *block]

    def _encode(self, pieces: Sequence[Piece]) -> list[int]:
        ids: list[int] = []
        text: list[str] = []
        for piece in pieces:
            if isinstance(piece, Marker) and piece in self._special:
                ids += self._encode_text("".join(text))
                ids.append(self._special[piece])
                text = []
            else:
                text.append(piece)
        ids += self._encode_text("".join(text))
        return ids

    def _encode_uncached(self, text: str) -> tuple[int, ...]:
        cuts = [0, *(match.start() + 1 for match in self._reserved.finditer(text)), len(text)]
        ids: list[int] = []
        for start, end in zip(cuts, cuts[1:], strict=False):
            if end > start:
                ids += self._tokenizer.encode(text[start:end], add_special_tokens=False).ids
        return tuple(ids)


def _body(messages: Sequence[Message]) -> Sequence[Message]:
    """Without a first system message: the preamble holds it."""
    return messages[1:] if messages and qwen.role_of(messages[0]) == "system" else messages
