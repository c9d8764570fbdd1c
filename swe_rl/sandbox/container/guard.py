"""This module talks to the guard, the shell that runs a container's commands (inside/guard.sh).

Invariants:
- One command runs at a time. Whatever becomes of it, nothing of it is left in the sandbox when `run` returns.
- A command that ends or stops what listens inside has done no more than that: PID 1 still hears signals from outside.
- The end of a command is a line that only this side knew before; a stream that ends without it is a GuardLostError.
- Memory does not grow with the output.
"""

import asyncio
import contextlib
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from swe_rl.sandbox.base import HeadTail
from swe_rl.sandbox.command import until_done
from swe_rl.sandbox.sandbox import SandboxError, Waited, ends_within, no_wait

SCRIPT = (Path(__file__).parents[1] / "inside" / "guard.sh").read_text(encoding="utf-8")
# Only these bytes are sent to the guard as they are. All others are escaped for `printf %b`.
_PLAIN = re.compile(rb"[A-Za-z0-9_./:=,@+-]")
_ESCAPED = [chr(byte) if _PLAIN.fullmatch(bytes([byte])) else f"\\0{byte:03o}" for byte in range(256)]
_EMPTY = "\\c"  # This escape prints nothing, and stands for an empty field, which would else be lost.
_TOKEN_BYTES = 16  # A token is so long that no command can guess it.
_TRAILER_BYTES = 2 * _TOKEN_BYTES + len(":255\n")  # This is the longest trailer: the token in hex, and a status.
_AGAIN_S = 1.0  # The signal is sent again so often, as long as the command has not ended.
# A guard hears so often within its lease that the owner lives, so that a late word does not end it.
_BEATS_IN_A_LEASE = 4
STOP_SIGNAL = "SIGUSR1"  # The guard ends its command at this signal, as it does at the word `stop`.


class GuardLostError(SandboxError):
    """The stream to the guard ended, or it does not answer any more: the sandbox is gone."""


class GuardStream(Protocol):
    """This carries bytes to the guard, and the bytes that it and its commands print."""

    async def read(self) -> bytes:
        """Returns the next bytes, which are empty at the end. Raises OSError."""
        ...

    async def write(self, data: bytes) -> None:
        """Writes to the guard. Raises OSError."""
        ...

    @property
    def ended(self) -> bool:
        """Tells whether the other side is known to be gone."""
        ...

    async def close(self) -> None: ...


def guard_argv(lease_s: float) -> list[str]:
    """Returns the command line of a guard that ends when it hears nothing of its owner for `lease_s`."""
    return ["bash", "-c", SCRIPT, "guard", f"{lease_s:.3f}"]


def request_line(token: str, workdir: str, command: str, env: Mapping[str, str]) -> bytes:
    """Returns the line by which a guard is asked to run a command; `token` comes back at its end."""
    fields = [workdir, command, *(f"{name}={value}" for name, value in env.items())]
    return " ".join(["run", token, *map(escape_text, fields)]).encode("ascii") + b"\n"


def escape_text(text: str) -> str:
    """Returns a text for `printf %b`, without blanks and control characters. It is never empty."""
    return "".join(_ESCAPED[byte] for byte in text.encode("utf-8", "replace")) or _EMPTY


