"""What one call costs the gateway's process, by the size of its conversation.

    python -m bench.gateway_cost --out cost.json
    python -m bench.gateway_cost --tokens 65536 --turns 100 --repeats 3
    python -m bench.gateway_cost --tokens 1024 16384 --turns 10 --dialects messages responses

One agent after the other: a conversation grows, call by call, to so many turns and tokens, and then the next
`--calls` calls are measured, each with 16 sampled tokens and 64 tokens of observation more. The text has a line break
every ten words. Beside the gateway stands a plain proxy: the same server and client of HTTP, the same bytes in and as
many on to the engine, and nothing else. What the gateway does itself is the difference.

Invariants:
- Processor time is the process's own, all threads, in nanoseconds as Linux counts it; nobody else's is in it.
- Gateway and proxy are asked in turn, in every repeat, and the gateway in each dialect.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from bench.echo_engine import MODEL
from bench.peers import process, run_to_end
from bench.random_qwen3 import write_model
from bench.raw_client import Connection
from bench.words import text
from swe_rl.engine.server.client import HttpClient
from swe_rl.host.addresses import free_port

_SAMPLED = 16
_OBSERVED = 64
_VOCABULARY = 16384
_MAX_MODEL_LEN = 131072
_MAX_BODY_BYTES = 2**28
DOORS = ("gateway", "proxy")


@dataclass(frozen=True, slots=True)
class Spoken:
    """A dialect: where its calls go, what they say beside the messages, and where the reply's text is."""

    path: str
    body: Callable[[list[dict[str, str]]], dict[str, Any]]
    reply: Callable[[dict[str, Any]], str]


DIALECTS = {
    "chat": Spoken(
        "chat/completions",
        lambda messages: {"messages": messages, "max_tokens": _SAMPLED},
        lambda answer: answer["choices"][0]["message"]["content"],
    ),
    "messages": Spoken(
        "messages",
        lambda messages: {"system": messages[0]["content"], "messages": messages[1:], "max_tokens": _SAMPLED},
        lambda answer: answer["content"][0]["text"],
    ),
    "responses": Spoken(
        "responses",
        lambda messages: {"input": messages, "max_output_tokens": _SAMPLED, "store": False},
        lambda answer: answer["output"][0]["content"][0]["text"],
    ),
}


@dataclass(frozen=True, slots=True)
class Size:
    """Of a conversation before its measured calls: `tokens` about, in `turns` answered calls."""

    tokens: int
    turns: int

    def __str__(self) -> str:
        return f"{self.tokens} tokens, {self.turns} turns"


SIZES = (
    Size(1024, 1),
    Size(1024, 10),
    Size(8192, 100),
    Size(16384, 100),
    Size(65536, 1),
    Size(65536, 10),
    Size(65536, 100),
    Size(122880, 100),
)


