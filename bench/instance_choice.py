"""How many groups carry signal where instances are chosen by their pass rates, against every instance in turn.

`python -m bench.instance_choice`: no model; instances have pass rates that stay, rise by 0.02 a step, or whose log-odds
rise by 0.35 a step for 12 steps, as in training on the shipped job. At the start they are those of
sweeps/informative_groups.txt before training (solved of 12 attempts).
"""

import argparse
import math
import random
import statistics

from swe_rl.rollout.pass_rates import GroupResult, PassRates
from swe_rl.rollout.sampler import PromptSampler

SOLVED = (12, 11, 11, 0, 0, 0, 1, 0, 0, 0, 0, 0, 2, 4, 5, 6, 7, 8, 9, 10)  # of 12
N, PROMPTS, HALF_LIFE_STEPS = 8, 4, 8.0


def rate_of(solved: int, step: int, kind: str) -> float:
    if kind == "learns":
        log_odds = math.log((solved + 0.3) / (12.3 - solved))
        return 1.0 / (1.0 + math.exp(-log_odds - 0.35 * min(step, 12)))
    return solved / 12 + (0.02 * step if kind == "rises" else 0.0)


def run(informative: bool, seed: int, steps: int, kind: str) -> tuple[float, float]:
    """The share of groups with different rewards; the mean of expected less seen pass rate, over steps."""
    rates = PassRates(len(SOLVED), HALF_LIFE_STEPS * PROMPTS)
    sampler, generator = PromptSampler(len(SOLVED), seed, rates if informative else None), random.Random(seed)
    mixed, biases = 0, list[float]()
    for step in range(steps):
        results = []
        for index in sampler.take(PROMPTS):
            rate = rate_of(SOLVED[index], step, kind)
            solved = sum(generator.random() < rate for _ in range(N))
            mixed += 0 < solved < N
            results.append(GroupResult(index, solved, N))
        foreseen = rates.observe(results)
        expected, seen = foreseen["pass_rate_expected"], foreseen["pass_rate_seen"]
        if expected is not None and seen is not None:
            biases.append(expected - seen)
    return mixed / (steps * PROMPTS), statistics.mean(biases)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    seeds = parser.parse_args().seeds
    for kind in ("stays", "rises", "learns"):
        for steps in (16, 24, 100):
            for informative in (False, True):
                runs = [run(informative, seed, steps, kind) for seed in range(seeds)]
                signal, bias = ([figures[place] for figures in runs] for place in (0, 1))
                print(
                    f"{kind:6}, {steps:3} steps, {'informative' if informative else 'uniform':11}: "
                    f"signal {100 * statistics.mean(signal):.1f} % (sd {100 * statistics.stdev(signal):.1f}), "
                    f"bias {statistics.mean(bias):+.3f}"
                )


if __name__ == "__main__":
    main()