class Guard:
    """This is the outer side of a guard. A stopped command that does not end within `grace_s` breaks the sandbox.

    `interrupt` sends STOP_SIGNAL to PID 1 from outside of the sandbox, every second, where a command did not end within
    `patience_s` of its stop. It raises SandboxError or OSError where it cannot.
    """

    def __init__(
        self,
        stream: GuardStream,
        *,
        interrupt: Callable[[], Awaitable[None]] | None = None,
        patience_s: float = 3.0,
        grace_s: float = 20.0,
    ) -> None:
        self._stream = stream
        self._interrupt = interrupt
        self._patience_s = patience_s
        self._grace_s = grace_s
        self._turn = asyncio.Lock()
        self._key = secrets.token_hex(_TOKEN_BYTES // 2)  # The guard takes commands only with this key.

    async def run(
        self,
        command: str,
        output: HeadTail,
        *,
        workdir: str,
        timeout_s: float,
        env: Mapping[str, str],
        waited: Waited = no_wait,
    ) -> tuple[int | None, float]:
        """Runs a command and feeds what it prints to `output`. A cancelled caller waits until the command is stopped.

        Returns the exit status, or None after the timeout, and the seconds that it took. Raises GuardLostError.
        """
        async with self._turn:
            started_s = time.monotonic()
            token = self._key + secrets.token_hex(_TOKEN_BYTES // 2)
            await self._send(request_line(token, workdir, command, env))
            ending = asyncio.ensure_future(self._until_the_end(token.encode(), output))
            try:
                in_time = await ends_within(ending, timeout_s, waited)
            finally:
                if not ending.done():
                    await until_done(asyncio.ensure_future(self._stop(ending)))
            if ending.cancelled():
                raise GuardLostError(f"a command did not end {self._grace_s:g} s after it was stopped")
            status = ending.result()
            if in_time:
                return (status, time.monotonic() - started_s)
            return (None, timeout_s)

    def between_commands(self) -> AbstractAsyncContextManager[None]:
        """Keeps commands from beginning for the time of a block, which begins when none runs."""
        return self._turn

    @property
    def ended(self) -> bool:
        """Tells whether the guard is known to be gone."""
        return self._stream.ended

    async def beat(self) -> None:
        """Tells the guard that its owner lives; a guard that is gone is found out by the next command."""
        with contextlib.suppress(OSError):
            await self._stream.write(b"beat\n")

    async def close(self) -> None:
        await self._stream.close()

    async def _stop(self, ending: "asyncio.Task[int]") -> None:
        with contextlib.suppress(GuardLostError):
            await self._send(b"stop\n")
        until_s = time.monotonic() + self._grace_s
        await asyncio.wait({ending}, timeout=self._grace_s if self._interrupt is None else self._patience_s)
        while self._interrupt is not None and not ending.done() and time.monotonic() < until_s:
            with contextlib.suppress(SandboxError, OSError):
                await self._interrupt()
            await asyncio.wait({ending}, timeout=_AGAIN_S)
        if not ending.done():
            await self._stream.close()
            ending.cancel()
            await asyncio.wait({ending})

    async def _send(self, data: bytes) -> None:
        try:
            await self._stream.write(data)
        except OSError as error:
            raise GuardLostError(f"the sandbox does not take commands any more: {error}") from error

    async def _until_the_end(self, token: bytes, output: HeadTail) -> int:
        held = bytearray()  # These are the last bytes, which may be the trailer.
        while (status := _find_trailer(held, token)) is None:
            try:
                data = await self._stream.read()
            except OSError as error:
                raise GuardLostError(f"the stream of the command broke: {error}") from error
            if not data:
                output.feed(bytes(held))
                raise GuardLostError("the sandbox ended while a command ran in it")
            held += data
            if (surplus := len(held) - _TRAILER_BYTES) > 0:
                output.feed(bytes(held[:surplus]))
                del held[:surplus]
        output.feed(bytes(held[: held.rindex(token)]))
        return status


async def beat_all(lease_s: float, guards: Callable[[], Iterable[Guard]]) -> None:
    """Tells all guards again and again, well within their lease, that their owner lives. It ends when cancelled."""
    while True:
        await asyncio.sleep(lease_s / _BEATS_IN_A_LEASE)
        for guard in list(guards()):
            await guard.beat()


def _find_trailer(held: bytearray, token: bytes) -> int | None:
    if not held.endswith(b"\n") or (at := held.rfind(token + b":")) < 0:
        return None
    return int(held[at + len(token) + 1 : -1])
