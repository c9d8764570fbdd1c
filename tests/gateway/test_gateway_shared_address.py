"""`job=serve` with `gateway.processes`: one address, whose processes together are what one would be."""

import asyncio
import contextlib
import os
import signal
import sqlite3

import pytest

pytest.importorskip("openai")

import aiohttp
from openai import APIStatusError, AsyncOpenAI

from swe_rl.config.schema import GatewayConfig
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.gateway.errors import GatewayConfigError
from swe_rl.gateway.store import traces
from swe_rl.gateway.trace import TraceStoreError
from swe_rl.host.addresses import free_port
from tests.support.waiting import alive, until

USER = {"role": "user", "content": "Go on."}


def settings_of(processes, **more):
    return {"config": GatewayConfig(max_body_mb=1, processes=processes, **more), "clients_begin": True}


def doors(gateway):
    """Addresses of single processes: whoever comes there has a connection of that process."""
    return [f"http://127.0.0.1:{process.port}/v1" for process in gateway._workers._processes.values()]


async def ask(url, messages, **fields):
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        return await client.chat.completions.create(model="tiny", messages=messages, **fields)


async def streamed(url, name):
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=[USER], stream=True, **naming("header", name)
        )
        return "".join([part.choices[0].delta.content or "" async for part in stream])


def naming(way, name):
    return {"body": {"extra_body": {"program_id": name}}, "header": {"extra_headers": {"X-Program-Id": name}}}[way]


async def talk(urls, name, way):
    """A conversation whose calls come over another process's connection each time."""
    history, heard = [{"role": "user", "content": f"I am {name}."}], []
    for turn in range(4):
        answer = await ask(urls[turn % len(urls)], history, logprobs=True, **naming(way, name))
        said = answer.choices[0]
        heard.append((said.message.content, answer.usage.model_dump(), said.logprobs.model_dump()))
        history += [{"role": "assistant", "content": said.message.content}, USER]
    return heard


@pytest.mark.slow
async def test_calls_over_any_connection_are_one_conversation(serve, says, tmp_path):
    names = [(f"{way}{number}", way) for way in ("body", "header") for number in range(2)]
    told = {}
    for processes in (1, 2):
        async with serve(ScriptedEngine(says("It is done.")), **settings_of(processes)) as (gateway, store, url):
            urls = doors(gateway) if processes > 1 else [url]
            heard = await asyncio.gather(*(talk(urls, name, way) for name, way in names))
            await store.flush()
            told[processes] = (
                heard,
                [
                    [
                        (trace.turn, trace.chain, trace.base_turn, trace.delta_ids.tolist())
                        for trace in store.traces(name)
                    ]
                    for name, _ in names
                ],
            )
            assert gateway.num_sessions == len(names) == len(gateway.router_state()["programs"])
        for file in tmp_path.glob("traces.db*"):
            file.unlink()
    assert told[2] == told[1]
    assert all(len(kept) == 4 and {chain for _, chain, *_ in kept} == {0} for kept in told[2][1])


async def test_after_a_turn_that_was_not_kept_a_client_is_refused_and_does_not_wait(serve, says, monkeypatch):
    async with serve(ScriptedEngine(says("It is done.")), **settings_of(2)) as (gateway, store, _):

        async def fails(trace):
            raise MemoryError("no room for a trace")

        monkeypatch.setattr(store, "append_async", fails)
        call = {"url": doors(gateway)[0], "messages": [USER], **naming("header", "s")}
        with contextlib.suppress(APIStatusError):  # the answer may be faster than the loss
            await asyncio.wait_for(ask(**call), 20)
        await until(lambda: any(far._gap for process in gateway._workers._processes.values()
                                for far in process.sessions.values()))  # fmt: skip
        with pytest.raises(APIStatusError, match="a turn could not be kept: MemoryError"):
            await asyncio.wait_for(ask(**call), 20)


@pytest.mark.slow
async def test_one_address_has_all_that_a_single_process_has(serve, says):
    async with serve(ScriptedEngine(says("Done.")), **settings_of(2)) as (gateway, store, url):
        root, urls = url.removesuffix("/v1"), doors(gateway)
        assert await talk([url], "a", "body")
        texts = [await streamed(door, "s") for door in urls]
        assert texts == ["Done.", "Done."]
        async with aiohttp.ClientSession() as client:
            for path, words in (("/metrics", "swe_rl"), ("/router/state", "programs"), ("/health", "ok")):
                async with client.get(root + path) as answer:
                    assert answer.status == 200 and words in await answer.text()
            async with client.get(f"{url}/models") as answer:
                assert (await answer.json())["data"][0]["id"] == "tiny"
            at = {name: f"{door.removesuffix('/v1')}/sessions/a" for name, door in zip("xy", urls, strict=True)}
            async with client.delete(at["x"]) as answer:
                assert answer.status == 200 and (await answer.json())["num_calls"] == 4
            async with client.delete(at["y"]) as answer:
                assert answer.status == 404
        assert len(store.traces("a")) == 4  # committed when the answer came
        for door in urls:
            with pytest.raises(APIStatusError, match="closed") as closed:
                await ask(door, [USER], **naming("body", "a"))
            assert closed.value.status_code == 410
        assert [program["program"] for program in gateway.router_state()["programs"]] == ["s"]
        await asyncio.gather(*(ask(door, [USER]) for door in urls))  # nobody can come back to these
        await until(lambda: gateway.num_sessions == 1)


