"""The conversation of a request, and what of it was there before.

A client sends its whole conversation with every call. Its bytes are compared with those of the calls before (memcmp);
only messages that are not the same bytes are parsed, checked and hashed.

Invariants:
- The hashes of a conversation are `prefix_hashes` of its messages, always: what is remembered only saves work.
- What is parsed in parts is what would be parsed whole. The messages' array is cut out and a word that nobody knows
  (`_MARK`) is put in its place: where the rest parses and has that word as its messages, and nothing else, the array
  is the body's, and body and array are sound on their own. Whatever does not fit is parsed whole.
- A message's end is known where the scan of brackets and the parser agree about the number of messages.
- Memory is bounded: `limit_bytes` of bodies, the least lately used go first; at most `_KEPT` of one name. A name says
  where to look, not what is there: a wrong one costs time.
- An assistant message is compared as it was answered: content (without outer whitespace) and tool calls (arguments as
  JSON values, numbers by value). Reasoning, ids of tool calls and null fields are not compared: clients drop or rewrite
  them.
- Any other message is compared by role and exact text.
- A prefix's hash covers the tools and every message up to it.
"""

import hashlib
import json
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from swe_rl.model.templates.qwen import message_text, role_of

Fingerprint = bytes
Message = Mapping[str, Any]
Tools = Sequence[Mapping[str, Any]]

_KEPT = 4  # conversations of one session that take turns: sub-agents
_REWRITTEN = 2  # messages at its end that a conversation may change and still be the same one: marks for caches
_LIMIT_BYTES = 512 * 2**20
_LONGEST_BYTES = 8 * 2**20  # of new text: from here on a scan would hold up the event loop
_MARK = f"messages {secrets.token_hex(16)}"
_MARK_JSON = orjson.dumps(_MARK)
_BEGIN = re.compile(rb'"messages"[ \t\n\r]*:[ \t\n\r]*\[')
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[][{}]', re.DOTALL)


def tools_hash(tools: Tools | None) -> Fingerprint:
    """Of a conversation without a message."""
    return _digest(json.dumps(list(tools or ()), sort_keys=True).encode())


def prefix_hashes(messages: Sequence[Message], tools: Tools | None) -> list[Fingerprint]:
    """Entry i covers the tools and the first i messages; one entry more than there are messages."""
    return _extended([tools_hash(tools)], messages)


def _extended(hashes: list[Fingerprint], messages: Sequence[Message]) -> list[Fingerprint]:
    for message in messages:
        hashes.append(extend_hash(hashes[-1], message))
    return hashes


def extend_hash(prefix: Fingerprint, message: Message) -> Fingerprint:
    """Lengths are written in front of what may hold anything, so that no two messages are written alike."""
    role, text = role_of(message), message_text(message.get("content"))
    if role != "assistant":
        return _digest(b"%b%b\0%b" % (prefix, role.encode(), _encode(text)))
    said = _encode(text.strip())
    calls = message.get("tool_calls") or ()
    called = json.dumps([_call(call) for call in calls], sort_keys=True).encode() if calls else b""
    return _digest(b"%bassistant\0%d\0%b%b" % (prefix, len(said), said, called))


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _call(call: Mapping[str, Any]) -> list[Any]:
    function = call.get("function") or call
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, parse_float=_by_value)
        except (ValueError, RecursionError):
            return [function.get("name"), "text", arguments]
    else:
        arguments = _by_values(arguments)
    return [function.get("name"), "json", arguments]


def _by_value(written: str | float) -> float | int:
    """1.0 and 1 are one number: where calls have values and no text, clients write them in their own way."""
    value = float(written)
    return int(value) if value.is_integer() else value


def _by_values(arguments: Any) -> Any:
    if isinstance(arguments, float):
        return _by_value(arguments)
    if isinstance(arguments, dict):
        return {name: _by_values(value) for name, value in arguments.items()}
    return [_by_values(value) for value in arguments] if isinstance(arguments, list) else arguments


def _digest(data: bytes) -> Fingerprint:
    return hashlib.blake2b(data, digest_size=16).digest()


@dataclass(frozen=True, eq=False, slots=True)
class Conversation:
    """`hashes` as `prefix_hashes`; `assistant`: whether a message is one, of each. `new`: the messages from number
    `known` on; `whole` gives all."""

    tools: Tools
    hashes: Sequence[Fingerprint]
    assistant: Sequence[bool]
    known: int
    new: Sequence[Message] = field(repr=False)
    whole: Callable[[], Sequence[Message]] = field(repr=False)

    @classmethod
    def of(cls, messages: Sequence[Message], tools: Tools | None) -> "Conversation":
        """Of which nothing is known. Raises RecursionError."""
        hashes = prefix_hashes(messages, tools)
        return cls(tools or (), hashes, _assistant(messages), 0, messages, lambda: messages)

    def since(self, number: int) -> Sequence[Message]:
        """The messages from there on."""
        return self.new[number - self.known :] if number >= self.known else self.whole()[number:]


def _assistant(messages: Sequence[Message]) -> list[bool]:
    return [message["role"] == "assistant" for message in messages]


