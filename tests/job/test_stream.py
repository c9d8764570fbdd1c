"""Groups that flow through the loop with a real trainer on a small random model; only the rollouts are made up."""

import asyncio

import pytest

from swe_rl.engine.protocol import EngineError
from swe_rl.errors import RunError
from swe_rl.logger.jsonl import read_jsonl
from swe_rl.rollout.collect import RolloutError
from swe_rl.rollout.trajectory import Status, TrajectoryId
from tests.job.test_loop import N, _one_thread, evals, started, steps  # noqa: F401 - fixtures

STREAM = "rollout.mode=stream"


def trained(run):
    return [group for record in steps(run) for group in record["groups"]]


def whole(run, last):
    """What holds of a finished run, however often it was begun."""
    records = steps(run)
    assert [record["step"] for record in records] == list(range(1, last + 1))
    assert len(set(trained(run))) == len(trained(run)) == 2 * last
    named = set()
    for record in records:
        written = read_jsonl(run.folder.trajectories(record["step"]))
        assert {one["group_id"] for one in written} == set(record["groups"]) and len(written) == 2 * N
        assert sum(record["token_staleness"].values()) == sum(one["sampled_tokens"] for one in written)
        named |= {one["trajectory_id"] for one in written}
    sessions = [name for name in run.store.sessions() if not TrajectoryId.parse(name).is_evaluation]
    assert set(sessions) == named and all(len(run.store.traces(name)) == 1 for name in sessions)
    assert list(run.folder.queue.glob("*")) == []


async def test_a_whole_run(started):  # noqa: F811
    with started("trainer.steps=4", "trainer.eval_every_steps=2", STREAM) as run:
        await run.loop.run()
        whole(run, 4)
        records = steps(run)
        assert run.folder.checkpoint_steps() == [2, 4] and evals(run) == [0, 2, 4]
        assert [version for version, _ in run.engine.updates] == [0, 1, 2, 3, 4]
        assert {record["num_trajectories"] for record in records} == {2 * N}
        for record in records:
            assert record["trainer_idle_s"] >= 0 and record["engines_idle_s"] >= 0 and record["open_groups"] <= 2
            assert record["tokens_per_s"] == pytest.approx(2 * N * record["avg_response_length"] / record["generate_s"])
    begun = list(dict.fromkeys(name.rpartition(".")[0].rpartition(".")[0] for name in run.rollouts.attempted))
    order = [f"train.{TrajectoryId.parse(f'{group}.0.0').step}" for group in begun]
    assert order == [f"train.{1 + number // 2}" for number in range(8)]


async def test_the_instances_are_those_of_whole_steps(started):  # noqa: F811
    with started("trainer.steps=3", STREAM, outputs="stream") as run:
        await run.loop.run()
        flowed = sorted(trained(run))
    with started("trainer.steps=3", outputs="steps") as other:
        await other.loop.run()
    asked = [(step, name) for split, step, names in other.rollouts.asked if split == "train" for name in names]
    assert flowed == sorted(f"train.{step}.{name}" for step, name in asked)


@pytest.mark.parametrize("at", [1, 2, 3, 5])
async def test_a_run_that_broke_takes_what_was_complete_and_samples_the_rest_anew(started, at):  # noqa: F811
    options = ("trainer.steps=6", "trainer.checkpoint_every_steps=1", STREAM)
    with pytest.raises(EngineError), started(*options, fail_at=("train", at, EngineError("gone"))) as first:
        await first.loop.run()
    queued = [path.name for path in sorted(first.folder.queue.glob("*.jsonl"))]
    held = {one["trajectory_id"] for path in first.folder.queue.glob("*.jsonl") for one in read_jsonl(path)[1:]}
    with started(*options) as again:
        went_back = again.loop.step
        sessions = {name for name in again.store.sessions() if not TrajectoryId.parse(name).is_evaluation}
        past = {
            one["trajectory_id"]
            for step in range(1, went_back + 1)
            for one in read_jsonl(again.folder.trajectories(step))
        }
        assert sessions == held | past  # half of a group is none
        await again.loop.run()
        whole(again, 6)
    assert not held & set(again.rollouts.attempted)
    assert queued or at <= 2  # those of the first two steps begin together


async def test_a_run_that_goes_back_behind_the_newest_checkpoint_finds_its_groups(started):  # noqa: F811
    """A torn checkpoint: the one before it knows groups as begun whose files must still be there."""
    options = ("trainer.steps=6", "trainer.checkpoint_every_steps=2", STREAM)
    with pytest.raises(RunError), started(*options, fail_at=("train", 6, RunError("killed"))) as first:
        await first.loop.run()
    assert first.folder.checkpoint_steps() == [2, 4]
    for file in (first.folder.checkpoints / "step_000004").iterdir():
        file.write_bytes(b"")
    with started(*options) as again:
        assert again.loop.step == 2
        await again.loop.run()
        whole(again, 6)
    early = {name for name in again.rollouts.attempted if TrajectoryId.parse(name).step <= 4}
    assert early == set()


