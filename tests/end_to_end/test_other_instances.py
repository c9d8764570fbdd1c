"""A run is resumed after its data changed: it says which instances are other, and trains each of an epoch once."""

import pytest

from swe_rl.dataset.records import read_instances
from swe_rl.env.bugs.env import DATA
from swe_rl.files.kill_point import VARIABLE
from tests.end_to_end.conftest import read

pytestmark = pytest.mark.slow

ALL = [instance.instance_id for instance in read_instances(DATA / "train.jsonl")[:14]]
BEFORE, ADDED = ALL[:12], ALL[12:]
HELD_OUT = read_instances(DATA / "heldout.jsonl")[0].instance_id  # an evaluation of one instance takes a second
PROMPTS = 3  # of a step: an epoch of 12 instances has four


@pytest.fixture
def run(command):
    def start(ids, *overrides):
        listing = command.root / "instances.txt"
        listing.write_text("".join(f"{name}\n" for name in [*ids, HELD_OUT]))
        few = (f"rollout.prompts_per_step={PROMPTS}", "rollout.n=2", "rollout.max_turns=3")
        words = (*few, "trainer.steps=4", "trainer.checkpoint_every_steps=1", f"env.instances={listing}")
        return command.run(*words, "rollout.eval_n=1", *overrides, "trainer.resume=auto", small=False)

    return start


def killed_at_step(run, monkeypatch, ids, mode, step):
    monkeypatch.setenv(VARIABLE, f"checkpoint_named:{step}")
    assert run(ids, f"rollout.mode={mode}").exit_status == -9
    monkeypatch.delenv(VARIABLE)


def trained(command):
    """Instances by step."""
    files = sorted(command.folder().glob("trajectories/step_*.jsonl"))
    return [list(dict.fromkeys(one["instance_id"] for one in read(path))) for path in files]


def events(command, name):
    return [event for event in read(command.folder() / "events.jsonl") if event["event"] == name]


@pytest.mark.parametrize("mode", ["step", pytest.param("stream", marks=pytest.mark.long)])
def test_four_removed_two_added_and_another_order(command, run, monkeypatch, mode):
    killed_at_step(run, monkeypatch, BEFORE, mode, step=2)
    before = trained(command)[:2]
    gone = [before[0][0], *[name for name in BEFORE if name not in before[0] + before[1]][:3]]
    present = [name for name in reversed(BEFORE) if name not in gone] + ADDED
    done = run(present, f"rollout.mode={mode}")
    assert done.exit_status == 0, done.text
    assert "warning: training instances are not those of before: 4 removed (" in done.text
    [change] = events(command, "instances_changed")
    assert (sorted(change["removed"]), change["added"], change["kept"]) == (sorted(gone), ADDED, 8)
    after = [name for step in trained(command)[2:] for name in step]
    assert not set(gone) & set(after)
    # In a stream timing decides how many have begun by then, and so at the end of which epoch the added ones come.
    left = [name for name in BEFORE + ADDED * (mode == "step") if name in present and name not in before[0] + before[1]]
    assert set(left) <= set(after), "each of the epoch is trained"
    again = [name for name in after if name in before[0] + before[1]]
    trained_added = [name for name in after if name in ADDED]
    assert mode == "stream" or len(again) == 2 * PROMPTS - len(left), "and none twice before the epoch's end"
    assert not trained_added or sorted(trained_added) == sorted(ADDED) and len(again) == 1, "added ones end an epoch"


@pytest.mark.long
def test_another_order_alone_trains_what_would_have_been_trained(command, run, monkeypatch):
    killed_at_step(run, monkeypatch, BEFORE, "step", step=2)
    done = run(BEFORE[::-1], "rollout.mode=step")
    assert done.exit_status == 0, done.text
    assert "the same ones in another order; the run keeps the order that it began with" in done.text
    steps = trained(command)
    assert sorted(name for step in steps for name in step) == sorted(BEFORE)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["step", "stream"])
def test_none_of_the_instances_is_left(command, run, monkeypatch, mode):
    killed_at_step(run, monkeypatch, ALL[:4], mode, step=1)
    refused = run(ALL[4:], f"rollout.mode={mode}")
    assert refused.exit_status == 2 and "Traceback" not in refused.text
    assert "none of them is among the 10 of now" in " ".join(refused.text.split())
