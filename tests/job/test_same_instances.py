"""What a resumed run says of its instances, and when it refuses to go on."""

import pytest

from swe_rl.logger.jsonl import read_events
from swe_rl.rollout.order.sampler import PromptSampler
from swe_rl.rollout.order.sampler_state import OtherInstancesError
from swe_rl.run.same_instances import carried_over, compared_held_out, keep_ids
from swe_rl.run.session import open_session

IDS = ["a", "b", "c", "d"]


@pytest.fixture
def resumed(make, fresh):
    with open_session(make(), fresh(), total_steps=1) as run_session:
        yield run_session


def sampler_of(ids):
    return PromptSampler(len(ids), 0, ids=ids)


def saved(run_session, ids=IDS, taken=1):
    """The state of a run that kept its list."""
    keep_ids(run_session.folder, ids)
    sampler = sampler_of(ids)
    sampler.take(taken)
    return sampler.state()


def test_the_same_instances_are_not_worth_a_word(resumed):
    state = saved(resumed)
    assert carried_over(sampler_of(IDS), state, resumed) is state
    assert not resumed.caveats and not read_events(resumed.folder.events_jsonl, "instances_changed")


def test_a_change_is_a_caveat_and_an_event_and_can_be_gone_on_from_again(resumed):
    sampler = sampler_of(["new", "d", "c", "a"])
    state = carried_over(sampler, saved(resumed), resumed)
    sampler.restore(state)
    [caveat] = resumed.caveats
    assert "training instances are not those of before: 1 removed (b), 1 added (new);" in caveat
    [event] = read_events(resumed.folder.events_jsonl, "instances_changed")
    assert (event["of"], event["removed"], event["added"], event["kept"]) == ("training", ["b"], ["new"], 3)
    again = sampler_of(["a", "new"])
    again.restore(carried_over(again, sampler.state(), resumed))


def test_another_order_is_no_caveat(resumed):
    sampler = sampler_of(IDS[::-1])
    sampler.restore(carried_over(sampler, saved(resumed), resumed))
    assert sampler.ids == IDS and not resumed.caveats
    assert "the same ones in another order" in resumed.folder.run_log.read_text()


def test_none_that_is_left_is_another_run(resumed):
    with pytest.raises(OtherInstancesError, match=r"4 instances, and none of them is among the 1 of now: 4 removed"):
        carried_over(sampler_of(["e"]), saved(resumed), resumed)


@pytest.mark.parametrize("content", [None, b"", b"[1, 2", b'{"a": 1}', b'["a", "b"]', b"3"])
def test_a_list_that_is_gone_or_damaged(resumed, content):
    state = saved(resumed)
    path = resumed.folder.instances(state["instances"])
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(OtherInstancesError, match="missing or damaged") as refused:
        carried_over(sampler_of(IDS[:3]), state, resumed)
    assert refused.value.exit_status == 2 and "trainer.resume=none" in str(refused.value)


def test_a_state_of_an_older_version(resumed):
    """It does not name its instances: what fits goes on, and it is said that nobody can tell."""
    old = {"epoch": 0, "taken": 3, "deferred": []}
    assert carried_over(sampler_of(IDS), old, resumed) is old
    assert "saved by an older version" in resumed.caveats[0]
    with pytest.raises(OtherInstancesError, match="does not fit 2 instances"):
        carried_over(sampler_of(IDS[:2]), old, resumed)


def test_held_out_instances_of_an_earlier_evaluation(resumed):
    assert compared_held_out(["y", "x"], resumed) == ["y", "x"], "nothing was evaluated"
    resumed.steps.append_eval({"event": "eval", "step": 0, "by_instance": {"x": [1, 1], "y": [0, 1], "z": [0, 0]}})
    assert compared_held_out(["z", "y", "x"], resumed) == ["x", "y", "z"] and not resumed.caveats
    assert compared_held_out(["w", "y", "x"], resumed) == ["x", "y", "w"]
    assert "held-out instances are not those of before: 1 removed (z), 1 added (w); a gain" in resumed.caveats[0]
