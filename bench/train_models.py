"""The models that `train_bench.py` trains, with random weights, and what a step of one costs in arithmetic.

Their sizes are those of `conf/model`. A model may be cut to its first layers. As small a part of its words is left
then, so that both keep their proportion.
"""

from collections.abc import Callable, Sequence
from typing import Any

# layers, hidden, intermediate, heads, key-value heads, head size, vocabulary, tied: as in conf/model
QWEN3: dict[str, tuple[int, int, int, int, int, int, int, bool]] = {
    "tiny": (2, 64, 128, 4, 2, 16, 256, True),
    "0.6b": (28, 1024, 3072, 16, 8, 128, 151936, True),
    "1.7b": (28, 2048, 6144, 16, 8, 128, 151936, True),
    "4b": (36, 2560, 9728, 32, 8, 128, 151936, True),
    "8b": (36, 4096, 12288, 32, 8, 128, 151936, False),
    "14b": (40, 5120, 17408, 40, 8, 128, 151936, False),
    "32b": (64, 5120, 25600, 64, 8, 128, 151936, False),
    "30b-a3b": (48, 2048, 6144, 32, 4, 128, 151936, False),
    "3b-dense": (48, 2048, 6144, 32, 4, 128, 151936, False),
    "tiny-moe": (2, 64, 128, 4, 2, 16, 256, False),
}
EXPERTS = {"30b-a3b": (128, 8), "tiny-moe": (8, 2)}  # of a layer, and of a token, whose widths together are in QWEN3
# Families that transformers' own code computes: the type, and what differs from the defaults of its configuration.
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3.5-4b": (
        "qwen3_5_text",
        {"num_hidden_layers": 32, "hidden_size": 2560, "intermediate_size": 9216, "tie_word_embeddings": True},
    ),
    "qwen3.5-9b": ("qwen3_5_text", {"num_hidden_layers": 32}),
    "gpt-oss-20b": ("gpt_oss", {"num_hidden_layers": 24, "num_local_experts": 32}),
    "tiny-hybrid": (
        "qwen3_5_text",
        {
            "num_hidden_layers": 4,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "vocab_size": 256,
        },
    ),
    "tiny-sinks": (
        "gpt_oss",
        {
            "num_hidden_layers": 2,
            "hidden_size": 64,
            "intermediate_size": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "vocab_size": 256,
        },
    ),
}
MODELS = [*QWEN3, *OTHERS]


def config_of(name: str, layers: int | None, tokens: int) -> Any:
    """Returns the transformers configuration of a model, cut to its first `layers`, for rows of `tokens`."""
    if name in OTHERS:
        return _other_config(name, layers, tokens)
    return _qwen3_config(name, layers, tokens)


def _qwen3_config(name: str, kept_layers: int | None, tokens: int) -> Any:
    from transformers import Qwen3Config, Qwen3MoeConfig

    layers, hidden, intermediate, heads, kv_heads, head_dim, vocab, tied = QWEN3[name]
    kept = min(kept_layers or layers, layers)
    mixture: dict[str, Any] = {}
    if name in EXPERTS:
        experts, active = EXPERTS[name]
        mixture = {"num_experts": experts, "num_experts_per_tok": active, "norm_topk_prob": True}
        mixture["moe_intermediate_size"] = intermediate // active
    kind: Any = Qwen3Config
    if mixture:
        kind = Qwen3MoeConfig
    return kind(
        **mixture,
        vocab_size=_part_of_words(vocab, kept, layers),
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=kept,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=max(40960, tokens),
        tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        use_cache=False,
    )


def _other_config(name: str, kept_layers: int | None, tokens: int) -> Any:
    from transformers import AutoConfig

    model_type, sizes = OTHERS[name]
    layers = sizes["num_hidden_layers"]
    kept = min(kept_layers or layers, layers)
    vocab = AutoConfig.for_model(model_type, **sizes).vocab_size
    return AutoConfig.for_model(
        model_type,
        **{**sizes, "num_hidden_layers": kept, "vocab_size": _part_of_words(vocab, kept, layers)},
        use_cache=False,
        max_position_embeddings=max(40960, tokens),
    )


def _part_of_words(words: int, kept: int, layers: int) -> int:
    """Returns as small a part of the words as is kept of the layers, as a multiple of 64."""
    return -(-words * kept // layers // 64) * 64


def train_flops(config: Any, row_tokens: Sequence[int], trained_tokens: int) -> float:
    """Returns the operations of one forward and backward pass over rows of so many tokens.

    The forward pass counts once, the backward pass twice (arXiv:2104.04473, appendix). The output head counts at
    trained tokens only, and attention between the pairs of tokens that its mask leaves.
    """
    tokens = sum(row_tokens)
    matrices = 2.0 * _weights_of_a_token(config) * tokens
    attention = sum(_pairs_of_row(config, length) for length in row_tokens) * _pair_flops(config)
    head = 2.0 * config.vocab_size * config.hidden_size * trained_tokens
    return 3.0 * (matrices + attention + head)


def _weights_of_a_token(config: Any) -> float:
    """Returns how many weights of the layers' matrices a token passes.

    They are counted in a model without memory, as families share no formula. Experts are stored as one tensor of three
    dimensions, of which a token passes the share of its own experts.
    """
    from swe_rl.trainer.sharded.materialize import empty_model
    from swe_rl.trainer.sharded.model import decoder_layers

    total = 0.0
    for parameter in decoder_layers(empty_model(config)).parameters():
        if parameter.ndim == 3 and parameter.shape[1] > 1:
            total += parameter.numel() * config.num_experts_per_tok / parameter.shape[0]
        elif parameter.ndim == 2 and min(parameter.shape) > 1:
            total += parameter.numel()
    return total


def _pair_flops(config: Any) -> float:
    """Returns the cost of a pair of tokens in a layer: a product with the key and one with the value, in each head."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 4.0 * config.num_attention_heads * head_dim


def _pairs_of_row(config: Any, tokens: int) -> float:
    """Returns how many pairs of tokens attend in all layers together, for a row of `tokens`."""
    of_kind: dict[str, Callable[[], float]] = {
        "full_attention": lambda: tokens * tokens / 2.0,
        "sliding_attention": lambda: tokens * float(min(tokens, config.sliding_window)),
        "linear_attention": lambda: 0.0,
    }
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    return sum(of_kind[kind]() for kind in kinds)
