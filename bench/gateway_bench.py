"""What a gateway costs: latency and requests a second against the same engine addressed directly.

    python -m bench.gateway_bench --peers /path/to/venv/bin --out gateway.json
    python -m bench.gateway_bench --clients 32 --token-ms 10         (throughput lost in front of a busy engine)

Clients are agents in mid-conversation: each call brings the whole history in its body and adds one reply and one
observation to it. Bodies are of the given size on average (from half to one and a half of 2 KiB, from 7/8 to 9/8 of
128 KiB); the call that opens a large conversation is timed apart. Engine, gateway, peers and clients are processes of
one machine and compete for its cores: read the figures as differences and ratios within one run.

Invariants:
- Everybody is measured in the same run, in turn, in every repeat; the figures are medians over the repeats.
- This project's gateway does all its work: rendering and tokens, router, token capture, SQLite.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from bench.echo_engine import MODEL
from bench.peers import PEERS, PeerError, process, run_to_end
from bench.random_qwen3 import write_model
from bench.serve_gateway import LOOPS
from bench.words import text
from swe_rl.host.addresses import free_port
from swe_rl.router.simulation.outcome import percentile

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


_SAMPLED = 16
_OBSERVED = 8
_TASK_WORDS = 24  # four times that for the system
_TURN_WORDS = 72
_VOCABULARY = 16384
KIB = 1024


@dataclass(frozen=True, slots=True)
class Cell:
    body_bytes: int
    clients: int
    requests: int  # that are measured, all clients together

    @property
    def small(self) -> bool:
        return self.body_bytes < 16 * KIB

    @property
    def from_bytes(self) -> int:
        return self.body_bytes // 2 if self.small else self.body_bytes * 7 // 8

    @property
    def to_bytes(self) -> int:
        return 2 * self.body_bytes - self.from_bytes

    def __str__(self) -> str:
        return f"{self.body_bytes // KIB} KiB, {self.clients} clients"


CELLS = (
    Cell(2 * KIB, 1, 500),
    Cell(2 * KIB, 32, 3200),
    Cell(2 * KIB, 400, 4000),
    Cell(128 * KIB, 1, 120),
    Cell(128 * KIB, 32, 640),
    Cell(128 * KIB, 400, 1200),
)


@dataclass(slots=True)
class Measured:
    """`first_s`: of the calls that open a large conversation, which are no part of the rest."""

    latencies_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    errors: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        ordered = sorted(self.latencies_s)
        return {
            "p50_ms": 1000 * percentile(ordered, 50),
            "p99_ms": 1000 * percentile(ordered, 99),
            "rps": len(ordered) / self.wall_s if self.wall_s else 0.0,
            "first_p50_ms": 1000 * percentile(sorted(self.first_s), 50),
            "errors": len(self.errors),
        }


@dataclass(frozen=True, slots=True)
class Door:
    """Something that takes chat completions. `path(session)` is where a session's calls go."""

    name: str
    url: str
    path: Callable[[str], str] = lambda _: "/v1/chat/completions"


class Client:
    """One agent after the other over one connection."""

    _ids = count()

    def __init__(self, door: Door, cell: Cell) -> None:
        self._door = door
        self._cell = cell
        self._connection = Connection(door.url)
        self._session = ""
        self._messages: list[dict[str, str]] = []
        self._turn = 0

    async def open(self, measured: Measured) -> None:
        """The first call of a conversation; a large one's history is in it."""
        self._session = f"s{os.getpid()}-{next(self._ids)}"
        self._turn = 0
        self._messages = _history(self._session, self._cell.from_bytes)
        if not self._cell.small:
            measured.first_s.append(await self._call())

    async def step(self, measured: Measured) -> None:
        if not self._messages or self._size() > self._cell.to_bytes:
            await self.open(measured)
        measured.latencies_s.append(await self._call())

    def close(self) -> None:
        self._connection.close()

    def _size(self) -> int:
        return sum(len(message["content"]) + 32 for message in self._messages)

    async def _call(self) -> float:
        body = orjson.dumps(
            {"model": MODEL, "max_tokens": _SAMPLED, "program_id": self._session, "messages": self._messages}
        )
        reply, took_s = await self._connection.post(self._door.path(self._session), body, self._session)
        content = orjson.loads(reply)["choices"][0]["message"]["content"]
        self._turn += 1
        said = text(f"{self._session}/{self._turn}", _OBSERVED, _VOCABULARY)
        self._messages += [{"role": "assistant", "content": content}, {"role": "user", "content": said}]
        return took_s


