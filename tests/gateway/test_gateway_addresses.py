"""Who reaches which session: an opened one answers at its own address only, and nobody else begins any in a run."""

import asyncio
import itertools
import json
import logging
from urllib.parse import urlsplit

import aiohttp
import pytest

from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.gateway.session import SessionSettings
from tests.gateway.test_gateway_tokens import body as token_body

ID = "train.1.calc__{calc}-1.0.0"
PINNED = SessionSettings(max_turn_tokens=32, max_trajectory_tokens=1500)
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Fix the bug."}]}
WRONG = "x" * 43


async def call(method, url, **options):
    async with aiohttp.ClientSession() as http, http.request(method, url, **options) as response:
        return response.status, await response.read()


def guesses(root):
    """Every way to name a session without its secret."""
    header = {"X-Program-Id": ID}
    tokens = token_body(program_id=ID)
    return [
        ("POST", f"{root}/sessions/{ID}/v1/chat/completions", {"json": CHAT}),
        ("POST", f"{root}/sessions/{ID}/{WRONG}/v1/chat/completions", {"json": CHAT}),
        ("POST", f"{root}/sessions/{ID}/%FF%ED%A0%80/v1/chat/completions", {"json": CHAT}),
        ("POST", f"{root}/v1/chat/completions", {"json": CHAT | {"program_id": ID}}),
        ("POST", f"{root}/v1/chat/completions", {"json": CHAT, "headers": header}),
        ("POST", f"{root}/v1/completions", {"json": tokens}),
        ("POST", f"{root}/v1/completions", {"json": token_body(), "headers": header}),
        ("POST", f"{root}/sessions/{ID}/v1/completions", {"json": tokens}),
        ("GET", f"{root}/sessions/{ID}/v1/models", {}),
        ("GET", f"{root}/sessions/{ID}/{WRONG}/v1/models", {}),
        ("DELETE", f"{root}/sessions/{ID}", {}),
        ("DELETE", f"{root}/sessions/{ID}/{WRONG}", {}),
    ]


@pytest.mark.parametrize("clients_begin", [False, True])
async def test_an_id_without_its_secret_is_no_session(serve, says, clients_begin):
    """Neither while it is open nor before or after; and the answers do not tell which of them it is."""
    engine = ScriptedEngine(says("ok"))
    async with serve(engine, vocab_size=1536, clients_begin=clients_begin) as (gateway, store, url):
        root = url.removesuffix("/v1")
        gateway.open_session(ID, PINNED)
        opened = [await call(method, where, **options) for method, where, options in guesses(root)]
        assert {status for status, _ in opened} == {404}
        own = gateway.session_url(ID)
        assert (await gateway.close_session(ID)).num_calls == 0
        closed = [await call(method, where, **options) for method, where, options in guesses(root)]
        assert closed == opened
        assert (await call("POST", f"{own}/chat/completions", json=CHAT))[0] == 410
        await store.flush()
        assert (engine.requests, store.sessions(), gateway.num_sessions) == ([], [], 0)
        assert gateway.router_state()["programs"] == []


async def test_an_address_is_of_one_opening(serve, says):
    async with serve(ScriptedEngine(says("ok")), clients_begin=False) as (gateway, _, _):
        addresses = []
        for _ in range(3):
            gateway.open_session(ID, PINNED)
            addresses.append(gateway.session_url(ID))
            asked = [(await call("POST", f"{one}/chat/completions", json=CHAT))[0] for one in addresses]
            assert asked == [404] * (len(addresses) - 1) + [200]
            assert (await call("GET", f"{addresses[-1]}/models"))[0] == 200
            await gateway.close_session(ID)
    secrets = {urlsplit(one).path.split("/")[3] for one in addresses}
    assert len(secrets) == 3 and min(map(len, secrets)) >= 32


async def test_what_a_session_sent_is_remembered_under_its_secret_until_it_is_closed(serve, says):
    """A client that guesses an id cannot tell by the time of an answer what its agent said."""
    async with serve(ScriptedEngine(says("ok")), clients_begin=True) as (gateway, _, url):
        root, bodies = url.removesuffix("/v1"), gateway._sessions.bodies
        for method, where, options in guesses(root):
            await call(method, where, **options)
        gateway.open_session(ID, PINNED)
        own = gateway.session_url(ID)
        held_bytes = bodies.held_bytes
        assert (await call("POST", f"{own}/chat/completions", json=CHAT))[0] == 200
        assert bodies.held_bytes > held_bytes
        assert [name for name in bodies._sent if name.startswith(f"{ID}/")] == [f"{ID}/{own.split('/')[-2]}"]
        for method, where, options in guesses(root):
            assert (await call(method, where, **options))[0] == 404
        assert bodies.held_bytes > held_bytes
        await gateway.close_session(ID)
        assert bodies.held_bytes == held_bytes


