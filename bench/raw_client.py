"""One keep-alive HTTP/1.1 connection, as thin as asyncio allows: the client's own cost stays out of what is measured.

Invariants:
- A call's latency is from its first byte written to its last byte read.
"""

import asyncio
import re
import time
from urllib.parse import urlsplit

_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_BUFFER_BYTES = 2**22


class ReplyError(Exception):
    """A status other than 200, or no reply."""


class Connection:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def post(self, path: str, body: bytes, session_id: str) -> tuple[bytes, float]:
        """The reply's body, and the seconds it took. Raises ReplyError."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port, limit=_BUFFER_BYTES)
        assert self._reader is not None
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nContent-Type: application/json\r\n"
            f"X-Session-ID: {session_id}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        began_s = time.perf_counter()
        self._writer.write(head.encode() + body)
        try:
            text = await self._reader.readuntil(b"\r\n\r\n")
            reply = await self._body(text)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise ReplyError(f"{self._host}:{self._port} broke off: {error}") from error
        took_s = time.perf_counter() - began_s
        if not text.startswith(b"HTTP/1.1 200"):
            raise ReplyError(f"{text.splitlines()[0].decode()}: {reply[:200].decode(errors='replace')}")
        return reply, took_s

    async def _body(self, head: bytes) -> bytes:
        assert self._reader is not None
        found = _LENGTH.search(head)
        if found:
            return await self._reader.readexactly(int(found[1]))
        parts = []
        while size := int(await self._reader.readline(), 16):
            parts.append(await self._reader.readexactly(size))
            await self._reader.readexactly(2)
        await self._reader.readexactly(2)
        return b"".join(parts)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
