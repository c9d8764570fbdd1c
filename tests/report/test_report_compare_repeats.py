"""Two arms that do the same: what a comparison says of them when the machine drifts from run to run.

Steps are drawn from those of a recorded run (the tiny model, three steps of 64 trajectories on two shared cores). Each
run of the machine is faster or slower as a whole (8 %), and it slows down by 3 % a run.
"""

import math
import random
from statistics import fmean

import pytest

from swe_rl.report.compare.compare import Arm, MeasuredRun, StepRate, compare_arms
from swe_rl.report.compare.held_out import held_out
from swe_rl.report.compare.text import ONE_RUN, arms_table, comparison_text

RECORDED = (784.4, 755.5, 655.8)  # response tokens/s of its steps
STEPS, BLOCKS = 6, 4
IN_BLOCKS = "ABBAABBA"


def two_arms(order, seed):
    """Arms A and B of runs on one machine, in this order."""
    rng = random.Random(seed)
    runs = {"A": [], "B": []}
    for position, name in enumerate(order):
        speed = math.exp(rng.gauss(0, 0.08) - 0.03 * position)
        steps = {step: StepRate(speed * rng.choice(RECORDED)) for step in range(1, STEPS + 1)}
        runs[name].append(MeasuredRun(f"runs/{position}", steps))
    names = [""] if len(order) == 2 else [f"repeat={number}" for number in range(len(order) // 2)]
    return [Arm(f"router={name}", name, dict(zip(names, found, strict=True))) for name, found in runs.items()]


def covers(interval):
    return interval[0] <= 0 <= interval[1]


def interval_of(order, seed):
    return compare_arms(two_arms(order, seed)).pairs[0].tokens.interval_percent


def delta_of(order, seed):
    return compare_arms(two_arms(order, seed)).pairs[0].tokens.delta_percent


def test_the_interval_over_runs_covers_no_difference_nine_times_of_ten():
    assert sum(covers(interval_of(IN_BLOCKS, seed)) for seed in range(10)) >= 9


def test_one_arm_wholly_before_the_other_takes_drift_for_a_difference():
    """Why arms alternate: 3 % a run are 11 % between the arms."""
    shares = {order: [covers(interval_of(order, seed)) for seed in range(200)] for order in (IN_BLOCKS, "AAAABBBB")}
    assert sum(shares["AAAABBBB"]) / 200 < 0.75 < 0.93 < sum(shares[IN_BLOCKS]) / 200
    deltas = {order: [delta_of(order, seed) for seed in range(200)] for order in shares}
    assert fmean(deltas[IN_BLOCKS]) == pytest.approx(0.0, abs=1.0)
    assert fmean(deltas["AAAABBBB"]) == pytest.approx(-11.0, abs=1.5)


def test_the_steps_of_one_run_a_side_say_nothing_of_the_arms():
    """Their interval misses the truth more often than not, so it is not called one of the difference."""
    pairs = [compare_arms(two_arms("AB", seed)).pairs[0].tokens for seed in range(10)]
    assert sum(covers(tokens.within_run_percent) for tokens in pairs) <= 7
    assert all(tokens.interval_percent is None for tokens in pairs)


def test_a_real_difference_is_seen():
    base, other = two_arms(IN_BLOCKS, 0)
    faster = {
        name: MeasuredRun(run.source, {step: StepRate(1.5 * rate.tokens_per_s) for step, rate in run.steps.items()})
        for name, run in other.runs.items()
    }
    (pair,) = compare_arms([base, Arm("router=tr", "tr", faster)]).pairs
    assert pair.tokens.interval_percent[0] > 0


@pytest.mark.parametrize("order", ["AB", IN_BLOCKS])
def test_what_is_printed_names_its_unit(order):
    made = compare_arms(two_arms(order, 0))
    printed = comparison_text(made)
    if order == "AB":
        assert "- within this run: delta % " in printed and "it says nothing about another run" in printed
        assert "95 % interval of" not in printed and ONE_RUN in arms_table(made)[3]
    else:
        assert "within this run" not in printed and "Average (4 runs a side)" in printed
        assert "- 95 % interval of the average's delta %: " in printed and "over the pairs of runs" in printed
        assert "- spread of the runs' averages: " in printed


def evaluated(name, *tables):
    evals = [{"split": "e", "step": step, "by_instance": table} for step, table in enumerate(tables)]
    return MeasuredRun(name, {1: StepRate(1.0)}, held_out=held_out(evals))


def test_held_out_gains_are_paired_by_instance():
    before = evaluated("a", {"x": [0, 4], "y": [1, 4], "only_a": [0, 4]}, {"x": [2, 4], "y": [1, 4], "only_a": [4, 4]})
    after = evaluated("b", {"x": [0, 4], "y": [1, 4]}, {"x": [3, 4], "y": [2, 4]})
    made = compare_arms([Arm("a", "a", {"": before}), Arm("b", "b", {"": after})])
    gain = made.pairs[0].gain
    assert (gain.runs, gain.instances, gain.unpaired, gain.baseline, gain.candidate) == (1, 2, 1, 25.0, 50.0)
    assert "held-out gain (paired, 2 instances, 1 not shared): +25.0 vs +50.0 points, delta +25.0" in comparison_text(
        made
    )
    assert "over the instances of these runs" in comparison_text(made)
    runs = [{"repeat=0": first, "repeat=1": second} for first, second in ((before, before), (after, before))]
    several = compare_arms([Arm("a", "a", runs[0]), Arm("b", "b", runs[1])]).pairs[0].gain
    assert several.runs == 2 and several.candidate - several.baseline == pytest.approx(12.5)
    assert covers(several.interval)
    assert compare_arms([Arm("a", "a", {"": before}), Arm("c", "c", {"": MeasuredRun("c", {})})]).pairs[0].gain is None
