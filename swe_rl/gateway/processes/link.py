"""The link is the socket between the driver and one of the gateway's processes.

Invariants:
- A message is a head (a JSON object with `kind`) and a body (bytes: token ids, as int32); both lengths come first, as
  little-endian uint32. Nothing that is read can name code.
- Messages arrive in the order in which they were sent. What is sent in one turn of the event loop is written at once.
- The socket ends with the process at its other end, whatever ended that.
"""

import asyncio
import struct
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import orjson

from swe_rl.engine.engine import Completion

_LENGTHS = struct.Struct("<II")
Head = dict[str, Any]
Handle = Callable[[Head, bytes], None]


class Link(asyncio.Protocol):
    """Reads and writes messages. `handle` gets each message, `ended` hears once that there will be no more."""

    def __init__(self, handle: Handle, ended: Callable[[], None]) -> None:
        self._handle = handle
        self._ended = ended
        self._transport: asyncio.WriteTransport | None = None
        self._read = bytearray()
        self._unsent: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._ended()

    def data_received(self, data: bytes) -> None:
        self._read += data
        at = 0
        end = len(self._read)
        while end - at >= _LENGTHS.size:
            head_bytes, body_bytes = _LENGTHS.unpack_from(self._read, at)
            head_at = at + _LENGTHS.size
            body_at = head_at + head_bytes
            if end < body_at + body_bytes:
                break
            head = orjson.loads(self._read[head_at:body_at])
            body = bytes(self._read[body_at : body_at + body_bytes])
            at = body_at + body_bytes
            self._handle(head, body)
        del self._read[:at]

    def send(self, head: Mapping[str, Any], body: bytes = b"") -> None:
        """Sends a message. It does nothing if the other end is gone."""
        if self._transport is None:
            return
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        packed = orjson.dumps(head)
        self._unsent += (_LENGTHS.pack(len(packed), len(body)), packed, body)

    def close(self) -> None:
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def _flush(self) -> None:
        unsent = self._unsent
        self._unsent = []
        if self._transport is not None and unsent:
            self._transport.write(b"".join(unsent))


def packed_completion(completion: Completion, logprobs: bool) -> tuple[Head, bytes]:
    """Packs what a conversation needs of a completion, with log-probabilities if its client looks at them."""
    head = {
        "finish_reason": completion.finish_reason,
        "weight_version": completion.weight_version,
        "cached_tokens": completion.cached_tokens,
        "queue_s": completion.queue_s,
        "prefill_s": completion.prefill_s,
        "decode_s": completion.decode_s,
        "tokens": len(completion.token_ids),
    }
    body = np.array(completion.token_ids, "<i4").tobytes()
    return head, body + np.array(completion.logprobs, "<f8").tobytes() if logprobs else body


def unpacked_completion(head: Head, body: bytes) -> Completion:
    tokens = head["tokens"]
    return Completion(
        tuple(np.frombuffer(body, "<i4", tokens).tolist()),
        tuple(np.frombuffer(body, "<f8", offset=4 * tokens).tolist()),
        head["finish_reason"],
        head["weight_version"],
        head["cached_tokens"],
        head["queue_s"],
        head["prefill_s"],
        head["decode_s"],
    )
