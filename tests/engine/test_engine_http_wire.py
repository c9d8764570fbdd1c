"""Bodies and replies of one completion, for both endpoints of vLLM."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.engine.engine import EngineError, SamplingParams
from swe_rl.engine.server.wire import (
    BadReplyError,
    TokenIn,
    parse_reply,
    request_body,
    server_request_id,
    weight_version,
)

# As vLLM 0.32.0 answered for the tiny model, shortened to two tokens; None fields left out.
COMPLETIONS = {
    "id": "cmpl-981277d180c82a58",
    "choices": [
        {
            "index": 0,
            "text": ".py",
            "logprobs": {
                "text_offset": [0, 1],
                "token_logprobs": [-0.9677319526672363, -3.576278118089249e-07],
                "tokens": [".", "py"],
                "top_logprobs": [{".": -0.9677319526672363}, {"py": -3.576278118089249e-07}],
            },
            "finish_reason": "stop",
            "stop_reason": 297,
            "token_ids": [22, 297],
            "prompt_token_ids": [5, 6, 7],
        }
    ],
    "usage": {"prompt_tokens": 36, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 32}},
    "metrics": {"time_to_first_token_ms": 15.5, "generation_time_ms": 21.5, "queue_time_ms": 0.25},
}
GENERATE = {
    "request_id": "generate-tokens-a",
    "usage": {"prompt_tokens": 36, "completion_tokens": 2, "prompt_tokens_details": None},
    "metrics": None,
    "choices": [
        {
            "index": 0,
            "finish_reason": "length",
            "token_ids": [22, 297],
            "weight_versions": [{"version": "3", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 2}],
            "logprobs": {
                "content": [
                    {"token_id": 22, "logprob": -0.5, "rank": 1, "top_logprobs": []},
                    {"token_id": 297, "logprob": -1.5, "rank": 1, "top_logprobs": []},
                ]
            },
        }
    ],
}
# vLLM 0.26 writes the token as text there, and knows no weight versions.
GENERATE_0_26 = {
    "choices": [
        {
            "index": 0,
            "finish_reason": "length",
            "token_ids": [22],
            "logprobs": {"content": [{"token": "token_id:22", "logprob": -0.5, "top_logprobs": []}]},
        }
    ],
    "usage": {"prompt_tokens": 1},
}


def changed(payload, **choice):
    copied = copy.deepcopy(payload)
    copied["choices"][0].update(choice)
    return copied


def test_a_completion_with_its_times():
    reply = parse_reply(TokenIn.completions, COMPLETIONS)
    assert reply.token_ids == (22, 297) and reply.finish_reason == "stop" and reply.cached_tokens == 32
    assert reply.logprobs == (-0.9677319526672363, -3.576278118089249e-07)
    assert (reply.queue_s, reply.prefill_s, reply.decode_s) == (0.00025, 0.0155, 0.0215)
    assert reply.version_spans == ()


@pytest.mark.parametrize("payload", [GENERATE, GENERATE_0_26])
def test_a_generate_reply(payload):
    reply = parse_reply(TokenIn.generate, payload)
    assert reply.token_ids[0] == 22 and reply.logprobs[0] == -0.5
    assert reply.cached_tokens is None and reply.decode_s is None


def test_weight_spans_are_kept():
    assert parse_reply(TokenIn.generate, GENERATE).version_spans == (("3", 0, 1), ("4", 1, 2))
    assert weight_version("3") == 3 and weight_version("default") is None and weight_version("") is None


def test_an_abort_before_the_first_token():
    reply = parse_reply(TokenIn.completions, changed(COMPLETIONS, token_ids=[], logprobs=None, finish_reason="abort"))
    assert reply.token_ids == () and reply.finish_reason == "abort"


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (changed(COMPLETIONS, token_ids=None), "token ids"),
        (changed(COMPLETIONS, logprobs=None), "log-probabilities"),
        (changed(COMPLETIONS, token_ids=[1]), "1 tokens and 2"),
        (changed(COMPLETIONS, token_ids=["a", "b"]), "integers"),
        (changed(COMPLETIONS, finish_reason="error"), "'error'"),
        (changed(COMPLETIONS, finish_reason=None), "None"),
        (changed(COMPLETIONS, logprobs={"token_logprobs": [-9999.0, -1.0]}), "not finite"),
        (changed(COMPLETIONS, logprobs={"token_logprobs": [None, -1.0]}), "not finite"),
        (changed(COMPLETIONS, logprobs={"token_logprobs": [float("nan"), -1.0]}), "not finite"),
        (
            changed(COMPLETIONS, logprobs={"token_logprobs": [-1.0, 5.0]}),
            "token 1 is 5.0, above 0",
        ),
        (changed(COMPLETIONS, logprobs={"token_logprobs": [-1.0, 10**400]}), "not a completion"),
        (changed(COMPLETIONS, token_ids=[22, 1000]), r"token 1 is 1000, outside 0 \.\. 999"),
        (changed(COMPLETIONS, token_ids=[-5, 297]), "token 0 is -5"),
        (changed(COMPLETIONS, token_ids=[22, 2**70]), "token 1 is"),
        (changed(COMPLETIONS, token_ids=[22, True]), "integers"),
        ({"choices": []}, "not a completion"),
        ({"error": {"message": "no"}}, "not a completion"),
        ([], "not a completion"),
        (None, "not a completion"),
    ],
)
def test_what_is_no_completion_is_an_error(payload, words):
    with pytest.raises(BadReplyError, match=words):
        parse_reply(TokenIn.completions, payload, vocab_size=1000)


def test_an_id_that_no_vocabulary_has_is_an_error_where_the_size_is_not_known():
    assert parse_reply(TokenIn.completions, changed(COMPLETIONS, token_ids=[22, 900_000])).token_ids == (22, 900_000)
    with pytest.raises(BadReplyError, match="token 1 is 1099511627776"):
        parse_reply(TokenIn.completions, changed(COMPLETIONS, token_ids=[22, 2**40]))


def test_rounding_above_zero_is_zero():
    reply = parse_reply(TokenIn.completions, changed(COMPLETIONS, logprobs={"token_logprobs": [2e-7, -1.0]}))
    assert reply.logprobs == (0.0, -1.0)


@pytest.mark.parametrize("cached", [-1, "many", 1.5, True, None])
def test_a_count_of_cached_tokens_that_is_none_is_not_known(cached):
    payload = {**COMPLETIONS, "usage": {"prompt_tokens_details": {"cached_tokens": cached}}}
    assert parse_reply(TokenIn.completions, payload).cached_tokens is None


@pytest.mark.parametrize("ms", [-1.0, 1e999, float("nan")])
def test_a_time_that_is_none_is_not_known(ms):
    assert parse_reply(TokenIn.completions, {**COMPLETIONS, "metrics": {"queue_time_ms": ms}}).queue_s in (0.0, None)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda x: (
            st.lists(x)
            | st.dictionaries(
                st.sampled_from(
                    ["choices", "token_ids", "logprobs", "token_logprobs", "content", "finish_reason", "usage"]
                ),
                x,
            )
        ),
    )
)
def test_no_json_at_all_raises_anything_else(payload):
    for kind in TokenIn:
        try:
            parse_reply(kind, payload)
        except EngineError:
            continue
        pytest.fail(f"{payload} was taken for a completion")


PARAMS = SamplingParams(7, temperature=0.6, top_p=0.9, top_k=20, stop_token_ids=(2, 3), seed=-1)


def test_every_parameter_is_said_in_both_ways():
    body = request_body(TokenIn.completions, [1, 2], PARAMS, model="m", request_id="r")
    other = request_body(TokenIn.generate, (1, 2), PARAMS, model="m", request_id="r", cache_salt="weights-3")
    assert body["prompt"] == [1, 2] and body["return_token_ids"] is True and "cache_salt" not in body
    assert other["token_ids"] == (1, 2) and other["cache_salt"] == "weights-3"
    sampling = other["sampling_params"]
    for key in ("max_tokens", "temperature", "top_p", "top_k", "min_p", "stop_token_ids", "ignore_eos", "logprobs"):
        assert body[key] == sampling[key]
    assert sampling["ignore_eos"] is True and sampling["stop_token_ids"] == [2, 3] and sampling["logprobs"] == 0
    assert sampling["repetition_penalty"] == 1.0  # generation_config.json of some models has another


@given(st.integers())
def test_seeds_fit_a_signed_integer_of_64_bits(seed):
    body = request_body(TokenIn.completions, [1], SamplingParams(1, seed=seed), model="m", request_id="r")
    assert 0 <= body["seed"] < 2**63


def test_no_seed_is_not_sent():
    assert "seed" not in request_body(TokenIn.completions, [1], SamplingParams(1), model="m", request_id="r")


def test_the_ids_for_an_abort():
    assert server_request_id(TokenIn.generate, "x") == "generate-tokens-x"
    assert server_request_id(TokenIn.completions, "x") == "cmpl-x-0"
