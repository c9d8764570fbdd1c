"""Many sandboxes at once for a long time, with faults at random: is the driver's memory flat, does its loop keep up?

    python -m bench.sandbox_soak --sandboxes 256 --seconds 600

The parts of a rollout in one process, as a job has them: gateway with capture, router, client of two engines, process
sandboxes, the agent `bash`, grading by pytest, retries. The engines are processes of their own (bench/soak_engine.py).
Every `--fault-s` on average something breaks (bench/soak_faults.py). Prints a table; with --out also writes JSON.
Exits with 1 where a limit is broken.

Invariants:
- An attempt begins when another one ends, so as many sandboxes are open at any time, and those of graders besides.
- What is measured belongs to the driver: its own memory, descriptors and children, read by a thread of its own.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from bench.loop_lag import LoopLag
from bench.peers import process
from bench.soak_engine import FIX, MAX_TOKENS, soak_instances
from bench.soak_faults import COMMANDS, KINDS, Faults, children
from swe_rl.agent.client import ChatClient
from swe_rl.agent.make import make_agent
from swe_rl.agent.protocol import AgentResult
from swe_rl.config.choices import INFRA_STATUSES
from swe_rl.config.compose import compose
from swe_rl.config.schema import Config
from swe_rl.engine.external import external_engines
from swe_rl.engine.make import start_engines
from swe_rl.env.bugs.env import BugsEnv
from swe_rl.env.instance import Instance
from swe_rl.gateway.server import Gateway
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.host.addresses import free_port
from swe_rl.model.chat import ChatRenderer
from swe_rl.model.load import load_tokenizer
from swe_rl.rollout.attempt import Attempter
from swe_rl.rollout.collect import Collector
from swe_rl.rollout.trajectory import Order, Status, Trajectory
from swe_rl.router.make import make_router
from swe_rl.run.event_loop import run
from swe_rl.sandbox.provider import make_provider

_ENGINES = 2
_SAMPLE_S = 1.0
_SHARES = (0.1, 0.5, 1.0)
_MIB = 1024**2


@dataclass(slots=True)
class Books:
    """What became of every attempt; texts of a few failures."""

    started: int = 0
    cancelled: int = 0
    by_status: Counter[str] = field(default_factory=Counter)
    infra: dict[str, str] = field(default_factory=dict)  # attempts that ended as infra_error, and why
    ended: set[str] = field(default_factory=set)
    rewarded_infra: list[str] = field(default_factory=list)
    wrong_verdicts: list[str] = field(default_factory=list)  # a right patch that was not resolved
    errors: dict[str, str] = field(default_factory=dict)  # by status, the last one

    def note(self, one: Trajectory) -> None:
        self.by_status[one.status.value] += 1
        self.ended.add(one.trajectory_id)
        if one.status in INFRA_STATUSES:
            self.errors[one.status.value] = str(one.error)
            if one.reward is not None or one.trained:
                self.rewarded_infra.append(one.trajectory_id)
        if one.status is Status.infra_error:
            self.infra[one.trajectory_id] = str(one.error)
        commands = [turn.command or "" for turn in one.turns]
        right = any(command.startswith(FIX) for command in commands) and COMMANDS["fills_its_disk"] not in commands
        if right and one.status in (Status.unresolved, Status.empty_patch):
            self.wrong_verdicts.append(f"{one.trajectory_id}: {one.status} {one.error or ''}")


@dataclass(slots=True)
class Booked:
    """An attempter that writes down what it begins and what becomes of it."""

    inner: Attempter
    books: Books

    async def run(self, order: Order) -> tuple[Trajectory, AgentResult | None]:
        self.books.started += 1
        try:
            trajectory, result = await self.inner.run(order)
        except asyncio.CancelledError:
            self.books.cancelled += 1
            raise
        self.books.note(trajectory)
        return trajectory, result


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    rss_mb: float
    fds: int
    children: int
    sandboxes: int


class Sampler:
    """Looks at this process once a second, from a thread, until `close`."""

    def __init__(self, scratch: Path) -> None:
        self.samples: list[Sample] = []
        self._scratch = scratch
        self._over = threading.Event()
        self._began_s = time.monotonic()
        self._own = psutil.Process()
        self._thread = threading.Thread(target=self._look_on, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _look_on(self) -> None:
        while not self._over.wait(_SAMPLE_S):
            rss_mb, fds = self._own.memory_info().rss / _MIB, len(list(Path("/proc/self/fd").iterdir()))
            number = len(children(self._own.pid))
            sample = Sample(time.monotonic() - self._began_s, rss_mb, fds, number, len(sandboxes_in(self._scratch)))
            self.samples.append(sample)


def sandboxes_in(scratch: Path) -> list[str]:
    """Folders of sandboxes that are there."""
    return [one.name for folder in scratch.glob("process-*") for one in os.scandir(folder) if "-" in one.name]


def soak_config(arguments: argparse.Namespace, urls: Sequence[str]) -> Config:
    commands = arguments.sandboxes + 64  # with graders: nobody waits for a place
    return compose(
        ["engine=external", f"engine.urls=[{','.join(urls)}]", f"engine.max_model_len={MAX_TOKENS}",
         "engine.served_model=policy", f"rollout.max_trajectory_tokens={MAX_TOKENS}", "rollout.max_turn_tokens=512",
         "rollout.max_prompt_tokens=1024", "rollout.max_turns=40", "rollout.agent_timeout_s=1800",
         f"rollout.command_timeout_s={arguments.command_timeout_s:g}", "rollout.temperature=1.0",
         f"sandbox.concurrency={commands}", "sandbox.isolation=bubblewrap", "sandbox.disk_gb=0.1",
         "env.cache_verdicts=false"]
    ).config  # fmt: skip


async def soak(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(_engine(arguments, folder, number)) for number in range(_ENGINES)]
        return await _driven(soak_config(arguments, urls), arguments, folder, urls)


def _engine(arguments: argparse.Namespace, folder: Path, number: int) -> Any:
    command = [sys.executable, "-m", "bench.soak_engine", "--port", "{port}", "--seed", f"{arguments.seed + number}"]
    command += ["--think-s", f"{arguments.think_s}", "--turns", f"{arguments.turns}"]
    return process(command, free_port(), folder / f"engine{number}.log")


async def _driven(config: Config, arguments: argparse.Namespace, folder: Path, urls: Sequence[str]) -> dict[str, Any]:
    """The driver's parts, opened and closed as a job does it."""
    engines = external_engines(config, {}, None, print)
    await start_engines(engines)
    renderer = ChatRenderer(load_tokenizer(config.model), template="qwen_plain")
    store = TraceStore(folder / "traces.db")
    gateway = Gateway(
        engines, make_router(config.router, engines), renderer, store,
        model_name="policy", config=config.gateway, max_model_len=MAX_TOKENS,
    )  # fmt: skip
    await gateway.start()
    scratch = folder / "scratch"
    provider = make_provider(config.sandbox, scratch, print)
    client = ChatClient(rng=random.Random(arguments.seed))
    agent = make_agent(config.agent, config.rollout, client)
    env = BugsEnv(config.env, folder / "workspaces")
    attempter = Attempter(env, agent, gateway, provider, config.rollout, config.env, model_name="policy")
    books = Books()
    try:
        async with aiohttp.ClientSession() as session:
            ask = _asker(session, urls, random.Random(arguments.seed))
            faults = Faults(scratch, random.Random(arguments.seed), ask)
            collector = Collector(Booked(attempter, books), config.rollout, arguments.seed)
            measured = await _measured(arguments, collector, faults, scratch)
    finally:
        for part in (client, provider, gateway, *engines):
            await part.close()
        store.close()
    left = {"sandboxes": sandboxes_in(scratch), "processes": _processes_of(scratch)}
    return measured | _outcome(books, faults) | {"left": left}


