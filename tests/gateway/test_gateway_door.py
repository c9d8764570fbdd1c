"""Both sides of the way out of a sandbox: what the door forwards, and what the gateway takes at a session's address."""

import asyncio
import contextlib
import json
from urllib.parse import urlsplit

import aiohttp
import pytest

from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.gateway.routes import DIALECTS
from swe_rl.gateway.session import SessionSettings
from swe_rl.sandbox.door import FORWARDED, Doorway
from swe_rl.sandbox.sandbox import Door

PINNED = SessionSettings(max_turn_tokens=64, max_trajectory_tokens=1500)
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Fix the bug."}]}
ASKED = CHAT | {"input": "Fix the bug."}  # in every dialect
OPENED = "/sessions/{session_id}/{secret}/v1"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


@contextlib.asynccontextmanager
async def behind_a_door(gateway, session_id, folder):
    """A client in a sandbox whose door leads to that session, and the base URL there."""
    url = urlsplit(gateway.session_url(session_id))
    doorway = Doorway(Door(url.hostname, url.port, url.path), folder, "/inside")
    await doorway.open()
    try:
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(f"{folder}/door.sock", limit=0)) as http:
            yield http, doorway.url
    finally:
        await doorway.close()


def routes_of(gateway):
    return {(route.method, route.resource.canonical) for route in gateway._door.runner.app.router.routes()}


BY_ID = {(method, "/responses/{reply_id}") for method in ("GET", "HEAD", "DELETE")}
BY_ID |= {(method, "/models/{name}") for method in ("GET", "HEAD")}
NOTHING = {("POST", "/{path}")}  # refused there, and told to the session


async def test_the_door_forwards_what_the_gateway_takes_of_a_session(serve, says, tmp_path):
    """Every route that the gateway has, by every method, inside and out."""
    async with serve(ScriptedEngine(says("ok")), clients_begin=False) as (gateway, _, url):
        routes = routes_of(gateway)
        taken = {(method, path.removeprefix(OPENED)) for method, path in routes if path.startswith(OPENED)}
        assert taken == FORWARDED | BY_ID | NOTHING
        gateway.open_session("a/b", PINNED)
        own = urlsplit(gateway.session_url("a/b")).path
        paths = {path.replace(OPENED, own) for _, path in routes}
        paths = {path.replace("{session_id}", "a%2Fb") for path in paths}
        paths |= {f"/v1{suffix}" for _, suffix in FORWARDED} | {"/nothing"}
        async with behind_a_door(gateway, "a/b", tmp_path / "door") as (http, base):
            root = base.removesuffix("/v1")
            for method in METHODS:
                for path in paths:
                    async with http.request(method, f"{root}{path}", json=ASKED) as response:
                        forwarded = path.startswith("/v1") and (method, path.removeprefix("/v1")) in FORWARDED
                        assert response.status == (200 if forwarded else 404), (method, path)
                for _, suffix in FORWARDED:
                    async with http.request(method, f"{base}{suffix}", json=ASKED) as response:
                        inside = response.status
                    async with (
                        aiohttp.ClientSession() as outside,
                        outside.request(method, f"{gateway.session_url('a/b')}{suffix}", json=ASKED) as response,
                    ):
                        assert (inside == 200) == (response.status == 200), (method, suffix)
        calls = (await gateway.close_session("a/b")).num_calls
        assert calls == 3 * len(DIALECTS)  # one by the first loop; one inside and one outside by the second


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}])
async def test_an_answer_comes_through_whole(serve, says, tmp_path, more):
    said = {"role": "assistant", "content": "I look at it. " * 20 + "\u00e9\u4e2d"}
    async with serve(ScriptedEngine(says(said)), max_model_len=4096) as (gateway, _, _):
        gateway.open_session("s", SessionSettings(max_turn_tokens=2000, max_trajectory_tokens=4000))
        async with behind_a_door(gateway, "s", tmp_path / "door") as (http, base):
            for path in [dialect.path for dialect in DIALECTS]:
                async with http.post(f"{base}{path}", json=ASKED | more) as response:
                    inside, kind = await response.read(), response.content_type
                assert said["content"].split()[-1] in json.dumps(inside.decode(), ensure_ascii=False), path
                assert kind == ("text/event-stream" if more else "application/json")
            async with http.get(f"{base}/models") as response:
                assert (await response.json())["data"][0]["id"] == "tiny"
        assert (await gateway.close_session("s")).num_calls == len(DIALECTS)


async def test_heartbeats_come_at_once_and_who_leaves_ends_the_call(serve, says, tmp_path):
    engine = ScriptedEngine(says("never"), token_delay_s=30)
    async with serve(engine, heartbeat_s=0.05) as (gateway, store, _):
        gateway.open_session("s", PINNED)
        async with behind_a_door(gateway, "s", tmp_path / "door") as (http, base):
            async with http.post(f"{base}/chat/completions", json=CHAT | {"stream": True}) as response:
                assert b'"role":"assistant"' in await asyncio.wait_for(response.content.readline(), 5)
            for _ in range(200):
                if engine.cancelled:
                    break
                await asyncio.sleep(0.01)
            assert len(engine.cancelled) == 1
        assert store.sessions() == []


async def test_refusals_and_large_bodies_come_through(serve, says, tmp_path):
    async with serve(ScriptedEngine(says("ok"), max_model_len=10**6), max_model_len=10**6, token="key") as (
        gateway, _, _,
    ):  # fmt: skip
        gateway.open_session("s", SessionSettings(max_turn_tokens=32, max_trajectory_tokens=10**6))
        async with behind_a_door(gateway, "s", tmp_path / "door") as (http, base):

            async def ask(body, **headers):
                async with http.post(f"{base}/chat/completions", json=body, headers=headers) as response:
                    return response.status, response.headers.get("Retry-After")

            key = {"Authorization": "Bearer key"}
            large = [{"role": "user", "content": "a b c d " * 25_000}] * 4
            assert await ask(CHAT) == (401, None)
            assert await ask(CHAT | {"messages": []}, **key) == (400, None)
            assert await ask(CHAT | {"messages": large}, **key) == (200, None)
            assert await ask(CHAT | {"messages": large * 2}, **key) == (413, None)
            for suffix in ("/messages", "/messages/count_tokens"):
                async with http.post(f"{base}{suffix}?beta=true", json=CHAT, headers={"x-api-key": "key"}) as response:
                    assert response.status == 200
                async with http.post(f"{base}{suffix}", json=CHAT) as response:
                    assert (response.status, (await response.json())["error"]["type"]) == (401, "authentication_error")
            gateway._sessions.num_calls = 10**6
            assert await ask(CHAT, **key) == (503, "1")
