"""`job=serve` apart from a running process: its key, its words, its live line."""

import asyncio
from types import SimpleNamespace

import pytest

from swe_rl.engine.engine import EngineState, EngineStats
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.gateway.trace import Trace, TraceStoreError
from swe_rl.job.serve import VARIABLE, ServeState, _watch_engines, key_for, welcome_lines


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
def test_nobody_else_reaches_loopback(host):
    assert key_for(host, {}) is None
    assert key_for(host, {VARIABLE: "mine"}) == "mine"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "node7", "10.1.2.3"])
def test_beyond_it_there_is_always_a_key(host):
    one, other = key_for(host, {}), key_for(host, {VARIABLE: ""})
    assert one and other and one != other and len(one) >= 32
    assert key_for(host, {VARIABLE: "mine"}) == "mine"


def test_what_is_said_at_the_start():
    text = "\n".join(welcome_lines("tiny", "http://h:1/v1", "sk-1"))
    assert "curl http://h:1/v1/chat/completions -H 'Authorization: Bearer sk-1'" in text and '"model": "tiny"' in text
    assert "Authorization" not in "\n".join(welcome_lines("tiny", "http://h:1/v1", None))


async def test_a_store_that_takes_nothing_ends_it(tmp_path):
    """Each request would be refused for ever."""
    store = TraceStore(tmp_path / "traces.db")
    beats = []
    door = SimpleNamespace(engines=[ScriptedEngine(lambda _: [0])], store=store, gateway=SimpleNamespace())
    door.gateway.router_state = dict
    session = SimpleNamespace(status=SimpleNamespace(heartbeat=lambda: beats.append(1)))
    staying = asyncio.create_task(_watch_engines(session, door, ServeState(0.0)))
    await asyncio.sleep(0.05)
    assert beats and not staying.done()
    store._writer.execute("PRAGMA max_page_count = 1")
    await store.append_async(Trace("a", 0, 0, (1,) * 9000, (2,), (0.0,), (0,), "stop", None, 0, 0, 0, 0, 0, "e"))
    with pytest.raises(TraceStoreError, match=r"traces\.db .*full"):
        await asyncio.wait_for(staying, 10)
    with pytest.raises(TraceStoreError):
        store.close()


class Loaded(ScriptedEngine):
    sampled, used = 0, 0

    def stats(self):
        return EngineStats(2, 1, self.used, 1000, 0, self.sampled)


def test_the_live_line():
    engine, other = Loaded(lambda prompt: [0]), Loaded(lambda prompt: [0])
    state = ServeState(started_s=100.0)
    assert state.headline(101.0) == "starting"
    state.enter("load", 0, 101.0)
    assert state.headline(103.0) == "load 2.0s"
    router = {"programs": [{}, {}, {}], "held_requests": 4}
    assert state.look([engine, other], router, 110.0)
    assert state.headline(130.0) == (
        "serving 30.0s  2/2 engines  3 programs  4 running  2 queued  4 held  0 sampled tokens/s  0 in all  KV 0%"
    )
    engine.sampled, engine.used, other.state = 1500, 500, EngineState.lost
    assert state.look([engine, other], router, 120.0)
    headline = state.headline(130.0)
    assert "1/2 engines" in headline and "150 sampled tokens/s  1,500 in all  KV 25%" in headline
    assert (state.done_steps, state.total_steps) == (25, 100)  # the bar
    assert state.look([engine, other], router, 121.0)  # 0 tokens/s now
    assert not state.look([engine, other], router, 122.0)
    assert state.collection(122.0) is None