@dataclass(frozen=True, eq=False, slots=True)
class Sent:
    """A body whose messages stand at `raw[begin : ends[-1]]`, each up to its end; `tools` as JSON."""

    raw: bytes = field(repr=False)
    begin: int
    ends: Sequence[int]
    tools: bytes
    hashes: Sequence[Fingerprint]
    assistant: Sequence[bool]

    def shared(self, raw: bytes, begin: int) -> int:
        """With how many of these messages those at `raw[begin:]` begin, byte for byte."""
        low, high = 0, len(self.ends)
        middle = high  # most often all of them
        with memoryview(self.raw) as text:
            while low < high:
                if raw.startswith(text[self.begin : self.ends[middle - 1]], begin):
                    low = middle
                else:
                    high = middle - 1
                middle = (low + high + 1) // 2
        return low

    def goes_on_from(self, other: "Sent") -> bool:
        """But for what it may have rewritten at the other's end."""
        count = len(other.ends)
        same = count if count <= 2 * _REWRITTEN else count - _REWRITTEN
        return self.hashes[same : same + 1] == other.hashes[same : same + 1]


@dataclass(frozen=True, eq=False, slots=True)
class Body:
    """A request that was read in parts: `envelope` without its messages, of which `known` were sent before and `new`
    are those after them."""

    raw: bytes = field(repr=False)
    envelope: dict[str, Any] = field(repr=False)
    begin: int
    ends: Sequence[int]
    end: int  # of the messages' array, its bracket
    before: Sent | None
    known: int
    new: list[Any] = field(repr=False)

    def understood(self, tools: list[dict[str, Any]]) -> tuple[Conversation, Sent]:
        """Once its new messages are sound. Raises RecursionError, orjson.JSONEncodeError for tools that are nested
        too deeply."""
        written = orjson.dumps(tools)
        if self.before is not None and self.before.tools == written:
            hashes = _extended(list(self.before.hashes[: self.known + 1]), self.new)
            assistant = [*self.before.assistant[: self.known], *_assistant(self.new)]
        else:
            messages = self.messages()
            hashes, assistant = prefix_hashes(messages, tools), _assistant(messages)
        conversation = Conversation(tools, hashes, assistant, self.known, self.new, self.messages)
        return conversation, Sent(self.raw, self.begin, self.ends, written, hashes, assistant)

    def messages(self) -> list[Any]:
        """All of them."""
        with memoryview(self.raw) as text:
            messages: list[Any] = orjson.loads(text[self.begin - 1 : self.end + 1])
        return messages


class KnownBodies:
    """The requests that came last, by the names of their sessions."""

    def __init__(self, limit_bytes: int = _LIMIT_BYTES) -> None:
        self.held_bytes = 0
        self._limit_bytes = limit_bytes
        self._sent: OrderedDict[str, list[Sent]] = OrderedDict()

    def read(self, raw: bytes, name: str) -> Body | None:
        """None: to be parsed whole, as nobody knows where its messages are, or as it is no sound request."""
        opened = _BEGIN.search(raw)
        if opened is None:
            return None
        before, known, begin = None, 0, opened.end()
        for sent in self._sent.get(name, ()):
            shared = sent.shared(raw, begin)
            if shared > known:
                before, known = sent, shared
        shift, ends = (begin - before.begin, list(before.ends[:known])) if before is not None else (0, [])
        return _read(raw, begin, [end + shift for end in ends] if shift else ends, before)

    def keep(self, name: str, sent: Sent) -> None:
        """In place of the conversation that it goes on from."""
        before = self._sent.pop(name, [])
        others = [other for other in before if not sent.goes_on_from(other)][-(_KEPT - 1) :]
        kept = [*others, sent]
        self.held_bytes += sum(len(body.raw) for body in kept) - sum(len(body.raw) for body in before)
        self._sent[name] = kept
        while self.held_bytes > self._limit_bytes:
            self.forget(next(iter(self._sent)))

    def forget(self, name: str) -> None:
        """Its session is over."""
        self.held_bytes -= sum(len(body.raw) for body in self._sent.pop(name, ()))


def _read(raw: bytes, begin: int, ends: list[int], before: Sent | None) -> Body | None:
    known, at = len(ends), ends[-1] if ends else begin
    if len(raw) - at > _LONGEST_BYTES:
        return None
    end = _scan(raw, at, ends)
    if end is None:
        return None
    tail = raw[at:end].lstrip(b" \t\n\r")
    if known and tail:
        if not tail.startswith(b","):
            return None
        tail = tail[1:]
        if not tail.strip(b" \t\n\r"):
            return None
    try:
        new = orjson.loads(b"".join((b"[", tail, b"]")))
        envelope = orjson.loads(b"".join((raw[:begin], _MARK_JSON, raw[end:])))
    except orjson.JSONDecodeError:
        return None
    if len(new) != len(ends) - known or not isinstance(envelope, dict) or envelope.get("messages") != [_MARK]:
        return None
    return Body(raw, envelope, begin, ends, end, before, known, new) if ends else None


def _scan(raw: bytes, at: int, ends: list[int]) -> int | None:
    """Where the array ends in which `at` is; `ends` gets the ends of its elements that are objects, lists or texts."""
    depth = 0
    for token in _TOKEN.finditer(raw, at):
        character = raw[token.start()]
        if character in b"{[":
            depth += 1
        elif character in b"}]":
            if not depth:
                return token.start() if character in b"]" else None
            depth -= 1
        if not depth:
            ends.append(token.end())
    return None
