"""rollout.concurrency=auto in a run: what is looked at, what becomes of it, and how a resumed run goes on."""

import asyncio
import json
from dataclasses import dataclass, field
from types import SimpleNamespace

from swe_rl.config.compose import compose
from swe_rl.engine.engine import EngineState, EngineStats
from swe_rl.facts.concurrency import Bounds
from swe_rl.gateway.placement import CacheReturns
from swe_rl.logger.folder import RunFolder
from swe_rl.plan.concurrency import bounds_of, figures
from swe_rl.run.steering import LIMIT_KEY, STATE_KEY, Steering


@dataclass
class Load:
    """An engine and a gateway with these numbers."""

    running: int = 0
    waiting: int = 0
    preemptions: int = 0
    held: int = 0
    syncs: int = 0
    syncing_now: bool = False
    state: EngineState = EngineState.up
    returns: CacheReturns = field(default_factory=CacheReturns)

    def stats(self):
        return EngineStats(self.running, self.waiting, 0, 0, 0, preemptions_total=self.preemptions)


BOUNDS = Bounds(1, 40, 4)


def steering_of(load, bounds=BOUNDS):
    events, said = [], []
    gateway = SimpleNamespace(placement=load)
    return Steering(bounds, [load], gateway, lambda *event: events.append(event), said.append), events, said


async def act(places, count):
    """So many trajectories end, and others take their places."""
    for _ in range(count):
        places.release()
    while places.taken < places.limit:
        await places.acquire()


async def fill(places):
    while places.taken < places.limit:
        await places.acquire()


def test_places_grow_while_engines_carry_them_and_shrink_when_prefixes_are_lost():
    async def play():
        load = Load(running=4)
        steering, events, said = steering_of(load)
        places = steering.make_places()
        await fill(places)
        for _ in range(20):
            steering.look()
            await act(places, 2)
        grown = places.limit
        load.returns.returns_total, load.returns.reusable_total, load.returns.reused_total = 60, 60_000, 6_000
        steering.look()
        return grown, places, steering, events, said

    grown, places, steering, events, said = asyncio.run(play())
    assert grown > 20 and places.limit == int(0.8 * grown)
    assert [name for name, _ in events] == ["concurrency"] * len(events)
    assert events[-1][1]["limit"] == places.limit and "lost" in events[-1][1]["reason"]
    assert said and "at once from now on" in said[-1]
    assert steering.facts()[LIMIT_KEY] == places.limit


def test_weights_on_their_way_say_nothing_of_the_engines():
    async def play():
        load = Load(running=1, waiting=50)
        steering, *_ = steering_of(load)
        places = steering.make_places()
        await fill(places)
        for number in range(60):
            load.syncing_now = number % 2 == 0
            load.syncs += load.syncing_now
            steering.look()
        return places.limit

    assert asyncio.run(play()) == 4


def test_what_the_router_holds_waits_too_and_a_lost_engine_is_not_asked():
    async def play():
        load = Load(running=1, held=30)
        steering, *_ = steering_of(load, Bounds(1, 40, 20))
        places = steering.make_places()
        await fill(places)
        for _ in range(60):
            steering.look()
        shrunk = places.limit
        load.state = EngineState.lost
        steering.look()
        return shrunk

    assert asyncio.run(play()) == 16


def test_a_resumed_run_goes_on_from_the_newest_record(tmp_path):
    async def play():
        load = Load(running=4)
        steering, *_ = steering_of(load)
        places = steering.make_places()
        await fill(places)
        for _ in range(8):
            steering.look()
            await act(places, 2)
        return steering

    first = asyncio.run(play())
    folder = RunFolder(tmp_path)
    records = [{"step": 1, STATE_KEY: {"limit": 5.0, "growth": 1.0, "too_high": None}}, {"step": 2, **first.facts()}]
    folder.steps_jsonl.write_text("".join(json.dumps(record) + "\n" for record in records))
    again, _, said = steering_of(Load())
    again.resume(folder)
    assert again.facts() == first.facts() and not said
    assert again.make_places().limit == first.facts()[LIMIT_KEY] > 5
    folder.steps_jsonl.write_text(json.dumps({"step": 3, STATE_KEY: {"limit": "many"}}) + "\n")
    broken, _, said = steering_of(Load())
    broken.resume(folder)
    assert broken.facts()[LIMIT_KEY] == 4 and said


def test_cache_returns_count_what_was_there_before():
    returns = CacheReturns()
    returns.note("a", 60, 100, 0)
    returns.note("a", 110, 250, 90)
    returns.note("a", 260, 400, None)
    returns.note("a", 410, 500, 300)
    assert (returns.returns_total, returns.reusable_total, returns.reused_total) == (2, 350, 340)
    returns.clear()
    returns.note("a", 510, 600, 0)
    returns.forget("a")
    returns.note("a", 610, 700, 0)
    assert returns.returns_total == 2


def test_the_plan_says_where_it_begins_and_ends():
    words = ["model=qwen3_14b", "layout=dp4", "hardware=h100x8", "rollout=swe"]
    assert not figures(compose(words).config)
    config = compose([*words, "rollout.concurrency=auto", "rollout.mode=stream"]).config
    bounds = bounds_of(config)
    assert bounds.least == 4 <= bounds.start < bounds.most
    ahead = max(1, config.trainer.max_staleness_steps)
    assert bounds.most <= (1 + ahead) * config.rollout.prompts_per_step * config.rollout.n
    assert figures(config)["concurrency_at_first"] == bounds.start
    larger = compose([*words, "rollout.concurrency=auto", "rollout.mode=stream", "engine.host_cache_gb=90"]).config
    assert bounds_of(larger).start > bounds.start


def test_a_conversation_that_became_shorter_has_lost_nothing():
    """After a compaction no engine can have the beginning: that is no pressure on a cache, and no reason to do less."""
    returns = CacheReturns()
    returns.note("a", 100, 1000, 0)
    returns.note("a", 300, 400, 100)
    returns.note("a", 450, 600, 400)
    assert (returns.returns_total, returns.reusable_total, returns.reused_total) == (1, 400, 400)
