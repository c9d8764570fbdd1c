"""`job=eval` as a user runs it: scores, predictions, and an interruption that costs what was under way only."""

import json
import os
import signal
import time

import pytest

from swe_rl.config.schema import EnvConfig
from swe_rl.env.bugs.env import BugsEnv
from swe_rl.rollout.trajectory import Trajectory
from tests.end_to_end.conftest import root_list
from tests.env.harbor.test_harbor import needs_bwrap, words_of, write_task


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


@pytest.mark.slow
def test_killed_and_resumed_runs_only_what_is_missing(command):
    root_list(command.root, 4)
    many = ("job=eval", "rollout.eval_n=2", "rollout.concurrency=4", "rollout.max_turns=3")
    process = command.start(*many)
    try:
        until = time.monotonic() + 120
        while time.monotonic() < until:
            found = list(command.outputs.glob("eval/*/trajectories/eval_000000.jsonl"))
            if found and len(found[0].read_text().splitlines()) >= 5:
                break
            time.sleep(0.05)
        else:
            raise AssertionError("no trajectory was written")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    before = {record["trajectory_id"]: record for record in lines(found[0])[:-1]}  # the last line may be torn
    done = command.run(*many, "trainer.resume=auto", cold=True)
    assert done.exit_status == 0, done.text
    folder = command.folder("eval")
    assert folder == found[0].parent.parent
    after = {record["trajectory_id"]: record for record in lines(folder / "trajectories/eval_000000.jsonl")}
    assert before.items() <= after.items()
    scores = json.loads((folder / "eval.json").read_text())
    assert len(after) == scores["all"]["attempts"] == 2 * scores["all"]["instances"]
    assert set(scores["all"]["pass_at"]) == {"1", "2"} and "pass@2" in done.stdout
    assert "trajectories are there already" in done.text
    predictions = json.loads((folder / "preds.json").read_text())
    assert set(predictions) == {record["instance_id"] for record in after.values()}
    assert [Trajectory.from_record(one).to_record() for one in after.values()] == list(after.values())


@pytest.mark.slow
def test_predictions_of_others_are_graded(command, tmp_path):
    """A right patch, a wrong one, an empty one, and one for an instance of another data set; then a changed file."""
    instances = BugsEnv(EnvConfig(), tmp_path / "workspaces").instances("heldout")[:3]
    right, wrong, empty = (instance.instance_id for instance in instances)
    patches = {right: instances[0].patch, wrong: "no diff at all\n", empty: "", "foreign__x-1": instances[0].patch}
    file = tmp_path / "preds.json"
    words = ("job=eval", "agent=predictions", f"agent.predictions={file}", "rollout.eval_n=1")

    def write():
        entries = {name: {"model_name_or_path": "peer", "model_patch": patch} for name, patch in patches.items()}
        file.write_text(json.dumps(entries))

    def statuses():
        attempts = lines(command.folder("eval") / "trajectories/eval_000000.jsonl")
        return {attempt["instance_id"]: attempt["status"] for attempt in attempts}

    write()
    done = command.run(*words, small=False)
    assert done.exit_status == 0, done.text
    assert statuses() == {right: "resolved", wrong: "unresolved", empty: "empty_patch"}
    assert "heldout: 3 of 32 instances" in done.stdout
    assert "1 of 4 patches are for no instance of env.eval_split=heldout" in " ".join(done.text.split())
    assert json.loads((command.folder("eval") / "eval.json").read_text())["evaluated"] == "peer"
    entries = json.loads((command.folder("eval") / "preds.json").read_text())
    assert {name: entry["model_patch"] for name, entry in entries.items()} == {
        name: patch for name, patch in patches.items() if name != "foreign__x-1"
    }

    patches[wrong] = instances[1].patch
    write()
    again = command.run(*words, f"trainer.resume={command.folder('eval')}", small=False)
    assert again.exit_status == 0, again.text
    assert statuses() == {right: "resolved", wrong: "resolved", empty: "empty_patch"}
    assert "2 of 3 trajectories are there already" in again.text

    file.write_text(json.dumps({"foreign__x-1": {"model_patch": "x"}}))
    refused = command.run(*words, small=False)
    assert refused.exit_status == 2 and "has no patch for any of the 32 instances" in " ".join(refused.text.split())


