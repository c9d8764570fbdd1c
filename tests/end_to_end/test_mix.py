"""A run of two environments with a schedule: both are trained and evaluated, and a resumed run repeats it exactly."""

import json
import shutil

import pytest

from swe_rl.dataset.records import read_instances
from swe_rl.env.bugs.env import DATA
from swe_rl.report.compare.read import read_measured
from tests.end_to_end.conftest import read
from tests.end_to_end.test_resume_digits import digests
from tests.end_to_end.test_train import without_times
from tests.env.harbor.test_harbor import write_task

pytestmark = pytest.mark.slow

IDS = [instance.instance_id for instance in read_instances(DATA / "train.jsonl")[:6]]
HELD_OUT = read_instances(DATA / "heldout.jsonl")[0].instance_id
# A tiny model that has never seen a task of this kind solves it by doing anything at all.
EASY = "mkdir -p /logs/verifier\necho $(( $(ls /app | wc -l) > 0 )) > /logs/verifier/reward.txt\n"


@pytest.fixture
def run(command):
    for split, names in (("train", "abcd"), ("test", "e")):
        for name in names:
            write_task(command.root / "tasks" / split / name, test=EASY)
    listing = command.root / "instances.txt"
    words = (
        "env=mix",
        "+env@env.mix.bugs=bugs",
        "+env@env.mix.tasks=harbor",
        "rollout=default",
        f"env.mix.bugs.instances={listing}",
        f"env.mix.tasks.dataset={command.root}/tasks",
        "env.mix.tasks.unproven=keep",
        "env.mix.bugs.weight=2",
        "rollout.prompts_per_step=3",
        "trainer.prompts_per_mini_batch=3",
        "rollout.n=2",
        "rollout.eval_n=1",
        "rollout.max_turns=3",
        "+rollout.schedule.max_turns={1:1,2:2}",
        "+rollout.schedule.temperature={2:0.8}",
        "trainer.steps=2",
        "trainer.keep_checkpoints=2",
        "trainer.checkpoint_every_steps=1",
    )

    def start(*overrides, ids=IDS):
        listing.write_text("".join(f"{name}\n" for name in [*ids, HELD_OUT]))
        return command.run(*words, *overrides, small=False)

    return start


def test_both_parts_are_trained_and_a_resumed_run_repeats_it(command, run):
    whole = run()
    assert whole.exit_status == 0, whole.text
    folder, steps = command.folder(), without_times(command.steps())
    for step, record in enumerate(steps, start=1):
        assert {name: part["groups"] for name, part in record["parts"].items()} == {"bugs": 2, "tasks": 1}
        ended = read(folder / "trajectories" / f"step_{step:06d}.jsonl")
        assert {len(one["turns"]) <= step for one in ended} == {True}
        assert {one["part"] for one in ended} == {"bugs", "tasks"}
    assert [(record["max_turns"], record["temperature"]) for record in steps] == [(1, 1.0), (2, 0.8)]
    # The engine and the trainer give the sampled tokens the same log-probabilities, at each temperature.
    assert all(record["logprob_diff_max"] < 1e-3 for record in steps)
    for event in read(folder / "evals.jsonl"):
        assert {name: part["num_samples"] for name, part in event["parts"].items()} == {"bugs": 1, "tasks": 1}
    summary = json.loads((folder / "summary.json").read_text())
    assert set(summary["parts"]) == {"bugs", "tasks"}
    assert set(read_measured(folder, "job.runs", 1).parts) == {"bugs", "tasks"}
    last = folder / "checkpoints" / "step_000002"
    expected = digests(last)
    shutil.rmtree(last)
    resumed = run(f"trainer.resume={folder}")
    assert resumed.exit_status == 0 and "continues after step 1" in resumed.text, resumed.text
    assert json.dumps(without_times(command.steps())) == json.dumps(steps)
    assert digests(last) == expected
    shutil.rmtree(last)
    fewer = run(f"trainer.resume={folder}", ids=IDS[:5])
    assert "training instances are not those of before: 1 removed" in fewer.text, fewer.text
    shutil.rmtree(last)
    other = run(f"trainer.resume={folder}", "env.mix.bugs.weight=3")
    assert other.exit_status == 2 and "was run with another configuration" in " ".join(other.text.split())


def test_verdicts_of_both_kinds_come_from_the_parts(command, run):
    done = run("job=eval", "agent=gold")
    assert done.exit_status == 0, done.text
    scores = json.loads((command.folder("eval") / "eval.json").read_text())
    assert {name: part["solved_attempts"] for name, part in scores["parts"].items()} == {"bugs": 1, "tasks": 1}
