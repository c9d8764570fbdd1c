"""This module finds out what of a request's conversation was there before.

A client sends its whole conversation with every call. Its bytes are compared with those of the calls before (memcmp);
only messages that are not the same bytes are parsed, checked and hashed.

Invariants:
- The hashes of a conversation are `prefix_hashes` of its messages, always: what is remembered only saves work.
- What is parsed in parts is what would be parsed whole. The messages' array is cut out and a word that nobody knows
  (`_MARK`) is put in its place. If the rest parses and has that word as its messages, and nothing else, the array is
  the body's, and body and array are sound on their own. Whatever does not fit is parsed whole.
- A message's end is known where the scan of brackets and the parser agree about the number of messages.
- Memory is bounded: `limit_bytes` of bodies, of which those used least lately go first, and at most `_KEPT` of one
  name. A name says where to look, not what is there: a wrong one costs time.
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
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from swe_rl.gateway import json_slices
from swe_rl.gateway.json_repair import replace_lone_surrogates
from swe_rl.model.long_text import utf8_slices
from swe_rl.templates.qwen import dump_json, message_text, role_of

Fingerprint = bytes
Message = Mapping[str, Any]
Tools = Sequence[Mapping[str, Any]]
# Takes messages as they were sent. Returns them as they are used, and for each the kinds of what was mended.
Mend = Callable[[list[Any]], tuple[list[dict[str, Any]], list[frozenset[str]]]]

# Conversations of one session take turns if there are sub-agents. So many are remembered.
_KEPT = 4
# A conversation may change so many messages at its end and still be the same one: clients move their marks for caches.
_REWRITTEN = 2
# 512 MB of bodies are remembered: about 1,000 conversations of 128k tokens.
_LIMIT_BYTES = 512 * 2**20
# A scan of more new text would keep the interpreter lock for too long.
_LONGEST_BYTES = 2**20
# No reply has had longer arguments of a call, so longer ones are not parsed.
_LONGEST_ARGUMENTS = 2**18
_MARK = f"messages {secrets.token_hex(16)}"
_MARK_JSON = orjson.dumps(_MARK)
_NAME = b'"messages"'
_BEGIN = re.compile(rb'"messages"[ \t\n\r]*:[ \t\n\r]*\[')
# The pattern never goes back, so it needs no memory.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[][{}]', re.DOTALL)


def tools_hash(tools: Tools | None) -> Fingerprint:
    """Returns the hash of a conversation that has tools and no message yet. Each tool is written on its own, as many at
    once would keep the interpreter lock for long."""
    return _hash_parts(*(dump_json(tool, ensure_ascii=True, sort_keys=True).encode() + b"\0" for tool in tools or ()))


def prefix_hashes(messages: Sequence[Message], tools: Tools | None) -> list[Fingerprint]:
    """Returns one hash more than there are messages: entry i covers the tools and the first i messages."""
    return _extend_hashes([tools_hash(tools)], messages)


def _extend_hashes(hashes: list[Fingerprint], messages: Sequence[Message]) -> list[Fingerprint]:
    for message in messages:
        hashes.append(extend_hash(hashes[-1], message))
    return hashes


def extend_hash(prefix: Fingerprint, message: Message) -> Fingerprint:
    """Returns the hash of a prefix and one more message. Lengths are written in front of what may hold anything, so
    that no two messages are written alike."""
    role = role_of(message)
    text = message_text(message.get("content"))
    if role != "assistant":
        return _hash_parts(prefix, role.encode(), b"\0", _encode_text(text))
    said = _encode_text(text.strip())
    calls = message.get("tool_calls") or ()
    called = b""
    if calls:
        called = dump_json([_call_parts(call) for call in calls], ensure_ascii=True, sort_keys=True).encode()
    # Half a character that the model wrote comes back from a client as U+FFFD.
    if b"\\ud" in called:
        called = replace_lone_surrogates(called)
    return _hash_parts(prefix, b"assistant\0%d\0" % len(said), said, called)


def _encode_text(text: str) -> bytes:
    return b"".join(utf8_slices(text))


def _call_parts(call: Mapping[str, Any]) -> list[Any]:
    function = call.get("function") or call
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        if len(arguments) > _LONGEST_ARGUMENTS:
            return [function.get("name"), "text", arguments]
        try:
            arguments = json.loads(arguments, parse_float=_by_value)
        except (ValueError, RecursionError):
            return [function.get("name"), "text", arguments]
    else:
        arguments = _by_values(arguments)
    return [function.get("name"), "json", arguments]


def _by_value(written: str | float) -> float | int:
    """Makes 1.0 and 1 the same number: if calls have values and no text, clients write the values in their own way."""
    value = float(written)
    if value.is_integer():
        return int(value)
    return value


def _by_values(arguments: Any) -> Any:
    if isinstance(arguments, float):
        return _by_value(arguments)
    if isinstance(arguments, dict):
        return {name: _by_values(value) for name, value in arguments.items()}
    if isinstance(arguments, list):
        return [_by_values(value) for value in arguments]
    return arguments


def _hash_parts(*parts: bytes) -> Fingerprint:
    """Hashes the parts as one text. Long parts are not copied, and they are hashed without the interpreter lock."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.digest()


