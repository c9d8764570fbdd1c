"""This project's gateway as a process of its own, with capture and a trace store, over running engines.

    python -m bench.serve_gateway --url http://127.0.0.1:8200 --model-dir /tmp/tiny --port 8300

Prints one JSON line when it ends with SIGTERM, and every --report-s: traces stored, event-loop lag, processor time and
memory so far (lag: since the line before).
"""

import argparse
import asyncio
import contextlib
import json
import math
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from bench.arms import router_config
from bench.loop_lag import LoopLag
from bench.words import TEMPLATE, load_tokenizer
from swe_rl.config.schema import GatewayConfig
from swe_rl.engine.external import ExternalEngine
from swe_rl.engine.server.client import HttpClient
from swe_rl.engine.server.features import Needs
from swe_rl.gateway.server import Gateway
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.model.chat import ChatRenderer
from swe_rl.router.make import make_router

MODEL = "policy"
LOOPS = ("asyncio", "uvloop")


def token_bytes(model_dir: Path) -> int:
    """Returns the bytes of one token's keys and values in bfloat16; 0 where config.json names no heads."""
    facts = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    sizes = (facts.get(name, 0) for name in ("num_hidden_layers", "num_key_value_heads", "head_dim"))
    return int(2 * 2 * math.prod(sizes))


async def open_gateway(
    stack: AsyncExitStack,
    urls: Sequence[str],
    model_dir: Path,
    arm: str,
    *,
    max_num_seqs: int,
    max_model_len: int,
    port: int = 0,
    processes: int = 1,
    clients_begin: bool = True,
) -> tuple[Gateway, TraceStore]:
    """Serving until `stack` is left; its traces go to a temporary folder."""
    needs = Needs(model=None, max_model_len=max_model_len, token_bytes=token_bytes(model_dir))
    engines = [
        ExternalEngine(HttpClient(url), needs, name=f"engine{index}", max_num_seqs=max_num_seqs)
        for index, url in enumerate(urls)
    ]
    for engine in engines:
        await engine.start()
        stack.push_async_callback(engine.close)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-gateway-")))
    store = TraceStore(folder / "traces.sqlite")
    stack.callback(store.close)
    renderer = ChatRenderer(load_tokenizer(model_dir), template=TEMPLATE)
    renderer.stop_token_ids = ()  # random weights: only the drawn number of tokens ends a reply
    gateway = Gateway(
        engines,
        make_router(router_config(arm), engines, max_num_seqs=max_num_seqs),
        renderer,
        store,
        model_name=MODEL,
        config=GatewayConfig(port=port, processes=processes),
        max_model_len=min(engine.features.max_model_len for engine in engines),
        clients_begin=clients_begin,
    )
    stack.push_async_callback(gateway.close)
    await gateway.start()
    return gateway, store


async def _main(arguments: argparse.Namespace) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with AsyncExitStack() as stack:
        gateway, store = await open_gateway(
            stack,
            arguments.urls,
            arguments.model_dir,
            arguments.arm,
            max_num_seqs=arguments.max_num_seqs,
            max_model_len=arguments.max_model_len,
            port=arguments.port,
        )
        lag = LoopLag()
        while not ended.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), arguments.report_s)
            await store.flush()  # what was answered is counted
            print(json.dumps({"sessions": gateway.num_sessions, **_used(store), **lag.take()}), flush=True)
        lag.close()


def _used(store: TraceStore) -> dict[str, float]:
    stats = store.stats()
    return {
        "traces": stats.traces,
        "commit_s": round(stats.commit_s, 2),
        "cpu_s": round(time.process_time(), 2),
        "memory_mb": _memory_mb(),
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def _memory_mb() -> int:
    """Resident, from /proc; 0 where there is none."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * resource.getpagesize() // 2**20


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The gateway as a process.")
    parser.add_argument("--url", action="append", dest="urls", required=True)
    parser.add_argument("--model-dir", type=Path, required=True)
    parser.add_argument("--arm", default="default", help="of bench/arms.py")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--report-s", type=float, help="default: at the end only")
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--max-model-len", type=int, default=16384)
    parser.add_argument("--loop", choices=LOOPS, default="asyncio")
    return parser.parse_args(words)


def new_loop(name: str) -> asyncio.AbstractEventLoop:
    """Raises ImportError for uvloop where it is not installed."""
    if name == "uvloop":
        import uvloop  # type: ignore[import-not-found, unused-ignore]

        loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        return loop
    return asyncio.new_event_loop()


def main(arguments: argparse.Namespace) -> None:
    with asyncio.Runner(loop_factory=lambda: new_loop(arguments.loop)) as runner:
        runner.run(_main(arguments))


if __name__ == "__main__":
    main(parse(sys.argv[1:]))
