"""Servers of a benchmark as processes: this project's own, and other projects' routers.

Invariants:
- A process and its children are ended with the block that started it.
- A router that is not installed or does not start is an error that says so, never a silent gap.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

_START_S = 60.0
_METRICS_PORTS = 1000  # above a peer's own
_PORT, _METRICS = "{port}", "{metrics}"


class PeerError(RuntimeError):
    """A server did not start."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Another project's router: `program` of a folder of programs; X-Session-ID names the programs to all of them."""

    name: str
    program: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    def command(self, folder: Path, engines: Sequence[str]) -> list[str]:
        """Raises PeerError."""
        program = folder / self.program
        if not program.exists():
            raise PeerError(f"{program} is not there")
        listening = ("--host", "127.0.0.1", "--port", _PORT, "--prometheus-port", _METRICS, "--log-level", "error")
        return [str(program), *self.before, *listening, "--worker-urls", *engines, *self.after]


def run_to_end(main: Coroutine[None, None, None]) -> None:
    """`asyncio.run` that ends what was started also when this process is asked to end."""

    async def guarded() -> None:
        task = asyncio.ensure_future(main)
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        await task

    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(guarded())
        return
    sys.exit(130)


def program_scheduling(capacity_tokens: int = 0, **keys: object) -> tuple[str, ...]:
    """vLLM router's arguments for scheduling whole programs, with the settings that its documentation recommends;
    `capacity_tokens` of one engine, 0: unknown."""
    settings = {"program_scheduling_enable_key": "auto", "global_queue": True}
    if capacity_tokens:
        settings["token_capacity_per_target"] = capacity_tokens
    told = json.dumps({**settings, **keys})
    return ("--policy", "consistent_hash", "--enable-program-scheduling", "--program-scheduling-config-json", told)


VLLM_ROUTER = "vllm-router"
PEERS = (
    Peer("vllm-router consistent_hash", VLLM_ROUTER, after=("--policy", "consistent_hash")),
    # Its limit of 64 programs an engine would hold requests back, which is not what a gateway costs.
    Peer("vllm-router programs", VLLM_ROUTER, after=program_scheduling(max_active_programs_per_target=1_000_000)),
    Peer(
        "smg consistent_hashing",
        "smg",
        before=("launch",),
        after=("--policy", "consistent_hashing", "--disable-tokenizer-autoload"),
    ),
)


@contextlib.asynccontextmanager
async def process(command: Sequence[str], port: int, log: Path) -> AsyncIterator[str]:
    """The URL of a server that is healthy, with {port} and {metrics} of its command filled in. Raises PeerError."""
    names = {_PORT: str(port), _METRICS: str(port + _METRICS_PORTS)}
    filled = [names.get(word, word) for word in command]
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as out:
        started = await asyncio.create_subprocess_exec(*filled, stdout=out, stderr=out, start_new_session=True)
    try:
        await _healthy(started, url, log)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGTERM)
        try:
            await asyncio.wait_for(started.wait(), 15.0)
        except TimeoutError:
            os.killpg(started.pid, signal.SIGKILL)
            await started.wait()


async def _healthy(started: asyncio.subprocess.Process, url: str, log: Path) -> None:
    deadline_s = time.monotonic() + _START_S
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2.0)) as session:
        while time.monotonic() < deadline_s and started.returncode is None:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with session.get(f"{url}/health") as response:
                    if response.status == 200 and started.returncode is None:
                        return
            await asyncio.sleep(0.1)
    raise PeerError(f"{url} did not start: {_tail(log)}")


def _tail(log: Path) -> str:
    return " ".join(log.read_text(errors="replace")[-400:].split())
