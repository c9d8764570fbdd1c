"""Trained tokens an hour of groups that flow, against steps: simulated, for the load that is to be measured.

    python -m bench.simulate_stream
    python -m bench.simulate_stream --engines 3 --trainer-gpus 1 --programs 128 256

Qwen3-14B on H200: trajectories of 8 to 16 turns that grow to about 10,000 tokens, tools lognormal (median 2 s, sigma 1,
at most 60 s), no boot, no grading. Each line is the mean over the loads, with the range of the ratios.
"""

import argparse
from dataclasses import replace

from swe_rl.config.compose import compose
from swe_rl.plan.engine_speed import speed_of
from swe_rl.router.simulation.balance import capacity_of, limits_of, router_of, trainer_of
from swe_rl.router.simulation.training import Schedule, TrainingOutcome, Way, mean_of, simulate_training
from swe_rl.router.simulation.workload import AGENT_LOAD, Lognormal, draw

LOAD = replace(AGENT_LOAD, tool_s=Lognormal(2.0, 1.0, 60.0))
WAYS = (Way(False, 0), Way(False, 1), Way(True, 1))


def main() -> None:
    options = _options()
    print(
        f"{'programs':>8} {'router':8} {'way':14} {'tokens/h':>10} {'ratio':>18} {'step s':>7} engines idle, "
        "trainer idle, tokens by staleness"
    )
    for programs in options.programs:
        for router in options.router:
            made = [[simulated(options, programs, router, way, seed) for seed in range(options.seeds)] for way in WAYS]
            for outcomes in made:
                print(_line(programs, router, outcomes, made[0]), flush=True)


def simulated(options: argparse.Namespace, programs: int, router: str, way: Way, seed: int) -> TrainingOutcome:
    """`programs` act at once; a step has `options.prompts` groups of `options.n`."""
    config = compose(
        [
            "model=qwen3_14b", "layout=dp4", f"layout.engines={options.engines}", "layout.sequence_parallel=1",
            f"layout.trainer_gpus={options.trainer_gpus}", "hardware=h200x8", "rollout=swe", f"router={router}",
            f"rollout.prompts_per_step={options.prompts}", f"rollout.n={options.n}", "rollout.max_turn_tokens=4096",
            "rollout.max_trajectory_tokens=32768", "rollout.max_prompt_tokens=8192", "rollout.command_timeout_s=60",
        ]
    ).config  # fmt: skip
    if options.kv_tokens:
        config = replace(config, engine=replace(config.engine, kv_cache_tokens=options.kv_tokens))
    capacity = capacity_of(config)
    schedule = Schedule(options.prompts, programs, warm=4, counted=options.steps)
    count = schedule.groups(way)
    drawn = draw(LOAD, config.rollout, seed, -(-count // options.prompts))
    flat = [program for step in drawn.steps for program in step]
    groups = [tuple(flat[at : at + options.n]) for at in range(0, count * options.n, options.n)]
    speed = speed_of(config.model, config.hardware, config.layout)
    router_core = router_of(config, config.router, capacity)
    return simulate_training(router_core, groups, speed, limits_of(config, capacity), trainer_of(config), schedule, way)


def _line(programs: int, router: str, outcomes: list[TrainingOutcome], base: list[TrainingOutcome]) -> str:
    mean = mean_of(outcomes)
    ratios = [outcome.tokens_per_h / other.tokens_per_h for outcome, other in zip(outcomes, base, strict=True)]
    ratio = f"{sum(ratios) / len(ratios):.2f} ({min(ratios):.2f} - {max(ratios):.2f})"
    ages = ", ".join(f"{age}: {share:.0%}" for age, share in mean.staleness.items())
    return (
        f"{programs:8} {router:8} {mean.way:14} {mean.tokens_per_h:10.3g} {ratio:>18} {mean.step_s:7.0f} "
        f"{mean.engine_idle_share:.0%}, {mean.trainer_idle_share:.0%}, {mean.staleness_mean:.2f} ({ages})"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--trainer-gpus", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=16, help="groups of a step")
    parser.add_argument("--n", type=int, default=8, help="trajectories of a group")
    parser.add_argument("--programs", type=int, nargs="+", default=[128], help="trajectories that act at once")
    parser.add_argument("--router", nargs="+", default=["default", "tr"])
    parser.add_argument("--kv-tokens", type=int, default=0, help="of an engine; 0: what its memory holds")
    parser.add_argument("--steps", type=int, default=8, help="that count, after four that do not")
    parser.add_argument("--seeds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
