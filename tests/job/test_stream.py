"""Groups that flow through the loop with a real trainer on a small random model; only the rollouts are made up."""

import asyncio

import pytest

from swe_rl.engine.engine import EngineError, EngineState
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
    for group in trained(run):  # the router hears of each of them
        assert [left for name, left in run.left if name == group] == list(range(N, -1, -1))
    begun = list(dict.fromkeys(name.rpartition(".")[0].rpartition(".")[0] for name in run.rollouts.attempted))
    order = [f"train.{TrajectoryId.parse(f'{group}.0.0').step}" for group in begun]
    assert order == [f"train.{1 + number // 2}" for number in range(8)]


@pytest.mark.parametrize("algo", ["ppo", "distill"])
async def test_tokens_with_advantages_of_the_trainer_flow(started, algo):  # noqa: F811
    """Broken in the middle: complete groups are taken from the queue, and get the advantages of whoever goes on."""
    given = ("trainer.steps=4", f"algo={algo}", "algo.teacher=builtin:tiny", STREAM)
    with pytest.raises(RolloutError), started(*given, fail_at=("train", 3, RolloutError("broken"))) as first:
        await first.loop.run()
    with started(*given) as run:
        await run.loop.run()
        whole(run, 4)
    key = "value_loss" if algo == "ppo" else "teacher_kl"
    for record in steps(run):
        assert record["updates"] == 1 and record["trained_rows"] == 2 * N and record[key] is not None


async def test_the_instances_are_those_of_whole_steps(started):  # noqa: F811
    with started("trainer.steps=3", STREAM, outputs="stream") as run:
        await run.loop.run()
        flowed = sorted(trained(run))
    with started("trainer.steps=3", outputs="steps") as other:
        await other.loop.run()
    asked = [(step, name) for split, step, names in other.rollouts.asked if split == "train" for name in names]
    assert flowed == sorted(f"train.{step}.{name}" for step, name in asked)


@pytest.mark.parametrize(("at", "instances"), [*((at, "uniform") for at in (1, 2, 3, 5)), (3, "informative")])
async def test_a_run_that_broke_takes_what_was_complete_and_samples_the_rest_anew(started, at, instances):  # noqa: F811
    options = ("trainer.steps=6", "trainer.checkpoint_every_steps=1", f"rollout.instances={instances}", STREAM)
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
    for record in steps(again)[went_back:]:  # no rate from the time that taking an earlier start's groups takes
        trained = {one["trajectory_id"] for one in read_jsonl(again.folder.trajectories(record["step"]))}
        assert (record["tokens_per_s"] is None) == bool(held & trained)
    assert not held & set(again.rollouts.attempted)
    assert queued or at <= 2  # those of the first two steps begin together


@pytest.mark.parametrize("instances", ["uniform", "informative"])
async def test_a_run_that_goes_back_behind_the_newest_checkpoint_finds_its_groups(started, instances):  # noqa: F811
    """A torn checkpoint: the one before it knows groups as begun whose files must still be there."""
    options = ("trainer.steps=6", "trainer.checkpoint_every_steps=2", f"rollout.instances={instances}", STREAM)
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
    if instances == "informative":
        assert sum(record["foreseen_groups"] for record in steps(again)) > 0


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
        assert {version for record in steps(again) for version in record["token_staleness"]} == {"0"}


async def test_an_evaluation_goes_on_beside_training(started):  # noqa: F811
    seen = []
    with started("trainer.steps=4", "trainer.eval_every_steps=2", STREAM) as run:
        collect = run.rollouts.collect

        async def slow(asked, **options):
            version, step = run.engine.updates[-1][0], run.loop.step
            await asyncio.sleep(0.3)
            assert version == run.engine.updates[-1][0] == options["step"]  # the weights that it names
            assert (options["places"] is None) == (version == 4)  # nothing is left to share them with
            seen.append((version, run.loop.step - step, len(run.rollouts.attempted)))
            return await collect(asked, **options)

        run.rollouts.collect = slow
        await run.loop.run()
        whole(run, 4)
        assert all(record["trainer_idle_s"] >= 0 for record in steps(run))
    assert [version for version, _, _ in seen] == [0, 2, 4] == evals(run)
    assert [trained for _, trained, _ in seen] == [1, 1, 0]  # steps 2 and 4 are evaluated themselves, and wait
    assert seen[0][2] == 4 * N  # all that the pace allows
    assert [version for version, _ in run.engine.updates] == [0, 1, 2, 3, 4]