@pytest.mark.slow
def test_agents_bring_the_key_of_a_gateway_that_other_machines_reach(command):
    done = command.run("job=eval", "gateway.host=0.0.0.0", "rollout.max_turns=2")
    assert done.exit_status == 0, done.text
    attempts = lines(command.folder("eval") / "trajectories/eval_000000.jsonl")
    assert attempts and all(attempt["num_calls"] > 0 for attempt in attempts)


@pytest.mark.slow
def test_instances_that_cannot_be_built_end_nothing_and_are_named(command, tmp_path):
    """Four that can be judged and three that nothing can be made of."""
    instances = BugsEnv(EnvConfig(), tmp_path).instances("heldout")[:4]
    rows = [instance.to_record() for instance in instances]
    foreign = rows[0] | {"repo": "a/b", "eval_script": "true", "log_parser": "parse_log_pytest", "image": "i"}
    sources = {
        "no_release": {"sdist": "nothing", "fix": "applies forward", "python": "3.11"},
        "no_archive": {"archive": str(tmp_path / "nothing.tar.gz"), "python": "3.11"},
        "no_folder": {"tree": str(tmp_path / "nothing"), "python": "3.11"},
    }
    rows[2:2] = [foreign | {"instance_id": name, "source": source} for name, source in sources.items()]
    dataset = tmp_path / "seven.jsonl"
    dataset.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("job=eval", "env=jsonl", f"env.dataset={dataset}", "agent=gold", "sandbox=process")
    done = command.run(*words, small=False)
    assert done.exit_status == 0, done.text
    folder = command.folder("eval")
    scores = json.loads((folder / "eval.json").read_text())
    assert scores["all"]["instances"] == scores["all"]["attempts"] == scores["all"]["solved_attempts"] == 4
    assert set(scores["left_out"]) == set(sources) and scores["failing"] == {} and scores["split_instances"] == 7
    assert "heldout: 4 of 7 instances are used" in done.text and "left out: 3" in done.stdout
    for name, reason in scores["left_out"].items():
        assert f"{name}: {reason}" in " ".join(done.stdout.split())
    predictions = json.loads((folder / "preds.json").read_text())
    assert {entry["model_name_or_path"] for entry in predictions.values()} == {"gold"}
    refused = command.run(*words, "env.unproven=refuse", small=False)
    assert refused.exit_status == 2 and "3 of 7 instances of heldout are not proven" in refused.text


@pytest.mark.slow
@needs_bwrap
def test_tasks_that_nobody_tried_are_proven_and_left_out_by_name(command, tmp_path):
    tasks = tmp_path / "tasks"
    write_task(tasks / "sum")
    words = words_of(tasks)
    write_task(tasks / "unsolved", solve="true\n")
    few = ("agent=gold", "rollout.eval_n=1", "job=eval", *words)
    done = command.run(*few, small=False)
    assert done.exit_status == 0, done.text
    assert "2 instances were never tried here: their gold patches are run first" in " ".join(done.text.split())
    scores = json.loads((command.folder("eval") / "eval.json").read_text())
    assert scores["left_out"] == {"unsolved": "with its gold patch 1 tests fail: test.sh, and it scores 0"}
    assert scores["all"]["instances"] == scores["all"]["solved_attempts"] == 1
    again = command.run("job=validate", *words, small=False)
    assert "1 of 2 instances need no new try" in again.text and again.exit_status == 0
    refused = command.run(*few, "env.unproven=refuse", small=False)
    assert refused.exit_status == 2 and "1 of 2 instances of train are not proven: unsolved: with its" in refused.text
