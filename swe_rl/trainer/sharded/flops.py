"""Counts the arithmetic of a decoder: what a token and a pair of tokens cost in a layer.

Invariants:
- A multiplication and an addition count as two.
- A mixture of experts costs what one token passes: its own experts, and the router of all.
"""

from typing import Any

from swe_rl.config.choices import FAST_ARCHITECTURES


def layer_weights(config: Any) -> int:
    """Returns the number of weights of one layer's matrices that a token passes."""
    experts = getattr(config, "num_experts", 0) or 0
    if experts:
        passed = config.num_experts_per_tok * config.moe_intermediate_size
    else:
        passed = config.intermediate_size
    attention = 2 * _head_dim(config) * (config.num_attention_heads + config.num_key_value_heads)
    return int(config.hidden_size * (attention + 3 * passed + experts))


def pair_flops(config: Any) -> float:
    """Returns the cost of a pair of tokens: a product with the key and one with the value, in every head of a layer."""
    return 4.0 * int(config.num_attention_heads) * _head_dim(config)


def cost_per_token(config: Any) -> float:
    """Returns the cost of a token's matrices, in pairs of attending tokens: longer rows cost mostly attention.

    0, which leaves attention out, of families whose layers are not known here.
    """
    if config.model_type not in FAST_ARCHITECTURES:
        return 0.0
    return 2.0 * layer_weights(config) / pair_flops(config)


def _head_dim(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
