"""What a large run needs, by the simulator and on paper, and what gives way first: the tables of docs/scale.md.

    python -m bench.scale
    python -m bench.scale --nodes 16 --trajectories 2500

One node's share of the run is simulated with groups that flow, in each division of its GPUs, and counted as often as
there are nodes. What it costs the driver is arithmetic over the figures below, which docs/benchmarks/ has measured.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from bench.simulate_stream import LOAD
from swe_rl.config.compose import compose
from swe_rl.config.schema import Config
from swe_rl.plan import memory
from swe_rl.plan.engine_speed import speed_of
from swe_rl.plan.gateway import CALL_MS, SESSION_BYTES_PER_TOKEN, USE, interpolated
from swe_rl.router.simulation.balance import capacity_of, limits_of, router_of, trainer_of
from swe_rl.router.simulation.training import Schedule, TrainingOutcome, Way, simulate_training
from swe_rl.router.simulation.workload import MINI_SWE, WorkloadParameters, draw, mean_context_tokens

ROUTER_MS = 0.039  # "Routers": a decision with 10,000 programs, at most
EVENTS_PER_CALL = 2  # of the router: a request comes, and is answered
DRIVER_GB = 0.40  # "The driver": of a small run
ROW_BYTES_PER_TOKEN = 10  # "The driver": 0.64 MB a row of 64k tokens
ROW_MS = 3.1  # ... 2.0 ms to make and 1.1 ms to write one
TRACE_BYTES = 730  # "A long run's folder": 3 GB of 4.1 million traces, and ids of new tokens beside
ID_BYTES = 10  # of a new token on disk: id, log-probability, version
GATHER_S = 0.35  # "A whole step on four H200": weights of 29.5 GB put together from shards
# Assumed, not measured: a network of 400 Gbit/s a node, and a file system of so many GB/s for all nodes together.
WIRE_GB_PER_S = 45.0
FILES_GB_PER_S = 20.0


@dataclass(frozen=True, slots=True)
class Run:
    """The whole run: `engines` and `ranks` of one GPU each."""

    nodes: int
    trajectories: int
    per_step: int
    engines: int
    ranks: int
    turns: float  # of a trajectory
    context_tokens: float  # of a call
    total_tokens: float  # of a trajectory
    outcome: TrainingOutcome  # of one node
    weights_gb: float
    engine_nodes: int

    @property
    def calls_per_s(self) -> float:
        return self.per_step * self.turns / self.outcome.step_s

    @property
    def new_tokens_per_s(self) -> float:
        return self.per_step * self.total_tokens / self.outcome.step_s


@dataclass(frozen=True, slots=True)
class Need:
    """`load`: of what there is today, 1 is all of it."""

    what: str
    figure: str
    load: float
    way_out: str


def needs(run: Run) -> Iterator[Need]:
    call_ms = interpolated(run.context_tokens, CALL_MS)
    gateway = run.calls_per_s * call_ms / 1000
    yield Need(
        "gateway",
        f"{run.calls_per_s:.0f} calls/s of {call_ms:.2f} ms: {gateway:.2f} cores",
        gateway / USE,
        "none needed: one gateway process is enough" if gateway <= USE else f"{ceil(gateway / USE)} gateway processes",
    )
    router = run.calls_per_s * EVENTS_PER_CALL * ROUTER_MS / 1000
    yield Need("router", f"{router:.3f} cores", router / USE, "one router serves all gateways")
    rows = run.per_step * ROW_MS / 1000
    yield Need(
        "rows of a step",
        f"{rows:.1f} s of one thread in each step of {run.outcome.step_s:.0f} s",
        rows / run.outcome.step_s,
        "-",
    )
    held = run.trajectories * run.total_tokens / 2 * SESSION_BYTES_PER_TOKEN / 1e9
    rows_gb = run.per_step * run.total_tokens * ROW_BYTES_PER_TOKEN / 1e9
    yield Need(
        "driver's memory",
        f"{DRIVER_GB + held + rows_gb:.1f} GB, of which {held:.1f} for sessions and {rows_gb:.1f} for a step's rows",
        (DRIVER_GB + held + rows_gb) / 64,
        "limit: 64 GB",
    )
    connections = 3 * run.trajectories
    yield Need(
        "connections",
        f"{connections:,}: from agents, to engines, to sandbox servers",
        connections / 2**20,
        "limit: 1,048,576 open files, a common hard limit",
    )
    writes = run.new_tokens_per_s * ID_BYTES + run.calls_per_s * TRACE_BYTES
    yield Need("traces on disk", f"{writes / 1e6:.2f} MB/s", writes / 100e6, "limit: 100 MB/s")
    rank_nodes = run.nodes - run.engine_nodes
    yield Need(
        "rows to ranks",
        f"{rows_gb * rank_nodes:.0f} GB a step from one file to {rank_nodes} nodes",
        rows_gb * rank_nodes / FILES_GB_PER_S / run.outcome.step_s,
        "each rank reads only its rows",
    )
    by_files_s = run.weights_gb * (1 + run.engine_nodes) / FILES_GB_PER_S
    yield Need(
        "weights through a folder",
        f"{run.weights_gb:.0f} GB are written once, and read once by each of {run.engine_nodes} nodes: "
        f"{by_files_s:.0f} s an update",
        by_files_s / run.outcome.step_s,
        "NCCL",
    )
    wire_s = GATHER_S + run.weights_gb / WIRE_GB_PER_S
    yield Need(
        "weights over NCCL",
        f"a pipelined broadcast (each node passes the weights on once): {wire_s:.1f} s an update",
        wire_s / run.outcome.step_s,
        "-",
    )


def divided(options: argparse.Namespace, load: WorkloadParameters, update_s: float) -> list[Run]:
    """One run a division of a node's GPUs, the best first."""
    return sorted(
        (_run(options, load, engines, update_s) for engines in options.engines),
        key=lambda run: run.outcome.tokens_per_h,
        reverse=True,
    )