async def test_in_a_run_nobody_begins_a_session(serve, says):
    engine = ScriptedEngine(says("ok"))
    async with serve(engine, vocab_size=1536, clients_begin=False) as (gateway, store, url):
        asked = [
            *guesses(url.removesuffix("/v1")),
            ("POST", f"{url}/chat/completions", {"json": CHAT}),
            ("POST", f"{url}/completions", {"json": token_body()}),
        ]
        for method, where, options in asked:
            status, said = await call(method, where, **options)
            assert status == 404, (method, where, said)
        assert b"job=serve" in said and json.loads(said)["error"]["code"] == "session_not_found"
        gateway.open_session(ID, PINNED)  # nobody took its name
        await store.flush()
        assert engine.requests == [] and store.sessions() == []


async def test_where_clients_begin_sessions_a_secret_begins_none(serve, says):
    async with serve(ScriptedEngine(says("ok")), clients_begin=True) as (gateway, _, url):
        root = url.removesuffix("/v1")
        assert (await call("POST", f"{root}/sessions/mine/{WRONG}/v1/chat/completions", json=CHAT))[0] == 404
        assert (await call("GET", f"{root}/sessions/mine/v1/models"))[0] == 200
        assert gateway.num_sessions == 0
        assert (await call("POST", f"{root}/sessions/mine/v1/chat/completions", json=CHAT))[0] == 200
        assert (await call("POST", f"{root}/sessions/mine/{WRONG}/v1/chat/completions", json=CHAT))[0] == 404


async def test_one_session_cannot_take_every_place(serve, says):
    engine = ScriptedEngine(says("ok"), token_delay_s=30)
    async with serve(engine, clients_begin=False) as (gateway, _, _):
        for name in ("greedy", "other"):
            gateway.open_session(name, PINNED)
        url = f"{gateway.session_url('greedy')}/chat/completions"
        calls = [asyncio.create_task(call("POST", url, json=CHAT)) for _ in range(40)]
        refused = [await one for one in itertools.islice(asyncio.as_completed(calls), 8)]
        assert {status for status, _ in refused} == {503} and len(engine.requests) == 32
        assert {json.loads(said)["error"]["code"] for _, said in refused} == {"session_busy"}
        engine.token_delay_s = 0
        other = f"{gateway.session_url('other')}/chat/completions"
        assert (await call("POST", other, json=CHAT))[0] == 200
        await gateway.close_session("greedy")
        await asyncio.gather(*calls)


async def test_the_secret_is_in_no_log_trace_or_state(serve, says, renderer, tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.DEBUG)
    async with serve(ScriptedEngine(says("ok")), clients_begin=False) as (gateway, store, url):
        gateway.open_session(ID, PINNED)
        own = gateway.session_url(ID)
        secret = urlsplit(own).path.split("/")[3]
        assert (await call("POST", f"{own}/chat/completions", json=CHAT))[0] == 200
        nothing, not_allowed = await call("POST", f"{own}/embeddings"), await call("GET", f"{own}/chat/completions")
        assert (nothing[0], not_allowed[0]) == (404, 405) and b"/sessions/.../v1/embeddings" in nothing[1]
        await store.flush()
        _, metrics = await call("GET", f"{url.removesuffix('/v1')}/metrics")
        seen = [nothing[1].decode(), not_allowed[1].decode(), metrics.decode()]
        seen += [repr(gateway.router_state()), repr(gateway._sessions.all()), repr(store.traces(ID))]
        monkeypatch.setattr(renderer, "decode", lambda ids: 1 / 0)
        status, said = await call("POST", f"{own}/chat/completions", json=CHAT)
        assert status == 500 and any("failed" in record.message for record in caplog.records)
        seen += [said.decode(), caplog.text]
    seen += [path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file()]
    assert len(seen) >= 9 and not [text for text in seen if secret in text]
