"""What a lost rank costs, and that a run goes on after it as a resumed one does."""

import asyncio
import json
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from swe_rl.config.compose import compose
from swe_rl.errors import RunError
from swe_rl.job import train
from swe_rl.logger.jsonl import read_events
from swe_rl.run.session import open_session
from swe_rl.run.training import Restarts
from swe_rl.trainer.trainer import RankLost, TrainerError


def lost(reason="it ended by SIGKILL", rank=1):
    return RankLost(f"Rank {rank} of 2 of the trainer failed: {reason}.", rank=rank, reason=reason)


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def test_a_restart_costs_what_is_done_again_and_the_time_until_it_goes_on():
    clock, done = Clock(), {}
    restarts = Restarts(2, clock=clock)
    assert restarts.went_on(0, done) is None
    done |= {1: 10.0, 2: 20.0, 3: 30.0}
    clock.now_s = 35.0
    assert restarts.take(lost()) == "trainer: rank 1 is lost (it ended by SIGKILL); restart 1 of 2"
    clock.now_s = 50.0
    first = {"step": 2, "rank": 1, "reason": "it ended by SIGKILL", "restart": 1, "lost_s": 30.0}
    assert restarts.went_on(2, {}) == first
    clock.now_s = 58.0
    restarts.take(lost("it hangs", rank=0))  # before it did a step: what was lost until then is counted
    clock.now_s = 60.0
    assert restarts.went_on(2, {}) == {"step": 2, "rank": 0, "reason": "it hangs", "restart": 2, "lost_s": 10.0}


def test_no_more_than_allowed_and_none_of_what_never_ran():
    restarts, error = Restarts(1), lost()
    with pytest.raises(RankLost) as never:
        restarts.take(error)
    assert never.value is error and restarts.used == 0
    restarts.went_on(0, {})
    restarts.take(error)
    with pytest.raises(RankLost):
        restarts.take(lost())
    assert restarts.used == 1
    with pytest.raises(RankLost):
        Restarts(0).take(lost())


class Group:
    """A trainer of ranks that are lost when they are told to be."""

    def __init__(self, start_fails=None):
        self.start_fails, self.closed, self.lost = start_fails, 0, None

    def start(self):
        if self.start_fails:
            raise self.start_fails

    def failure(self):
        return self.lost

    def close(self):
        self.closed += 1


class Loops:
    """Stands for `Run`: each of them does what `script` says of it, and notes what was asked."""

    def __init__(self, *script):
        self.script, self.notes = list(script), []

    def __call__(self, config, one, parts, learner):
        return SimpleNamespace(
            step=2,
            saved_step=2,
            done_at_s={},
            resume=lambda: self.notes.append("resume"),
            run=lambda: self._run(learner),
            save=lambda: self.notes.append("save"),
        )

    async def _run(self, trainer):
        self.notes.append("run")
        await self.script.pop(0)(trainer)


@pytest.fixture
def start(tmp_path, monkeypatch):
    """`await start(max_restarts, loops, groups)` is `_train` of two ranks with everything else made up."""
    monkeypatch.setattr(train, "load_sampled", lambda config: (None, SimpleNamespace(pad_token_id=0)))
    open_now = []

    @asynccontextmanager
    async def components(config, one, model, tokenizer, fleet):
        open_now.append(one)
        try:
            yield None
        finally:
            open_now.pop()

    monkeypatch.setattr(train, "start_components", components)

    async def run(max_restarts, loops, groups):
        waiting = list(groups)

        def group(config, one, pad, restart):
            assert not open_now and all(one.closed for one in groups[: len(groups) - len(waiting)])
            return waiting.pop(0)

        monkeypatch.setattr(train, "rank_group", group)
        monkeypatch.setattr(train, "Run", loops)
        monkeypatch.setattr(train, "Learner", lambda config, one, parts, trainer: trainer)
        paths = [f"paths.outputs={tmp_path / 'outputs'}"]
        config = compose([*paths, "layout=local2", f"trainer.max_restarts={max_restarts}"]).config
        fresh = tmp_path / "outputs" / "train" / "one"
        fresh.mkdir(parents=True)
        try:
            with open_session(config, fresh, total_steps=3) as one:
                await train._train_run(config, one)
        finally:
            assert not open_now and all(one.closed for one in groups)
        return one.folder

    return run


