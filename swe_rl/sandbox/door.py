"""The one way out of a sandbox without network: a Unix socket that leads to one address, the gateway's.

Invariants:
- Nothing but that address is reachable through it, whatever a program in the sandbox sends.
- In the sandbox the address is `http://127.0.0.1:PORT` with the gateway's own port; a tiny forwarder there, started
  with each command, carries it to the socket. It needs python3 or node in the sandbox and no network of any engine.
- `close` ends the listener and every connection.
"""

import asyncio
import contextlib
import os
import shlex
import shutil
import socket
from pathlib import Path

from swe_rl.sandbox.protocol import Door, SandboxError

SOCKET_NAME = "door.sock"
_INSIDE = Path(__file__).parent / "inside"
_FORWARDERS = ("door.py", "door.js")
_CHUNK_BYTES = 65536


def direct_url(door: Door) -> str:
    """The address of a door for commands that share this machine's network."""
    host = f"[{door.host}]" if ":" in door.host else door.host
    return f"http://{host}:{door.port}"


class Doorway:
    """The outer end, on this machine: listens in `folder`, which the sandbox sees as `seen_as`."""

    def __init__(self, door: Door, folder: Path, seen_as: str) -> None:
        self._door = door
        self._folder = folder
        self._seen_as = seen_as
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._door.port}"

    async def open(self) -> None:
        """Raises SandboxError when there can be no socket in the folder."""
        try:
            prepare_folder(self._folder)
            self._server = await asyncio.start_unix_server(self._serve, sock=_listener(self._folder))
        except OSError as error:
            raise SandboxError(f"no door to {self._door.host}:{self._door.port} in {self._folder}: {error}") from error

    def prefix(self) -> str:
        """What a command line starts with, so that the address answers in it. One line: line numbers stay."""
        port, inside = self._door.port, shlex.quote(self._seen_as)
        return (
            f"if command -v python3 >/dev/null; then python3 -I -S {inside}/door.py {port} {inside}/{SOCKET_NAME}; "
            f"elif command -v node >/dev/null; then node {inside}/door.js {port} {inside}/{SOCKET_NAME}; "
            "else false; fi </dev/null >/dev/null 2>&1 || "
            "{ echo 'no way to the gateway: the sandbox needs python3 or node' >&2; exit 126; }; "
        )

    async def close(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for pump in list(self._pumps):
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        with contextlib.suppress(OSError):
            (self._folder / SOCKET_NAME).unlink()
        self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pumps.add(task)
        try:
            await self._carry(reader, writer)
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._pumps.discard(task)
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._door.host, self._door.port)
        try:
            await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        finally:
            far_writer.transport.abort()


def prepare_folder(folder: Path) -> None:
    """Makes the folder that a sandbox sees: open to every user in it, written by none. Raises OSError."""
    folder.mkdir(mode=0o755, exist_ok=True)
    folder.chmod(0o755)
    for name in _FORWARDERS:
        shutil.copyfile(_INSIDE / name, folder / name)
        (folder / name).chmod(0o644)


def _listener(folder: Path) -> socket.socket:
    """Bound by way of an open folder: a socket's path may have 107 bytes only."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        path = f"/proc/self/fd/{handle}/{SOCKET_NAME}" if Path("/proc/self/fd").is_dir() else str(folder / SOCKET_NAME)
        with contextlib.suppress(FileNotFoundError):
            (folder / SOCKET_NAME).unlink()
        listener.bind(path)
        (folder / SOCKET_NAME).chmod(0o666)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(handle)
    return listener


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
