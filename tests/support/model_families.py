"""Tiny random models of the families that people bring, by transformers' own configuration classes."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

_BASE = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "bos_token_id": None,
    "use_cache": False,
}
_EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "shared_expert_intermediate_size": 32,
}
_LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "num_key_value_heads": 4,
}
_LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
}
_WINDOW = {"sliding_window": 16}
FAMILIES: dict[str, dict[str, Any]] = {
    "apertus": {},
    "arcee": {},
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_expand": 2},
    "cohere2": {"logit_scale": 0.25, **_WINDOW},
    "deepseek_v3": {**_EXPERTS, **_LATENT},
    "ernie4_5": {},
    "exaone4": {"sliding_window_pattern": 2, **_WINDOW},
    "falcon_h1": {"lm_head_multiplier": 0.5},
    "falcon_mamba": {"state_size": 8, "expand": 2},
    "gemma2": {"query_pre_attn_scalar": 16, **_WINDOW},
    "gemma3_text": {"query_pre_attn_scalar": 16, **_WINDOW},
    "glm4": {},
    "glm4_moe": _EXPERTS,
    "glm4_moe_lite": {**_EXPERTS, **_LATENT},
    "gpt_oss": {**_EXPERTS, **_WINDOW},
    "granite": {"logits_scaling": 3.0, "embedding_multiplier": 2.0},
    "hunyuan_v1_dense": {},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_expand": 2, "num_experts": 2},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8, "expand": 2, "n_groups": 1, "state_size": 16},
    "minimax_m2": _EXPERTS,
    "ministral": _WINDOW,
    "mistral": _WINDOW,
    "mixtral": _EXPERTS,
    "nemotron_h": {
        "layers_block_type": ["mamba", "attention", "moe"],
        "num_hidden_layers": 3,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "n_groups": 1,
        "ssm_state_size": 16,
        **_EXPERTS,
    },
    "olmo2": {},
    "olmo3": _WINDOW,
    "phi": {},
    "phi3": {},
    "qwen2_moe": _EXPERTS,
    "qwen3_5_text": _LINEAR,
    "qwen3_next": {**_EXPERTS, **_LINEAR},
    "seed_oss": {},
    "smollm3": {},
    "stablelm": {},
    "starcoder2": {},
}

# A row would run on into the next one by a convolution or a state.
_MIXING_STATES = {
    "bamba",
    "falcon_h1",
    "falcon_mamba",
    "jamba",
    "lfm2",
    "mamba2",
    "nemotron_h",
    "qwen3_5_text",
    "qwen3_next",
}
# Of these ranks compute a row at a time. StableLM's layers do not hand on to attention where rows end.
ROWS_ALONE = frozenset(_MIXING_STATES | {"stablelm"})


def tiny_of_family(family: str, **more: Any) -> Any:
    """A causal language model in float32 on the CPU, the same one at each call."""
    config = AutoConfig.for_model(family, **{**_BASE, **FAMILIES[family], **more})
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def multimodal_qwen3_5() -> Any:
    """A model that sees images, whose text part is that of the family `qwen3_5_text`."""
    from transformers import Qwen3_5ForConditionalGeneration

    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64}
    config = AutoConfig.for_model(
        "qwen3_5",
        text_config={**_BASE, **_LINEAR, "model_type": "qwen3_5_text"},
        vision_config={**vision, "num_position_embeddings": 16},
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    return Qwen3_5ForConditionalGeneration(config)


# Of these every variant was run on 2026-11-29: whole, recomputed, adapter, critic, each with resume and export.
SHOWN = frozenset(
    {
        "gemma3_text",
        "gpt_oss",
        "mistral",
        "nemotron_h",
        "qwen3_5_text",
    }
)
# Neither was seen to end for these.
_OPEN = {"falcon_h1"}


def matrix() -> list[str]:
    """The lines of the table in docs/engineering/models.md: families of which the same is known share a line."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for family in sorted(FAMILIES):
        kept = "yes" if family in SHOWN else "not run"
        rows = "one at a time" if family in ROWS_ALONE else "packed"
        if family in _OPEN:
            kept = rows = "not shown"
        routers = "refused" if "num_experts" in FAMILIES[family] else "none"
        found.setdefault((kept, rows, routers), []).append(f"`{family}`")
    title = "| adapter, resume, export | rows on ranks | routers | `model_type` |"
    lines = [f"| {' | '.join(known)} | {', '.join(families)} |" for known, families in sorted(found.items())]
    return [title, "|---|---|---|---|", *lines]
