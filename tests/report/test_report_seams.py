"""One run is read by a run's record, the report, the viewer, the comparison and the published data set: all of them say
what somebody who counts the lines of its files by hand finds."""

import json
from collections import defaultdict

import pytest

from swe_rl.config.schema import JobConfig
from swe_rl.job.compare import make_comparison
from swe_rl.logger.jsonl import StepLog, read_jsonl
from swe_rl.report.compare.read import read_measured
from swe_rl.report.page import build_payload
from swe_rl.rollout.batch import eval_numbers, rollout_numbers
from swe_rl.rollout.collect import Collected
from swe_rl.rollout.published import write_dataset
from swe_rl.rollout.trajectory import Trajectory
from swe_rl.view.answers import Answers
from tests.report.conftest import build_run

BROKEN = {"infra_error", "grade_error", "engine_error"}


@pytest.fixture
def run(tmp_path):
    """A run whose records are those that a loop makes of its trajectories."""
    folder = build_run(tmp_path / "outputs" / "train" / "first", steps=4)
    folder.steps_jsonl.unlink()
    folder.evals_jsonl.unlink()
    with StepLog(folder) as log:
        for path in sorted(folder.trajectories_folder.glob("*.jsonl")):
            made = [Trajectory.from_record(record) for record in read_jsonl(path)]
            step = made[0].step
            if path.name.startswith("step"):
                log.append({"step": step, **rollout_numbers(Collected(made, []), 7.0), "generate_s": 7.0})
            else:
                log.append_eval(eval_numbers(Collected(made, []), step=step, split="heldout", eval_s=1.0))
    return folder


def by_hand(path):
    """The rates of a file of trajectories, from its lines alone."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    valid = [line for line in lines if line["status"] not in BROKEN]
    rewards = [line["reward"] for line in lines if line["reward"] is not None]
    counts = defaultdict(lambda: [0, 0])
    for line in valid:
        counts[line["instance_id"]][0] += line["status"] == "resolved"
        counts[line["instance_id"]][1] += 1
    return {
        "trajectories": len(lines),
        "reward": sum(rewards) / len(rewards),
        "resolved": sum(line["status"] == "resolved" for line in valid) / len(valid),
        "response": sum(line["response_tokens"] for line in lines) / len(lines),
        "valid": len(valid),
        "counts": {name: tuple(pair) for name, pair in counts.items()},
    }


def test_the_steps_of_record_report_viewer_and_comparison_are_those_of_the_trajectories(run):
    hand = {step: by_hand(run.trajectories(step)) for step in run.trajectory_steps()}
    shown = build_payload(run)["steps"]
    columns = ["reward_mean", "resolved_rate", "tokens_per_s", "num_trajectories"]
    [curve] = Answers(run.path.parents[1]).by_name["curves"]({"run": ["train/first"], "column": columns})["curves"]
    measured = read_measured(run.path, "job.runs", 64).steps
    assert list(hand) == shown["step"] == curve["steps"] == list(measured)
    for place, (step, counted) in enumerate(hand.items()):
        speed = counted["trajectories"] * counted["response"] / 7.0
        for values in (shown, curve["values"]):
            assert values["reward_mean"][place] == pytest.approx(counted["reward"], rel=1e-5)
            assert values["resolved_rate"][place] == pytest.approx(counted["resolved"], rel=1e-5)
            assert values["tokens_per_s"][place] == pytest.approx(speed, rel=1e-5)
            assert values["num_trajectories"][place] == counted["trajectories"]
        assert measured[step].reward_mean == pytest.approx(counted["reward"])
        assert measured[step].tokens_per_s == pytest.approx(speed)


def test_the_evaluations_of_report_viewer_and_comparison_are_those_of_the_trajectories(run):
    steps = [point["step"] for point in build_payload(run)["evals"]]
    hand = {step: by_hand(run.eval_trajectories(step)) for step in steps}
    payload = build_payload(run)
    row = Answers(run.path.parents[1]).by_name["runs"]({})["runs"][0]
    held_out = read_measured(run.path, "job.runs", 64).held_out
    first, last = hand[steps[0]], hand[steps[-1]]
    assert [(point["rate"], point["samples"]) for point in payload["evals"]] == [
        (pytest.approx(counted["resolved"]), counted["valid"]) for counted in hand.values()
    ]
    assert (row["before"], row["after"]) == (payload["evals"][0], payload["evals"][-1])
    assert (held_out.before.rate, held_out.after.rate) == (row["before"]["rate"], row["after"]["rate"])
    shown = {each["id"]: (each["before"], each["after"]) for each in payload["instances"]}
    for name in first["counts"] | last["counts"]:
        pairs = [tuple(pair) if pair and pair[1] else None for pair in shown[name]]
        assert pairs == [counted["counts"].get(name) for counted in (first, last)]
    # The gain is that of the instances of both ends.
    both = first["counts"].keys() & last["counts"].keys()
    ends = [
        sum(counted["counts"][name][0] for name in both) / sum(counted["counts"][name][1] for name in both)
        for counted in (first, last)
    ]
    assert held_out.gain.delta == pytest.approx(ends[1] - ends[0])
    [tile] = [tile for tile in payload["figures"] if tile["label"] == "Gain in points"]
    assert tile["value"] == f"{100 * (ends[1] - ends[0]):+.1f}"


def test_a_comparison_of_a_run_with_itself_finds_no_difference(run):
    made = make_comparison(JobConfig(baseline=str(run.path), candidate=str(run.path)))
    [pair] = made.pairs
    assert pair.tokens.delta == 0 and pair.held_out.baseline == pair.held_out.candidate
    assert pair.gain.candidate == pair.gain.baseline


def test_what_is_published_is_what_counted(run):
    published = write_dataset(run, run.exports / "trajectories")
    lines = dict.fromkeys(published.attempts, 0)
    for path in (run.exports / "trajectories").glob("*/trajectories/*.jsonl"):
        lines[path.stem] += len(path.read_text().splitlines())
    train = sum(by_hand(run.trajectories(step))["valid"] for step in run.trajectory_steps())
    evaluated = sum(by_hand(path)["valid"] for path in run.trajectories_folder.glob("eval_*.jsonl"))
    assert lines == dict(published.attempts) == {"train": train, "evaluation": evaluated}
