"""The tiny model has Qwen3's architecture, dense or a mixture of experts, with a small byte-level tokenizer of its own.
A mixture can begin as a dense model does: `upcycle_dense`.

Invariants of a batch of its warm start:
- The messages are exactly those of `agent=bash` on the embedded instances, to the last byte.
- The same state of `rng` gives the same rows in the same order.
"""

import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from swe_rl.config.schema import ModelConfig
from swe_rl.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen3ForCausalLM, Qwen3MoeForCausalLM

    from swe_rl.model.chat import ChatRenderer

Messages = list[dict[str, str]]
IdsAndMask = tuple[list[int], list[int]]
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
# Words with a leading space, single digits, runs of punctuation, line ends and indentation. Unlike Qwen's split,
# punctuation never joins a word: a name is the same tokens behind a bracket as behind a space.
_SPLIT = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]|\s+(?!\S)|\s+"


def build_tokenizer(texts: Iterable[str], vocab_size: int) -> "PreTrainedTokenizerFast":
    """Trains a byte-level BPE on `texts`. Any text round-trips, and the same texts give the same tokenizer."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )


def build_model(config: ModelConfig, seed: int) -> "Qwen3ForCausalLM | Qwen3MoeForCausalLM":
    """Returns a randomly initialised Qwen3 with the numbers of `config`, in float32 on the CPU; with experts a
    Qwen3-MoE."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

    numbers: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "tie_word_embeddings": config.tie_word_embeddings,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "use_cache": False,
        "eos_token_id": SPECIAL_TOKENS.index("<|im_end|>"),
        "pad_token_id": SPECIAL_TOKENS.index("<|endoftext|>"),
        "bos_token_id": None,
    }
    torch.manual_seed(seed)
    if not config.num_experts:
        return Qwen3ForCausalLM(Qwen3Config(**numbers))
    experts: dict[str, Any] = {
        "num_experts": config.num_experts,
        "num_experts_per_tok": config.active_experts,
        "moe_intermediate_size": config.expert_intermediate_size,
        # The published Qwen3 mixtures have it so.
        "norm_topk_prob": True,
    }
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**numbers, **experts))


def upcycle_dense(dense: "PreTrainedModel", config: ModelConfig, seed: int) -> "Qwen3MoeForCausalLM":
    """Makes a mixture of twice as many experts as a token passes, which computes about what `dense` computes.

    Each MLP is cut into `active_experts` slices, of which there are two experts each. The two have opposite rows in the
    router, so that every token passes each slice exactly once, with a weight near its even share, which the slice's
    last matrix makes up for. Experts from a dense model: Sparse Upcycling, arXiv:2212.05055, section 3; slices as
    experts: arXiv:2410.07524, section 4. Raises UserError if the numbers of `config` do not allow it.
    """
    import torch

    active = config.active_experts
    width = config.expert_intermediate_size
    if config.num_experts != 2 * active or active * width != config.intermediate_size:
        raise UserError(
            f"sft.start={config.path}: its MLPs of model.intermediate_size={config.intermediate_size} become two "
            f"experts each of model.active_experts={active} slices, not model.num_experts={config.num_experts} experts "
            f"of model.expert_intermediate_size={width}: num_experts is twice active_experts, and active_experts times "
            "expert_intermediate_size is intermediate_size"
        )
    mixture: Any = build_model(config, seed)
    weights: dict[str, Any] = {}
    for name, tensor in dense.state_dict().items():
        layer = name.partition(".mlp.")[0] + ".mlp"
        if name.endswith("gate_proj.weight"):
            up = dense.get_parameter(f"{layer}.up_proj.weight").detach()
            slices = torch.stack([torch.cat(pair) for pair in zip(tensor.split(width), up.split(width), strict=True)])
            weights[f"{layer}.experts.gate_up_proj"] = torch.cat([slices, slices])
            rows = mixture.get_parameter(f"{layer}.gate.weight").detach()[:active]
            weights[f"{layer}.gate.weight"] = torch.cat([rows, -rows])
        elif name.endswith("down_proj.weight"):
            slices = torch.stack(tensor.split(width, dim=1)) * active
            weights[f"{layer}.experts.down_proj"] = torch.cat([slices, slices])
        elif not name.endswith("up_proj.weight"):
            weights[name] = tensor
    mixture.load_state_dict(weights)
    return mixture  # type: ignore[no-any-return]


def draw_batch(
    conversations: Callable[[random.Random], Messages], renderer: "ChatRenderer", rng: random.Random, tokens: int
) -> list[IdsAndMask]:
    """Draws conversations of at least `tokens` tokens, sorted by length. Returns ids and masks; the mask is 1 on what
    the assistant says."""
    drawn: list[IdsAndMask] = []
    size = 0
    while size < tokens:
        ids, spans = renderer.whole(conversations(rng))
        mask = [0] * len(ids)
        for start, end in spans:
            mask[start:end] = [1] * (end - start)
        drawn.append((ids, mask))
        size += len(ids)
    return sorted(drawn, key=lambda row: len(row[0]))
