"""The arithmetic of a decoder: what a token, a pair of tokens and a step cost.

Invariants:
- A multiplication and an addition count as two. Recomputation, the optimizer, and padding do not count; the output
  head counts at trained tokens only, attention under the causal mask only.
- Forward once, backward twice (Narayanan et al., arXiv:2104.04473, appendix).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class DenseShape:
    """The numbers of a dense decoder that its arithmetic depends on.

    A mixture of experts is as dense as what one token passes: `intermediate` is that of its experts together, and
    `routes` how many of them its router knows.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    routes: int = 0

    @classmethod
    def of(cls, config: Any) -> "DenseShape":
        """Of a transformers configuration."""
        routes = getattr(config, "num_experts", 0) or 0
        passed = config.num_experts_per_tok * config.moe_intermediate_size if routes else config.intermediate_size
        return cls(
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            intermediate=passed,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            vocab=config.vocab_size,
            routes=routes,
        )

    @property
    def layer_weights(self) -> int:
        """Weights of one layer's matrices that a token passes."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return attention + self.hidden * (3 * self.intermediate + self.routes)


def train_flops(shape: DenseShape, row_tokens: Sequence[int], trained_tokens: int) -> float:
    """Of one forward and backward pass over rows of so many tokens."""
    matrices = 2.0 * shape.layers * shape.layer_weights * sum(row_tokens)
    attention = sum(_attention(shape) * tokens * tokens / 2.0 for tokens in row_tokens)
    head = 2.0 * shape.vocab * shape.hidden * trained_tokens
    return 3.0 * (matrices + attention + head)


def cost_per_token(shape: DenseShape) -> float:
    """A token's matrices, in pairs of attending tokens: rows longer than this cost mostly attention."""
    return 2.0 * shape.layers * shape.layer_weights / _attention(shape)


def _attention(shape: DenseShape) -> float:
    """One pair of tokens: a product with the key and one with the value, in every head and layer."""
    return 4.0 * shape.layers * shape.heads * shape.head_dim
