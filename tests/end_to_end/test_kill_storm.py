"""The kill storm: what its checks find, what it draws, and a short storm for real."""

import json
from dataclasses import replace

import pytest

from swe_rl.config.schema import Config
from swe_rl.files.kill_point import POINTS
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.gateway.trace import Trace
from swe_rl.logger.folder import RunFolder, RunState, StatusWriter
from swe_rl.logger.jsonl import EventLog, StepLog
from tests.support.fake_vllm.server import HAS_TAKEN, TAKES
from tests.support.kill_storm import main, table
from tests.support.storm.check import Attempt, Facts, leftover_files, read_facts, violations
from tests.support.storm.jobs import JOBS, OF_TARGET
from tests.support.storm.plan import DEFAULT_TARGETS, chunks, point_kills, random_kills
from tests.support.storm.targets import TARGETS, is_under_way, part, updates, waits_for_update


def attempt(instance="a", sample=0, number=0, **changes):
    made = Attempt(f"train.1.{instance}.{sample}.{number}", instance, sample, number, "resolved", 1.0, 7, 2)
    return replace(made, **changes)


def facts():
    """A step of two trajectories, and no evaluation."""
    attempts = [attempt(), attempt(sample=1, status="unresolved", reward=0.0)]
    traces = {one.trajectory_id: (one.num_calls, one.sampled_tokens) for one in attempts}
    steps = [{"step": 1, "loss": 0.5, "reward_mean": 0.5, "statuses": {"resolved": 1, "unresolved": 1}}]
    return Facts("done", steps, {"step_000001": attempts}, traces)


def found(changed, *, repeats=True):
    return [one.kind for one in violations(changed, facts(), repeats=repeats)]


def change(**changes):
    return replace(facts(), **changes)


def test_an_equal_run_violates_nothing():
    assert found(facts()) == []


def test_what_is_lost_is_found():
    lost = facts()
    del lost.sets["step_000001"][1], lost.traces["train.1.a.1.0"]
    assert found(lost) == ["lost"]
    assert "lost" in found(change(steps=[]))
    assert found(change(missing=["report.html"])) == ["lost"]
    one_trace_less = facts()
    one_trace_less.traces["train.1.a.0.0"] = (1, 4)
    assert found(one_trace_less) == ["lost"]
    assert found(change(status="running")) == ["unfinished"]


def test_what_is_doubled_is_found():
    twice = facts()
    twice.sets["step_000001"].append(attempt())
    assert found(twice) == ["doubled"]
    stale = facts()
    stale.traces["train.2.a.0.0"] = (1, 3)
    assert found(stale) == ["doubled"]
    again = facts()
    again.steps.append(again.steps[0])
    assert found(again) == ["doubled"]
    assert found(change(sets={**facts().sets, "step_000002": []})) == ["doubled"]


def test_a_wrong_reward_is_found():
    other = facts()
    other.sets["step_000001"][0] = attempt(status="unresolved", reward=0.0)
    assert found(other) == ["wrong reward"]  # a verdict that the uninterrupted run did not give
    assert found(other, repeats=False) == []
    against_the_table = facts()
    against_the_table.sets["step_000001"][0] = attempt(reward=0.0)
    assert found(against_the_table, repeats=False) == ["wrong reward"]
    for reward, kinds in ((0.0, ["wrong reward"]), (None, [])):
        infra = facts()
        infra.sets["step_000001"][0] = attempt(status="infra_error", reward=reward)
        infra.sets["step_000001"].append(attempt(number=1, status="unresolved", reward=0.0))
        infra.traces["train.1.a.0.1"] = (2, 7)
        assert found(infra) == kinds


def test_steps_are_those_of_the_uninterrupted_run_until_an_attempt_is_replaced():
    other = facts()
    other.steps[0] = {**other.steps[0], "loss": 0.6}
    assert found(other) == ["differs"] and found(other, repeats=False) == []
    other.steps[0] = {**other.steps[0], "loss": 0.5 + 1e-7}
    assert found(other) == []
    other.steps[0] = {**other.steps[0], "statuses": {"resolved": 2}}
    assert found(other) == ["differs"]
    other.sets["step_000001"][0] = attempt(status="infra_error", reward=None)
    other.sets["step_000001"].append(attempt(number=1))
    other.traces["train.1.a.0.1"] = (2, 7)
    assert found(other) == []


