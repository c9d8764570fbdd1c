"""Servers of somebody else, from engine.urls."""

import asyncio
from dataclasses import replace

import pytest

from swe_rl.config.choices import EngineKind
from swe_rl.config.environment import SERVER_KEYS, key_of
from swe_rl.config.schema import Config, EngineConfig, ModelConfig
from swe_rl.engine.engine import EngineError, EngineState, LossTeller, SamplingParams
from swe_rl.engine.external import ExternalServerError, external_engines
from swe_rl.engine.server.features import ServerRefusedError
from tests.support.fake_vllm.server import FakeSettings, FakeVllm


def config_of(*urls, **engine):
    return Config(engine=EngineConfig(kind=EngineKind.external, urls=urls, max_model_len=512, **engine))


async def test_two_servers_with_a_key():
    async with FakeVllm(FakeSettings(api_key="k")) as first, FakeVllm(FakeSettings(api_key="k")) as second:
        config = config_of(f"{first.url}/v1", second.url)
        engines = external_engines(config, {"OPENAI_API_KEY": "k"}, None, print)
        assert [engine.name for engine in engines] == ["engine0", "engine1"]
        for engine in engines:
            await engine.start()
            assert (await engine.generate([1, 2], SamplingParams(2), request_id="a")).token_ids
            await engine.close()
        assert len(second.requests) == 2  # the probe's and ours: the server runs on
        assert (await first.__class__.__aexit__(first)) is None


def test_keys():
    assert key_of({"VLLM_API_KEY": "a\n", "OPENAI_API_KEY": "b"}, *SERVER_KEYS) == "a"
    assert key_of({"VLLM_API_KEY": " ", "OPENAI_API_KEY": "b\r\n"}, *SERVER_KEYS) == "b"
    assert key_of({}, *SERVER_KEYS) is None


def test_no_address():
    with pytest.raises(ExternalServerError, match="VLLM_URL"):
        external_engines(config_of(), {}, None, print)


def test_one_address_twice():
    with pytest.raises(ExternalServerError, match="names http://a:1 twice"):
        external_engines(config_of("http://a:1", "http://b:1", "http://a:1/v1/"), {}, None, print)


async def test_nothing_there(monkeypatch):
    monkeypatch.setattr("swe_rl.engine.server.client._REFUSED_PAUSE_S", 0.01)
    (engine,) = external_engines(config_of("http://127.0.0.1:9"), {}, None, print)
    with pytest.raises(ExternalServerError, match=r"http://127.0.0.1:9 cannot be reached.*engine=vllm starts servers"):
        await engine.start()


async def test_a_silent_server_is_given_up_and_named():
    async def accept(reader, writer):
        await reader.read()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1")
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    (engine,) = external_engines(config_of(url, start_timeout_s=0.1), {}, None, print)
    with pytest.raises(
        ExternalServerError, match=rf"{url}/version did not answer within 0.1 s.*engine\.start_timeout_s"
    ):
        await engine.start()
    server.close()


async def test_the_model_by_its_path_or_name():
    named = replace(config_of("x"), model=ModelConfig(path="Qwen/Qwen3-14B"))
    async with FakeVllm(FakeSettings(model="Qwen/Qwen3-14B")) as fake:
        (engine,) = external_engines(replace(named, engine=replace(named.engine, urls=(fake.url,))), {}, None, print)
        await engine.start()
        await engine.close()
    async with FakeVllm(FakeSettings(model="other")) as fake:
        (engine,) = external_engines(replace(named, engine=replace(named.engine, urls=(fake.url,))), {}, None, print)
        with pytest.raises(ServerRefusedError, match="only other"):
            await engine.start()
        served = replace(named.engine, urls=(fake.url,), served_model="other")
        (engine,) = external_engines(replace(named, engine=served), {}, None, print)
        await engine.start()
        assert engine.features.model == "other"
        await engine.close()


async def test_a_server_that_dies_is_lost_with_the_first_request_that_breaks_off(monkeypatch):
    """Before the caller hears of it: a second try must not come here again. And what it cost is told once."""
    monkeypatch.setattr("swe_rl.engine.server.client._REFUSED_PAUSE_S", 0.01)
    said, events = [], []
    async with FakeVllm(FakeSettings(token_delay_s=0.02)) as fake:
        base = config_of(fake.url)
        (engine,) = external_engines(replace(base, engine=replace(base.engine, served_model="policy")), {}, None, print)
        engine.teller = LossTeller("engine0", said.append, lambda event, fields: events.append((event, dict(fields))))
        changes = []
        engine.on_change = changes.append
        await engine.start()
        assert engine.state is EngineState.up and engine.why_lost is None
        asking = [
            asyncio.create_task(engine.generate([1, 2], SamplingParams(500), request_id=str(n))) for n in range(3)
        ]
        while fake.running < 3:  # noqa: ASYNC110 - the fake tells no events
            await asyncio.sleep(0.01)
    ends = await asyncio.wait_for(asyncio.gather(*asking, return_exceptions=True), 10)
    try:
        assert all(isinstance(end, EngineError) for end in ends) and changes == [False]
        assert engine.state is EngineState.lost and "cannot be reached" in str(engine.why_lost)
        [(event, fields)] = events
        assert event == "engine_lost" and fields["requests"] == 3 and fields["work_s"] > 0
        [line] = said
        assert "3 requests begin anew" in line and "its work goes to the others" in line
    finally:
        await engine.close()
