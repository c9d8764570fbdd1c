"""Writes a tiny random twin of a model: its architecture, tokenizer and chat template, in sizes for two cores.

Invariants:
- Everything that decides what is computed stays: kinds of layers, experts, windows, biases, tied weights, scales. Only
  sizes shrink, and what has to agree with them.
- The twin is found by trying: transformers itself says whether a configuration makes a model that computes.
- Weights are random, so nothing of the model's own weights is read.
"""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from swe_rl.config.schema import ModelConfig
from swe_rl.model.load import ModelError, model_folder

# Sizes by their names in config.json. What a family does not have is left out, and no number grows.
_SIZES: Mapping[str, int] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 32,
    "head_dim": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "mamba_num_heads": 8,
    "mamba_n_heads": 8,
    "mamba_head_dim": 16,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_d_ssm": 128,
    "mamba_n_groups": 1,
    "num_heads": 8,
    "ssm_state_size": 16,
    "state_size": 16,
    "n_groups": 1,
    "hidden_size_per_layer_input": 16,
    "sliding_window": 256,
    "first_k_dense_replace": 1,
}
_LISTS = ("layers_block_type", "layer_types", "mlp_layer_types")
_FEWEST_LAYERS = 2
_TOKENIZER = ("tokenizer*", "vocab*", "merges.txt", "special_tokens*.json", "added_tokens.json", "*.jinja", "*.model")


def write_twin(model: ModelConfig, target: Path, seed: int = 0) -> int:
    """Writes the twin of `model.path` into the new folder `target`. Returns the number of its parameters.

    Raises ModelError where the model cannot be found, or none of the smaller configurations computes.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = model_folder(model)
    if not (folder / "config.json").is_file():
        raise ModelError(f"model.path={model.path} has no config.json; give a model's folder, or a name of the hub")
    said = AutoConfig.from_pretrained(folder, trust_remote_code=False).get_text_config().to_dict()
    try:
        shape = smallest_shape(said)
    except ModelError as error:
        raise ModelError(f"model.path={model.path}: {error}; use another model") from error
    torch.manual_seed(seed)
    twin = AutoModelForCausalLM.from_config(shape, dtype=torch.float32)
    twin.save_pretrained(target)
    _copy_tokenizer(folder, target)
    return int(sum(parameter.numel() for parameter in twin.parameters()))


def smallest_shape(said: Mapping[str, Any]) -> Any:
    """Returns a transformers configuration of a small model of the same architecture as the configuration `said`.

    Raises ModelError where none of the smaller configurations computes.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    problem: Exception | None = None
    for facts in _smaller(said):
        try:
            shape = AutoConfig.for_model(**facts)
            # Whoever asks in the middle of a run goes on with the same random numbers.
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                twin = AutoModelForCausalLM.from_config(shape, dtype=torch.float32).eval()
                twin(input_ids=torch.arange(8)[None], use_cache=False)
        except Exception as error:
            # transformers raises whatever its families raise: of a size that does not divide another one, of a list.
            problem = error
            continue
        return shape
    raise ModelError(f"no smaller model of its kind computes ({problem})")


def _smaller(said: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields configurations, the smallest first."""
    dropped = ("architectures", "quantization_config", "transformers_version")
    facts: dict[str, Any] = {
        key: value for key, value in said.items() if not key.startswith("_") and key not in dropped
    }
    sizes = {key: min(size, facts[key]) for key, size in _SIZES.items() if isinstance(facts.get(key), int)}
    if isinstance(facts.get("pad_token_id"), int) and facts["pad_token_id"] >= facts.get("vocab_size", 0):
        sizes["pad_token_id"] = 0
    layers = _fewer_layers(facts)
    # Multi-head latent attention has as many heads of keys as of queries; state-space mixers of some families are as
    # wide as the model.
    latent = {"num_key_value_heads": sizes.get("num_attention_heads", 4)}
    mixer: dict[str, int] = {key: 8 for key in ("mamba_n_heads", "mamba_num_heads", "num_heads") if key in facts}
    wide: dict[str, Any] = {"head_dim": 16}
    if "mamba_d_head" in facts:
        wide = {"mamba_d_head": "auto"}
    yield {**facts, **sizes, **layers}
    yield {**facts, **sizes, **layers, **latent}
    yield {**facts, **sizes, **layers, **mixer, **wide}
    yield {**facts, **layers}


def _fewer_layers(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns fewer layers, at least one of each kind, in the order in which the kinds begin."""
    lists = {key: list(facts[key]) for key in _LISTS if isinstance(facts.get(key), list)}
    total = facts.get("num_hidden_layers") or max((len(kinds) for kinds in lists.values()), default=_FEWEST_LAYERS)
    if not lists:
        # An attention every few layers has its place by its number.
        period = facts.get("attn_layer_period") or facts.get("full_attention_interval") or _FEWEST_LAYERS
        places = facts.get("attn_layer_indices")
        if isinstance(places, list) and places:
            return {"num_hidden_layers": _FEWEST_LAYERS, "attn_layer_indices": [1]}
        return {"num_hidden_layers": min(total, max(period, _FEWEST_LAYERS))}
    rows = list(zip(*lists.values(), strict=False))
    kept = [number for number, row in enumerate(rows) if row not in rows[:number]]
    while len(kept) < min(_FEWEST_LAYERS, total):
        kept.append(next(number for number in range(total) if number not in kept))
    chosen = {key: [kinds[number] for number in sorted(kept)] for key, kinds in lists.items()}
    return {**chosen, "num_hidden_layers": len(kept)}


def _copy_tokenizer(folder: Path, target: Path) -> None:
    for pattern in _TOKENIZER:
        for path in folder.glob(pattern):
            if not (target / path.name).exists():
                shutil.copyfile(path, target / path.name)