def flowed(sets, versions=()):
    """Two steps of two groups each, by the names of the groups that each of them trained."""
    steps, files, traces = [], {}, {}
    for step, groups in enumerate(sets, 1):
        made = [
            attempt(group.rpartition(".")[2], trajectory_id=f"{group}.{sample}.0", sample=sample)
            for group in groups
            for sample in range(2)
        ]
        files[f"step_{step:06d}"] = made
        traces |= {one.trajectory_id: (one.num_calls, one.sampled_tokens) for one in made}
        steps.append({"step": step, "groups": list(groups)})
    return Facts("done", steps, files, traces, versions=dict(versions))


def test_where_groups_flow_each_is_trained_once_whichever_step_does():
    in_order = flowed([("train.1.a", "train.1.b"), ("train.2.a", "train.2.b")])
    overtaken = flowed([("train.1.b", "train.2.a"), ("train.1.a", "train.2.b")])

    def kinds(facts):
        return sorted({one.kind for one in violations(facts, in_order, repeats=False, streams=True)})

    assert kinds(overtaken) == [] != found(overtaken, repeats=False)
    assert kinds(flowed([("train.1.a", "train.1.b"), ("train.1.a", "train.2.b")])) == ["doubled", "lost"]
    assert kinds(flowed([("train.1.a", "train.1.b"), ("train.2.a",)])) == ["lost"]
    assert kinds(replace(overtaken, queued=["group_000001.jsonl"])) == ["leftover"]
    elsewhere = replace(overtaken, sets=dict(zip(overtaken.sets, reversed(overtaken.sets.values()), strict=True)))
    assert kinds(elsewhere) == ["differs"]
    assert kinds(replace(overtaken, versions={"train.2.b.0.0": (0, 1)})) == []
    assert kinds(replace(overtaken, versions={"train.2.b.0.0": (0, 2)})) == ["differs"]  # of the step itself


def test_an_evaluation_under_other_weights_than_it_names_is_found():
    for versions, kinds in (((2, 2), []), ((1, 2), ["differs"]), ((3, 3), ["differs"])):
        assert found(change(versions={"eval-heldout.2.a.0.0": versions})) == kinds


def test_leftovers_are_found(tmp_path):
    (tmp_path / "tmp").mkdir()
    run = tmp_path / "outputs" / "train" / "one"
    kept = [run / ".hydra", run / "checkpoints" / "step_000001", tmp_path / "scratch" / "swe_rl-0"]
    for folder in kept:
        folder.mkdir(parents=True)
    (run / ".lock").touch()
    assert leftover_files(tmp_path) == []
    left = [
        run / ".status.json.1.0123456789ab.tmp",
        run / "checkpoints" / ".step_000001.old-7",
        tmp_path / "scratch" / "swe_rl-0" / "process-1-0123abcd",
        tmp_path / "cache" / "swe_rl" / "workspaces" / ".making-1-0123abcd",
        tmp_path / "tmp" / "anything",
    ]
    for path in left:
        path.mkdir(parents=True)
    assert {one.text for one in leftover_files(tmp_path)} == {str(path.relative_to(tmp_path)) for path in left}


def test_facts_are_read_from_a_run_folder(tmp_path):
    folder = RunFolder(tmp_path).create()
    with StepLog(folder) as steps, EventLog(folder.events_jsonl) as events:
        steps.append_trajectories(1, [{**{name: getattr(attempt(), name) for name in Attempt.__slots__}, "patch": ""}])
        steps.append({"step": 1})
        events.write("eval", step=0, resolved_rate=0.5)
    store = TraceStore(folder.traces_db)
    store.append(
        Trace("train.1.a.0.0", 0, 0, (1, 2), (3, 4, 5), (0.0,) * 3, (0,) * 3, "stop", None, 0, 0, 0, 0, 0, "e")
    )
    store.close()
    StatusWriter(folder.status_json, config_hash="").finish(RunState.done)
    read = read_facts(folder)
    assert read.sets == {"step_000001": [attempt()]} and read.traces == {"train.1.a.0.0": (1, 3)}
    assert (read.status, read.evals, read.missing) == ("done", {0: 0.5}, ["summary.json", "report.html"])


