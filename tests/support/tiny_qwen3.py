"""A Qwen3 of two layers with random weights, small enough to be made in a test."""

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

_SIZES = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "initializer_range": 0.3,  # far enough from each other that a token of the wrong one is seen
}


def tiny_qwen3(seed: int, **settings: object) -> Qwen3ForCausalLM:
    """`settings` of `Qwen3Config` in place of the usual ones."""
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(Qwen3Config(**{**_SIZES, **settings}))
