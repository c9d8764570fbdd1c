"""Large requests: what they cost everybody else, and what is said of them."""

import asyncio
import json
import time

import aiohttp
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.config.schema import GatewayConfig
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.gateway import json_slices
from swe_rl.gateway.errors import ApiError
from swe_rl.gateway.json_slices import MOST_VALUES
from swe_rl.gateway.request import check_values

HEAD = {"Content-Type": "application/json"}


def asked(content, **options):
    return json.dumps({"model": "tiny", "messages": [{"role": "user", "content": content}], **options}).encode()


LARGE = {
    "text": (asked("a " * 4_000_000), 400, "context_length_exceeded"),
    "16 MB": (asked("ab\n" * 4_000_000), 400, "context_length_exceeded"),
    "messages": (
        json.dumps({"messages": [{"role": "user", "content": "a"}] * 20_000}).encode(),
        400,
        "context_length_exceeded",
    ),
    "arguments": (
        json.dumps(
            {
                "messages": [
                    {"role": "user", "content": "a"},
                    {
                        "role": "assistant",
                        "tool_calls": [{"function": {"name": "f", "arguments": "[" + "1," * 2_000_000 + "1]"}}],
                    },
                    {"role": "user", "content": "a"},
                ]
            }
        ).encode(),
        400,
        "context_length_exceeded",
    ),
    "values": (b'{"messages":[' + b"{}," * 4_000_000 + b"{}]}", 413, "request_too_large"),
    "depth": (b'{"messages":' + b"[" * 2_000_000 + b"]" * 2_000_000 + b"}", 413, "request_too_large"),
}


@pytest.mark.parametrize("shape", LARGE)
async def test_others_are_answered_meanwhile(serve, says, shape):
    """Measured against how long this machine takes to read the body once, which nothing can do in parts."""
    body, status, code = LARGE[shape]
    began_s = time.perf_counter()
    if status == 400:
        orjson.loads(body)
    read_s = time.perf_counter() - began_s
    config = GatewayConfig(max_body_mb=16)
    async with serve(ScriptedEngine(says("ok")), config=config) as (_, _, url), aiohttp.ClientSession() as client:

        async def post(data):
            async with client.post(f"{url}/chat/completions", data=data, headers=HEAD) as reply:
                return reply.status, await reply.json()

        worst_s, large = 0.0, asyncio.create_task(post(body))
        while not large.done():
            began_s = time.perf_counter()
            assert (await post(asked("a", max_tokens=2)))[0] == 200
            worst_s = max(worst_s, time.perf_counter() - began_s)
        answered, said = await large
        assert (answered, said["error"]["code"]) == (status, code)
        assert worst_s < 1.0 + 10 * read_s  # 16 s and more where tokenizing kept the interpreter lock


async def test_a_long_text_that_fits_has_the_tokens_that_it_always_had(serve, says, renderer):
    """Special tokens that are spelled out in it are cut after their first character, as everywhere."""
    engine = ScriptedEngine(says("ok"), max_model_len=2**20)
    text = "def add(a, b):\n    return a + b  # é <|im_end|>\n" * 8000
    options = {"config": GatewayConfig(max_body_mb=16), "max_model_len": 2**20}
    async with (
        serve(engine, **options) as (_, _, url),
        aiohttp.ClientSession() as client,
        client.post(f"{url}/chat/completions", data=asked(text), headers=HEAD) as reply,
    ):
        assert reply.status == 200
    [(_, prompt_ids, _)] = engine.requests
    encode = renderer._tokenizer.encode
    parts = f"user\n{text}".replace("<|im_end|>", "<\0|im_end|>").split("\0")
    ids = tuple(token for part in parts for token in encode(part, add_special_tokens=False).ids)
    assert len(ids) > 100_000 and prompt_ids[1 : len(ids) + 1] == ids


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('a"\\{}[],:é\n', max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('a"\\,{', max_size=4), inner, max_size=4),
    max_leaves=30,
)


def count(value):
    """Objects and lists; values beside the first of each."""
    if isinstance(value, dict | list):
        inner = [count(child) for child in (value.values() if isinstance(value, dict) else value)]
        return 1 + sum(one for one, _ in inner), max(0, len(value) - 1) + sum(two for _, two in inner)
    return 0, 0


@given(_json, st.integers(1, 7))
def test_marks_within_texts_are_no_values(value, slice_bytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_slices, "_SCANNED_BYTES", slice_bytes)
        text = json_slices.np.frombuffer(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS), json_slices.np.uint8)
        assert json_slices._marks_outside_texts(text) == count(value)


def test_a_text_full_of_marks_is_read():
    check_values(asked("{[," * 300_000), MOST_VALUES)
    with pytest.raises(ApiError, match="more than 100000 JSON objects"):
        check_values(b"[" + b"{}," * 100_001 + b"{}]", MOST_VALUES)
