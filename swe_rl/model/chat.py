"""This module renders chats append-only: messages become token ids, and what was sampled is never encoded again.

Invariants:
- `start(m) + sampled + extend(sampled, new)` decodes to what the Jinja template of the same name renders for the whole
  conversation plus the generation prompt.
- Text of system, user and tool messages is encoded with special tokens out of reach: it cannot open or close a turn. A
  special token that is spelled out in it is encoded as the letters that it has.
- Ids that are handed in are never encoded again, only appended to.
- The same text gives the same ids, kept from before or not.
- What is kept stays below `_KEPT_BYTES`, texts and ids together, whatever comes; it is safe for several threads.
- A long text is tokenized without stopping other threads. One that is longer than its caller has room for is refused,
  before it is tokenized if that can be proven.
"""

import logging
import re
import sys
from array import array
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

from swe_rl.model.long_text import TokenBound, places_of, tokenize_text
from swe_rl.model.token_bytes import TokenBytes
from swe_rl.templates import qwen
from swe_rl.templates.formats import chat_format, difference_of, template_text
from swe_rl.templates.names import TEMPLATES
from swe_rl.templates.own.sandbox import ChatTemplateError
from swe_rl.templates.qwen import Marker, Message, Piece

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# System prompts, tools and tasks come again with each trajectory of a group.
_KEPT_BYTES = 32 * 2**20
# A larger text would push out many that come again.
_LARGEST_KEPT_BYTES = 2**20
# Such a part of a tokenizer writes a blank before a text that no special token stands before.
_PREPENDING = ("Metaspace", "Prepend")
# Tokenizing a longer text would stop other threads for a while.
_LONG_CHARS = 8192


class PromptTooLongError(Exception):
    """A text has more tokens than there is room for: at least `tokens`."""

    def __init__(self, tokens: int) -> None:
        super().__init__(f"at least {tokens} tokens")
        self.tokens = tokens


class TextEncoder:
    """Encodes text and special tokens apart. `special` maps the text of each special token to its id."""

    def __init__(self, tokenizer: "PreTrainedTokenizerFast", only: Collection[str] | None = None) -> None:
        """With `only`, the other added tokens are words of the vocabulary like all others."""
        added = tokenizer.added_tokens_decoder
        self.special = {token.content: index for index, token in added.items() if only is None or token.content in only}
        self._tokenizer: Any = tokenizer.backend_tokenizer
        # Such a tokenizer reads a text in another way where a special token stands beside it.
        self._reads_neighbours = any(token.lstrip or token.rstrip for token in added.values()) or any(
            name in str(part.__getstate__())
            for part in (self._tokenizer.pre_tokenizer, self._tokenizer.normalizer)
            if part is not None
            for name in _PREPENDING
        )
        # A look-ahead finds overlapping occurrences too; cutting after the first character breaks each of them.
        tokens = sorted((re.escape(token) for token in self.special if len(token) > 1), key=len, reverse=True)
        self._reserved = re.compile(f"(?=({'|'.join(tokens)}))")
        self._longest_reserved = max(map(len, self.special), default=0)
        self._bound = TokenBound(self._tokenizer, list(self.special))
        self._kept = KeptTexts()

    def encode(self, pieces: Sequence[Piece], most_tokens: int | None = None) -> list[int]:
        """Returns the ids of the pieces. Text is encoded up to a special token at once, whatever number of pieces it
        has.

        Raises PromptTooLongError for more than `most_tokens`.
        """
        runs = list(self._runs(pieces))
        if most_tokens is not None:
            fewest = sum(1 if isinstance(run, Marker) else self._bound.fewest_tokens(run) for run in runs)
            if fewest > most_tokens:
                raise PromptTooLongError(fewest)
        ids: list[int] = []
        for index, run in enumerate(runs):
            if isinstance(run, Marker):
                ids.append(self.special[run])
            elif run:
                if most_tokens is None:
                    left = None
                else:
                    left = most_tokens - len(ids)
                ids += self._encode_text(run, left, *self._neighbours(runs, index))
            if most_tokens is not None and len(ids) > most_tokens:
                raise PromptTooLongError(len(ids))
        return ids

    def count(self, pieces: Sequence[Piece]) -> int:
        """Counts the ids that `encode` would return, without listing them: there may be more than anybody has room
        for."""
        if self._reads_neighbours:
            return len(self.encode(pieces))
        return sum(1 if isinstance(run, Marker) else sum(map(len, self._encodings(run))) for run in self._runs(pieces))

    def _neighbours(self, runs: Sequence[str], index: int) -> tuple[str, str]:
        """Returns the special tokens beside a text, where they matter."""
        if not self._reads_neighbours:
            return "", ""
        return runs[index - 1] if index else "", runs[index + 1] if index + 1 < len(runs) else ""

    def _runs(self, pieces: Sequence[Piece]) -> Iterator[str]:
        """Yields special tokens, as markers, and the text between them."""
        text: list[str] = []
        for piece in pieces:
            if isinstance(piece, Marker) and piece in self.special:
                yield "".join(text)
                yield piece
                text = []
            else:
                text.append(piece)
        yield "".join(text)

    def _encode_text(self, text: str, most_tokens: int | None, before: str = "", after: str = "") -> "array[int]":
        key = f"{before}{text}{after}"
        kept = self._kept.get(key)
        if kept is not None:
            return kept
        ids = array("i")
        if before or after:
            ids.extend(self._between(text, before, after))
        for encoding in () if before or after else self._encodings(text):
            if most_tokens is not None and len(ids) + len(encoding) > most_tokens:
                raise PromptTooLongError(len(ids) + len(encoding))
            ids.extend(encoding.ids)
        self._kept.put(key, ids)
        return ids

    def _between(self, text: str, before: str, after: str) -> list[int]:
        """Encodes a text together with the special tokens beside it, and leaves their ids out."""
        ids: list[int] = []
        places = places_of(self._reserved, text, self._longest_reserved)
        cuts = [0, *(place + 1 for place in places), len(text)]
        for start, end in zip(cuts, cuts[1:], strict=False):
            last = ""
            if end == len(text):
                last = after
            # What is cut off in a token that the text spells out stands behind a special token, too: no blank is added.
            encoded = tokenize_text(self._tokenizer, f"{before}{text[start:end]}{last}").ids
            ids += encoded[1 if before else 0 : len(encoded) - 1 if last else len(encoded)]
        return ids

    def _encodings(self, text: str) -> Iterator[Any]:
        """Encodes the parts of a text. It is cut within each special token that is spelled out."""
        if self.special:
            places = places_of(self._reserved, text, self._longest_reserved)
        else:
            places = []
        cuts = [0, *(place + 1 for place in places), len(text)]
        for start, end in zip(cuts, cuts[1:], strict=False):
            if end - start > _LONG_CHARS:
                yield tokenize_text(self._tokenizer, text[start:end])
            elif end > start:
                yield self._tokenizer.encode(text[start:end], add_special_tokens=False)


