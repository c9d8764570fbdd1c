import asyncio

import pytest

from swe_rl.gateway import live
from swe_rl.gateway.errors import ApiError, GatewayError
from swe_rl.gateway.live import LiveSessions
from swe_rl.gateway.session import Session, SessionSettings


@pytest.fixture
def released():
    return []


@pytest.fixture
def sessions(renderer, released, monkeypatch):
    monkeypatch.setattr(live, "_IDLE_SESSIONS", 3)
    return LiveSessions(lambda session_id: Session(renderer), released.append)


def test_idle_sessions_are_let_go_oldest_first(sessions, released):
    for name in ("a", "b", "c", "a", "d"):
        sessions.find(name)
    assert released == ["b"] and len(sessions) == 3


async def test_a_busy_or_opened_session_is_kept(sessions, released):
    sessions.open("opened", SessionSettings(1, 2))
    task = asyncio.create_task(asyncio.sleep(30))
    sessions.find("busy").calls.add(task)
    for name in ("b", "c", "d"):
        sessions.find(name)
    assert released == ["b"] and sessions.find("opened").settings == SessionSettings(1, 2)
    summary = await sessions.close("busy")
    assert task.cancelled() and summary.num_calls == 0 and released == ["b", "busy"]


async def test_a_closed_id_is_refused_until_it_is_opened_again(sessions):
    sessions.find("a")
    with pytest.raises(GatewayError, match="already open"):
        sessions.open("a", SessionSettings(1, 2))
    await sessions.close("a")
    with pytest.raises(ApiError, match="closed"):
        sessions.find("a")
    sessions.open("a", SessionSettings(1, 2))
    assert sessions.find("a").settings is not None


@pytest.mark.parametrize("session_id", ["x" * 513, "a\nb"])
def test_an_odd_id_is_refused(sessions, session_id):
    with pytest.raises(ApiError, match="printable"):
        sessions.find(session_id)
