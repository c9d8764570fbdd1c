"""A training's start: engines and ranks side by side where they share no GPU, and what stays of a start that fails."""

import asyncio
import threading
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from swe_rl.config.compose import compose
from swe_rl.engine.engine import EngineError
from swe_rl.job import train
from swe_rl.run.session import open_session
from swe_rl.trainer.trainer import RankLost, TrainerError
from tests.support.waiting import until

APART = ("layout=local2", "engine=vllm")
SHARED = ("layout=colocated4", "layout.engines=2", "layout.trainer_gpus=2", "layout.sequence_parallel=1")


class Ranks:
    """Start when they are told to, on a thread of their own; `close` ends a start."""

    def __init__(self):
        self.began, self.may_end = threading.Event(), threading.Event()
        self.fails, self.up, self.closed = None, False, False

    def start(self):
        self.began.set()
        assert self.may_end.wait(20)
        if self.closed:
            raise TrainerError("all ranks were killed")
        if self.fails:
            raise self.fails
        self.up = True

    def failure(self):
        return None

    def close(self):
        self.closed = True
        self.may_end.set()


class Parts:
    """Engines and all that comes with them: up when they are told to."""

    def __init__(self):
        self.began, self.may_end = asyncio.Event(), asyncio.Event()
        self.fails, self.up, self.closed = None, False, False

    @asynccontextmanager
    async def open(self, *_):
        self.began.set()
        try:
            await self.may_end.wait()
            if self.fails:
                raise self.fails
            self.up = True
            yield None
        finally:
            await asyncio.sleep(0)  # what is closed takes turns of the loop
            self.closed = True


@pytest.fixture
def start(tmp_path, monkeypatch):
    """start(overrides): a task of `_train` whose ranks, parts and steps are made up; the ranks, the parts."""

    def run(*overrides):
        ranks, parts = Ranks(), Parts()
        monkeypatch.setattr(train, "load_sampled", lambda config: (None, SimpleNamespace(pad_token_id=0)))
        monkeypatch.setattr(train, "rank_group", lambda *_: ranks)
        monkeypatch.setattr(train, "start_components", parts.open)
        monkeypatch.setattr(train, "Learner", lambda *_: None)
        monkeypatch.setattr(train, "Run", lambda *_: SimpleNamespace(run=steps, step=0, done_at_s={}))

        async def steps():
            assert ranks.up and parts.up and not ranks.closed and not parts.closed

        config = compose([f"paths.outputs={tmp_path}", "hardware.gpus_per_node=2", *overrides]).config
        fresh = tmp_path / "train" / "one"
        fresh.mkdir(parents=True)

        async def whole():
            try:
                with open_session(config, fresh, total_steps=3) as opened:
                    await train._train_run(config, opened)
            finally:
                assert ranks.closed and parts.closed == parts.began.is_set()

        return asyncio.create_task(whole()), ranks, parts

    return run


async def both_began(ranks, parts):
    await until(lambda: ranks.began.is_set() and parts.began.is_set())


@pytest.mark.parametrize("slower", ["ranks", "parts"])
async def test_side_by_side(start, tmp_path, slower):
    run, ranks, parts = start(*APART)
    await both_began(ranks, parts)
    first, last = (parts, ranks) if slower == "ranks" else (ranks, parts)
    first.may_end.set()
    await until(lambda: first.up)
    assert not run.done()
    last.may_end.set()
    await run
    log = (tmp_path / "train" / "one" / "run.log").read_text()
    assert "trainer starts: 2 ranks on the CPU" in log and "trainer is up after" in log


async def test_ranks_first_where_they_share_gpus(start):
    run, ranks, parts = start(*SHARED)
    await until(ranks.began.is_set)
    assert not parts.began.is_set()
    ranks.may_end.set()
    await until(parts.began.is_set)
    assert ranks.up
    parts.may_end.set()
    await run


@pytest.mark.parametrize("overrides", [APART, SHARED])
async def test_ranks_that_fail_end_the_engines_start(start, overrides):
    run, ranks, parts = start(*overrides)
    ranks.fails = RankLost("Rank 1 of 2 of the trainer failed: by SIGKILL", rank=1, reason="by SIGKILL")
    await (both_began(ranks, parts) if overrides is APART else until(ranks.began.is_set))
    ranks.may_end.set()
    with pytest.raises(RankLost) as raised:
        await run
    assert raised.value is ranks.fails and not parts.up


@pytest.mark.parametrize("others", ["starting", "up"])
async def test_engines_that_fail_end_the_ranks(start, others):
    run, ranks, parts = start(*APART)
    parts.fails = EngineError("Engine `engine0` ended with status 1: out of memory")
    await both_began(ranks, parts)
    if others == "up":
        ranks.may_end.set()
        await until(lambda: ranks.up)
    parts.may_end.set()
    with pytest.raises(EngineError) as raised:
        await run
    assert raised.value is parts.fails and ranks.up == (others == "up")


async def test_ranks_that_fail_beside_engines_that_are_up(start):
    run, ranks, parts = start(*APART)
    ranks.fails = TrainerError("no memory")
    await both_began(ranks, parts)
    parts.may_end.set()
    await until(lambda: parts.up)
    ranks.may_end.set()
    with pytest.raises(TrainerError, match="no memory"):
        await run


@pytest.mark.parametrize("up", ["neither", "ranks", "parts"])
async def test_an_interruption_in_the_middle(start, up):
    run, ranks, parts = start(*APART)
    await both_began(ranks, parts)
    if up != "neither":
        part = ranks if up == "ranks" else parts
        part.may_end.set()
        await until(lambda: part.up)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert (ranks.up, parts.up) == (up == "ranks", up == "parts")


async def test_an_interruption_that_also_hits_the_ranks(start):
    """Ctrl-C reaches ranks that still import their libraries: that they fail is not why the run ends."""
    run, ranks, parts = start(*APART)
    ranks.fails = RankLost("Rank 0 of 2 of the trainer failed: KeyboardInterrupt", rank=0, reason="KeyboardInterrupt")
    await both_began(ranks, parts)
    run.cancel()
    ranks.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await run