def _history(session: str, size: int) -> list[dict[str, str]]:
    """A system message and a task of its own, then turns of one KiB until about `size` bytes."""
    system, *turns = _shared_history(size)
    task = {"role": "user", "content": text(session, _TASK_WORDS, _VOCABULARY)}
    return [system, task, *turns]


@lru_cache(8)
def _shared_history(size: int) -> tuple[dict[str, str], ...]:
    messages = [{"role": "system", "content": text("system", 4 * _TASK_WORDS, _VOCABULARY)}]
    held = 7 * 5 * _TASK_WORDS + 64
    for turn in count():
        for role in ("assistant", "user"):
            if held >= size:
                return tuple(messages)
            messages.append({"role": role, "content": text(f"{role}/{turn}", _TURN_WORDS, _VOCABULARY)})
            held += len(messages[-1]["content"]) + 32
    raise AssertionError("unreachable")


async def measure(door: Door, cell: Cell) -> Measured:
    measured, clients = Measured(), [Client(door, cell) for _ in range(cell.clients)]
    each = -(-cell.requests // cell.clients)
    opening = asyncio.Semaphore(8)

    async def prepare(client: Client) -> None:
        async with opening:
            await client.open(measured)

    async def work(client: Client) -> None:
        for _ in range(each):
            try:
                await client.step(measured)
            except ReplyError as error:
                measured.errors.append(str(error))

    try:
        await asyncio.gather(*(prepare(client) for client in clients))
        began_s = time.perf_counter()
        await asyncio.gather(*(work(client) for client in clients))
        measured.wall_s = time.perf_counter() - began_s
    except (ReplyError, OSError) as error:
        measured.errors.append(f"{type(error).__name__}: {error}")
    finally:
        for client in clients:
            client.close()
    return measured


class GatewayBench:
    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self._arguments = arguments
        self._folder = folder
        self.notes: list[str] = []
        self.gateway_used: dict[str, Any] = {}

    async def run(self) -> list[dict[str, Any]]:
        """A row a door and cell: medians over the repeats, and every repeat's figures."""
        cells = [cell for cell in CELLS if cell.clients in self._arguments.clients]
        found: dict[tuple[str, Cell], list[dict[str, float]]] = {}
        async with contextlib.AsyncExitStack() as stack:
            doors = await self._doors(stack)
            for repeat in range(self._arguments.repeats):
                began_s = time.monotonic()
                for cell in cells:
                    for door in doors:
                        figures = (await self._measured(door, cell)).figures()
                        found.setdefault((door.name, cell), []).append(figures)
                took_s = time.monotonic() - began_s
                print(f"repeat {repeat + 1} of {self._arguments.repeats}: {took_s:.0f} s", flush=True)
        for loop in self._arguments.loops:
            lines = (self._folder / f"gateway_{loop}.log").read_text().splitlines()
            self.gateway_used[loop] = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
        return [
            {"door": name, **asdict(cell), **_medians(repeats), "repeats": repeats}
            for (name, cell), repeats in found.items()
        ]

    async def _measured(self, door: Door, cell: Cell) -> Measured:
        measured = await measure(door, cell)
        for error in sorted(set(measured.errors))[:2]:
            self.notes.append(f"{door.name}, {cell}: {len(measured.errors)} errors, such as: {error}")
        return measured

    async def _doors(self, stack: contextlib.AsyncExitStack) -> list[Door]:
        model_dir = self._folder / "model"
        write_model(model_dir, "tiny")
        echo = [sys.executable, "-m", "bench.echo_engine", "--port", "{port}"]
        echo += ["--token-ms", str(self._arguments.token_ms)]
        engine = await self._start(stack, "engine", echo, "")
        serve = [sys.executable, "-m", "bench.serve_gateway", "--url", "{engine}", "--model-dir", str(model_dir)]
        serve += ["--port", "{port}", "--arm", self._arguments.arm, "--max-model-len", "131072"]
        doors = [Door("direct", engine)]
        for loop in self._arguments.loops:
            ours = await self._start(stack, f"gateway {loop}", [*serve, "--loop", loop], engine)
            name = f"swe_rl on {loop}"
            doors.append(Door(name, ours, lambda session: f"/sessions/{session}/v1/chat/completions"))
        for peer in PEERS if self._arguments.peers else ():
            try:
                url = await self._start(stack, peer.name, peer.command(self._arguments.peers, ["{engine}"]), engine)
            except PeerError as error:
                self.notes.append(f"{peer.name} left out: {error}")
                continue
            doors.append(Door(peer.name, url))
        return doors

    async def _start(self, stack: contextlib.AsyncExitStack, name: str, command: Sequence[str], engine: str) -> str:
        filled = [word.replace("{engine}", engine) for word in command]
        log = self._folder / f"{name.replace(' ', '_')}.log"
        return await stack.enter_async_context(process(filled, free_port(), log))


def _medians(repeats: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(one[name] for one in repeats), 3) for name in repeats[0]}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """`added`: the difference of the medians to `direct`; a p99 is never subtracted. `of it`: of direct's requests a
    second."""
    lines = [
        f"{'body':>8} {'clients':>7} {'through':<28} {'p50 ms':>8} {'added':>8} {'p99 ms':>8} {'req/s':>8} "
        f"{'of it':>6} "
        f"{'first ms':>8} {'errors':>6}"
    ]
    for body, clients in dict.fromkeys((row["body_bytes"], row["clients"]) for row in rows):
        own = [row for row in rows if (row["body_bytes"], row["clients"]) == (body, clients)]
        direct = next(row for row in own if row["door"] == "direct")
        for row in own:
            lines.append(
                f"{body // KIB:>4} KiB {clients:>7} {row['door']:<28} {row['p50_ms']:>8.2f} "
                f"{row['p50_ms'] - direct['p50_ms']:>8.2f} {row['p99_ms']:>8.2f} {row['rps']:>8.0f} "
                f"{100 * row['rps'] / max(direct['rps'], 1e-9):>5.1f}% "
                f"{row['first_p50_ms']:>8.2f} {row['errors']:>6.0f}"
            )
    return "\n".join(lines)


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The cost of the gateway.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 32, 400])
    parser.add_argument("--token-ms", type=float, default=0.0, help="that the engine takes for a token")
    parser.add_argument("--arm", default="default", help="the gateway's router, of bench/arms.py")
    parser.add_argument("--loops", nargs="+", choices=LOOPS, default=["asyncio"], help="a gateway on each of these")
    parser.add_argument("--peers", type=Path, help="a folder with the programs vllm-router and smg")
    parser.add_argument("--out", type=Path)
    return parser.parse_args(words)


async def _main(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="gateway-bench-") as folder:
        bench = GatewayBench(arguments, Path(folder))
        rows = await bench.run()
    if arguments.out:
        found = {"rows": rows, "notes": bench.notes, "gateway": bench.gateway_used, "cores": os.cpu_count()}
        arguments.out.write_text(json.dumps(found) + "\n", encoding="utf-8")
    print(table(rows))
    for loop, used in bench.gateway_used.items():
        print(f"the gateway's process on {loop}, all cells together: {json.dumps(used)}")
    for note in bench.notes:
        print(note)


if __name__ == "__main__":
    run_to_end(_main(parse(sys.argv[1:])))
