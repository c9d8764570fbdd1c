"""The gateway under agents for a long time: is its memory bounded, and does its event loop keep up?

    python -m bench.gateway_soak --sessions 400 --minutes 10 --out soak.json

So many agents at once, each followed by another when it ends, against the engine of ready-made answers; the gateway is
a process of its own, with capture and a trace store.

Invariants:
- No agent's session comes back: what the gateway keeps of sessions that are over shows in its memory.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.agent_load import AgentLoad, add_load_options, gateway_target, load_options
from bench.echo_engine import MODEL
from bench.load import Load, make_load
from bench.peers import process, run_to_end
from bench.random_qwen3 import write_model
from swe_rl.engine.vllm_server import free_port
from swe_rl.router.simulation.outcome import percentile

_VOCABULARY = 16384
_REPORT_S = 10.0


async def _agents(load: Load, url: str, first: int, stride: int, until_s: float) -> list[dict[str, Any]]:
    """One agent after the other: programs first, first + stride, ..."""
    found, number = [], first
    while time.monotonic() < until_s:
        program = load.programs[number % len(load.programs)]
        own = replace(load, programs=(replace(program, program_id=f"{number}"),))
        target = gateway_target(url, MODEL, _VOCABULARY)
        found.append(await AgentLoad(own, target).run(max(0.1, until_s - time.monotonic())))
        number += stride
    return found


async def soak(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    write_model(folder / "model", "tiny")
    load = make_load(load_options(arguments))
    log = folder / "gateway.log"
    async with AsyncExitStack() as stack:
        echo = [sys.executable, "-m", "bench.echo_engine", "--port", "{port}"]
        engine = await stack.enter_async_context(process(echo, free_port(), folder / "engine.log"))
        serve = [sys.executable, "-m", "bench.serve_gateway", "--url", engine, "--model-dir", str(folder / "model")]
        serve += ["--port", "{port}", "--arm", arguments.arm, "--report-s", str(_REPORT_S)]
        url = await stack.enter_async_context(process(serve, free_port(), log))
        until_s = time.monotonic() + 60.0 * arguments.minutes
        agents = [_agents(load, url, first, arguments.sessions, until_s) for first in range(arguments.sessions)]
        found = [one for own in await asyncio.gather(*agents) for one in own]
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return _summary(found, lines, 60.0 * arguments.minutes)


def _summary(found: Sequence[dict[str, Any]], lines: Sequence[dict[str, Any]], elapsed_s: float) -> dict[str, Any]:
    """`memory_mb` and `loop_lag_p99_ms`: one figure every ten seconds; the last line is of the end."""
    lines = lines[:-1] or lines
    lags = sorted(line["loop_lag_p99_ms"] for line in lines)
    worst_turns = sorted(program["worst_turn_s"] for one in found for program in one["by_program"])
    return {
        "sessions": len(found),
        "turns": sum(one["turns"] for one in found),
        "turns_per_s": round(sum(one["turns"] for one in found) / elapsed_s, 1),
        "errors": sum(one["num_errors"] for one in found),
        "worst_turn_p99_s": percentile(worst_turns, 99),
        "memory_mb": [line["memory_mb"] for line in lines],
        "loop_lag_p99_ms": [line["loop_lag_p99_ms"] for line in lines],
        "loop_lag_p99_median_ms": percentile(lags, 50),
        "cpu_share": round(lines[-1]["cpu_s"] / elapsed_s, 3),
        "traces": lines[-1]["traces"],
    }


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The gateway under agents for a long time.")
    parser.add_argument("--sessions", type=int, default=400)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--arm", default="tr")
    parser.add_argument("--out", type=Path)
    add_load_options(parser)
    return parser.parse_args(words)


async def _main(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="gateway-soak-") as folder:
        found = await soak(arguments, Path(folder))
    if arguments.out:
        arguments.out.write_text(json.dumps(found) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    run_to_end(_main(parse(sys.argv[1:])))
