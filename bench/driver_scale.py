"""What long trajectories cost their driver: event loop, memory, and the time until all ranks of a trainer have rows.

    python -m bench.driver_scale                          # 1,000 trajectories of 100 turns, 64k tokens each
    python -m bench.driver_scale --trajectories 100

Each trajectory is a session of a gateway, from the request's JSON to the trace store, without HTTP. Engines answer with
numbers after a while, and a renderer makes numbers of messages: no model, no tokenizer, no sandbox. All trajectories
are under way at once; turns come at `--turns-per-s`, so one takes `trajectories / turns-per-s` seconds on average.
Rows are then made as a run makes them, and read by `--ranks` processes, each of which looks at every token.

Prints a line of JSON: how late the event loop was (see loop_lag) while turns came and afterwards, the largest resident
memory and the processor seconds of this process alone, and the seconds from the last trajectory's end until the last
rank had all rows.
"""

import argparse
import asyncio
import gc
import json
import multiprocessing
import os
import platform
import random
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson

from bench.loop_lag import LoopLag
from swe_rl.__main__ import COLLECTOR
from swe_rl.config.schema import Config, GatewayConfig, RouterConfig
from swe_rl.engine.engine import Completion, SamplingParams
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.gateway.completion import Completer
from swe_rl.gateway.dialects.chat import ChatCompletions
from swe_rl.gateway.live import LiveSessions
from swe_rl.gateway.metrics import GatewayMetrics
from swe_rl.gateway.placement import Placement
from swe_rl.gateway.request import Arrived
from swe_rl.gateway.sampling import Sampling
from swe_rl.gateway.session import SessionSettings
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.logger.folder import RunFolder
from swe_rl.model.tool_parser import make_tool_parser
from swe_rl.rollout.collect import Collected
from swe_rl.rollout.trajectory import Status, Trajectory
from swe_rl.router.make import make_router
from swe_rl.run.rollouts import Rollouts

_ENGINES = 8
_SAMPLED_SHARE = 0.2  # of what a turn adds
_VOCAB = 150_000
_POOL_TOKENS = 2**20
_UPDATE_TURNS = 10  # after so many turns of a trajectory its tokens are of other weights


class Numbers:
    """Meets what a gateway asks of a renderer: a message is so many ids, a reply is always the same words."""

    stop_token_ids = ()
    rewrites = False

    def __init__(self, new_tokens: int, seed: int) -> None:
        rng = random.Random(seed)
        self._pool = [rng.randrange(_VOCAB) for _ in range(_POOL_TOKENS)]
        self._rng, self._new_tokens = rng, new_tokens

    def ids(self, count: int) -> list[int]:
        start = self._rng.randrange(_POOL_TOKENS - count)
        return self._pool[start : start + count]

    def start(self, messages: Sequence[Any], tools: Any = None, most_tokens: int | None = None) -> list[int]:
        return self.ids(self._new_tokens)

    def extend(
        self,
        sampled_ids: Sequence[int],
        new_messages: Sequence[Any],
        most_tokens: int | None = None,
        reply: Any = None,
    ) -> list[int]:
        return self.ids(self._new_tokens)

    def decode(self, sampled_ids: Sequence[int]) -> str:
        return "I look at the next file."


class PacedEngine(ScriptedEngine):
    """Answers with `count` numbers after `turn_s` seconds on average."""

    def __init__(self, name: str, numbers: Numbers, count: int, turn_s: float) -> None:
        super().__init__(lambda _: [], name=name, max_model_len=2**31)
        self._numbers, self._count, self._turn_s = numbers, count, turn_s
        self._rng = random.Random(name)

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, request_id: str, session_id: str | None = None
    ) -> Completion:
        await asyncio.sleep(self._turn_s * self._rng.uniform(0.5, 1.5))
        logprobs = tuple(-token / _VOCAB for token in range(self._count))
        version = int(request_id.rpartition("#")[2]) // _UPDATE_TURNS % 64
        return Completion(tuple(self._numbers.ids(self._count)), logprobs, "length", version)