@dataclass(frozen=True, eq=False, slots=True)
class RequestMessages:
    """Holds the messages of a request, with the hash of each prefix. `hashes` are `prefix_hashes`, and `assistant`
    tells for each message whether it is the assistant's. `new` has the messages from number `known` on; `whole` returns
    all."""

    tools: Tools
    hashes: Sequence[Fingerprint]
    assistant: Sequence[bool]
    known: int
    new: Sequence[Message] = field(repr=False)
    whole: Callable[[], Sequence[Message]] = field(repr=False)
    _agent: int = 0  # The conversation is this sub-agent's; 0: the session's own.
    _last: Fingerprint = b""  # A sub-agent's last hash, as it is without the sub-agent.

    @classmethod
    def of(cls, messages: Sequence[Message], tools: Tools | None) -> "RequestMessages":
        """Makes a conversation of which nothing is known from before. Raises RecursionError."""
        hashes = prefix_hashes(messages, tools)
        return cls(tools or (), hashes, _assistant_flags(messages), 0, messages, lambda: messages)

    def of_agent(self, agent: int) -> "RequestMessages":
        """Returns the conversation as that of a sub-agent, whose hashes no other agent's conversation has."""
        if not agent:
            return self
        hashes = [_hash_of_agent(agent, fingerprint) for fingerprint in self.hashes]
        return replace(self, hashes=hashes, _agent=agent, _last=self.hashes[-1])

    def answered(self, reply: Message) -> Fingerprint:
        """Returns the hash of the conversation with this reply at its end."""
        if self._agent:
            return _hash_of_agent(self._agent, extend_hash(self._last, reply))
        return extend_hash(self.hashes[-1], reply)

    def since(self, number: int) -> Sequence[Message]:
        """Returns the messages from this number on."""
        if number >= self.known:
            return self.new[number - self.known :]
        return self.whole()[number:]


def _hash_of_agent(agent: int, fingerprint: Fingerprint) -> Fingerprint:
    return _hash_parts(b"sub-agent %d\0" % agent, fingerprint)


def _assistant_flags(messages: Sequence[Message]) -> list[bool]:
    return [message["role"] == "assistant" for message in messages]


@dataclass(frozen=True, eq=False, slots=True)
class SentBody:
    """Holds a body whose messages stand at `raw[begin : ends[-1]]`, each up to its end. `tools` are JSON, and `mended`
    has the kinds of what was mended in each message."""

    raw: bytes = field(repr=False)
    begin: int
    ends: Sequence[int]
    tools: bytes
    hashes: Sequence[Fingerprint]
    assistant: Sequence[bool]
    mended: Sequence[frozenset[str]]

    def shared(self, raw: bytes, begin: int) -> int:
        """Returns with how many of these messages the ones at `raw[begin:]` begin, byte for byte."""
        low = 0
        high = len(self.ends)
        # Most often all messages are the same, so that is tried first.
        middle = high
        with memoryview(self.raw) as text:
            while low < high:
                if raw.startswith(text[self.begin : self.ends[middle - 1]], begin):
                    low = middle
                else:
                    high = middle - 1
                middle = (low + high + 1) // 2
        return low

    def goes_on_from(self, other: "SentBody") -> bool:
        """Tells whether this conversation continues the other, apart from messages at the other's end that it may have
        rewritten."""
        count = len(other.ends)
        if count <= 2 * _REWRITTEN:
            same = count
        else:
            same = count - _REWRITTEN
        return self.hashes[same : same + 1] == other.hashes[same : same + 1]


