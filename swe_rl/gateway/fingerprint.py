"""Fingerprints of messages: what makes two of them the same to the model.

Invariants:
- An assistant message is compared as it was answered: content (without outer whitespace) and tool calls (arguments as
  JSON values). Reasoning, ids of tool calls and null fields are not compared: clients drop or rewrite them.
- Any other message is compared by role and exact text.
- A prefix's hash covers the tools and every message up to it.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from swe_rl.model.templates.qwen import message_text, role_of

Fingerprint = bytes
_KEPT = 4  # conversations of one session that take turns: sub-agents

_Key = tuple[int, bytes]  # number of messages, hash of the tools and messages as JSON


def tools_hash(tools: Sequence[Mapping[str, Any]] | None) -> Fingerprint:
    """Of a conversation without a message."""
    return _digest(json.dumps(list(tools or ()), sort_keys=True).encode())


def prefix_hashes(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
) -> list[Fingerprint]:
    """Entry i covers the tools and the first i messages; one entry more than there are messages."""
    hashes = [tools_hash(tools)]
    for message in messages:
        hashes.append(extend_hash(hashes[-1], message))
    return hashes


def extend_hash(prefix: Fingerprint, message: Mapping[str, Any]) -> Fingerprint:
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
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return [function.get("name"), "text", arguments]
    return [function.get("name"), "json", arguments]


def _digest(data: bytes) -> Fingerprint:
    return hashlib.blake2b(data, digest_size=16).digest()


class KnownPrefixes:
    """The hashes of conversations asked for lately, found again by what they look like on the wire.

    - `hashes` is `prefix_hashes`, always: what is remembered only saves work, and only messages that were sent again
      byte for byte are found.
    - A conversation that goes on takes the place of what it goes on from; at most `_KEPT` are remembered.
    - No text is kept, only hashes.
    """

    def __init__(self) -> None:
        self._hashes: OrderedDict[_Key, tuple[Fingerprint, ...]] = OrderedDict()

    def hashes(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> tuple[Fingerprint, ...]:
        """As `prefix_hashes`."""
        try:
            known, key = self._find(messages, tools)
        except (orjson.JSONEncodeError, RecursionError):  # nested deeper than orjson writes
            return tuple(prefix_hashes(messages, tools))
        hashes = list(self._hashes.pop(known)) if known is not None else [tools_hash(tools)]
        for message in messages[len(hashes) - 1 :]:
            hashes.append(extend_hash(hashes[-1], message))
        self._hashes[key] = tuple(hashes)
        if len(self._hashes) > _KEPT:
            self._hashes.popitem(last=False)
        return self._hashes[key]

    def _find(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> tuple[_Key | None, _Key]:
        """The key of the longest remembered prefix, and of the whole."""
        hasher = hashlib.sha256(orjson.dumps(list(tools or ())))
        known, done = None, 0
        for count in sorted({count for count, _ in self._hashes if count <= len(messages)} | {len(messages)}):
            hasher.update(orjson.dumps(messages[done:count])[1:-1] + b",")
            done = count
            key = (count, hasher.digest())
            if key in self._hashes:
                known = key
        return known, key
