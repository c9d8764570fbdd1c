import asyncio
import gc
import json
import socket
import weakref
from urllib.parse import urlsplit

import aiohttp
import pytest

from swe_rl.config.schema import GatewayConfig
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.gateway.session import Session, SessionSettings
from tests.support.waiting import until

USER = {"role": "user", "content": "Fix the bug."}
PINNED = SessionSettings(max_turn_tokens=32, max_trajectory_tokens=1500)


@pytest.fixture
async def http():
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


async def ask(http, url, messages=(USER,), **more):
    async with http.post(f"{url}/chat/completions", json={"messages": list(messages), **more}) as response:
        return response.status, json.loads(await response.read())


async def delete(http, url, **options):
    async with http.delete(url.removesuffix("/v1"), **options) as response:
        return response.status, await response.json()


class Remembering(ScriptedEngine):
    """Tells which sessions it was told to release."""

    def __init__(self, reply, **options):
        super().__init__(reply, **options)
        self.released = []

    def release_session(self, session_id):
        self.released.append(session_id)


async def test_a_client_closes_the_session_that_it_began(serve, says, http):
    engine = Remembering(says("ok"))
    async with serve(engine) as (gateway, store, _):
        url = gateway.session_url("a/b c")
        for _ in range(2):
            assert (await ask(http, url))[0] == 200
        status, summary = await delete(http, url)
        assert (status, summary["num_calls"], summary["breaks"]) == (200, 2, {"duplicate": 1})
        assert summary["sampled_tokens"] == 2 * len(says("ok")([]))
        assert (gateway.num_sessions, engine.released) == (0, ["a/b c"])
        assert gateway.router_state()["programs"] == []
        assert store.stats().queued == 0 and len(store.traces("a/b c")) == 2  # committed before it was answered
        assert (await ask(http, url))[0] == 410
        assert (await delete(http, url))[0] == 404


async def test_closing_ends_the_calls_in_flight(serve, says, http):
    engine = ScriptedEngine(says("never"), token_delay_s=30)
    async with serve(engine) as (gateway, store, _):
        call = asyncio.create_task(ask(http, gateway.session_url("s")))
        await until(lambda: engine.stats().running, 60.0)
        assert (await delete(http, gateway.session_url("s")))[1]["num_calls"] == 0
        assert (await call)[0] == 410 and len(engine.cancelled) == 1 and store.sessions() == []


async def test_a_trajectorys_session_is_not_its_agents_to_close(serve, says, http):
    async with serve(ScriptedEngine(says("ok"))) as (gateway, _, _):
        gateway.open_session("s", PINNED)
        root = gateway.session_url("s").partition("/sessions")[0]
        for url, code in ((f"{root}/sessions/s", "session_not_found"), (gateway.session_url("s"), "not_found")):
            status, answer = await delete(http, url)
            assert (status, answer["error"]["code"]) == (404, code)
        assert (await ask(http, gateway.session_url("s")))[0] == 200
        assert (await gateway.close_session("s")).num_calls == 1


async def test_closing_needs_the_token_too(serve, says, http):
    async with serve(ScriptedEngine(says("ok")), token="secret") as (gateway, _, _):
        assert (await delete(http, gateway.session_url("s")))[0] == 401
        headers = {"Authorization": "Bearer secret"}
        assert (await delete(http, gateway.session_url("s"), headers=headers))[0] == 404


async def test_idle_sessions_are_let_go_and_may_come_back(serve, says, http):
    """Without a call that would make the gateway look; turns go on counting, so nothing is stored twice."""
    engine = Remembering(says("ok"))
    async with serve(engine, config=GatewayConfig(session_idle_s=0.2)) as (gateway, store, _):
        gateway.open_session("opened", PINNED)
        for turn in range(2):
            assert (await ask(http, gateway.session_url("s")))[0] == 200
            await until(lambda: gateway.num_sessions == 1, 60.0)  # the opened one stays
            assert engine.released == ["s"] * (turn + 1)
        await store.flush()
        assert [(one.turn, one.chain) for one in store.traces("s")] == [(0, 0), (1, 1)]


