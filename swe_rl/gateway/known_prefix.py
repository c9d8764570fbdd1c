"""The hashes of conversations asked for lately, found again by what they look like on the wire.

Invariants:
- `hashes` is `prefix_hashes`, always: what is remembered only saves work, and only messages that were sent again byte
  for byte are found.
- A conversation that goes on takes the place of what it goes on from; of at most `_KEPT` others one is remembered each.
- No text is kept, only hashes.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from swe_rl.gateway.fingerprint import Fingerprint, extend_hash, prefix_hashes, tools_hash

_KEPT = 4  # conversations of one session that take turns: sub-agents

_Key = tuple[int, bytes]  # number of messages, hash of the tools and messages as JSON


class KnownPrefixes:
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
        found = list(self._hashes.pop(known)) if known is not None else [tools_hash(tools)]
        for message in messages[len(found) - 1 :]:
            found.append(extend_hash(found[-1], message))
        self._hashes[key] = tuple(found)
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
