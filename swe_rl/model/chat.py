"""Chat rendering, append-only: messages to token ids, without ever encoding again what was sampled.

Invariants:
- `start(m) + sampled + extend(sampled, new)` decodes to what the Jinja template of the same name renders for the
  whole conversation plus the generation prompt.
- Text of system, user and tool messages is encoded with special tokens out of reach: it cannot open or close a turn.
- Ids that are handed in are never encoded again, only appended to.
- Special tokens are out of reach of text: one that is spelled out in it is encoded as the letters that it has.
- The same text gives the same ids, kept from before or not.
- What is kept stays below `_KEPT_BYTES`, texts and ids together, whatever comes; safe for several threads.
"""

import logging
import re
import sys
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

from swe_rl.model.templates import qwen
from swe_rl.model.templates.formats import TEMPLATES, ChatTemplateError, chat_format, difference_of, template_text
from swe_rl.model.templates.qwen import Marker, Message, Piece

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_KEPT_BYTES = 32 * 2**20  # system prompts, tools and tasks come again with each trajectory of a group
_LARGEST_KEPT_BYTES = 2**20


class TextEncoder:
    """`special`: ids by the text of each special token."""

    def __init__(self, tokenizer: "PreTrainedTokenizerFast") -> None:
        self.special = {token.content: index for index, token in tokenizer.added_tokens_decoder.items()}
        self._tokenizer: Any = tokenizer.backend_tokenizer
        # A look-ahead finds overlapping occurrences too; cutting after the first character breaks each of them.
        tokens = sorted((re.escape(token) for token in self.special if len(token) > 1), key=len, reverse=True)
        self._reserved = re.compile(f"(?=({'|'.join(tokens)}))")
        self._kept = KeptTexts()

    def encode(self, pieces: Sequence[Piece]) -> list[int]:
        """Text is encoded up to a special token at once, whatever number of pieces it has."""
        ids: list[int] = []
        text: list[str] = []
        for piece in pieces:
            if isinstance(piece, Marker) and piece in self.special:
                ids += self._encode_text("".join(text))
                ids.append(self.special[piece])
                text = []
            else:
                text.append(piece)
        ids += self._encode_text("".join(text))
        return ids

    def _encode_text(self, text: str) -> "array[int]":
        kept = self._kept.get(text)
        if kept is not None:
            return kept
        ids = self._encode_anew(text)
        self._kept.put(text, ids)
        return ids

    def _encode_anew(self, text: str) -> "array[int]":
        cuts = [0, *(match.start() + 1 for match in self._reserved.finditer(text)), len(text)]
        ids = array("i")
        for start, end in zip(cuts, cuts[1:], strict=False):
            if end > start:
                ids.extend(self._tokenizer.encode(text[start:end], add_special_tokens=False).ids)
        return ids


class KeptTexts:
    """The texts used last, with their ids."""

    def __init__(self, limit_bytes: int = _KEPT_BYTES, largest_bytes: int = _LARGEST_KEPT_BYTES) -> None:
        self.held_bytes = 0
        self._limit_bytes, self._largest_bytes = limit_bytes, largest_bytes
        self._ids: OrderedDict[str, array[int]] = OrderedDict()
        self._lock = Lock()

    def get(self, text: str) -> "array[int] | None":
        with self._lock:
            ids = self._ids.get(text)
            if ids is not None:
                self._ids.move_to_end(text)
            return ids

    def put(self, text: str, ids: "array[int]") -> None:
        size_bytes = held_bytes(text, ids)
        if size_bytes > self._largest_bytes:
            return
        with self._lock:
            if text in self._ids:
                return
            self._ids[text] = ids
            self.held_bytes += size_bytes
            while self.held_bytes > self._limit_bytes:
                self.held_bytes -= held_bytes(*self._ids.popitem(last=False))


def held_bytes(text: str, ids: "array[int]") -> int:
    return sys.getsizeof(text) + sys.getsizeof(ids)


__all__ = ["TEMPLATES", "ChatRenderer", "ChatTemplateError", "template_text"]
_log = logging.getLogger(__name__)


class _Backend:
    """What of a tokenizer is needed here, of its backend alone."""

    def __init__(self, backend: Any) -> None:
        self.backend_tokenizer = backend
        self.added_tokens_decoder = backend.get_added_tokens_decoder()


