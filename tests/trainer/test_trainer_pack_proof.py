"""Rows are packed only where no row can look into another one, and where it is not known they go one at a time."""

import pytest
import torch
from transformers import AutoConfig

from swe_rl.trainer.sharded.materialize import empty_model, fill_random
from swe_rl.trainer.sharded.mesh import Mesh
from swe_rl.trainer.sharded.model import ShardedModel
from swe_rl.trainer.sharded.pack_proof import pack_if_proven
from swe_rl.trainer.trainer import MeshError

pytestmark = pytest.mark.slow

_SIZES = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": 131072,
    "pad_token_id": 0,
}
_LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
_FACTORS = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "original_max_position_embeddings": 4096}
FAMILIES = {
    "deepseek_v32": ({**_LATENT, "n_routed_experts": 4, "n_group": 1, "topk_group": 1}, "does not run"),
    "ministral": ({"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}, "frequencies"),
    "phi3": ({"rope_parameters": {"rope_type": "longrope", **_FACTORS}}, "frequencies"),
}


@pytest.fixture
def model_of(mesh):
    """Makes a small random model of a family."""

    def make(family, **more):
        shape = AutoConfig.for_model(family, **_SIZES, **more)
        model = ShardedModel(empty_model(shape), mesh, None, compute_dtype=torch.float32)
        fill_random(model, mesh.device)
        return model

    return make


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_go_one_at_a_time_where_more_than_the_proof_decides(family, model_of):
    """One chooses keys by a mask of its own; of the others the longest row chooses the frequencies of all."""
    more, reason = FAMILIES[family]
    model = model_of(family, **more)
    assert reason in pack_if_proven(model)
    assert not model.packs_rows


def test_a_fast_family_whose_rows_would_change_each_other_is_refused(mesh):
    shape = AutoConfig.for_model("qwen2", **_SIZES, rope_parameters={"rope_type": "dynamic", "factor": 4.0})
    with pytest.raises(MeshError, match="that the longest row decides"):
        ShardedModel(empty_model(shape), mesh, None)


def test_a_rank_that_sees_no_problem_believes_the_others(model_of, monkeypatch):
    model = model_of("ministral")
    assert pack_if_proven(model) is None
    monkeypatch.setattr(Mesh, "sum", lambda mesh, values: values + 1)
    assert "another rank" in pack_if_proven(model)
    assert not model.packs_rows
