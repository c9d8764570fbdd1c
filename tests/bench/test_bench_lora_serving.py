"""bench/lora_serving: two engines that round, of an adapter that has learned little."""

import pytest

pytest.importorskip("peft")

import torch

from bench.lora_serving import engines, rounded
from swe_rl.config.schema import TrainerConfig
from swe_rl.trainer.lora import MergedWeights, is_adapter, with_adapter
from tests.support.tiny_qwen3 import tiny_qwen3


@torch.no_grad()
def test_a_small_update_reaches_the_engine_that_holds_the_base_only():
    base = tiny_qwen3(0, initializer_range=0.2, tie_word_embeddings=True)
    for parameter in base.parameters():
        parameter.copy_(rounded(parameter))
    policy, adapter = with_adapter(base, TrainerConfig(lora_rank=4))
    for name, parameter in policy.named_parameters():
        if is_adapter(name):
            parameter.add_(1e-5)
    true = MergedWeights(dict(policy.named_parameters()), adapter.scale)
    both = engines(policy, base, adapter.scale)
    (merged, merged_bytes), (served, served_bytes) = both["merged"], both["adapter"]
    seen = MergedWeights(dict(served.named_parameters()), adapter.scale)
    name = "model.layers.0.self_attn.q_proj.weight"
    change = true[name] - base.get_parameter(name)
    assert (merged.get_parameter(name) - true[name]).norm() > 0.5 * change.norm()
    assert (seen[name] - true[name]).norm() < 0.01 * change.norm()
    assert merged_bytes == 2 * sum(one.numel() for one in base.parameters()) and 0 < served_bytes < merged_bytes