class KeptTexts:
    """Keeps the texts used last, with their ids."""

    def __init__(self, limit_bytes: int = _KEPT_BYTES, largest_bytes: int = _LARGEST_KEPT_BYTES) -> None:
        self.held_bytes = 0
        self._limit_bytes = limit_bytes
        self._largest_bytes = largest_bytes
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
    """Holds what is needed of a tokenizer here, from its backend alone."""

    def __init__(self, backend: Any) -> None:
        self.backend_tokenizer = backend
        self.added_tokens_decoder = backend.get_added_tokens_decoder()


def backend_only(tokenizer: str) -> "PreTrainedTokenizerFast":
    """Returns what stands for a tokenizer that is given as JSON."""
    from tokenizers import Tokenizer

    return cast("PreTrainedTokenizerFast", _Backend(Tokenizer.from_str(tokenizer)))


class ChatRenderer:
    """Renders conversations to token ids, from several threads if need be.

    `template` is `qwen` (always a think block, empty in the generation prompt when `thinking` is off), `qwen_plain` (no
    think block), or `qwen_coder` (no think block, and tools as tags). It warns if the tokenizer has a chat template
    that begins a conversation otherwise. `rewrites` says that the template may change what was there before a reply;
    `keeps` tells whether it does (own_chat.py). Raises ChatTemplateError.
    """

    rewrites = False

    def __init__(self, tokenizer: "PreTrainedTokenizerFast", *, template: str = "qwen", thinking: bool = False) -> None:
        self.template = template_text(template)
        self.name = template
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
        self.stop_token_ids = tuple(special[token] for token in (qwen.IM_END, "<|endoftext|>") if token in special)
        difference = difference_of(tokenizer, template, thinking=thinking)
        if difference is not None:
            _log.warning("the chat template of model.path is not model.chat_template=%s: %s", template, difference)

    @classmethod
    def restored(cls, settings: Mapping[str, Any], tokenizer: str) -> "ChatRenderer":
        """Makes a renderer from what another one `described`; transformers is not imported for it."""
        made = cls(backend_only(tokenizer), template=settings["template"], thinking=settings["thinking"])
        made.stop_token_ids = tuple(settings["stop_token_ids"])
        return made

    def described(self) -> tuple[dict[str, Any], str]:
        """Returns the renderer's settings, and its tokenizer as JSON."""
        settings = {"template": self.name, "thinking": self._thinking, "stop_token_ids": self.stop_token_ids}
        return settings, self._tokenizer.to_str()

    def start(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        most_tokens: int | None = None,
    ) -> list[int]:
        """Returns a conversation's prompt, generation prompt included. Raises PromptTooLongError for more than
        `most_tokens`, most often before all of it is tokenized."""
        return self._encoded(self._opened(messages, tools), most_tokens)

    def count_start(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None) -> int:
        """Counts the ids that `start` would return."""
        return sum(self._encoder.count(pieces) for pieces, _ in self._opened(messages, tools))

    def extend(
        self,
        sampled_ids: Sequence[int],
        new_messages: Sequence[Message],
        most_tokens: int | None = None,
        reply: Message | None = None,
    ) -> list[int]:
        """Returns what follows prompt + `sampled_ids`: the reply's end if it was cut off, `new_messages`, the next
        generation prompt. `reply` is the message that was sampled: a template may name its calls beside their results.
        Raises PromptTooLongError for more than `most_tokens`."""
        return self._encoded(self._continued(sampled_ids, new_messages), most_tokens)

    def count_extend(
        self, sampled_ids: Sequence[int], new_messages: Sequence[Message], reply: Message | None = None
    ) -> int:
        """Counts the ids that `extend` would return."""
        return sum(self._encoder.count(pieces) for pieces, _ in self._continued(sampled_ids, new_messages))

    def whole(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Encodes a finished conversation once. Returns its ids and the (start, end) of each assistant reply, end
        marker included."""
        ids: list[int] = []
        spans = []
        preamble = self._format.preamble(messages, tools or ())
        for pieces, is_reply in self._segments(preamble, _without_system(messages), []):
            start = len(ids)
            ids += self._encoder.encode(pieces)
            if is_reply:
                spans.append((start, len(ids)))
        return ids, spans

    def reply(self, message: Message) -> list[int]:
        """Returns what a model would sample to say `message`, end marker included."""
        return self._encoder.encode(self._spoken(message))

    def keeps(
        self,
        before: Sequence[Message],
        reply: Message,
        sampled_ids: Sequence[int],
        new_messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
    ) -> bool:
        """Tells whether the template leaves all as it was up to the end of a reply when `new_messages` follow."""
        return True

    def _spoken(self, message: Message) -> list[Piece]:
        return [*self._format.reply(message, self._format.opens_block(self._thinking)), qwen.IM_END]

    def decode(self, sampled_ids: Sequence[int]) -> str:
        """Returns the text of a reply. Stop tokens at its end are left out, any other special token is spelled out."""
        end = len(sampled_ids)
        while end and sampled_ids[end - 1] in self.stop_token_ids:
            end -= 1
        return str(self._tokenizer.decode(list(sampled_ids[:end]), skip_special_tokens=False))

    @cached_property
    def token_bytes(self) -> TokenBytes:
        return TokenBytes(self._tokenizer)

    def _opened(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None
    ) -> Iterator[tuple[list[Piece], bool]]:
        return self._segments(
            self._format.preamble(messages, tools or ()), _without_system(messages), self._generation_prompt()
        )

    def _continued(
        self, sampled_ids: Sequence[int], new_messages: Sequence[Message]
    ) -> Iterator[tuple[list[Piece], bool]]:
        closed = bool(sampled_ids) and sampled_ids[-1] == self._end_id
        return self._segments(["\n"] if closed else [qwen.IM_END, "\n"], new_messages, self._generation_prompt())

    def _encoded(self, segments: Iterator[tuple[list[Piece], bool]], most_tokens: int | None) -> list[int]:
        ids: list[int] = []
        for pieces, _ in segments:
            try:
                ids += self._encoder.encode(pieces, None if most_tokens is None else most_tokens - len(ids))
            except PromptTooLongError as error:
                raise PromptTooLongError(len(ids) + error.tokens) from None
        return ids

    def _segments(
        self, before: Sequence[Piece], messages: Sequence[Message], after: Sequence[Piece]
    ) -> Iterator[tuple[list[Piece], bool]]:
        """Yields what is encoded apart, and whether it is a reply: text is encoded up to a special token at once."""
        roles = [qwen.role_of(message) for message in messages]
        pieces = list(before)
        for index, message in enumerate(messages):
            if roles[index] != "assistant":
                role_before = None
                if index:
                    role_before = roles[index - 1]
                role_after = None
                if index + 1 < len(roles):
                    role_after = roles[index + 1]
                pieces += self._format.turn(message, role_before, role_after)
                continue
            # The reply is encoded apart from the prompt in front of it, as it would have been sampled.
            yield [*pieces, *self._generation_prompt()], False
            yield self._spoken(message), True
            pieces = ["\n"]
        yield [*pieces, *after], False

    def _generation_prompt(self) -> list[Piece]:
        return self._format.generation_prompt(self._thinking)


def _without_system(messages: Sequence[Message]) -> Sequence[Message]:
    """Returns the messages without a first system message, which the preamble holds."""
    if messages and qwen.role_of(messages[0]) == "system":
        return messages[1:]
    return messages