def _run(options: argparse.Namespace, load: WorkloadParameters, engines: int, update_s: float) -> Run:
    gpus = options.gpus
    config = _config(engines, gpus - engines)
    places = max(1, round(options.trajectories / options.nodes))
    n = config.rollout.n
    prompts = max(1, round(places / 2 / n))  # of two steps that are under way
    schedule, way = Schedule(prompts, places, warm=3, counted=options.steps), Way(True, 1)
    drawn = draw(load, replace(config.rollout, prompts_per_step=schedule.groups(way)), 0)
    programs = drawn.steps[0]
    groups = [programs[at : at + n] for at in range(0, len(programs), n)]
    capacity = capacity_of(config)
    outcome = simulate_training(
        router_of(config, config.router, capacity),
        groups,
        speed_of(config.model, config.hardware, config.layout),
        limits_of(config, capacity),
        replace(trainer_of(config), sync_s=update_s),
        schedule,
        way,
    )
    return Run(
        nodes=options.nodes,
        trajectories=options.trajectories,
        per_step=prompts * n * options.nodes,
        engines=engines * options.nodes,
        ranks=(gpus - engines) * options.nodes,
        turns=sum(len(program.turns) for program in programs) / len(programs),
        context_tokens=mean_context_tokens(programs),
        total_tokens=sum(program.total_tokens for program in programs) / len(programs),
        outcome=outcome,
        weights_gb=memory.weights_gb(config.model),
        engine_nodes=round(options.nodes * engines / gpus),
    )


def _config(engines: int, ranks: int) -> Config:
    return compose(
        [
            "model=qwen3_14b", "layout=dp4", f"layout.engines={engines}", f"layout.trainer_gpus={ranks}",
            "layout.sequence_parallel=1", "hardware=h200x8", "rollout=swe", "rollout.n=8", "router=tr",
        ]
    ).config  # fmt: skip


def main() -> None:
    options = options_of(None)
    wire_s = GATHER_S + memory.weights_gb(_config(1, 1).model) / WIRE_GB_PER_S
    for title, load in (("`rollout=swe`", MINI_SWE), ("short turns", LOAD)):
        runs = divided(options, load, wire_s)
        print(f"\n{title}: {options.trajectories:,} trajectories on {options.nodes} nodes of {options.gpus} GPUs\n")
        print("\n".join(division_table(runs)))
        print(f"\nThe best of them: {runs[0].engines} engines, {runs[0].ranks} ranks\n")
        print("\n".join(needs_table(runs[0])))


def division_table(runs: Sequence[Run]) -> Iterator[str]:
    yield "| engines + ranks a node | trained tokens/h, all nodes | a step | engines idle | trainer idle | staleness |"
    yield "|---|---|---|---|---|---|"
    for run in sorted(runs, key=lambda run: run.engines):
        made, nodes = run.outcome, run.nodes
        yield (
            f"| {run.engines // nodes} + {run.ranks // nodes} | {made.tokens_per_h * nodes:.3g} | "
            f"{made.step_s:.0f} s | {made.engine_idle_share:.0%} | {made.trainer_idle_share:.0%} | "
            f"{made.staleness_mean:.2f} |"
        )


def needs_table(run: Run) -> Iterator[str]:
    yield "| what | needed | load | way out, or limit |"
    yield "|---|---|---|---|"
    for need in sorted(needs(run), key=lambda need: need.load, reverse=True):
        yield f"| {need.what} | {need.figure} | {need.load:.2g} | {need.way_out} |"


def options_of(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--gpus", type=int, default=8, help="of a node")
    parser.add_argument("--trajectories", type=int, default=10_000, help="under way at once")
    parser.add_argument("--engines", type=int, nargs="+", default=[2, 3, 4, 5, 6], help="of a node")
    parser.add_argument("--steps", type=int, default=4, help="that count, after three that do not")
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
