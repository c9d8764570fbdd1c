"""The gateway under agents for a long time: is its memory bounded, and does its event loop keep up?

    python -m bench.gateway_soak --sessions 400 --minutes 10 --out soak.json

So many agents at once, each followed by another when it ends, against the engine of ready-made answers; the gateway is
a process of its own, with capture and a trace store. With --close an agent closes its session at its end
(DELETE /sessions/ID), else the gateway finds out by itself that it is not used any more.

Invariants:
- No agent's session comes back: what the gateway keeps of sessions that are over shows in its memory.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from bench.agent_load import AgentLoad, Target, add_load_options, gateway_target, load_options
from bench.echo_engine import MODEL
from bench.load import Load, make_load
from bench.peers import process, run_to_end
from bench.random_qwen3 import write_model
from bench.serve_gateway import LOOPS
from swe_rl.host.addresses import free_port
from swe_rl.router.simulation.outcome import percentile
from swe_rl.router.simulation.workload import Program

_VOCABULARY = 16384
_REPORT_S = 10.0


def _target(url: str, close: bool) -> Target:
    async def end(program: Program) -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.delete(f"{url}/sessions/{program.program_id}") as response,
        ):
            await response.read()

    target = gateway_target(url, MODEL, _VOCABULARY)
    return replace(target, end=end) if close else target


async def _agents(load: Load, target: Target, first: int, stride: int, until_s: float) -> list[dict[str, Any]]:
    """One agent after the other: programs first, first + stride, ..."""
    found, number = [], first
    while time.monotonic() < until_s:
        program = load.programs[number % len(load.programs)]
        own = replace(load, programs=(replace(program, program_id=f"{number}"),))
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
        serve += ["--loop", arguments.loop]
        url = await stack.enter_async_context(process(serve, free_port(), log))
        until_s = time.monotonic() + 60.0 * arguments.minutes
        target, stride = _target(url, arguments.close), arguments.sessions
        agents = [_agents(load, target, first, stride, until_s) for first in range(stride)]
        found = [one for own in await asyncio.gather(*agents) for one in own]
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return _summary(found, lines, 60.0 * arguments.minutes)


def _summary(found: Sequence[dict[str, Any]], lines: Sequence[dict[str, Any]], elapsed_s: float) -> dict[str, Any]:
    """Lists: one figure every ten seconds; the last line is of the end. `own`: see bench/loop_lag.py."""
    lines = lines[:-1] or lines
    lags = sorted(line["loop_lag_p99_ms"] for line in lines)
    worst_turns = sorted(program["worst_turn_s"] for one in found for program in one["by_program"])
    return {
        "sessions": len(found),
        "turns": sum(one["turns"] for one in found),
        "turns_per_s": round(sum(one["turns"] for one in found) / elapsed_s, 1),
        "errors": sum(one["num_errors"] for one in found),
        "error_texts": sorted({text for one in found for text in one["errors"]})[:8],
        "worst_turn_p99_s": percentile(worst_turns, 99),
        "sessions_open": [line["sessions"] for line in lines],
        "memory_mb": [line["memory_mb"] for line in lines],
        "loop_lag_p99_ms": [line["loop_lag_p99_ms"] for line in lines],
        "loop_lag_p99_median_ms": percentile(lags, 50),
        "loop_lag_own_p99_ms": [line["loop_lag_own_p99_ms"] for line in lines],
        "loop_lag_own_p99_median_ms": percentile(sorted(line["loop_lag_own_p99_ms"] for line in lines), 50),
        "load_average": os.getloadavg(),
        "cpu_share": round(lines[-1]["cpu_s"] / elapsed_s, 3),
        "traces": lines[-1]["traces"],
    }


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The gateway under agents for a long time.")
    parser.add_argument("--sessions", type=int, default=400)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--arm", default="tr")
    parser.add_argument("--loop", choices=LOOPS, default="asyncio", help="of the gateway's process")
    parser.add_argument("--close", action="store_true", help="agents close their sessions")
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
