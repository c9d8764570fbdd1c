"""The raw stream of a container's first process over Docker's API, on this event loop and without a thread.

Invariants:
- Nothing is lost between the answer's head and the stream: both are read by the same reader.
- Frames are unpacked as they come, however they are cut.
"""

import asyncio
from urllib.parse import quote, urlsplit

_HEAD_BYTES = 8
_CHUNK_BYTES = 1 << 18


class AttachError(OSError):
    """The engine refused to attach."""


class FrameDecoder:
    """Docker's multiplexed stream: frames of stream number, three zero bytes, length (4 bytes, big endian), data."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._left_bytes = 0

    def feed(self, data: bytes) -> bytes:
        """The payload bytes in `data`, of every stream."""
        payload = bytearray()
        view = memoryview(data)
        while view:
            if self._left_bytes:
                part = view[: self._left_bytes]
                payload += part
                self._left_bytes -= len(part)
                view = view[len(part) :]
                continue
            part = view[: _HEAD_BYTES - len(self._head)]
            self._head += part
            view = view[len(part) :]
            if len(self._head) == _HEAD_BYTES:
                self._left_bytes = int.from_bytes(self._head[4:], "big")
                self._head.clear()
        return bytes(payload)


class ContainerStream:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = FrameDecoder()

    async def read(self) -> bytes:
        while data := await self._reader.read(_CHUNK_BYTES):
            if payload := self._frames.feed(data):
                return payload
        return b""

    async def write(self, data: bytes) -> None:
        if self._writer.is_closing():
            raise BrokenPipeError("the stream is closed")
        self._writer.write(data)
        await self._writer.drain()

    @property
    def ended(self) -> bool:
        return self._reader.at_eof() or self._writer.is_closing()

    async def close(self) -> None:
        """At once; the container's first process sees the end of its input."""
        self._writer.transport.abort()


async def attach(address: str, api_version: str, container_id: str) -> ContainerStream:
    """Attached before the container starts, so that nothing is missed. Raises OSError."""
    url = urlsplit(address)
    if url.scheme == "unix":
        reader, writer = await asyncio.open_unix_connection(url.path)
    else:
        reader, writer = await asyncio.open_connection(url.hostname, url.port or 2375)
    query = "stream=1&stdin=1&stdout=1&stderr=1"
    writer.write(
        f"POST /v{api_version}/containers/{quote(container_id)}/attach?{query} HTTP/1.1\r\n"
        "Host: engine\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n".encode()
    )
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        writer.transport.abort()
        raise AttachError(f"no answer to attach: {error}") from error
    status = head.split(b" ", 2)[1]
    if status not in (b"101", b"200"):
        writer.transport.abort()
        raise AttachError(f"attach was refused: {head.splitlines()[0].decode(errors='replace')}")
    return ContainerStream(reader, writer)
