"""One recorded evaluation, one figure: terminal, page, eval.json, summary.json and compare say the same."""

import json
import re
from io import StringIO

import pytest
from rich.console import Console

from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import StepLog, read_evals
from swe_rl.logger.progress_text import eval_line, format_span
from swe_rl.logger.summary import write_summary
from swe_rl.report.compare.compare import Arm, compare_arms
from swe_rl.report.compare.read import read_measured
from swe_rl.report.compare.record import comparison_record
from swe_rl.report.compare.text import comparison_text
from swe_rl.report.figures import print_scores
from swe_rl.report.page import build_payload
from swe_rl.report.resolved import (
    change_in_rate,
    counts_of,
    describe_split,
    gain_of_run,
    intervals_line,
    line_of,
    resolved_rate,
    summary_of,
)
from swe_rl.rollout.batch import eval_numbers
from swe_rl.rollout.collect import Collected
from swe_rl.rollout.pass_at_k import score_table
from swe_rl.rollout.trajectory import Status, Trajectory

INSTANCES, SAMPLES, WHOLE = 20, 4, 50


def attempts(step, skill, instances=range(INSTANCES)):
    """`skill` of `SAMPLES` attempts more than before are right; one instance's first attempt is broken."""
    made = []
    for number in instances:
        for sample in range(SAMPLES):
            right = sample < min(SAMPLES, number % 3 + skill)
            status = (
                Status.infra_error if (number, sample) == (7, 0) else Status.resolved if right else Status.unresolved
            )
            name = f"bug-{number}"
            made.append(
                Trajectory(f"e.{step}.{name}.{sample}.0", name, name, "e", step, sample, 0, status, 1.0, True, True)
            )
    return made


def evaluate(folder, *points, instances=range(INSTANCES)):
    """An evaluation a point, as `job=train` writes it, and the summary."""
    folder = RunFolder(folder).create()
    with StepLog(folder) as steps:
        for step, skill in points:
            made = attempts(step, skill, instances)
            collected = Collected(made, [None] * len(made))
            numbers = eval_numbers(collected, step=step, split="test[:20]", eval_s=1.0, split_instances=WHOLE)
            steps.append_eval(numbers)
    evals = read_evals(folder)
    return folder, evals, write_summary(folder, wall_s=1.0, extra=summary_of(evals))


def numbers_in(text):
    return re.findall(r"\d+\.\d", text)


def test_a_run_s_evaluations_are_the_same_figures_everywhere(tmp_path):
    folder, evals, summary = evaluate(tmp_path / "run", (0, 0), (9, 1))
    before, after, both = resolved_rate(evals[0]), resolved_rate(evals[1]), gain_of_run(evals)
    shown = [format_span(one.low, one.high) for one in (before, after)]

    lines = [eval_line(f"{describe_split(event)}, after step {event['step']}", *line_of(event)) for event in evals]
    for line, one, within in zip(lines, (before, after), shown, strict=True):  # the terminal, evaluation by evaluation
        assert f"{100 * one.rate:.1f}% ({within}%) resolved of 79 trajectories" in line
        assert line.startswith("eval test[:20] (20 of 50 instances), after step ")

    end = intervals_line(summary)  # the terminal, at the end
    assert f"{shown[0]} -> {shown[1]} %, gain {100 * both.low:+.1f} to {100 * both.high:+.1f}" in end
    assert end.endswith("20 of 50 instances") and len(end) <= 90

    for name, one in (("before", before), ("after", after)):
        assert summary[f"resolved_rate_{name}"] == pytest.approx(one.rate)
        assert (summary[f"resolved_low_{name}"], summary[f"resolved_high_{name}"]) == (one.low, one.high)
    assert (summary["resolved_gain"], summary["resolved_gain_low"]) == (both.delta, both.low)
    assert not any(isinstance(value, dict | list) for value in summary.values())

    payload = build_payload(folder)
    tiles = {tile["label"]: tile for tile in payload["figures"]}
    for one, point in zip((before, after), payload["evals"], strict=True):
        assert (point["rate"], point["low"], point["high"]) == (one.rate, one.low, one.high)
        assert f"{100 * one.low:.1f}–{100 * one.high:.1f} %" in tiles["Held-out resolved rate"]["detail"]
    assert tiles["Gain in points"]["value"] == f"{100 * both.delta:+.1f}"
    assert f"{100 * both.low:+.1f} to {100 * both.high:+.1f}, paired over 20 ins" in tiles["Gain in points"]["detail"]
    assert payload["title"].endswith(", evaluated on 20 of 50 instances")

    other, _, _ = evaluate(tmp_path / "other", (0, 1), (9, 2))
    made = compare_arms(
        [Arm(name, name, {"": read_measured(one.path, "x", 1)}) for name, one in (("a", folder), ("b", other))]
    )
    printed = comparison_text(made)
    [line] = [line for line in printed.splitlines() if line.startswith("a ") and "->" in line]
    assert [cell.strip() for cell in line.split("|")][:5] == [
        *("a", f"{100 * before.rate:.1f} -> {100 * after.rate:.1f}", shown[1], f"{100 * both.delta:+.1f}"),
        f"{100 * both.low:+.1f} to {100 * both.high:+.1f}",
    ]
    assert "Evaluated on test[:20], 20 of 50 instances" in printed and "Held-out Comparison" in printed
    written = comparison_record(made)["arms"][0]["runs"][0]["held_out"]
    assert (written["before"]["rate"], written["before"]["low"]) == (before.rate, before.low)
    assert (written["gain"]["low"], written["gain"]["high"]) == (both.low, both.high)


