"""Connections until the head of their first request is there.

Invariants:
- One that does not get so far within the limit is closed; aiohttp, which would wait for ever, never hears of it.
- From the first complete head on a connection is aiohttp's, with all that was read; its `keepalive_timeout` bounds the
  wait for each head after that. What cannot become a head (a client that speaks TLS, say) is its to refuse, at once.
"""

import asyncio
from collections.abc import Callable
from typing import cast

_END_OF_HEAD = b"\r\n\r\n"
_LONGEST_HEAD_BYTES = 65536  # more is aiohttp's to refuse


class Arrivals:
    """A factory of protocols for a listening socket; `serve` makes the protocol that takes over."""

    def __init__(self, serve: Callable[[], asyncio.Protocol], limit_s: float) -> None:
        self.serve = serve
        self.limit_s = limit_s
        self.open: set[asyncio.Transport] = set()

    def __call__(self) -> asyncio.Protocol:
        return _Arriving(self)

    def close(self) -> None:
        for transport in list(self.open):
            transport.abort()


class _Arriving(asyncio.Protocol):
    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._head = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._arrivals.open.add(self._transport)
        loop = asyncio.get_running_loop()
        self._limit = loop.call_later(self._arrivals.limit_s, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        begin = max(0, len(self._head) - len(_END_OF_HEAD))
        self._head += data
        first = self._head.lstrip(b"\r\n")[:1]
        whole = first and self._head.find(_END_OF_HEAD, begin) >= 0
        if whole or len(self._head) > _LONGEST_HEAD_BYTES or (first and not first.isalpha()):
            self._hand_over()

    def connection_lost(self, error: Exception | None) -> None:
        self._leave()

    def _hand_over(self) -> None:
        self._leave()
        server = self._arrivals.serve()
        self._transport.set_protocol(server)
        server.connection_made(self._transport)
        server.data_received(bytes(self._head))

    def _leave(self) -> None:
        self._limit.cancel()
        self._arrivals.open.discard(self._transport)
