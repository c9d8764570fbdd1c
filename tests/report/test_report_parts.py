"""The parts of a mix in summaries, tiles, findings and comparisons: each as if it had been evaluated alone."""

import csv
import io
import json

import pytest

from swe_rl.report.compare.arms import make_pair
from swe_rl.report.compare.compare import compare_arms
from swe_rl.report.compare.learning_text import learning_text
from swe_rl.report.compare.read import read_measured
from swe_rl.report.compare.record import comparison_record, csv_text
from swe_rl.report.figures import part_tiles, score_rows
from swe_rl.report.health.facts import TrainingFacts
from swe_rl.report.health.findings import judge_training
from swe_rl.report.resolved import evals_by_part, gain_of_run, part_lines, summary_of


def evaluation(step, solved_of_a, solved_of_b, instances=12):
    counts = {f"a{number}": [int(number < solved_of_a), 1] for number in range(instances)}
    counts |= {f"b{number}": [int(number < solved_of_b), 1] for number in range(instances)}
    parts = {
        name: {
            "resolved_rate": solved / instances,
            "num_samples": instances,
            "num_instances": instances,
            "instances": [key for key in counts if key[0] == name],
        }
        for name, solved in (("a", solved_of_a), ("b", solved_of_b))
    }
    whole = (solved_of_a + solved_of_b) / (2 * instances)
    return {"step": step, "split": "heldout", "resolved_rate": whole, "by_instance": counts, "parts": parts}


EVALS = [evaluation(0, 2, 12), evaluation(4, 10, 1)]


def alone(name):
    """The same evaluations, of a run that has this part alone."""
    return [
        {
            **{key: event[key] for key in ("step", "split")},
            "by_instance": {key: pair for key, pair in event["by_instance"].items() if key[0] == name},
        }
        for event in EVALS
    ]


def test_a_part_has_the_gain_of_a_run_of_it_alone():
    by_part = evals_by_part(EVALS)
    assert {name: gain_of_run(events) for name, events in by_part.items()} == {
        name: gain_of_run(alone(name)) for name in "ab"
    }
    assert evals_by_part(alone("a")) == {} and "parts" not in summary_of(alone("a"))


def test_the_summary_and_the_terminal_have_each_part():
    parts = summary_of(EVALS)["parts"]
    assert parts["a"]["resolved_gain"] == pytest.approx(8 / 12) and parts["b"]["resolved_gain"] == pytest.approx(
        -11 / 12
    )
    assert parts["a"]["resolved_rate_before"] == pytest.approx(2 / 12)
    first, second = part_lines(EVALS)
    assert first.startswith("a: 83.3 % of 12 samples resolved, +66.7 points since") and second.startswith("b: 8.3 %")


def test_the_page_has_tiles_and_rows_of_parts():
    labels = [tile["label"] for tile in part_tiles(EVALS)]
    assert labels == [f"{name}: {what}" for name in "ab" for what in ("Held-out resolved rate", "Gain in points")]
    scored = {"instances": 1, "instances_solved": 1, "attempts": 1, "pass_at": {"1": {"rate": 1.0}}}
    rows = score_rows({"all": scored, "repositories": {}, "parts": {"a": scored}})["rows"]
    assert [row[0] for row in rows] == ["part a", "all"]


def test_health_finds_what_the_whole_hides():
    step = {"updates": 1, "signal_rate": 0.5, "grad_norm": 1.0, "reward_mean": 0.5}
    steps = [
        {**step, "step": number, "parts": {"a": {"signal_rate": 1.0}, "b": {"signal_rate": 0.0}}} for number in range(6)
    ]
    gains = {name: gain_of_run(events) for name, events in evals_by_part(EVALS).items()}
    found = judge_training(steps, gain_of_run(EVALS), TrainingFacts(), is_over=True, gains_of_parts=gains)
    assert [(finding.about, finding.value.partition(":")[0]) for finding in found] == [
        ("Groups without signal", "part b"),
        ("Held-out rate fell", "part b"),
    ]
    assert all(finding.keys[0] == "env.mix.b.weight" for finding in found)
    assert judge_training(steps, None, TrainingFacts(), is_over=True)[0].value.startswith("part b")


@pytest.fixture
def runs(tmp_path):
    folders = []
    for name, evals in (
        ("mixed", EVALS),
        ("other", [evaluation(0, 2, 12), evaluation(4, 4, 11)]),
        ("alone", alone("a")),
    ):
        folder = tmp_path / name
        folder.mkdir()
        steps = [{"step": step, "reward_mean": 0.5, "avg_response_length": 9.0} for step in range(1, 5)]
        for file, records in (("steps.jsonl", steps), ("evals.jsonl", evals)):
            (folder / file).write_text("".join(f"{json.dumps(record)}\n" for record in records))
        (folder / "config.yaml").write_text(f"name: {name}\njob: {{name: train}}\n")
        folders.append(read_measured(folder, "job.runs", 1))
    return folders


def test_arms_are_compared_part_by_part(runs):
    made = compare_arms(make_pair((runs[0], runs[1]), ("mixed", "other")))
    parts = comparison_record(made)["pairs"][0]["parts"]
    assert parts["a"]["held_out_percent"]["candidate"] == pytest.approx(100 * 4 / 12)
    assert parts["b"]["held_out_gain_points"]["baseline"] == pytest.approx(-100 * 11 / 12)
    text = learning_text(made)
    assert "Held-out resolved rate of b, %" in text and "- held-out a (paired, 12 instances" in text
    [header, *rows] = csv.reader(io.StringIO(csv_text(made)))
    row = next(dict(zip(header, row, strict=True)) for row in rows if row[:3] == ["mixed", "", "4"])
    assert float(row["held_out_a_rate"]) == pytest.approx(10 / 12) and row["held_out_b_num_samples"] == "12"


def test_a_run_of_one_environment_is_compared_with_the_part_that_has_its_instances(runs):
    made = compare_arms(make_pair((runs[0], runs[2]), ("mixed", "alone")))
    [pair] = made.pairs
    gain, rates = pair.parts["a"]
    assert (gain.instances, rates.baseline, rates.candidate) == (12, pytest.approx(1000 / 12), pytest.approx(1000 / 12))
    assert pair.parts["b"][1].runs == 0
