import asyncio

import pytest

from swe_rl.config.schema import GatewayConfig, RouterConfig
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.engine.token_ids import TokenIds
from swe_rl.gateway.chains.recall import Recall
from swe_rl.gateway.errors import ApiError, GatewayError
from swe_rl.gateway.live import LiveSessions
from swe_rl.gateway.placement import Placement
from swe_rl.gateway.session import SessionSettings
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.gateway.trace import Trace
from swe_rl.router.make import make_router


class Releasing(ScriptedEngine):
    """Notes the sessions that it is told to forget."""

    def __init__(self):
        super().__init__(lambda prompt: [0])
        self.released = []

    def release_session(self, session_id):
        self.released.append(session_id)


@pytest.fixture
def engine():
    return Releasing()


@pytest.fixture
def released(engine):
    return engine.released


@pytest.fixture
def now():
    """Set `now[0]`, in seconds."""
    return [0.0]


@pytest.fixture
def sessions(renderer, engine, now, tmp_path):
    store = TraceStore(tmp_path / "traces.db")
    placement = Placement(make_router(RouterConfig(), [engine]), [engine])
    config = GatewayConfig(max_idle_sessions=3, session_idle_s=10.0)
    yield LiveSessions(placement, renderer, store, config, clients_begin=True, clock=lambda: now[0])
    store.close()


def use(sessions, name):
    live, call = sessions.find(name), object()
    sessions.began(live, call)
    sessions.ended(live, call)
    return live


def test_a_session_tells_how_many_of_its_replies_were_recalled(sessions):
    sessions.open("a", SessionSettings(16, 64))
    sessions.recall_first("a", Recall([Trace("a", 0, 0, [1], [2], [-1.0], [0], "stop")]))
    live = sessions.find("a", sessions.secret("a"))
    assert live.summary().recalled_turns == 0
    assert live.recall.take(TokenIds((1,))) is not None
    assert live.summary().recalled_turns == 1


def test_idle_sessions_are_let_go_oldest_first(sessions, released):
    for name in ("a", "b", "c", "a", "d"):
        use(sessions, name)
    assert released == ["b"] and len(sessions) == 3


def test_sessions_idle_for_long_are_let_go(sessions, released, now):
    sessions.open("opened", SessionSettings(1, 2))
    busy = sessions.find("busy")
    sessions.began(busy, call := object())
    for at_s, name in ((1.0, "a"), (2.0, "b"), (9.0, "a")):
        now[0] = at_s
        use(sessions, name)
    now[0] = 12.5
    sessions.let_go()
    assert released == ["b"]
    now[0] = 100.0
    sessions.let_go()
    assert released == ["b", "a"] and sessions.num_calls == 1
    sessions.ended(busy, call)
    sessions.let_go()
    assert released == ["b", "a"]  # its time begins with the end of its call
    now[0] = 111.0
    sessions.let_go()
    assert released == ["b", "a", "busy"] and [live.session_id for live in sessions.all()] == ["opened"]


async def test_a_busy_or_opened_session_is_kept(sessions, released):
    sessions.open("opened", SessionSettings(1, 2))
    task = asyncio.create_task(asyncio.sleep(30))
    sessions.began(sessions.find("busy"), task)
    for name in ("b", "c", "d"):
        use(sessions, name)
    assert released == ["b"] and sessions.find("opened", sessions.secret("opened")).settings == SessionSettings(1, 2)
    summary = await sessions.close("busy")
    assert task.cancelled() and summary.num_calls == 0 and released == ["b", "busy"]


def test_a_session_just_begun_is_never_the_one_let_go(sessions, released):
    for name in ("a", "b", "c"):
        sessions.began(sessions.find(name), object())
    new = sessions.find("new")
    assert sessions.find("new") is new and released == []


async def test_closed_ids_are_remembered_in_bounded_memory(sessions, monkeypatch):
    monkeypatch.setattr("swe_rl.gateway.live._REMEMBERED_CLOSED", 2)
    for name in ("a", "b", "c"):
        use(sessions, name)
        await sessions.close(name)
    for name in ("b", "c"):
        with pytest.raises(ApiError, match="closed"):
            sessions.find(name)
    use(sessions, "a")


async def test_a_closed_id_is_refused_until_it_is_opened_again(sessions):
    sessions.find("a")
    with pytest.raises(GatewayError, match="already open"):
        sessions.open("a", SessionSettings(1, 2))
    await sessions.close("a")
    with pytest.raises(ApiError, match="closed"):
        sessions.find("a")
    sessions.open("a", SessionSettings(1, 2))
    assert sessions.find("a", sessions.secret("a")).settings is not None


@pytest.mark.parametrize("session_id", ["x" * 513, "a\nb"])
def test_an_odd_id_is_refused(sessions, session_id):
    with pytest.raises(ApiError, match="printable"):
        sessions.find(session_id)