class Door:
    """A gateway without HTTP."""

    def __init__(self, folder: Path, turns: int, tokens: int, turn_s: float) -> None:
        new_tokens = tokens // turns
        sampled = max(1, int(new_tokens * _SAMPLED_SHARE))
        self.turns, self.row_tokens = turns, turns * new_tokens
        numbers = Numbers(new_tokens - sampled, 0)
        engines = [PacedEngine(f"engine{i}", numbers, sampled, turn_s) for i in range(_ENGINES)]
        self.store = TraceStore(folder / "traces.db")
        placement = Placement(make_router(RouterConfig(), engines), engines)
        self.sessions = LiveSessions(placement, numbers, self.store, GatewayConfig())  # type: ignore[arg-type]
        metrics = GatewayMetrics(engines, self.store, self.sessions, placement)
        self._completer = Completer(
            Sampling(placement, self.store, metrics, max_model_len=2**31 - 1),
            numbers,  # type: ignore[arg-type]
            model_name="policy",
            max_model_len=2**31 - 1,
            parse=make_tool_parser("hermes"),
        )

    async def trajectory(self, name: str, begin_s: float) -> None:
        await asyncio.sleep(begin_s)
        self.sessions.open(name, SessionSettings(max_turn_tokens=2**30, max_trajectory_tokens=2**31 - 1))
        live = self.sessions.find(name, self.sessions.secret(name))
        messages: list[Any] = [{"role": "user", "content": f"Fix the bug {name}."}]
        for turn in range(self.turns):
            request = ChatCompletions().parse(orjson.dumps({"messages": messages}), Arrived("policy"))
            answer = await self._completer.complete(live, request)
            messages += [answer.message, {"role": "user", "content": f"What turn {turn} printed."}]
        await self.sessions.close(name)


def trajectories(names: Sequence[str]) -> Collected:
    made = [
        Trajectory(name, name, name.rpartition(".")[0], "train", 1, 0, 0, Status.resolved, 1.0, True, True)
        for name in names
    ]
    return Collected(made, [None] * len(made))


def _rank(pipe: Any) -> None:
    while (request := pipe.recv()) is not None:
        rows = looked_at(request)
        pipe.send((len(rows), sum(len(row.token_ids) for row in rows), sum(int(row.token_ids.sum()) for row in rows)))


def looked_at(request: Any) -> Any:
    return request.rows()


def handed_over(rows: Sequence[Any], pipes: Sequence[Any], folder: Path) -> list[tuple[int, int, int]]:
    """What each rank saw: rows, tokens, and their sum."""
    from swe_rl.trainer.ranks.rows_file import lend_rows

    with lend_rows(rows, folder) as file:
        for pipe in pipes:
            pipe.send(file)
        return [pipe.recv() for pipe in pipes]


async def rows_of(door: Door, collected: Collected) -> list[Any]:
    session = SimpleNamespace(folder=RunFolder(Path()))  # nothing is read of it, nor written
    parts = SimpleNamespace(store=door.store, renderer=None)
    rollouts = Rollouts(Config(), session, parts)  # type: ignore[arg-type]
    rows, _ = await asyncio.to_thread(rollouts.rows, collected)
    return rows


async def measured(options: argparse.Namespace, pipes: Sequence[Any], folder: Path) -> dict[str, Any]:
    turn_s = options.trajectories / options.turns_per_s
    door = Door(folder, options.turns, options.tokens, turn_s)
    names = [f"train.1.i{number // 8}.{number % 8}.0" for number in range(options.trajectories)]
    lag, began_s, cpu_s = LoopLag(), time.monotonic(), time.process_time()
    await asyncio.gather(*(door.trajectory(name, turn_s * i / len(names)) for i, name in enumerate(names)))
    last_s = time.monotonic()
    figures: dict[str, Any] = {"sampled_s": round(last_s - began_s, 1), "sampling": lag.take()}
    figures |= {"sampling_peak_gb": peak_gb(), "sampling_cpu_s": round(time.process_time() - cpu_s, 1)}
    cpu_s = time.process_time()
    rows = await rows_of(door, trajectories(names))
    figures["rows_s"] = round(time.monotonic() - last_s, 2)
    seen = await asyncio.to_thread(handed_over, rows, pipes, folder)
    figures["ready_s"] = round(time.monotonic() - last_s, 2)
    figures |= {"after": lag.take(), "peak_gb": peak_gb(), "after_cpu_s": round(time.process_time() - cpu_s, 2)}
    lag.close()
    expected = (len(names), len(names) * door.row_tokens, sum(int(row.token_ids.sum()) for row in rows))
    if set(seen) != {expected}:
        raise SystemExit(f"the ranks saw {seen}, not {expected}")
    door.store.close()
    return figures


def peak_gb() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description="What long trajectories cost their driver.")
    parser.add_argument("--trajectories", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=65536, help="of each trajectory, at its end")
    parser.add_argument("--turns-per-s", type=float, default=200.0, help="of all trajectories together")
    parser.add_argument("--ranks", type=int, default=8)
    options = parser.parse_args()
    gc.set_threshold(*COLLECTOR)  # as a run's driver
    context = multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in range(options.ranks)]
    ranks = [context.Process(target=_rank, args=(theirs,), daemon=True) for _, theirs in pairs]
    for rank in ranks:
        rank.start()
    with tempfile.TemporaryDirectory(prefix="bench-driver-") as folder:
        figures = asyncio.run(measured(options, [ours for ours, _ in pairs], Path(folder)))
    for ours, _ in pairs:
        ours.send(None)
    machine = {"cores": os.cpu_count(), "load_1min": round(os.getloadavg()[0], 1), "python": platform.python_version()}
    print(json.dumps({**vars(options), **machine, **figures}), flush=True)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