def test_an_evaluation_of_its_own_is_the_same_figures_everywhere(tmp_path):
    folder, evals, summary = evaluate(tmp_path / "run", (0, 1))
    one = resolved_rate(evals[0])
    scores = {"split": "test[:20]", "split_instances": WHOLE, **score_table(attempts(0, 1), {}, SAMPLES)}
    folder.eval_json.write_text(json.dumps(scores))
    assert {key: scores["all"]["resolved"][key] for key in ("rate", "low", "high")} == {
        **{"rate": one.rate, "low": one.low, "high": one.high}
    }
    console = Console(record=True, width=80, file=StringIO())
    print_scores(scores, console)
    printed = console.export_text()
    assert printed.splitlines()[0] == "test[:20]: 20 of 50 instances"
    assert (
        f"resolved {100 * one.rate:.1f} %, 95 % interval {format_span(one.low, one.high)} (20 instances, 79" in printed
    )
    payload = build_payload(folder)
    tile = next(tile for tile in payload["figures"] if tile["label"] == "Resolved")
    assert tile["value"] == f"{100 * one.rate:.1f} %" and numbers_in(tile["detail"]) == numbers_in(
        format_span(one.low, one.high)
    )
    assert payload["title"].endswith(", evaluated on 20 of 50 instances")
    assert (summary["resolved_low_before"], summary["resolved_gain"]) == (one.low, None)
    assert (summary["eval_instances"], summary["eval_split_instances"]) == (20, 50)
    assert max(map(len, printed.splitlines())) <= 80


def test_two_arms_are_paired_by_instance_and_say_what_they_do_not_share(tmp_path):
    one, evals, _ = evaluate(tmp_path / "a", (0, 0))
    other, others, _ = evaluate(tmp_path / "b", (0, 1), instances=range(3, INSTANCES + 2))
    made = compare_arms(
        [Arm(name, name, {"": read_measured(it.path, "x", 1)}) for name, it in (("a", one), ("b", other))]
    )
    found, both = made.pairs[0].held_out, change_in_rate(counts_of(evals[0]), counts_of(others[0]))
    assert (found.runs, found.instances, found.unpaired) == (1, 17, 5)
    assert found.interval == (100 * both.low, 100 * both.high)
    assert found.candidate - found.baseline == pytest.approx(100 * both.delta)
    printed = comparison_text(made)
    assert (
        "- held-out (paired, 17 instances, 5 not shared): " in printed and "over the instances of these runs" in printed
    )
    assert comparison_record(made)["pairs"][0]["held_out_percent"]["unpaired"] == 5


def test_runs_that_repeat_an_arm_are_the_unit_of_its_interval(tmp_path):
    runs = {}
    for arm, skill in (("a", 0), ("b", 1)):
        folders = [evaluate(tmp_path / f"{arm}{repeat}", (0, skill))[0] for repeat in range(2)]
        runs[arm] = {f"repeat={place}": read_measured(one.path, "x", 1) for place, one in enumerate(folders)}
    made = compare_arms([Arm(arm, arm, own) for arm, own in runs.items()])
    assert made.pairs[0].held_out.runs == 2
    # Equal repeats do not say by how much other repeats would differ.
    assert made.pairs[0].held_out.interval is None
    assert "points (no interval: all pairs of runs differ by as much" in comparison_text(made)


def test_arms_that_share_nothing_say_so(tmp_path):
    one, _, _ = evaluate(tmp_path / "a", (0, 0), instances=range(3))
    other, _, _ = evaluate(tmp_path / "b", (0, 0), instances=range(3, 6))
    made = compare_arms(
        [Arm(name, name, {"": read_measured(it.path, "x", 1)}) for name, it in (("a", one), ("b", other))]
    )
    assert "- held-out: no instance was evaluated on both sides, 6 not shared" in comparison_text(made)
