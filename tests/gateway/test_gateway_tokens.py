"""Token ids in and out of the gateway: what engine=external asks of a server, and what is refused."""

import json

import aiohttp
import pytest

from swe_rl.engine.engine import SamplingParams
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.engine.server.wire import TokenIn, parse_reply, request_body
from swe_rl.gateway.session import SessionSettings

IDS = (5, 6, 7)


def body(**more):
    params = SamplingParams(32, stop_token_ids=(1,), seed=3)
    return request_body(TokenIn.completions, IDS, params, model="tiny", request_id="r") | more


async def post(url, sent):
    async with aiohttp.ClientSession() as http, http.post(f"{url}/completions", json=sent) as response:
        return response.status, json.loads(await response.read())


async def test_what_goes_in_is_sampled_from_and_stored(serve, says, renderer):
    asked = []

    def reply(prompt_ids):
        asked.append(tuple(prompt_ids))
        return says("ok")(prompt_ids)

    async with serve(ScriptedEngine(reply), vocab_size=1536) as (gateway, store, url):
        status, answer = await post(url, body(program_id="p"))
        again, _ = await post(url, body(program_id="p", prompt=[5, 6]))
        await store.flush()
        first, second = store.traces("p")
        assert gateway.num_sessions == 1
    found = parse_reply(TokenIn.completions, answer, vocab_size=1536)
    assert (status, again) == (200, 200) and asked == [IDS, (5, 6)]
    assert list(found.token_ids) == first.sampled_ids.tolist() and list(found.logprobs) == first.logprobs.tolist()
    assert [tuple(trace.delta_ids.tolist()) for trace in (first, second)] == [IDS, (5, 6)]
    assert (first.turn, second.turn, second.base_turn) == (0, 1, None)
    assert second.chain == first.chain + 1


async def test_a_trajectory_is_nobodys_to_add_tokens_to(serve, says):
    """What runs in a sandbox reaches this route, too: neither prompts of its own nor its own sampling become rows."""
    async with serve(ScriptedEngine(says("ok")), vocab_size=1536) as (gateway, store, url):
        gateway.open_session("train.1.a.0.0", SessionSettings(96, 1024))
        status, answer = await post(url, body(program_id="train.1.a.0.0"))
        summary = await gateway.close_session("train.1.a.0.0")
        await store.flush()
        assert summary.num_calls == 0 and store.sessions() == []
    assert (status, answer["error"]["code"]) == (404, "session_not_found")


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": "text"}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1536]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"stop": ["x"]}, "stop"),
        ({"n": 2}, "n"),
        ({"stream": True}, "stream"),
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"logit_bias": {"5": 1.0}}, "logit_bias"),
        ({"min_tokens": 2}, "min_tokens"),
        ({"bad_words": ["x"]}, "bad_words"),
        ({"allowed_token_ids": [5]}, "allowed_token_ids"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"guided_regex": "a"}, "guided_regex"),
        ({"thinking_token_budget": 9}, "thinking_token_budget"),
        ({"ignore_eos": False}, "ignore_eos"),
        ({"return_token_ids": False}, "return_token_ids"),
        ({"model": "other"}, "model"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(serve, says, change, param):
    async with serve(ScriptedEngine(says("ok")), vocab_size=1536) as (_, store, url):
        status, answer = await post(url, body(**change))
        await store.flush()
        assert status in (400, 404) and answer["error"]["param"] == param
        assert store.sessions() == []


async def test_what_an_engine_is_asked_arrives_as_it_was_sent(serve, says):
    """A run whose engine is another one's gateway: what the client writes, the route reads."""
    engine = ScriptedEngine(says("ok"))
    params = SamplingParams(32, temperature=0.7, top_p=0.9, top_k=20, stop_token_ids=(1,), seed=3, min_p=0.05)
    sent = request_body(TokenIn.completions, IDS, params, model="tiny", request_id="r")
    neutral = {"logit_bias": None, "bad_words": [], "min_tokens": 0}
    async with serve(engine, vocab_size=1536) as (_, _, url):
        status, _ = await post(url, sent | neutral)
    [(_, prompt_ids, arrived)] = engine.requests
    assert (status, prompt_ids, arrived) == (200, IDS, params)


async def test_a_prompt_without_room_is_too_long(serve, says):
    async with serve(ScriptedEngine(says("ok")), max_model_len=4) as (_, _, url):
        status, answer = await post(url, body(prompt=[1, 2, 3, 4]))
    assert status == 400 and answer["error"]["code"] == "context_length_exceeded"


async def test_the_model_is_known_by_its_path_too(serve, says):
    async with serve(ScriptedEngine(says("ok")), model_path="Qwen/Qwen3-4B") as (_, _, url):
        async with aiohttp.ClientSession() as http, http.get(f"{url}/models") as response:
            [model] = (await response.json())["data"]
        async with aiohttp.ClientSession() as http, http.get(url.removesuffix("/v1") + "/version") as response:
            assert (await response.json())["server"] == "swe_rl"
        status, _ = await post(url, body(model="Qwen/Qwen3-4B"))
    assert (model["id"], model["root"], status) == ("tiny", "Qwen/Qwen3-4B", 200)