@pytest.mark.slow
async def test_a_refused_first_call_leaves_nothing(serve, says):
    async with serve(ScriptedEngine(says("Done.")), **settings_of(2)) as (gateway, _, _url):
        for door in doors(gateway):
            with pytest.raises(APIStatusError) as refused:
                await ask(door, [], **naming("body", "a"))
            assert refused.value.status_code == 400
        await until(lambda: gateway.num_sessions == 0)


@pytest.mark.slow
async def test_a_reply_is_gone_on_from_over_any_connection(serve, says):
    async with serve(ScriptedEngine(says("Done.")), **settings_of(2)) as (gateway, store, _):
        first, second = (AsyncOpenAI(base_url=door, api_key="none", max_retries=0) for door in doors(gateway))
        reply = await first.responses.create(model="tiny", input="Begin.")
        after = await second.responses.create(model="tiny", input="Go on.", previous_response_id=reply.id)
        await second.responses.create(model="tiny", input="And on.", previous_response_id=after.id)
        await store.flush()
        (name,) = store.sessions()
        assert [trace.base_turn for trace in store.traces(name)] == [None, 0, 1]
        items = [{"role": "user", "content": "Begin."}, {"type": "item_reference", "id": reply.output[0].id}]
        await second.responses.create(model="tiny", input=[*items, USER])
        await store.flush()
        assert store.sessions() == [name] and len(store.traces(name)) == 4
        assert (await second.responses.retrieve(reply.id)).id == reply.id
        await second.responses.delete(reply.id)
        with pytest.raises(APIStatusError, match="not found"):
            await first.responses.retrieve(reply.id)
        await first.close()
        await second.close()


@pytest.mark.slow
async def test_a_client_that_goes_away_ends_its_call_in_the_other_process(serve, says):
    engine = ScriptedEngine(says("Done."))
    async with serve(engine, **settings_of(2)) as (gateway, _, _url):
        here, there = doors(gateway)
        await ask(here, [USER], **naming("body", "a"))
        engine.token_delay_s = 60.0
        asked = asyncio.create_task(ask(there, [USER], **naming("body", "a")))
        await until(lambda: engine.stats().running == 1)
        asked.cancel()
        await until(lambda: engine.stats().running == 0)


@pytest.mark.slow
async def test_the_conversations_of_a_process_that_dies_begin_anew_in_another(serve, says):
    async with serve(ScriptedEngine(says("Done.")), **settings_of(2)) as (gateway, store, url):
        here, there = doors(gateway)
        await ask(here, [USER], **naming("body", "a"))
        await ask(there, [USER], **naming("body", "b"))
        first = gateway.process_ids[0]
        os.kill(first, signal.SIGKILL)
        await until(lambda: not alive(first))
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=20) as client:  # as any client does
            await client.chat.completions.create(model="tiny", messages=[USER], **naming("body", "a"))
        await ask(there, [USER], **naming("body", "b"))
        await store.flush()
        assert [(trace.turn, trace.chain) for trace in store.traces("a")] == [(0, 0), (1, 1)]
        assert [trace.turn for trace in store.traces("b")] == [0, 1]
        await until(lambda: len(gateway.process_ids) == 2)
        pids = gateway.process_ids
    assert not any(map(alive, pids))


@pytest.mark.slow
async def test_a_key_is_asked_for_and_the_port_is_the_users(serve, says):
    port = free_port()
    options = settings_of(2, port=port) | {"token": "secret"}
    async with serve(ScriptedEngine(says("Done.")), **options) as (gateway, _, url):
        assert url == f"http://127.0.0.1:{port}/v1"
        with pytest.raises(APIStatusError, match="token"):
            await ask(url, [USER])
        for door in doors(gateway):
            async with AsyncOpenAI(base_url=door, api_key="secret", max_retries=0) as client:
                await client.chat.completions.create(model="tiny", messages=[USER], extra_body={"program_id": "a"})
        with pytest.raises(GatewayConfigError, match="the port is in use"):
            async with serve(ScriptedEngine(says("x")), **settings_of(2, port=port)):
                pass


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
async def test_a_full_disk_is_said_to_whoever_asks_again(serve, says, monkeypatch, processes):
    """No conversation goes on whose turns are not kept."""
    full = sqlite3.OperationalError("database or disk is full")
    async with serve(ScriptedEngine(says("Done.")), **settings_of(processes)) as (gateway, store, url):
        at = url if processes == 1 else doors(gateway)[0]
        await ask(at, [USER], **naming("body", "a"))
        monkeypatch.setattr(traces, "write_group", lambda *_: (_ for _ in ()).throw(full))
        with contextlib.suppress(APIStatusError):  # it may be answered before the disk says so
            await ask(at, [USER, USER], **naming("body", "a"))
        with pytest.raises(TraceStoreError, match="full"):
            await store.flush()
        for name in "ab":
            with pytest.raises(APIStatusError) as refused:
                await ask(at, [USER], **naming("body", name))
            assert refused.value.status_code == 500
        with pytest.raises(TraceStoreError, match="full"):
            store.close()
