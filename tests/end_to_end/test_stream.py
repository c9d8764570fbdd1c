"""The main job with groups that flow, for real: as it is, killed at named moments, and over servers."""

import pytest

from swe_rl.files.kill_point import VARIABLE
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.rollout.trajectory import TrajectoryId
from tests.end_to_end.conftest import GROUP, PROMPTS
from tests.end_to_end.test_engines import INVENTED, TWO, fake  # noqa: F401 - a fixture

STREAM = ("rollout.mode=stream", "trainer.steps=4", "trainer.eval_every_steps=2", "trainer.resume=auto")

pytestmark = pytest.mark.slow


def sessions_of(folder):
    store = TraceStore(folder / "traces.db")
    try:
        return {name: store.traces(name) for name in store.sessions()}
    finally:
        store.close()


def whole(command, last, group_size=GROUP):
    """No group is lost, doubled or trained twice; every sampled token of theirs is there once."""
    folder, steps = command.folder(), command.steps()
    assert [step["step"] for step in steps] == list(range(1, last + 1))
    groups = [group for step in steps for group in step["groups"]]
    assert len(set(groups)) == len(groups) == PROMPTS * last
    sessions, named = sessions_of(folder), {}
    for step in steps:
        for one in command.read(folder / "trajectories" / f"step_{step['step']:06d}.jsonl"):
            assert one["group_id"] in step["groups"] and one["trajectory_id"] not in named
            named[one["trajectory_id"]] = one
        assert step["token_staleness_max"] <= 4 and step["num_trajectories"] == PROMPTS * group_size
    trained = {name for name in sessions if not TrajectoryId.parse(name).is_evaluation}
    assert trained == set(named)
    for name, one in named.items():
        traces = sessions[name]
        assert len(traces) == one["num_calls"]
        assert sum(len(trace.sampled_ids) for trace in traces) == one["sampled_tokens"]
    for name, traces in sessions.items():
        if TrajectoryId.parse(name).is_evaluation:
            assert {version for trace in traces for version in trace.weight_versions.tolist()} == {
                TrajectoryId.parse(name).step
            }
    assert not list(folder.glob("queue/*")) and not command.children()
    return steps


@pytest.mark.parametrize("point", [None, "group_queued:5", pytest.param("step_recorded:3", marks=pytest.mark.long)])
def test_groups_flow_through_the_main_job(command, monkeypatch, point):
    pairs = (*STREAM, "rollout.n=2")  # what becomes of a group does not depend on its size
    if point is not None:
        monkeypatch.setenv(VARIABLE, point)
        assert command.run(*pairs, cold=point == "step_recorded:3").exit_status == -9
        monkeypatch.delenv(VARIABLE)
    done = command.run(*pairs)
    assert done.exit_status == 0, done.text
    assert ("continues after step" in done.text) == (point is not None)
    whole(command, 4, group_size=2)


def test_groups_flow_over_servers_whose_weights_change_under_them(command, fake):  # noqa: F811
    fake(token_delay_s=0.01)
    done = command.run(*TWO, *STREAM, INVENTED, "rollout.concurrency=6")
    assert done.exit_status == 0, done.text
    whole(command, 4)
    versions = [
        trace.weight_versions.tolist()
        for name, traces in sessions_of(command.folder()).items()
        if not TrajectoryId.parse(name).is_evaluation
        for trace in traces
    ]
    assert all(of_trace == sorted(of_trace) for of_trace in versions)
    assert any(len(set(of_trace)) > 1 for of_trace in versions)  # an answer that went on under new weights
