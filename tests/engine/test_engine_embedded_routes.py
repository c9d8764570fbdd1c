"""The experts of each token, as completions of the embedded engine tell them."""

import asyncio

import numpy as np
import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from swe_rl.config.schema import EngineConfig
from swe_rl.engine.embedded.engine import EmbeddedEngine
from swe_rl.engine.engine import SamplingParams
from swe_rl.model.experts import HubNamed, route_type, unknown_route

UNKNOWN = 255


def build(seed):
    torch.manual_seed(seed)
    config = Qwen3MoeConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, vocab_size=90, head_dim=16,
        num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24, initializer_range=0.3,
        max_position_embeddings=256, norm_topk_prob=True,
    )  # fmt: skip
    return Qwen3MoeForCausalLM(config).eval()


@pytest.fixture
async def engine():
    engine = EmbeddedEngine(build(0), EngineConfig(max_model_len=256, max_num_seqs=4), pad_token_id=0, routes=True)
    await engine.start()
    yield engine
    await engine.close()


async def sampled(engine, prompt, tokens, session="s"):
    return await engine.generate(prompt, SamplingParams(tokens, seed=1), request_id=session, session_id=session)


def chosen(model, ids):
    """By transformers' own routers: [tokens, layers, experts], sorted."""
    with torch.no_grad():
        output = model(torch.tensor([ids]), output_router_logits=True)
    return np.sort(np.stack([logits.topk(2).indices.numpy() for logits in output.router_logits], axis=1))


def same(routes, expected):
    """Where they are known; all of the first layer are."""
    assert routes.shape == expected.shape and (routes[:, 0] != UNKNOWN).all()
    known = routes != UNKNOWN
    assert np.array_equal(np.sort(routes)[known], expected[known])


async def test_all_tokens_that_it_read_have_them(engine, prompt_of):
    prompt = [token % 90 for token in prompt_of(0, 100)]
    reply = await sampled(engine, prompt, 12)
    ids = [*prompt, *reply.token_ids]
    same(reply.routes, chosen(build(0), ids[:-1]))
    assert (reply.routes[len(prompt) - 1 :] != UNKNOWN).all()  # what predicts a sampled token is known whole


async def test_what_is_cached_has_them_too(engine, prompt_of):
    """A session that goes on, and another one that begins with the same tokens."""
    prompt = [token % 90 for token in prompt_of(1, 130)]
    first = await sampled(engine, prompt, 8)
    longer = [*prompt, *first.token_ids, 3, 4, 5]
    again, other = await sampled(engine, longer, 4), await sampled(engine, longer, 4, "other")
    assert again.cached_tokens == 130 and other.cached_tokens == len(longer) - 1
    for reply in (again, other):
        same(reply.routes, chosen(build(0), [*longer, *reply.token_ids][:-1]))


async def test_new_weights_in_flight_leave_those_of_what_was_sampled_before(engine, prompt_of):
    """The keys of the older tokens are computed anew, and their experts are not the ones that sampled them."""
    prompt = [token % 90 for token in prompt_of(2, 40)]
    task = asyncio.ensure_future(sampled(engine, prompt, 150))
    while engine.stats().sampled_tokens_total < 5:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await engine.update_weights(dict(HubNamed(build(3).state_dict())), 1)
    reply = await task
    old = reply.token_versions.count(0)
    assert 0 < old < 150
    ids, read = [*prompt, *reply.token_ids], len(prompt) + old - 1
    same(reply.routes[:read], chosen(build(0), ids[:read]))
    same(reply.routes[read:], chosen(build(3), ids[:-1])[read:])
    assert not np.array_equal(chosen(build(0), ids[:read]), chosen(build(3), ids[:read]))


async def test_nobody_asked(model, prompt_of):
    for of, routes in ((build(0), False), (model, True)):
        engine = EmbeddedEngine(of, EngineConfig(max_model_len=64, max_num_seqs=2), pad_token_id=0, routes=routes)
        await engine.start()
        assert (await sampled(engine, [1, 2, 3], 2)).routes is None
        await engine.close()


@pytest.mark.parametrize(("experts", "kind"), [(8, "uint8"), (255, "uint8"), (256, "uint16"), (512, "uint16")])
def test_the_smallest_type_that_has_a_number_to_spare(experts, kind):
    assert route_type(experts) == kind and unknown_route(route_type(experts)) >= experts