def test_the_seed_decides_and_every_target_and_point_is_drawn():
    kills = random_kills(7, 200, DEFAULT_TARGETS)
    assert kills == random_kills(7, 200, DEFAULT_TARGETS) != random_kills(8, 200, DEFAULT_TARGETS)
    assert random_kills(7, 50, DEFAULT_TARGETS) == kills[:50]  # a longer storm goes on with a shorter one's
    assert {one.target for one in kills} == set(DEFAULT_TARGETS) and all(0 <= one.at < 1 for one in kills)
    early = {one.target for one in kills if one.in_start}
    assert early == {"driver", "engine", "rank", "runtime"}  # what is there before anything is sampled
    assert 0.15 < sum(one.in_start for one in kills) / sum(one.target in early for one in kills) < 0.35
    runs = chunks(kills, 4)
    assert sorted(one.number for _, part in runs for one in part) == list(range(200))
    assert all(len(part) <= 4 and {OF_TARGET[one.target].name for one in part} == {name} for name, part in runs)
    hit = {part[-1].point.partition(":")[0] for _, part in point_kills(7)}
    assert hit == {one.name for one in POINTS}
    assert [job for job, part in point_kills(7) if part[-1].point.startswith("group")] == ["stream"] * 3
    assert set(OF_TARGET) == set(TARGETS) and len({job.name for job in JOBS}) == len(JOBS)


def test_an_update_is_under_way_from_its_first_tensor_to_its_last(tmp_path):
    logs = tmp_path / "train" / "one" / "engines"
    logs.mkdir(parents=True)
    (logs / "engine0.log").write_text(f"{TAKES}\n{HAS_TAKEN}\n{TAKES}\n")  # killed in its second one
    before = updates(tmp_path)
    assert list(before.values()) == [(2, 1)] and not is_under_way(before, updates(tmp_path))
    (logs / "engine1.log").write_text(f"{TAKES}\n")
    assert is_under_way(before, updates(tmp_path))
    (logs / "engine1.log").write_text(f"{TAKES}\n{HAS_TAKEN}\n")
    assert not is_under_way(before, updates(tmp_path))
    waiting = [target for target in TARGETS if waits_for_update(target)]
    assert waiting and all("memory_" in target and OF_TARGET[target].receives for target in waiting)
    assert {part(target) for target in waiting} == {"driver", "engine", "rank"}


def test_the_tables_of_outcomes_are_the_products():
    """The checks have the rewards of `env.reward`'s default in words of their own."""
    from swe_rl.config.choices import INFRA_STATUSES
    from swe_rl.config.compose import compose
    from swe_rl.rollout.trajectory import Status
    from tests.support.storm.check import _FAILED_REWARD, _REWARDS

    config: Config = compose([]).config
    for status in Status:
        outcome = config.rollout.outcomes[status.value]
        infra = status in INFRA_STATUSES
        assert (outcome.reward.value == "none") == infra
        assert _REWARDS.get(status, _FAILED_REWARD) == (None if infra else float(status is Status.resolved))


def test_a_table_counts_by_target_and_by_point():
    line = {"target": "driver", "point": None, "job": "embedded", "survived": False, "violations": []}
    line |= dict.fromkeys(("unfinished", "lost", "doubled", "wrong_reward", "differs", "leftover"), 0)
    other = {**line, "target": "point", "point": "trained:2", "lost": 1}
    rows = table([line, {**line, "survived": True}, other])
    assert rows[0].startswith("| target or point | kills | survived | resumed |")
    assert rows[2:] == ["| driver | 2 | 1 | 1 | 0 | 0 | 0 | 0 | 0 | 0 |", rows[3]]
    assert rows[3] == "| `trained` (embedded) | 1 | 0 | 1 | 0 | 1 | 0 | 0 | 0 | 0 |"


@pytest.mark.slow
@pytest.mark.long  # a measurement: it takes a minute, and seldom finds what no other test does
@pytest.mark.timeout(1800)
def test_a_short_storm_loses_nothing(tmp_path, capsys):
    words = ["--seed", "5", "--kills", "2", "--targets", "driver,store,guard,grader", "--side-by-side", "1"]
    words += ["--points", "--only-points", "went_back", "--out", str(tmp_path / "storm")]
    status = main(words)
    said = capsys.readouterr().out
    lines = [json.loads(line) for line in (tmp_path / "storm" / "kills.jsonl").read_text().splitlines()]
    assert status == 0 and not any(line["violations"] for line in lines), said
    assert {line["kill"] for line in lines if not line["point"]} == {0, 1}, said
    assert {line["point"].partition(":")[0] for line in lines if line["point"]} == {"step_recorded", "went_back"}
    assert any(not line["survived"] for line in lines)
    assert main(words) == 0 and "embedded_" not in capsys.readouterr().out  # all is done already
