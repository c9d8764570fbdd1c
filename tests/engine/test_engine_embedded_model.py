"""The packed forward pass against a plain transformers forward pass."""

import json
import random

import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from swe_rl.config.folders import PACKAGE
from swe_rl.engine.embedded.layers import ROW_MULTIPLE
from swe_rl.engine.embedded.model import PackedDecoder, PrefillSpan
from swe_rl.engine.embedded.slot_cache import SlotCache
from swe_rl.engine.engine import EngineError

CHECKPOINTS = PACKAGE / "model" / "checkpoints"
SIZE = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "intermediate_size": 64,
    "vocab_size": 90,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
}


EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 16}


def mixture(**changes):
    """Each layer has experts, unless asked otherwise."""
    with torch.inference_mode(False):
        torch.manual_seed(0)
        return Qwen3MoeForCausalLM(Qwen3MoeConfig(**{**SIZE, **EXPERTS, **changes})).eval()


def reference(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


def packed(model, slots=6):
    decoder = PackedDecoder(model, 256, 0)
    return decoder, SlotCache(decoder.cache_shape(slots, 256))


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def test_prefill_in_pieces_and_decode_equal_a_plain_forward(model, prompt_of):
    decoder, cache = packed(model)
    ids = prompt_of(0, 200)
    expected = reference(model, ids)
    for start, end in ((0, 64), (64, 65), (65, 130), (130, 190)):
        logits = decoder.prefill([PrefillSpan(2, start, ids[start:end])], cache)
        torch.testing.assert_close(logits[0], expected[end - 1], atol=2e-5, rtol=1e-5)
    for position in range(190, 200):
        logits = decoder.decode([2], [position], [ids[position]], cache)
        torch.testing.assert_close(logits[0], expected[position], atol=2e-5, rtol=1e-5)


def test_sequences_of_one_pass_do_not_touch_each_other(model, prompt_of):
    decoder, cache = packed(model)
    prompts = [prompt_of(i, tokens) for i, tokens in enumerate((1, 64, 131, 17))]
    logits = decoder.prefill([PrefillSpan(i + 1, 0, ids) for i, ids in enumerate(prompts)], cache)
    steps = decoder.decode([4, 1, 3], [17, 1, 131], [5, 6, 7], cache)
    for row, ids in enumerate(prompts):
        torch.testing.assert_close(logits[row], reference(model, ids)[-1], atol=2e-5, rtol=1e-5)
    for row, (prompt, token) in enumerate(((3, 5), (0, 6), (2, 7))):
        expected = reference(model, [*prompts[prompt], token])[-1]
        torch.testing.assert_close(steps[row], expected, atol=2e-5, rtol=1e-5)


def test_results_do_not_depend_on_batch_mates_bit_for_bit(model, prompt_of):
    decoder, cache = packed(model)
    ids, others = prompt_of(0, 150), [prompt_of(i, 40 * i) for i in range(1, 5)]
    alone = decoder.prefill([PrefillSpan(0, 0, ids)], cache)[0].clone()
    alone_step = decoder.decode([0], [150], [3], cache)[0].clone()
    spans = [PrefillSpan(i, 0, other) for i, other in enumerate(others)]
    together = decoder.prefill([*spans, PrefillSpan(5, 0, ids)], cache)[-1]
    steps = decoder.decode([0, 5, 1, 2, 3], [40, 150, 80, 120, 160], [1, 3, 1, 1, 1], cache)
    assert torch.equal(alone, together)
    assert torch.equal(alone_step, steps[1])


@pytest.mark.parametrize("name", ["tiny", "tiny_moe"])
def test_projections_of_shipped_models_do_not_depend_on_the_number_of_rows(name):
    """Another processor, or another matrix library, may need a larger `ROW_MULTIPLE`."""
    config = json.loads((CHECKPOINTS / name / "config.json").read_text(encoding="utf-8"))
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    inner = config.get("moe_intermediate_size") or config["intermediate_size"]
    queries = heads * config["head_dim"]
    packed_heads = (heads + 2 * config["num_key_value_heads"]) * config["head_dim"]
    shapes = [(packed_heads, hidden), (hidden, queries), (2 * inner, hidden), (hidden, inner)]
    torch.manual_seed(0)
    for shape in [*shapes, (config["vocab_size"], hidden)]:
        weight = torch.randn(shape)
        rows = torch.randn(32 * ROW_MULTIPLE, shape[1])
        expected = torch.nn.functional.linear(rows, weight)[0]
        for number in range(ROW_MULTIPLE, len(rows), ROW_MULTIPLE):
            assert torch.equal(torch.nn.functional.linear(rows[:number], weight)[0], expected), (shape, number)


def test_blocks_computed_in_one_pass_or_several_are_the_same_bits(model, prompt_of):
    decoder, cache = packed(model)
    ids = prompt_of(0, 200)
    whole = decoder.prefill([PrefillSpan(0, 0, ids)], cache)[0].clone()
    decoder.prefill([PrefillSpan(1, 0, ids[:128])], cache)
    assert torch.equal(whole, decoder.prefill([PrefillSpan(1, 128, ids[128:])], cache)[0])


@pytest.mark.parametrize(
    "other",
    [
        lambda: LlamaForCausalLM(LlamaConfig(**SIZE, attention_bias=True)),
        lambda: LlamaForCausalLM(LlamaConfig(**SIZE, tie_word_embeddings=True, rope_theta=500.0)),
        lambda: Qwen2ForCausalLM(Qwen2Config(**SIZE)),
    ],
)
def test_llama_and_qwen2_are_computed_too(other):
    torch.manual_seed(0)
    with torch.inference_mode(False):
        model = other().eval()
    for name, parameter in model.named_parameters():
        if "bias" in name:
            parameter.data.uniform_(-0.5, 0.5)
    decoder, cache = packed(model)
    ids = [random.Random(0).randrange(90) for _ in range(100)]
    logits = decoder.prefill([PrefillSpan(0, 0, ids)], cache)
    torch.testing.assert_close(logits[0], reference(model, ids)[-1], atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("changes", [{"norm_topk_prob": True}, {"norm_topk_prob": False, "mlp_only_layers": [0]}])
def test_a_mixture_of_experts_is_computed_too(changes):
    model = mixture(**changes)
    decoder, cache = packed(model)
    ids = [random.Random(0).randrange(90) for _ in range(101)]
    logits = decoder.prefill([PrefillSpan(0, 0, ids[:100])], cache)
    torch.testing.assert_close(logits[0], reference(model, ids[:100])[-1], atol=2e-5, rtol=1e-5)
    logits = decoder.decode([0], [100], ids[100:], cache)
    torch.testing.assert_close(logits[0], reference(model, ids)[-1], atol=2e-5, rtol=1e-5)


def test_a_mixture_s_results_do_not_depend_on_batch_mates():
    """Of which more or fewer share an expert with it: bit for bit."""
    decoder, cache = packed(mixture())
    rng = random.Random(1)
    prompts = [[rng.randrange(90) for _ in range(tokens)] for tokens in (50, 3, 90, 17)]
    alone = [decoder.prefill([PrefillSpan(0, 0, ids)], cache)[0].clone() for ids in prompts]
    together = decoder.prefill([PrefillSpan(i, 0, ids) for i, ids in enumerate(prompts)], cache)
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))
    steps = decoder.decode([0, 1, 2, 3], [50, 3, 90, 17], [1, 2, 3, 4], cache)
    decoder.prefill([PrefillSpan(0, 0, prompts[1])], cache)
    assert torch.equal(decoder.decode([0], [3], [2], cache)[0], steps[1])