async def ends(trainer):
    pass


async def loses(trainer):
    trainer.lost = lost()
    raise trainer.lost


async def loses_behind_another_error(trainer):
    trainer.lost = lost()
    raise RunError("the weights did not reach the engines")


async def test_a_lost_rank_is_started_again_as_a_resumed_run(start):
    loops = Loops(loses, ends)
    folder = await start(1, loops, [Group(), Group()])
    assert loops.notes == ["run", "resume", "run"]
    [event] = read_events(folder.events_jsonl, "trainer_restart")
    assert (event["step"], event["restart"], event["reason"]) == (2, 1, "it ended by SIGKILL") and event["lost_s"] >= 0
    assert json.loads(folder.summary_json.read_text())["trainer_restarts"] == 1


async def test_a_rank_that_is_lost_beside_other_tasks(start):
    """A group of tasks cancels the task that waits for it, which Python 3.11 never takes back."""

    async def in_a_group(trainer):
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(60))
                group.create_task(loses(trainer))
        except BaseExceptionGroup as errors:
            first = errors.exceptions[0]
        raise first

    loops = Loops(in_a_group, ends)
    await start(1, loops, [Group(), Group()])
    assert loops.notes == ["run", "resume", "run"]


async def test_what_a_lost_rank_makes_fail_elsewhere_is_not_the_reason(start):
    loops = Loops(loses_behind_another_error, loses_behind_another_error)
    with pytest.raises(RankLost) as shown:
        await start(1, loops, [Group(), Group()])
    assert loops.notes == ["run", "resume", "run"]
    assert "did not reach" in str(shown.value.__cause__)


async def test_the_last_one_fails_with_its_own_error(start):
    with pytest.raises(RankLost, match="SIGKILL"):
        await start(1, Loops(loses, loses), [Group(), Group()])


async def test_without_restarts_the_first_one_does(start):
    loops = Loops(loses)
    with pytest.raises(RankLost, match="SIGKILL"):
        await start(0, loops, [Group()])
    assert loops.notes == ["run"]


async def test_ranks_that_do_not_come_up_again_are_another_loss(start):
    loops = Loops(loses, ends)
    folder = await start(2, loops, [Group(), Group(start_fails=lost("out of memory")), Group()])
    [event] = read_events(folder.events_jsonl, "trainer_restart")
    assert event["restart"] == 2 and event["reason"] == "out of memory"


async def test_what_would_repeat_is_not_tried_again(start):
    async def repeats(trainer):
        raise TrainerError("the gradient was not finite three times")

    with pytest.raises(TrainerError, match="not finite"):
        await start(3, Loops(repeats), [Group()])


async def test_a_first_start_that_fails_is_not_tried_again(start):
    with pytest.raises(RankLost, match="out of memory"):
        await start(3, Loops(), [Group(start_fails=lost("out of memory"))])


async def test_a_run_that_was_told_to_end_is_not_started_again(start):
    """The rank's loss was met by what an interruption waits for."""

    async def interrupted(trainer):
        run.cancel()
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            await loses(trainer)

    loops = Loops(interrupted)
    run = asyncio.create_task(start(3, loops, [Group()]))
    with pytest.raises(RankLost):
        await run
    assert loops.notes == ["run"]


async def test_an_interruption_saves_and_ends(start):
    async def interrupted(trainer):
        run.cancel()
        await asyncio.sleep(1)

    loops = Loops(interrupted)
    group = Group()
    group.wait = lambda: None
    run = asyncio.create_task(start(3, loops, [group]))
    with pytest.raises(asyncio.CancelledError):
        await run
    assert loops.notes == ["run", "save"]
