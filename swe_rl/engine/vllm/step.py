"""Runs one server on another node of the job, as a SLURM step: picks its GPUs there, and lets nobody else in.

It is a program of its own, `python -I step.py SPEC COMMAND...`; SPEC is JSON (`StepSpec`), the key is VLLM_API_KEY. The
server listens on loopback, as on the first node; a relay before it is what the node's address shows. vLLM asks for a
key on some of its paths only, so the relay asks for it on every connection.

Invariants:
- The end of standard input, SIGTERM or the server's own end: all lead to the same end, after which nothing is left.
- The first request of a connection has the key or is answered 401; whoever had it there is trusted on it.
- It ends with the server's status.
"""

import asyncio
import contextlib
import hmac
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

_HEAD_BYTES = 64 * 1024
_HEAD_S = 10.0
_CHUNK_BYTES = 256 * 1024
_REFUSED = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_NOT_UP = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True, slots=True)
class StepSpec:
    """The work of a step. `gpus` are numbers among those that SLURM gave this node, None without GPUs.

    `port` is the relay's, `inner` the server's.
    """

    port: int
    inner: int
    grace_s: float
    gpus: tuple[int, ...] | None = None
    mig: bool = False
    # A MIG slice is called by its number.
    by_number: bool = False

    def text(self) -> str:
        return json.dumps(asdict(self))


def main(arguments: list[str]) -> int:
    spec = StepSpec(**json.loads(arguments[0]))
    environ = dict(os.environ)
    if spec.gpus is not None:
        from swe_rl.errors import UserError

        try:
            environ["CUDA_VISIBLE_DEVICES"] = _visible_devices(spec, environ)
        except UserError as error:
            print(f"DeviceError: {error}", file=sys.stderr)
            return 2
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    return asyncio.run(_serve_relay(spec, arguments[1:], environ))


def _visible_devices(spec: StepSpec, environ: dict[str, str]) -> str:
    """Returns CUDA_VISIBLE_DEVICES. Raises DeviceError."""
    from swe_rl.engine.vllm.devices import slice_number, visible_devices
    from swe_rl.layout.placement import PlacedGpu

    devices = visible_devices([PlacedGpu(0, index) for index in spec.gpus or ()], environ, mig=spec.mig)
    if spec.by_number:
        return slice_number(devices, environ)
    return devices


async def _serve_relay(spec: StepSpec, command: list[str], environ: dict[str, str]) -> int:
    """Runs the server below its guard, and the relay before it."""
    gate = Gate(spec.inner, environ.get("VLLM_API_KEY", ""))
    try:
        relay = await asyncio.start_server(gate.connected, None, spec.port, limit=_HEAD_BYTES)
    except OSError as error:
        print(f"the relay cannot listen on port {spec.port}: {error}", file=sys.stderr)
        return 1
    child = _start_guarded(spec, command, environ)
    assert child.stdin is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, child.stdin.close)
    threading.Thread(target=_until_input_ends, args=(child,), daemon=True).start()
    status = await asyncio.to_thread(child.wait)
    relay.close()
    gate.close()
    if status >= 0:
        return status
    return 128 - status


def _start_guarded(spec: StepSpec, command: list[str], environ: dict[str, str]) -> "subprocess.Popen[bytes]":
    guard = str(Path(__file__).with_name("guard.py"))
    whole = [sys.executable, "-I", guard, str(spec.grace_s), *command]
    return subprocess.Popen(whole, stdin=subprocess.PIPE, env=environ)


def _until_input_ends(child: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    if child.stdin is not None:
        child.stdin.close()


class Gate:
    """Passes connections with the key on, byte for byte."""

    def __init__(self, inner: int, key: str) -> None:
        self._inner = inner
        self._key = key
        self._open: set[asyncio.Task[None]] = set()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            await self._pass_on(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(task)
            writer.close()

    def close(self) -> None:
        for task in self._open:
            task.cancel()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _HEAD_S)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            return
        if not has_key(head, self._key):
            writer.write(_REFUSED)
            await writer.drain()
            return
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._inner)
        except OSError:
            writer.write(_NOT_UP)
            await writer.drain()
            return
        try:
            inner_writer.write(head)
            ways = [_pump_bytes(reader, inner_writer), _pump_bytes(inner_reader, writer)]
            tasks = [asyncio.ensure_future(way) for way in ways]
            try:
                # The end of either side is the connection's.
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            inner_writer.close()


def has_key(head: bytes, key: str) -> bool:
    """Tells whether the head of an HTTP request has the key. An empty key opens nothing."""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"authorization":
            return bool(key) and hmac.compare_digest(value.strip(), f"Bearer {key}".encode())
    return False


async def _pump_bytes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))
    sys.exit(main(sys.argv[1:]))