async def test_while_weights_are_kept_as_many_steps_are_trained_as_the_pace_allows(started):  # noqa: F811
    options = ("trainer.steps=9", "trainer.max_staleness_steps=2", "trainer.checkpoint_every_steps=1", STREAM)
    with started(*options) as run:
        collect = run.rollouts.collect

        async def waits(asked, **named):
            if not named["step"]:
                async with asyncio.timeout(60):
                    while run.loop.step < 3:  # noqa: ASYNC110 - as many as there can be
                        await asyncio.sleep(0.01)
                await asyncio.sleep(0.2)
                assert run.loop.step == 3 and run.folder.checkpoint_steps() == []
            return await collect(asked, **named)

        run.rollouts.collect = waits
        await run.loop.run()
        whole(run, 9)
        records = steps(run)
        assert [version for version, _ in run.engine.updates][:2] == [0, 3]  # in one go
        assert records[3]["weight_sync_s"] > 0 and [record["weight_sync_s"] for record in records[:3]] == [0, 0, 0]
        assert run.folder.checkpoint_steps()[-1] == 9
    assert evals(run) == [0, 9]


@pytest.mark.parametrize("ending", [RunError("killed"), RolloutError("too many failed")])
async def test_a_run_that_ends_during_an_evaluation_makes_it_when_it_goes_on(started, ending):  # noqa: F811
    """One that ends softly saves what it may: the step that is measured, not those that were trained beside it."""
    options = ("trainer.steps=6", "trainer.eval_every_steps=3", "trainer.checkpoint_every_steps=100", STREAM)
    with pytest.raises(type(ending)), started(*options) as first:
        collect = first.rollouts.collect

        async def ends(asked, **named):
            if named["step"] == 3:
                async with asyncio.timeout(60):
                    while first.loop.step < 5:  # noqa: ASYNC110 - both steps of the pace
                        await asyncio.sleep(0.01)
                raise ending
            return await collect(asked, **named)

        first.rollouts.collect = ends
        await first.loop.run()
    assert first.loop.save() == 0.0 and first.loop.saved_step == 3
    assert first.folder.checkpoint_steps() == [3] and evals(first) == [0] and len(steps(first)) == 5
    with started(*options) as again:
        assert again.loop.step == 3
        await again.loop.run()
        whole(again, 6)
        assert evals(again) == [0, 3, 6]
    repeated = {TrajectoryId.parse(name).step for name in again.rollouts.attempted}
    assert min(repeated) > 3  # what was trained beside it is in the queue


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


async def test_a_server_that_comes_back_reads_weights_that_rest(started):  # noqa: F811
    """Not while a step is trained, and not newer ones than an evaluation names."""
    with started("trainer.steps=4", "trainer.max_staleness_steps=3", STREAM) as run:
        learner, collect, trains = run.loop._learner, run.rollouts.collect, asyncio.Event()
        train_step, read, asked = run.trainer.train_step, [], []
        run.trainer.train_step = lambda rows, step: (trains.set(), train_step(rows, step), trains.clear())[1]

        async def come_back():
            async with learner.reading() as version:
                assert not trains.is_set()
                read.append((version, run.engine.updates[-1][0], version == run.loop.step))

        async def slow(given, **named):
            if named["step"] == 0:
                await come_back()  # nothing is trained yet
                while run.loop.step < 2:  # noqa: ASYNC110 - whatever it has trained by then
                    await asyncio.sleep(0.01)
                asked.append(asyncio.create_task(come_back()))
                await asyncio.sleep(0.2)
                assert not asked[0].done()
            return await collect(given, **named)

        run.rollouts.collect = slow
        await run.loop.run()
        await asyncio.wait_for(asked[0], 10)
    assert read[0] == (0, 0, True) and read[1][0] >= 2


async def test_the_last_server_with_an_evaluation_s_weights_is_not_waited_for(started):  # noqa: F811
    """The evaluation would wait for the server, and the server for the evaluation's end."""
    with started("trainer.steps=4", "trainer.max_staleness_steps=3", STREAM) as run:
        learner, collect, said = run.loop._learner, run.rollouts.collect, []

        async def slow(given, **named):
            if named["step"] == 0:
                while run.loop.step < 2:  # noqa: ASYNC110 - whatever it has trained by then
                    await asyncio.sleep(0.01)
                run.engine.state = EngineState.starting
                with pytest.raises(EngineError, match="weights of step 0, .*resume=auto") as lost:
                    async with asyncio.timeout(10):
                        async with learner.reading():
                            pass
                said.append(str(lost.value))
                run.engine.state = EngineState.up
            return await collect(given, **named)

        run.rollouts.collect = slow
        await run.loop.run()
    assert len(said) == 1