@pytest.mark.parametrize("last", ["experts", "dense"])
def test_what_a_token_is_routed_to_is_kept_beside_its_keys(last):
    """As transformers' own routers choose; in the last layer of what is read, and not predicted from, nobody looks."""
    model = mixture(num_hidden_layers=3, mlp_only_layers=[2] if last == "dense" else [0])
    decoder = PackedDecoder(model, 256, 0, routes=True)
    cache = SlotCache(decoder.cache_shape(6, 256))
    ids = [random.Random(0).randrange(90) for _ in range(101)]
    decoder.prefill([PrefillSpan(2, 0, ids[:64]), PrefillSpan(0, 0, ids[:9])], cache)
    decoder.prefill([PrefillSpan(2, 64, ids[64:99])], cache)
    for position in (99, 100):
        decoder.decode([2, 0], [position, 9], ids[position : position + 1] * 2, cache)
    with torch.no_grad():
        output = model(torch.tensor([ids]), output_router_logits=True)
    expected = np.stack([logits.topk(2).indices.numpy() for logits in output.router_logits], axis=1)
    routes = cache.routes[2, :101]
    assert routes.dtype == np.uint8 and routes.shape == expected.shape == (101, 2, 2)
    cut = 2 if last == "dense" else 1
    assert np.array_equal(np.sort(routes[:, :cut]), np.sort(expected[:, :cut]))
    if last == "experts":
        looked_at = [98, 99, 100]  # not 63: how a prompt is cut leaves no trace
        assert np.array_equal(np.sort(routes[looked_at, 1]), np.sort(expected[looked_at, 1]))
        assert (np.delete(routes[:, 1], looked_at, axis=0) == 255).all()
    assert decoder.cache_shape(1, 64).routed == (2, 2, 6) and packed(model)[1].routes is None


def test_what_it_cannot_compute_is_refused_by_name(model):
    with torch.inference_mode(False):
        windowed = Qwen2ForCausalLM(
            Qwen2Config(**SIZE, use_sliding_window=True, sliding_window=16, max_window_layers=1)
        )
    with pytest.raises(EngineError, match="sliding_attention"):
        PackedDecoder(windowed, 128, 0)
    with pytest.raises(EngineError, match="attention in a sliding window"):
        PackedDecoder(mixture(use_sliding_window=True, sliding_window=16), 128, 0)
    with pytest.raises(EngineError, match="max_model_len=1024 above the model's 512"):
        PackedDecoder(model, 1024, 0)
