"""What arms learned, from made-up runs: curves over seeds, their text, picture and files."""

import csv
import io
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from swe_rl.config.choices import CompareFigures
from swe_rl.report.compare.compare import Arm, MeasuredRun, StepRate, compare_arms
from swe_rl.report.compare.held_out import evaluations_by_step, held_out
from swe_rl.report.compare.learning import held_out_curve, reward_curve, shows_learning
from swe_rl.report.compare.learning_svg import draw_learning
from swe_rl.report.compare.learning_text import learning_text
from swe_rl.report.compare.record import comparison_record, csv_text
from swe_rl.report.statistics import mean_interval

INSTANCES = 10


def trained(solved, rewards, job="train", status=None):
    """Returns a run. `solved` has of each evaluation, two steps apart, how many of ten instances were solved."""
    evals = [
        {
            "event": "eval",
            "split": "heldout",
            "step": 2 * place,
            "num_instances": INSTANCES,
            "by_instance": {f"i{number}": [int(number < count), 1] for number in range(INSTANCES)},
        }
        for place, count in enumerate(solved)
    ]
    steps = {step: StepRate(100.0, reward, 400.0, 1.0, 2.0) for step, reward in enumerate(rewards, 1)}
    return MeasuredRun(
        "run",
        steps,
        held_out=held_out(evals),
        evaluations=evaluations_by_step(evals),
        values={"job": {"name": job}},
        status=status,
    )


@pytest.fixture
def made():
    first = {"seed=0": trained((2, 4, 6), (0.1, 0.2, 0.3, 0.4)), "seed=1": trained((2, 5, 8), (0.3, 0.2, 0.5, 0.6))}
    other = {"seed=0": trained((2, 2, 2), (0.1,) * 4), "seed=1": trained((2, 2, 4), (0.1,) * 4)}
    return compare_arms([Arm("algo=grpo", "algo=grpo", first), Arm("algo=gspo", "algo=gspo", other)])


def test_a_point_is_the_mean_over_seeds_with_an_interval_over_them(made):
    points = held_out_curve(made.arms[0]).points
    assert [(step, point.mean, point.runs) for step, point in points.items()] == [
        (0, pytest.approx(0.2), 2),
        (2, pytest.approx(0.45), 2),
        (4, pytest.approx(0.7), 2),
    ]
    # Student's t of one degree of freedom: 12.706 * 0.1414 / sqrt(2) around 0.7, but a share is between 0 and 1.
    assert points[4].interval == (0.0, 1.0)
    rewards = reward_curve(made.arms[0]).points
    assert rewards[4].interval == pytest.approx((0.5 - 1.2706, 0.5 + 1.2706), abs=1e-4)
    assert [point.mean for point in rewards.values()] == pytest.approx([0.2, 0.2, 0.4, 0.5])


def test_one_run_has_intervals_over_its_instances_and_none_for_rewards():
    arm = Arm("a", "a", {"": trained((2, 6), (0.1, 0.2))})
    assert all(point.interval and point.runs == 1 for point in held_out_curve(arm).points.values())
    assert all(point.interval is None for point in reward_curve(arm).points.values())
    text = learning_text(compare_arms([arm]))
    assert "one run each: 95 % interval over its instances, which says nothing of another seed" in text


def test_the_text_has_the_held_out_rate_first_and_no_throughput(made):
    text = learning_text(made)
    assert text.startswith("# Comparison of learning (algo=grpo vs algo=gspo)")
    places = [text.index(words) for words in ("Held-out resolved rate, %", "Reward by step", "- held-out (paired")]
    assert places == sorted(places)
    assert "70.0 (0.0 to 100.0)" in text and "tokens/sec" not in text
    assert "job.figures=throughput" in text


def test_instances_of_several_seeds_count_once(made):
    [pair] = made.pairs
    assert (pair.held_out.runs, pair.held_out.instances) == (2, INSTANCES)
    assert "- held-out (paired, 10 instances): 70.0 vs 30.0 %, delta -40.0 points" in learning_text(made)


def test_a_long_curve_is_thinned_out_in_the_text_and_whole_in_the_csv():
    arm = Arm("a", "a", {"": trained((), [0.1] * 100)})
    made = compare_arms([arm])
    text = learning_text(made)
    assert "12 of 100 steps" in text and "\n100 " in text and "\n1 " in text
    assert len(csv_text(made).splitlines()) == 101


def test_learning_is_shown_where_a_run_trains_or_as_was_asked_for(made):
    rollouts = compare_arms([Arm("a", "a", {"": trained((), (0.1,), job="rollout")})])
    assert shows_learning(made, CompareFigures.auto) and not shows_learning(rollouts, CompareFigures.auto)
    assert shows_learning(rollouts, CompareFigures.learning) and not shows_learning(made, CompareFigures.throughput)


def test_a_sweep_that_compares_speed_says_so_of_its_runs():
    told = trained((), (0.1,))
    told.values["job"]["figures"] = "throughput"
    made = compare_arms([Arm("a", "a", {"": told})])
    assert not shows_learning(made, CompareFigures.auto) and shows_learning(made, CompareFigures.learning)


def test_the_csv_has_each_evaluation_on_the_line_of_its_step(made):
    lines = list(csv.DictReader(io.StringIO(csv_text(made))))
    ours = [line for line in lines if (line["arm"], line["repeat"]) == ("algo=grpo", "seed=1")]
    assert [line["step"] for line in ours] == ["0", "1", "2", "3", "4"]
    assert [line["held_out_rate"] for line in ours] == ["0.2", "", "0.5", "", "0.8"]
    assert ours[4]["held_out_num_instances"] == "10" and float(ours[4]["held_out_low"]) < 0.8
    assert ours[0]["reward_mean"] == "" and ours[4]["reward_mean"] == "0.6"