def _asker(session: aiohttp.ClientSession, urls: Sequence[str], rng: random.Random) -> Any:
    async def ask(what: Mapping[str, Any]) -> None:
        async with session.post(f"{rng.choice(urls)}/soak", json=what) as response:
            response.raise_for_status()

    return ask


async def _measured(
    arguments: argparse.Namespace, collector: Collector, faults: Faults, scratch: Path
) -> dict[str, Any]:
    sampler, lag = Sampler(scratch), LoopLag()
    cpu_s, loads = time.process_time(), [os.getloadavg()[0]]
    instances = soak_instances()
    slots = [asyncio.ensure_future(_slot(collector, instances, number)) for number in range(arguments.sandboxes)]
    breaking = asyncio.ensure_future(_break(faults, arguments.fault_s))
    try:
        await asyncio.sleep(arguments.warm_up_s)
        warm_up = lag.take()
        loads.append(os.getloadavg()[0])
        over = asyncio.ensure_future(asyncio.sleep(arguments.seconds - arguments.warm_up_s))
        done, _ = await asyncio.wait([over, breaking, *slots], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # a slot ends with an error only
        late = lag.take()
        loads.append(os.getloadavg()[0])
    finally:
        lag.close()
        sampler.close()
        for task in (breaking, *slots):
            task.cancel()
        await asyncio.wait([breaking, *slots])
    return {
        "seconds": arguments.seconds,
        "samples": [[round(one.at_s, 1), round(one.rss_mb, 1), one.fds, one.children, one.sandboxes]
                    for one in sampler.samples],
        "warm_up": warm_up,
        "loop": late,
        "load_average": [round(load, 2) for load in loads],
        "cpu_share": round((time.process_time() - cpu_s) / arguments.seconds, 3),
    }  # fmt: skip


async def _slot(collector: Collector, instances: Sequence[Instance], number: int) -> None:
    """One trajectory after the other, each with its retries."""
    step = number
    while True:
        instance = instances[step % len(instances)]
        await collector.collect([instance], split="train", step=step, n=1, temperature=1.0)
        step += 100_003  # odd, and a number of its own for each trajectory


async def _break(faults: Faults, every_s: float) -> None:
    """Every kind once, in a new order each round."""
    while True:
        for kind in faults.rng.sample(KINDS, len(KINDS)):
            await asyncio.sleep(faults.rng.expovariate(1 / every_s))
            while not await faults.one(kind):  # noqa: ASYNC110 - nobody says when there is something to kill
                await asyncio.sleep(0.25)


def _processes_of(scratch: Path) -> list[str]:
    """Command lines that name the sandboxes' folder, whoever's children they are."""
    lines = [" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])]
    return [line[:200] for line in lines if f"{scratch}{os.sep}" in line]


def _outcome(books: Books, faults: Faults) -> dict[str, Any]:
    killed = {name for name in books.ended if _sandbox_name(name) in faults.killed}
    return {
        "started": books.started,
        "cancelled": books.cancelled,
        "by_status": dict(sorted(books.by_status.items())),
        "faults": dict(sorted(faults.done.items())),
        "killed_and_ended": len(killed),
        "killed_not_infra": sorted(killed - set(books.infra)),
        "infra_unexplained": [f"{name}: {why}" for name, why in books.infra.items() if name not in killed],
        "infra_rewarded": books.rewarded_infra,
        "wrong_verdicts": books.wrong_verdicts,
        "last_errors": books.errors,
    }


def _sandbox_name(trajectory_id: str) -> str:
    return trajectory_id[:80]


def slope_per_hour(samples: Sequence[tuple[float, float]]) -> float:
    """Of the line of least squares through (seconds, value)."""
    if len(samples) < 2:
        return 0.0
    mean_s = sum(at for at, _ in samples) / len(samples)
    mean = sum(value for _, value in samples) / len(samples)
    spread = sum((at - mean_s) ** 2 for at, _ in samples)
    return 3600.0 * sum((at - mean_s) * (value - mean) for at, value in samples) / spread


def trends(found: Mapping[str, Any], warm_up_s: float) -> dict[str, dict[str, float]]:
    """By column: values at shares of the time, the slope after the warm-up and that of the second half, and what the
    latter adds to the mean: conversations get longer until as many end as begin, after one trajectory's time or two."""
    made = {}
    samples = found["samples"]
    for name, column in (("rss_mb", 1), ("fds", 2), ("children", 3), ("sandboxes", 4)):
        at = {f"at_{share:.0%}": samples[min(len(samples) - 1, int(share * len(samples)))][column] for share in _SHARES}
        points = [(one[0], float(one[column])) for one in samples]
        half = points[len(points) // 2 :]
        slope, mean = slope_per_hour(half), sum(value for _, value in half) / len(half)
        grown = slope * (half[-1][0] - half[0][0]) / 3600.0
        warm = slope_per_hour([one for one in points if one[0] >= warm_up_s])
        slopes = {"per_hour": round(warm, 1), "half_per_hour": round(slope, 1)}
        made[name] = {**at, **slopes, "growth": round(grown / mean, 4) if mean else 0.0}
    return made


def broken(found: Mapping[str, Any], arguments: argparse.Namespace) -> list[str]:
    """Which limits are, in words."""
    ended = sum(found["by_status"].values())
    late_ms = found["loop"]["loop_lag_p99_ms"]
    words = [
        f"{name} grew by {found['trends'][name]['growth']:.1%} in the second half, at most {arguments.max_growth:.0%}"
        for name in ("rss_mb", "fds")
        if found["trends"][name]["growth"] > arguments.max_growth
    ]
    if late_ms >= arguments.max_lag_ms:
        words.append(f"the loop's 99th percentile is {late_ms} ms, limit {arguments.max_lag_ms:g} ms")
    if found["started"] != ended + found["cancelled"]:
        words.append(f"{found['started']} attempts began, {ended} ended and {found['cancelled']} were cancelled")
    if found["by_status"].get("grade_error", 0) > found["faults"].get("kill_grader", 0):
        words.append("more grading failed than graders were killed")
    for name in ("killed_not_infra", "infra_unexplained", "infra_rewarded", "wrong_verdicts"):
        words += [f"{name}: {found[name][:5]}"] if found[name] else []
    words += [f"left: {name} {left[:5]}" for name, left in found["left"].items() if left]
    return words


def table(found: Mapping[str, Any]) -> str:
    lines = ["| | 10 % | 50 % | 100 % | per hour | second half per hour | growth |", "|" + 7 * "---|"]
    for name, one in found["trends"].items():
        values = " | ".join(f"{value:g}" for kind, value in one.items() if kind != "growth")
        lines.append(f"| {name} | {values} | {one['growth']:.1%} |")
    lines += ["", "| loop, ms | p50 | p99 | max | own p99 |", "|---|---|---|---|---|"]
    for name in ("warm_up", "loop"):
        kinds = ("p50", "p99", "max", "own_p99")
        lines.append(" | ".join([f"| {name}", *(f"{found[name][f'loop_lag_{kind}_ms']:g}" for kind in kinds)]) + " |")
    kept = ("started", "cancelled", "by_status", "faults", "killed_and_ended", "load_average", "cpu_share", "left")
    lines += ["", *(f"{name}: {json.dumps(found[name])}" for name in (*kept, "last_errors"))]
    return "\n".join([*lines, *(f"BROKEN: {one}" for one in found["broken"])])


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Many sandboxes at once, with faults at random.")
    parser.add_argument("--sandboxes", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--warm-up-s", type=float, default=60.0, help="not in slopes, and apart in the loop's lateness")
    parser.add_argument("--fault-s", type=float, default=1.5, help="between faults, on average")
    parser.add_argument("--think-s", type=float, default=20.0, help="of a reply, on average")
    parser.add_argument("--turns", type=int, default=12, help="of a trajectory, on average")
    parser.add_argument("--command-timeout-s", type=float, default=10.0)
    parser.add_argument("--max-growth", type=float, default=0.05, help="of memory and descriptors, second half")
    parser.add_argument("--max-lag-ms", type=float, default=50.0, help="of the loop's 99th percentile")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    return parser.parse_args(words)


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="sandbox-soak-") as folder:
        found = await soak(arguments, Path(folder))
    found["trends"] = trends(found, arguments.warm_up_s)
    found["broken"] = broken(found, arguments)
    return found


def main() -> int:
    arguments = parse(sys.argv[1:])
    found = run(measure(arguments))
    if arguments.out:
        arguments.out.write_text(json.dumps(found) + "\n", encoding="utf-8")
    print(table(found))
    return 1 if found["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