class ChatRenderer:
    """`template`: `qwen` (always a think block, empty in the generation prompt when `thinking` is off), `qwen_plain`
    (none), or `qwen_coder` (none, and tools as tags). Safe to use from several threads. Warns where the tokenizer has
    a chat template that begins a conversation otherwise. Raises ChatTemplateError."""

    def __init__(self, tokenizer: "PreTrainedTokenizerFast", *, template: str = "qwen", thinking: bool = False) -> None:
        self.template = template_text(template)
        self._name = template
        self._format = chat_format(template)
        self._thinking = thinking
        self._tokenizer: Any = tokenizer.backend_tokenizer
        self._encoder = TextEncoder(tokenizer)
        special = self._encoder.special
        for needed in (qwen.IM_START, qwen.IM_END):
            if needed not in special:
                raise ChatTemplateError(
                    f"model.chat_template={template} needs the special token {needed}, which the tokenizer of "
                    "model.path does not have; choose a Qwen-style tokenizer"
                )
        self._end_id = special[qwen.IM_END]
        ends = (qwen.IM_END, "<|endoftext|>")
        self.stop_token_ids = tuple(special[token] for token in ends if token in special)
        difference = difference_of(tokenizer, template, thinking=thinking)
        if difference is not None:
            _log.warning("the chat template of model.path is not model.chat_template=%s: %s", template, difference)

    @classmethod
    def of(cls, settings: Mapping[str, Any], tokenizer: str) -> "ChatRenderer":
        """One that renders as another one does, of its `described`; transformers is not imported for it."""
        from tokenizers import Tokenizer

        made = cls(
            cast("PreTrainedTokenizerFast", _Backend(Tokenizer.from_str(tokenizer))),
            template=settings["template"],
            thinking=settings["thinking"],
        )
        made.stop_token_ids = tuple(settings["stop_token_ids"])
        return made

    def described(self) -> tuple[dict[str, Any], str]:
        """Its settings, and its tokenizer as JSON."""
        settings = {"template": self._name, "thinking": self._thinking, "stop_token_ids": self.stop_token_ids}
        return settings, self._tokenizer.to_str()

    def start(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None) -> list[int]:
        """A conversation's prompt, generation prompt included."""
        ids, _, tail = self._conversation(self._format.preamble(messages, tools or ()), _body(messages))
        return ids + self._encoder.encode([*tail, *self._generation_prompt()])

    def extend(self, sampled_ids: Sequence[int], new_messages: Sequence[Message]) -> list[int]:
        """What follows prompt + `sampled_ids`: the reply's end where it was cut off, `new_messages`, the next
        generation prompt."""
        closed = bool(sampled_ids) and sampled_ids[-1] == self._end_id
        ids, _, tail = self._conversation(["\n"] if closed else [qwen.IM_END, "\n"], new_messages)
        return ids + self._encoder.encode([*tail, *self._generation_prompt()])

    def whole(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """A finished conversation encoded once, and the (start, end) of each assistant reply, end marker included."""
        ids, spans, tail = self._conversation(self._format.preamble(messages, tools or ()), _body(messages))
        return ids + self._encoder.encode(tail), spans

    def reply(self, message: Message) -> list[int]:
        """What a model would sample to say `message`, end marker included."""
        pieces = self._format.reply(message, self._format.opens_block(self._thinking))
        return self._encoder.encode([*pieces, qwen.IM_END])

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
                pieces = [*pieces, *self._format.turn(message, before, after)]
                continue
            # The reply is encoded apart from the prompt in front of it, as it would have been sampled.
            ids += self._encoder.encode([*pieces, *self._generation_prompt()])
            start = len(ids)
            ids += self.reply(message)
            spans.append((start, len(ids)))
            pieces = ["\n"]
        return ids, spans, pieces

    def _generation_prompt(self) -> list[Piece]:
        return self._format.generation_prompt(self._thinking)


def _body(messages: Sequence[Message]) -> Sequence[Message]:
    """Without a first system message: the preamble holds it."""
    return messages[1:] if messages and qwen.role_of(messages[0]) == "system" else messages