def test_the_record_has_the_curves(made):
    learning = comparison_record(made)["arms"][0]["learning"]
    assert [point["step"] for point in learning["held_out"]] == [0, 2, 4]
    assert learning["reward"][-1]["mean"] == pytest.approx(0.5)


def test_the_picture_has_a_panel_for_each_figure_that_there_is(made):
    root = ElementTree.fromstring(draw_learning(made))
    said = [element.text for element in root.iter() if element.text]
    assert "held-out resolved, %" in said and "reward" in said and "bands: 95 % intervals over runs" in said
    alone = compare_arms([Arm("a", "a", {"": trained((), (0.1, 0.2))})])
    assert "held-out resolved, %" not in draw_learning(alone)


def two_runs(first, second):
    return compare_arms([Arm("a", "a", {"": first}), Arm("b", "b", {"": second})])


@pytest.mark.parametrize("status", ["running", "interrupted", "failed", "requeued"])
def test_a_run_that_is_not_over_is_compared_at_the_last_step_that_both_evaluated(status):
    made = two_runs(trained((2, 4, 6), (0.1,) * 4, status="done"), trained((2, 3), (0.1,) * 2, status=status))
    pair = made.pairs[0]
    assert (pair.held_out.steps, pair.held_out.baseline, pair.held_out.candidate) == ((2,), 40.0, pytest.approx(30.0))
    assert (pair.gain.baseline, pair.gain.candidate) == (pytest.approx(20.0), pytest.approx(10.0))
    printed = learning_text(made)
    assert "- held-out (paired, 10 instances, both after step 2): 40.0 vs 30.0 %, delta -10.0 points" in printed
    assert "- held-out gain (paired, 10 instances, both after step 2): +20.0 vs +10.0 points" in printed


def test_runs_that_are_over_are_compared_by_what_came_of_them():
    made = two_runs(trained((2, 4, 6), (0.1,) * 4, status="done"), trained((2, 3), (0.1,) * 2, status="done"))
    pair = made.pairs[0]
    assert (pair.held_out.steps, pair.held_out.baseline, pair.held_out.candidate) == ((), 60.0, pytest.approx(30.0))


def test_a_run_whose_evaluations_the_other_has_not_made_yet_is_not_compared():
    begun = trained((2, 3), (0.1,) * 2, status="running")
    late = replace(begun, held_out=replace(begun.held_out, counts={7: begun.held_out.counts[2]}))
    assert two_runs(trained((2, 4), (0.1,) * 2, status="done"), late).pairs[0].held_out is None


def test_a_seed_that_ended_early_is_no_step_of_the_others():
    """The second seed of one arm failed after step 2: its pair alone is compared there, and the mean lacks it later."""
    whole = trained((2, 4, 6), (0.1,) * 4, status="done")
    failed = trained((2, 3), (0.1,) * 2, status="failed")
    arms = [Arm("a", "a", {"seed=0": whole, "seed=1": whole}), Arm("b", "b", {"seed=0": whole, "seed=1": failed})]
    made = compare_arms(arms)
    assert made.pairs[0].held_out.steps == (2, 4)
    printed = learning_text(made)
    assert "both after step 2" not in printed and "both over after the last step that both evaluated" in printed
    [last_line] = [line for line in printed.splitlines() if line.startswith("4 ") and "60.0" in line]
    assert last_line.endswith("60.0, 1 of 2 runs")


def test_gains_since_different_steps_are_not_compared():
    """The second run was first evaluated after two steps, when it had learned most of what it learns."""
    whole = trained((2, 4, 6), (0.1,) * 4, status="done")
    late = replace(whole.held_out, counts={step: whole.held_out.counts[step] for step in (2, 4)})
    pair = two_runs(whole, replace(whole, held_out=late)).pairs[0]
    assert pair.gain is None and (pair.held_out.baseline, pair.held_out.candidate) == (60.0, 60.0)
    both_late = replace(whole, held_out=late)
    assert two_runs(both_late, both_late).pairs[0].gain.candidate == pytest.approx(20.0)


def test_seeds_that_agree_by_chance_have_no_interval():
    runs = {f"seed={seed}": trained((2, 4), (0.25, 0.25)) for seed in range(3)}
    better = {f"seed={seed}": trained((2, 5), (0.5, 0.5)) for seed in range(3)}
    made = compare_arms([Arm("a", "a", runs), Arm("b", "b", better)])
    curves = [held_out_curve(made.arms[0]), reward_curve(made.arms[0])]
    assert [point.interval for curve in curves for point in curve.points.values()] == [None] * 4
    assert made.pairs[0].held_out.interval is None is made.pairs[0].gain.interval
    printed = learning_text(made)
    assert (
        "none where they agree" in printed and printed.count("(no interval: all pairs of runs differ by as much") == 2
    )
    assert mean_interval([0.3 - 0.2, 0.2 - 0.1]) is None, "rounding is no spread"


def test_a_band_breaks_where_the_runs_agree():
    counts = ((1, 2, 4, 3, 5), (2, 3, 4, 5, 6))
    runs = {f"seed={seed}": trained(solved, ()) for seed, solved in enumerate(counts)}
    picture = draw_learning(compare_arms([Arm("a", "a", runs)]))
    assert picture.count("<polygon") == 2