def processor_ns(pid: int) -> int:
    """Of all its threads that live."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text(encoding="ascii").split()[0]) for task in tasks)


class Agent:
    def __init__(self, url: str, session_id: str, dialect: str = "chat") -> None:
        self._spoken = DIALECTS[dialect]
        self._connection = Connection(url)
        self._session_id = session_id
        self._messages = [{"role": "system", "content": text("system", 32, _VOCABULARY)}]
        self._turn = 0

    async def turn(self, observed_tokens: int) -> None:
        said = text(f"{self._session_id}/{self._turn}", max(1, observed_tokens), _VOCABULARY).split(" ")
        lines = [" ".join(said[at : at + 10]) for at in range(0, len(said), 10)]
        self._messages.append({"role": "user", "content": "\n".join(lines)})
        body = orjson.dumps({"model": MODEL, **self._spoken.body(self._messages)})
        path = f"/sessions/{self._session_id}/v1/{self._spoken.path}"
        answer, _ = await self._connection.post(path, body, self._session_id)
        self._messages.append({"role": "assistant", "content": self._spoken.reply(orjson.loads(answer))})
        self._turn += 1

    def close(self) -> None:
        self._connection.close()


async def cost_ms(url: str, pid: int, size: Size, session_id: str, calls: int, dialect: str = "chat") -> float:
    """Milliseconds of processor time a call."""
    agent = Agent(url, f"{session_id}-{dialect}", dialect)
    try:
        for _ in range(size.turns):
            await agent.turn(size.tokens // size.turns - _SAMPLED)
        began_ns = processor_ns(pid)
        for _ in range(calls):
            await agent.turn(_OBSERVED)
        await asyncio.sleep(0.1)  # the trace store writes within 20 ms
        return (processor_ns(pid) - began_ns) / calls / 1e6
    finally:
        agent.close()


def proxy_application(engine_url: str) -> web.Application:
    """Passes a chat completion on to the engine as it came."""
    client = HttpClient(engine_url)

    async def handle(request: web.Request) -> web.Response:
        answer = await client.post("/v1/chat/completions", orjson.Fragment(await request.read()))  # type: ignore[arg-type]
        return web.Response(body=answer.body, content_type="application/json")

    async def opened(_: web.Application) -> None:
        await client.open()

    async def closed(_: web.Application) -> None:
        await client.close()

    async def health(_: web.Request) -> web.Response:
        return web.Response(text="{}")

    app = web.Application(client_max_size=_MAX_BODY_BYTES)
    app.router.add_post("/sessions/{session_id}/v1/chat/completions", handle)
    app.router.add_get("/health", health)
    app.on_startup.append(opened)
    app.on_cleanup.append(closed)
    return app


async def _main(arguments: argparse.Namespace) -> None:
    sizes = SIZES
    if arguments.tokens:
        sizes = tuple(Size(tokens, turns) for tokens in arguments.tokens for turns in arguments.turns)
    costs_ms: dict[tuple[Size, str], list[float]] = {}
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gateway-cost-")))
        doors = await _doors(stack, folder)
        for repeat in range(arguments.repeats):
            for size in sizes:
                for name, (url, pid) in doors.items():
                    session_id = f"{repeat}-{size.tokens}-{size.turns}"
                    cost = await cost_ms(url, pid, size, session_id, arguments.calls)
                    costs_ms.setdefault((size, name), []).append(cost)
                for dialect in arguments.dialects:
                    cost = await cost_ms(*doors["gateway"], size, session_id, arguments.calls, dialect)
                    costs_ms.setdefault((size, dialect), []).append(cost)
            print(f"repeat {repeat + 1} of {arguments.repeats}", flush=True)
    print(table(sizes, costs_ms))
    if arguments.out:
        rows = [
            {"tokens": size.tokens, "turns": size.turns, "door": name, "ms": found}
            for (size, name), found in costs_ms.items()
        ]
        arguments.out.write_text(json.dumps(rows) + "\n", encoding="utf-8")


async def _doors(stack: contextlib.AsyncExitStack, folder: Path) -> dict[str, tuple[str, int]]:
    """Address and process of each."""
    write_model(folder / "model", "tiny")
    echo = [sys.executable, "-m", "bench.echo_engine", "--port", "{port}"]
    engine, _ = await _start(stack, echo, folder / "engine.log")
    gateway = [sys.executable, "-m", "bench.serve_gateway", "--url", engine, "--model-dir", str(folder / "model")]
    gateway += ["--port", "{port}", "--max-model-len", str(_MAX_MODEL_LEN)]
    proxy = [sys.executable, "-m", "bench.gateway_cost", "--proxy", engine, "--port", "{port}"]
    commands = dict(zip(DOORS, (gateway, proxy), strict=True))
    return {name: await _start(stack, command, folder / f"{name}.log") for name, command in commands.items()}


async def _start(stack: contextlib.AsyncExitStack, command: Sequence[str], log: Path) -> tuple[str, int]:
    port = free_port()
    url = await stack.enter_async_context(process(command, port, log))
    return url, _listening(port)


def _listening(port: int) -> int:
    """The process whose command line has the port; a free one is nobody else's."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if str(port).encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                    return int(entry.name)
    raise AssertionError(f"nobody listens at {port}")


def table(sizes: Sequence[Size], costs_ms: dict[tuple[Size, str], list[float]]) -> str:
    lines = ["| conversation | gateway ms (range) | plain proxy ms (range) | the gateway's own |", "|---|---|---|---|"]
    for size in sizes:
        cells = [costs_ms[size, name] for name in DOORS]
        shown = [f"{statistics.median(cell):.2f} ({min(cell):.2f} - {max(cell):.2f})" for cell in cells]
        own_ms = statistics.median(cells[0]) - statistics.median(cells[1])
        lines.append(f"| {size} | {' | '.join(shown)} | {own_ms:.2f} |")
    for (size, name), cell in costs_ms.items():
        if name not in DOORS:
            lines.append(f"{name}, {size}: {statistics.median(cell):.2f} ({min(cell):.2f} - {max(cell):.2f}) ms")
    return "\n".join(lines)


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Processor time a call.")
    parser.add_argument("--tokens", type=int, nargs="+", help="default: the table of docs/benchmarks/gateway_cost.md")
    parser.add_argument("--turns", type=int, nargs="+", default=[100])
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dialects", nargs="+", choices=["messages", "responses"], default=[], help="as well")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--proxy", help="be the plain proxy, in front of this engine")
    parser.add_argument("--port", type=int)
    return parser.parse_args(words)


if __name__ == "__main__":
    words_given = parse(sys.argv[1:])
    if words_given.proxy:
        app = proxy_application(words_given.proxy)
        web.run_app(app, host="127.0.0.1", port=words_given.port, access_log=None, print=None)
    else:
        run_to_end(_main(words_given))
