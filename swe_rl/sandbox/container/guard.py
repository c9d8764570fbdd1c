"""Talking to the guard, the shell that runs a container's commands (inside/guard.sh).

Invariants:
- One command at a time; whatever becomes of it, when `run` returns nothing of it is left in the sandbox.
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
from pathlib import Path
from typing import Protocol

from swe_rl.sandbox.base import HeadTail
from swe_rl.sandbox.command import until_done
from swe_rl.sandbox.protocol import SandboxError, Waited, ends_within, no_wait

SCRIPT = (Path(__file__).parents[1] / "inside" / "guard.sh").read_text(encoding="utf-8")
_PLAIN = re.compile(rb"[A-Za-z0-9_./:=,@+-]")
_ESCAPED = [chr(byte) if _PLAIN.fullmatch(bytes([byte])) else f"\\0{byte:03o}" for byte in range(256)]
_EMPTY = "\\c"
_TOKEN_BYTES = 16
_TRAILER_BYTES = 2 * _TOKEN_BYTES + len(":255\n")
_AGAIN_S = 1.0
_BEATS_IN_A_LEASE = 4
STOP_SIGNAL = "SIGUSR1"


class GuardLostError(SandboxError):
    """The stream to the guard ended, or it does not answer any more: the sandbox is gone."""


class Stream(Protocol):
    """Bytes to the guard and the bytes that it and its commands print."""

    async def read(self) -> bytes:
        """The next bytes; empty at the end. Raises OSError."""
        ...

    async def write(self, data: bytes) -> None:
        """Raises OSError."""
        ...

    @property
    def ended(self) -> bool:
        """True once the other side is known to be gone."""
        ...

    async def close(self) -> None: ...


def guard_argv(lease_s: float) -> list[str]:
    return ["bash", "-c", SCRIPT, "guard", f"{lease_s:.3f}"]


def request_line(token: str, workdir: str, command: str, env: Mapping[str, str]) -> bytes:
    fields = [workdir, command, *(f"{name}={value}" for name, value in env.items())]
    return " ".join(["run", token, *map(escape, fields)]).encode("ascii") + b"\n"


def escape(text: str) -> str:
    """For `printf %b`, without blanks and control characters; never empty."""
    return "".join(_ESCAPED[byte] for byte in text.encode("utf-8", "replace")) or _EMPTY


class Guard:
    """`grace_s`: how long the end of a stopped command may take before the sandbox counts as broken.

    `interrupt` sends STOP_SIGNAL to PID 1 from outside of the sandbox, every second, where a command did not end within
    `patience_s` of its stop. It raises SandboxError or OSError where it cannot.
    """

    def __init__(
        self,
        stream: Stream,
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
        self._key = secrets.token_hex(_TOKEN_BYTES // 2)  # the guard takes commands from nobody else

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
        """The exit status, or None after the timeout, and its seconds. Raises GuardLostError.

        A cancelled command is stopped first.
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
            return (status, time.monotonic() - started_s) if in_time else (None, timeout_s)

    @property
    def ended(self) -> bool:
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
        held = bytearray()  # the last bytes, which may be the trailer
        while (status := _trailer(held, token)) is None:
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
    """For as long as it is not cancelled: tells all of them that their owner lives, well within their lease."""
    while True:
        await asyncio.sleep(lease_s / _BEATS_IN_A_LEASE)
        for guard in list(guards()):
            await guard.beat()


def _trailer(held: bytearray, token: bytes) -> int | None:
    if not held.endswith(b"\n") or (at := held.rfind(token + b":")) < 0:
        return None
    return int(held[at + len(token) + 1 : -1])