@dataclass(frozen=True, eq=False, slots=True)
class Body:
    """Holds a request that was read in parts. `envelope` is the request without its messages: `known` of them were sent
    before, and `new` are those after them."""

    raw: bytes = field(repr=False)
    envelope: dict[str, Any] = field(repr=False)
    begin: int
    ends: Sequence[int]
    # The bracket that ends the messages' array stands here.
    end: int
    before: SentBody | None
    known: int
    new: list[Any] = field(repr=False)

    def understood(self, tools: list[dict[str, Any]], mend: Mend) -> tuple[RequestMessages, SentBody]:
        """Returns the conversation of the messages as `mend` gives them, and the body to remember. Raises
        RecursionError, orjson.JSONEncodeError for tools that are nested too deeply, and what `mend` raises."""
        written = orjson.dumps(tools)
        new, mended = mend(self.new)
        if self.before is not None:
            mended = [*self.before.mended[: self.known], *mended]
        if self.before is not None and self.before.tools == written:
            hashes = _extend_hashes(list(self.before.hashes[: self.known + 1]), new)
            assistant = [*self.before.assistant[: self.known], *_assistant_flags(new)]
        else:
            messages, _ = mend(self.messages())
            hashes = prefix_hashes(messages, tools)
            assistant = _assistant_flags(messages)
        conversation = RequestMessages(tools, hashes, assistant, self.known, new, lambda: mend(self.messages())[0])
        return conversation, SentBody(self.raw, self.begin, self.ends, written, hashes, assistant, mended)

    def messages(self) -> list[Any]:
        """Parses all messages."""
        with memoryview(self.raw) as text:
            messages: list[Any] = json_slices.loads(bytes(text[self.begin - 1 : self.end + 1]))
        return messages


class KnownBodies:
    """Remembers the latest requests by the names of their sessions."""

    def __init__(self, limit_bytes: int = _LIMIT_BYTES) -> None:
        self.held_bytes = 0
        self._limit_bytes = limit_bytes
        self._sent: OrderedDict[str, list[SentBody]] = OrderedDict()

    def read(self, raw: bytes, name: str) -> Body | None:
        """Reads a body in parts. Returns None if it must be parsed whole, because nobody knows where its messages are,
        or because the request is not sound."""
        opened = _opened(raw)
        if opened is None:
            return None
        before = None
        known = 0
        begin = opened.end()
        for sent in self._sent.get(name, ()):
            shared = sent.shared(raw, begin)
            if shared > known:
                before = sent
                known = shared
        shift, ends = (begin - before.begin, list(before.ends[:known])) if before is not None else (0, [])
        return _read_body(raw, begin, [end + shift for end in ends] if shift else ends, before)

    def keep(self, name: str, sent: SentBody) -> None:
        """Remembers a body in place of those whose conversation it goes on from."""
        before = self._sent.pop(name, [])
        others = [other for other in before if not sent.goes_on_from(other)][-(_KEPT - 1) :]
        kept = [*others, sent]
        self.held_bytes += sum(len(body.raw) for body in kept) - sum(len(body.raw) for body in before)
        self._sent[name] = kept
        while self.held_bytes > self._limit_bytes:
            self.forget(next(iter(self._sent)))

    def forget(self, name: str) -> None:
        """Forgets a session that is over."""
        self.held_bytes -= sum(len(body.raw) for body in self._sent.pop(name, ()))


def _opened(raw: bytes) -> "re.Match[bytes] | None":
    """Finds where the messages begin. The name alone is found far faster than the pattern."""
    place = raw.find(_NAME)
    while place >= 0:
        opened = _BEGIN.match(raw, place)
        if opened is not None:
            return opened
        place = raw.find(_NAME, place + len(_NAME))
    return None


def _read_body(raw: bytes, begin: int, ends: list[int], before: SentBody | None) -> Body | None:
    known = len(ends)
    if ends:
        at = ends[-1]
    else:
        at = begin
    if len(raw) - at > _LONGEST_BYTES:
        return None
    end = _scan_array(raw, at, ends)
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
        new = json_slices.loads(b"".join((b"[", tail, b"]")))
        envelope = json_slices.loads(b"".join((raw[:begin], _MARK_JSON, raw[end:])))
    except orjson.JSONDecodeError:
        return None
    if len(new) != len(ends) - known or not isinstance(envelope, dict) or envelope.get("messages") != [_MARK]:
        return None
    if ends:
        return Body(raw, envelope, begin, ends, end, before, known, new)
    return None


def _scan_array(raw: bytes, at: int, ends: list[int]) -> int | None:
    """Returns where the array ends that `at` is in, or None. `ends` gets the ends of the array's elements that are
    objects, lists or texts."""
    depth = 0
    for token in _TOKEN.finditer(raw, at):
        character = raw[token.start()]
        if character in b"{[":
            depth += 1
        elif character in b"}]":
            if not depth:
                if character in b"]":
                    return token.start()
                return None
            depth -= 1
        if not depth:
            ends.append(token.end())
    return None