async def test_the_groups_of_a_step_that_is_not_recorded_are_trained_once(started):  # noqa: F811
    options = ("trainer.steps=4", "trainer.checkpoint_every_steps=1", STREAM)
    with pytest.raises(RunError, match="killed"), started(*options) as first:
        record = first.loop._record

        def broken(step, fields):
            if step == 3:
                raise RunError("killed")
            record(step, fields)

        first.loop._record = broken
        await first.loop.run()
    with started(*options) as again:
        assert again.loop.step == 2
        await again.loop.run()
        whole(again, 4)


async def test_without_a_trainer_groups_flow_too(started):  # noqa: F811
    options = ("trainer.steps=4", "job=rollout", "name=train", STREAM)
    with pytest.raises(RunError), started(*options, fail_at=("train", 3, RunError("x")), trained=False) as first:
        await first.loop.run()
    with started(*options, trained=False) as again:
        assert again.loop.step == len(steps(first))
        await again.loop.run()
        whole(again, 4)
        assert {version for record in steps(again) for version in record["token_staleness"]} <= {"0"}


async def test_an_evaluation_holds_what_would_begin(started):  # noqa: F811
    with started("trainer.steps=4", "trainer.eval_every_steps=1", STREAM) as run:
        collect, seen = run.rollouts.collect, []

        async def slow(asked, **options):
            version, begun = run.engine.updates[-1][0], len(run.rollouts.attempted)
            await asyncio.sleep(0.3)
            assert run.engine.updates[-1][0] == version == options["step"]
            if version:
                assert len(run.rollouts.attempted) - begun <= N  # what waited for nothing but its turn
            seen.append(version)
            return await collect(asked, **options)

        run.rollouts.collect = slow
        await run.loop.run()
        whole(run, 4)
    assert seen == [0, 1, 2, 3, 4]


async def test_groups_of_equal_rewards_are_replaced(started):  # noqa: F811
    with started("trainer.steps=3", STREAM, "algo=dapo", "algo.max_resample_rounds=4") as run:
        attempts = run.rollouts.attempts

        async def equal(instance, name, *arguments):
            one, result = await attempts(instance, name, *arguments)
            if name.instance_id in ("train1", "train3"):
                one.reward = 0.0
            return one, result

        run.rollouts.attempts = equal
        await run.loop.run()
        records = steps(run)
    assert [record["step"] for record in records] == [1, 2, 3]
    for record in records:
        useful = [group for group in record["groups"] if not group.endswith(("train1", "train3"))]
        assert (
            len(useful) == 2 and record["resampled_groups"] == len(record["groups"]) - 2 == record["degenerate_groups"]
        )
    assert any(record["resampled_groups"] for record in records)


async def test_an_interrupted_run_ends_every_trajectory(started):  # noqa: F811
    with started("trainer.steps=50", STREAM) as run:
        task = asyncio.create_task(run.loop.run())
        async with asyncio.timeout(60):
            while run.loop.step < 2:  # noqa: ASYNC110 - whichever step it is then
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(asyncio.all_tasks()) == 1
        assert len(steps(run)) == run.loop.step


async def test_a_trainer_that_ends_while_groups_flow_ends_them(started, monkeypatch):  # noqa: F811
    monkeypatch.setattr("swe_rl.run.rollouts._LOOK_S", 0.01)

    async def endless(*_):
        await asyncio.sleep(600)

    with started("trainer.steps=1", STREAM) as run:
        await run.loop._learner.refresh(0)
        run.rollouts.attempts = endless
        run.trainer.failure = lambda: EngineError("Rank 1 is gone")
        with pytest.raises(EngineError, match="Rank 1"):
            await asyncio.wait_for(run.loop._flow(run.loop._stream, 1), 10)


async def test_groups_that_failed_too_often_are_sampled_again_by_whoever_goes_on(started):  # noqa: F811
    options = ("trainer.steps=3", "trainer.checkpoint_every_steps=1", "rollout.max_infra_failure_rate=0.1", STREAM)
    with pytest.raises(RolloutError, match="failed for reasons of infrastructure"), started(*options) as first:
        attempts = first.rollouts.attempts

        async def broken(instance, name, *arguments):
            one, result = await attempts(instance, name, *arguments)
            if name.step == 2:
                one.status, one.reward, one.trained, one.in_baseline = Status.infra_error, None, False, False
            return one, result

        first.rollouts.attempts = broken
        await first.loop.run()
    with started(*options) as again:
        assert again.loop.step == len(steps(first)) < 2  # a failed group may overtake those of the first step
        await again.loop.run()
        whole(again, 3)
        assert all(set(record["statuses"]) == {"resolved", "unresolved"} for record in steps(again))