async def test_more_sessions_in_turn_than_are_kept(serve, says, http):
    """Each is let go of between two calls, sooner than its traces are committed."""
    async with serve(ScriptedEngine(says("ok")), config=GatewayConfig(max_idle_sessions=2)) as (gateway, store, _):
        for _ in range(4):
            for name in "abcdef":
                assert (await ask(http, gateway.session_url(name)))[0] == 200
        assert gateway.num_sessions == 2
        await store.flush()
        assert [[one.turn for one in store.traces(name)] for name in "abcdef"] == [[0, 1, 2, 3]] * 6


async def test_nothing_is_kept_of_sessions_that_are_over(serve, says, http, monkeypatch):
    states, make = [], Session.__init__

    def remember(self, *args, **options):
        make(self, *args, **options)
        states.append(weakref.ref(self))

    monkeypatch.setattr(Session, "__init__", remember)
    async with serve(ScriptedEngine(says("ok"))) as (gateway, _, url):
        for number in range(5):
            gateway.open_session(f"{number}", PINNED)
            await ask(http, gateway.session_url(f"{number}"))
            await gateway.close_session(f"{number}")
            await ask(http, gateway.session_url(f"implicit {number}"))
            await delete(http, gateway.session_url(f"implicit {number}"))
            await ask(http, url)  # a session of its own
        gc.collect()
        assert len(states) == 15 and [state() for state in states] == [None] * 15
        assert gateway.router_state()["programs"] == [] and gateway.num_sessions == 0


class Gated(ScriptedEngine):
    """Answers nothing until `gate` is set."""

    def __init__(self, reply):
        super().__init__(reply)
        self.gate, self.waiting = asyncio.Event(), 0

    async def generate(self, *args, **options):
        self.waiting += 1
        await self.gate.wait()
        return await super().generate(*args, **options)


async def test_hundreds_of_sessions_at_once_in_one_process(serve, says, http):
    engine = Gated(says("ok"))
    messages = [USER, None, {"role": "user", "content": "out"}]
    async with serve(engine) as (gateway, store, _):
        names = [f"s{number}" for number in range(300)]
        for name in names:
            gateway.open_session(name, PINNED)
        calls = [asyncio.create_task(ask(http, gateway.session_url(name))) for name in names]
        await until(lambda: engine.waiting == len(names), 60.0)
        engine.gate.set()
        first = await asyncio.gather(*calls)
        messages[1] = first[0][1]["choices"][0]["message"]
        second = await asyncio.gather(*(ask(http, gateway.session_url(name), messages) for name in names))
        assert {status for status, _ in (*first, *second)} == {200}
        summaries = await asyncio.gather(*(gateway.close_session(name) for name in names))
        assert {(one.num_calls, tuple(one.breaks)) for one in summaries} == {(2, ())}
        assert store.stats().traces == 2 * len(names)
        assert {tuple((one.turn, one.chain) for one in store.traces(name)) for name in names[::20]} == {
            ((0, 0), (1, 0))
        }


async def test_hundreds_of_agents_may_connect_while_the_loop_is_busy(serve, says):
    """The kernel takes their connections meanwhile; one that it drops tries again after 1, 3, 7, ... seconds."""
    async with serve(ScriptedEngine(says("ok"))) as (_, _, url):
        parts = urlsplit(url)
        connections = [socket.create_connection((parts.hostname, parts.port), timeout=0.5) for _ in range(400)]
        for connection in connections:
            connection.close()


async def test_a_body_of_200_kb_with_the_settings_that_are_the_default(serve, says, http, renderer):
    words = [{**USER, "content": "a b c d " * 3200} for _ in range(8)]
    engine = ScriptedEngine(says("ok"), max_model_len=10**6)
    async with serve(engine, config=GatewayConfig(), max_model_len=10**6) as (_, store, url):
        assert len(json.dumps(words)) > 200_000
        status, answer = await ask(http, url, words, program_id="s")
        assert status == 200
        await store.flush()
        (trace,) = store.traces("s")
        assert trace.delta_ids.tolist() == renderer.start(words)
        assert answer["usage"]["prompt_tokens"] == trace.prompt_tokens == len(engine.requests[0][1])
