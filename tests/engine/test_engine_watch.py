"""Samples of the engines' load: how often, and what is left out."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from swe_rl.engine.engine import EngineStats
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.engine.watch import LONGEST_S, SHORTEST_S, interval_s, load_of, watch_engines


class Loaded(ScriptedEngine):
    def __init__(self, name="engine0", capacity=1000):
        super().__init__(lambda prompt: [0], name=name)
        self.capacity, self.used, self.preempted = capacity, 0, 0

    def stats(self):
        return EngineStats(2, 1, self.used, self.capacity, 0, preemptions_total=self.preempted)


class Time:
    """A clock that only sleeping moves; `stop_s` is when the watched block ends."""

    def __init__(self, stop_s, at=lambda now_s: None):
        self.now_s, self.stop_s, self.at, self.stopped = 0.0, stop_s, at, asyncio.Event()

    def clock(self):
        return self.now_s

    async def sleep(self, seconds):
        if self.now_s + seconds > self.stop_s:
            self.stopped.set()
            await asyncio.Event().wait()
        self.now_s += seconds
        self.at(self.now_s)


async def watch(time, *engines, step=3):
    written = []

    def record(event, fields):
        written.append((time.now_s, event, fields))

    async with watch_engines(engines, record, step=step, clock=time.clock, sleep=time.sleep):
        await time.stopped.wait()
    return written


@given(st.floats(0.0, 1e6))
def test_the_rate_is_bounded(elapsed_s):
    assert SHORTEST_S <= interval_s(elapsed_s) <= LONGEST_S
    assert interval_s(elapsed_s) <= interval_s(elapsed_s + 1.0)


async def test_an_hour_is_a_thousand_samples_and_a_second_is_four():
    engine = Loaded()
    for stop_s, low, high in ((1.0, 4, 7), (3600.0, 500, 1200)):
        time = Time(stop_s, at=lambda now_s: setattr(engine, "used", int(now_s * 100) % 997))
        assert low <= len(await watch(time, engine)) <= high


async def test_only_changes_are_written_and_the_end():
    one, other = Loaded(), Loaded("engine1", capacity=0)
    time = Time(10.0, at=lambda now_s: setattr(one, "used", 250 if now_s >= 5 else 0))
    written = await watch(time, one, other)
    assert [(event, fields["step"]) for _, event, fields in written] == [("engines", 3)] * 2
    assert written[0][0] == 0.0 and 5.0 <= written[1][0] < 5.5
    idle = {"running": 2, "waiting": 1, "kv": 0.0, "preemptions": 0}
    assert written[0][2]["engines"] == {"engine0": idle, "engine1": idle}
    assert written[1][2]["engines"] == {"engine0": idle | {"kv": 0.25}, "engine1": idle}


async def test_what_changed_since_the_last_sample_is_written_at_the_end():
    engine = Loaded()
    time = Time(0.1)
    written = []
    async with watch_engines(
        [engine], lambda event, fields: written.append(fields), clock=time.clock, sleep=time.sleep
    ):
        await time.stopped.wait()
        engine.preempted = 4
    assert [fields["engines"]["engine0"]["preemptions"] for fields in written] == [0, 4]
    assert "step" not in written[0]


def test_a_share_is_never_more_than_all():
    engine = Loaded(capacity=10)
    engine.used = 11
    assert load_of(engine)["kv"] == 1.0
