"""What a gateway in several processes serves, against one that is the driver itself: processor time by process.

    python -m bench.gateway_processes                       # 1 and 2 processes in turn, three times
    python -m bench.gateway_processes --processes 1 2 4 --tokens 16384
    python -m bench.gateway_processes --tokenizer FILE      # with the tokenizer.json of a real model, for its memory
    python -m bench.gateway_processes --shared              # at one address, as with job=serve: about half of them
                                                            # have a connection of another process

Agents, each with an opened session of its own, grow their conversations to `--tokens` in `--turns` calls; then all of
them make `--calls` calls more, at the same time, each with 16 sampled tokens and 64 of an observation.

Invariants:
- Processor time is each process's own, all threads; agents and engine are other processes, and none of theirs is in it.
- Memory is what would be free without the process (its private pages), after the last call.
- `full core`: calls a second once the busiest process has a core to itself and no more to give. `cores`: calls a second
  for each core that all of its processes use together. Both are computed from processor time; `seen` is what this
  machine gave, with agents and engine beside it.
"""

import argparse
import asyncio
import contextlib
import json
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.gateway_cost import Agent, processor_ns
from bench.peers import process, run_to_end
from bench.random_qwen3 import write_model
from bench.serve_gateway import open_gateway
from swe_rl.gateway.session import SessionSettings
from swe_rl.host.addresses import free_port

_SAMPLED, _OBSERVED = 16, 64
_MAX_MODEL_LEN = 131072


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds of processor time a call and memory, of the driver and of each other process; calls a second."""

    driver_ms: float
    worker_ms: tuple[float, ...]
    seen_rps: float
    memory_mb: tuple[float, ...]

    @property
    def full_core_rps(self) -> float:
        return 1000 / max(self.driver_ms, *self.worker_ms, 0.0)

    @property
    def rps_per_core(self) -> float:
        return 1000 / (self.driver_ms + sum(self.worker_ms))


async def measured(model: Path, engine_url: str, processes: int, arguments: argparse.Namespace) -> Cost:
    command = [sys.executable, "-m", "bench.gateway_processes", "--serve", engine_url, "--model-dir", str(model)]
    command += ["--processes", str(processes), "--agents", str(arguments.agents)]
    command += ["--shared"] if arguments.shared else []
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert child.stdout is not None
    try:
        served: dict[str, Any] = json.loads(await child.stdout.readline())
        pids, agents = [child.pid, *served["pids"]], [_agent(url) for url in served["urls"]]
        turns = arguments.turns
        for _ in range(turns):
            await asyncio.gather(*(agent.turn(arguments.tokens // turns - _SAMPLED) for agent in agents))
        before_ns, began_s = [processor_ns(pid) for pid in pids], time.monotonic()
        await asyncio.gather(*(_calls(agent, arguments.calls) for agent in agents))
        took_s = time.monotonic() - began_s
        await asyncio.sleep(0.1)  # the trace store writes within 20 ms
        calls = arguments.calls * len(agents)
        spent = [(processor_ns(pid) - ns) / calls / 1e6 for pid, ns in zip(pids, before_ns, strict=True)]
        memory_mb = tuple(private_mb(pid) for pid in pids)
        for agent in agents:
            agent.close()
        return Cost(spent[0], tuple(spent[1:]), calls / took_s, memory_mb)
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(signal.SIGTERM)
        await child.wait()


def private_mb(pid: int) -> float:
    """Of the process's pages, those that no other process shares."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024 / 1e6


def _agent(url: str) -> Agent:
    parts = urlsplit(url)
    return Agent(f"{parts.scheme}://{parts.netloc}", parts.path.removeprefix("/sessions/").removesuffix("/v1"))


async def _calls(agent: Agent, calls: int) -> None:
    for _ in range(calls):
        await agent.turn(_OBSERVED)


async def _serve(arguments: argparse.Namespace) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    settings = SessionSettings(max_turn_tokens=_SAMPLED, max_trajectory_tokens=_MAX_MODEL_LEN)
    names = [f"agent{number}" for number in range(arguments.agents)]
    async with contextlib.AsyncExitStack() as stack:
        gateway, _ = await open_gateway(
            stack,
            [arguments.serve],
            arguments.model_dir,
            "default",
            max_num_seqs=256,
            max_model_len=_MAX_MODEL_LEN,
            processes=arguments.processes[0],
            clients_begin=arguments.shared,
        )
        for name in names:
            gateway.open_session(name, settings)
        urls = [gateway.session_url(name) for name in names]
        print(json.dumps({"urls": urls, "pids": gateway.process_ids}), flush=True)
        await ended.wait()


async def _main(arguments: argparse.Namespace) -> None:
    costs: dict[int, list[Cost]] = {}
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gateway-processes-")))
        write_model(folder / "model", "tiny")
        if arguments.tokenizer is not None:
            shutil.copyfile(arguments.tokenizer, folder / "model" / "tokenizer.json")
        echo = [sys.executable, "-m", "bench.echo_engine", "--port", "{port}"]
        engine = await stack.enter_async_context(process(echo, free_port(), folder / "engine.log"))
        for _ in range(arguments.repeats):
            for processes in arguments.processes:
                cost = await measured(folder / "model", engine, processes, arguments)
                costs.setdefault(processes, []).append(cost)
                print(processes, cost, flush=True)
    print(table(costs))


def table(costs: dict[int, list[Cost]]) -> str:
    titles = ("driver ms", "each other ms", "full core, calls/s", "a core, calls/s", "seen, calls/s")
    titles += ("driver MB", "each other MB")
    lines = [f"| processes | {' | '.join(titles)} |", "|---" * (1 + len(titles)) + "|"]
    for processes, repeats in costs.items():
        columns = (
            [cost.driver_ms for cost in repeats],
            [statistics.mean(cost.worker_ms) if cost.worker_ms else 0.0 for cost in repeats],
            [cost.full_core_rps for cost in repeats],
            [cost.rps_per_core for cost in repeats],
            [cost.seen_rps for cost in repeats],
            [cost.memory_mb[0] for cost in repeats],
            [statistics.mean(cost.memory_mb[1:] or (0.0,)) for cost in repeats],
        )
        cells = [f"{statistics.median(column):.3g} ({min(column):.3g} - {max(column):.3g})" for column in columns]
        lines.append(f"| {processes} | {' | '.join(cells)} |")
    return "\n".join(lines)


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Processor time of a gateway in several processes.")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--shared", action="store_true", help="all processes at one address")
    parser.add_argument("--tokenizer", type=Path, help="the model's, instead of a small made-up vocabulary")
    parser.add_argument("--serve", help="be the gateway, in front of this engine")
    parser.add_argument("--model-dir", type=Path)
    return parser.parse_args(words)


if __name__ == "__main__":
    words_given = parse(sys.argv[1:])
    run_to_end(_serve(words_given) if words_given.serve else _main(words_given))
