"""What a model's own files say of it, in the keys of `model`.

Invariants:
- Only text is read: config.json, the chat template beside it, and the record of a checkpoint. Nothing of a folder is
  run, and nothing is fetched.
- A file that is missing or makes no sense has no facts; the rules say so (check/rules/model.py).
"""

import json
import os
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from swe_rl.config.schema import ModelConfig

ARCHITECTURES = ("llama", "qwen2", "qwen3", "qwen3_moe")  # `model_type` that trainer and embedded engine compute
# Keys of `model` and what a checkpoint's config.json calls them.
CHECKPOINT_FACTS = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "vocab_size": "vocab_size",
}
# The same of a mixture of experts; a dense model's file has none of them. transformers 5 writes the first one's alias.
MIXTURE_FACTS = {
    "num_experts": ("num_experts", "num_local_experts"),
    "active_experts": ("num_experts_per_tok",),
    "expert_intermediate_size": ("moe_intermediate_size",),
}
STATE_FILE, MANIFEST_FILE = "state.json", "manifest.json"  # of a checkpoint; without the second it is not whole
PROMPT_FACT = "swe_rl_system_prompt"  # of a config.json that an export wrote: the words that the model was trained with
_DEFAULTS = ModelConfig(system_prompt="standard")
_SAYS_WHERE = ("name", "path", "revision")  # keys of `model` that no file decides


def mixture_facts(facts: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """By key of `model`: the name and the number in a config.json; of a dense model the first name and 0."""
    return {
        key: next(((name, facts[name]) for name in names if facts.get(name)), (names[0], 0))
        for key, names in MIXTURE_FACTS.items()
    }


def parameters_b(model: ModelConfig, experts: int | None = None) -> float:
    """Billions of parameters of a Qwen3 with these facts: embeddings, attention with norms, gated MLP or experts.

    `experts`: how many of each layer's are counted; None for all. Of a dense layer it is its MLP.
    """
    experts = model.num_experts if experts is None else experts
    queries, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    attention = model.hidden_size * (2 * queries + 2 * keys) + 2 * model.head_dim
    mlp = 3 * model.hidden_size * model.intermediate_size
    if experts:
        router = model.num_experts * model.hidden_size
        mlp = experts * 3 * model.hidden_size * model.expert_intermediate_size + router
    layers = model.num_layers * (attention + mlp + 2 * model.hidden_size)
    embeddings = model.vocab_size * model.hidden_size * (1 if model.tie_word_embeddings else 2)
    return (layers + embeddings + model.hidden_size) / 1e9


def fact(key: str, path: str, revision: str | None = None) -> Any:
    """`${swe_rl.model:num_layers,${model.path},${model.revision}}` in conf/: a value of `model` as the files of that
    model have it; the schema's default where there are none."""
    return facts_of(path, revision).get(key, getattr(_DEFAULTS, key))


@cache
def facts_of(path: str, revision: str | None = None) -> Mapping[str, Any]:
    """Keys of `model` with what the files say; empty where nothing can be read.

    `path`: a model's folder, a checkpoint of this program, a run with one, or a name of the hub whose files are in the
    hub's cache.
    """
    for folder in _folders(path, revision):
        facts = _of_a_checkpoint(folder) or _of_a_folder(folder)
        if facts:
            return facts
    return {}


def _folders(path: str, revision: str | None) -> list[Path]:
    place = Path(path).expanduser()
    if place.parent.name == "checkpoints" and not place.exists():
        place = place.parent.parent  # its run has removed it, and has others of the same sizes
    if place.is_dir():
        return [place, *sorted((place / "checkpoints").glob("step_*"), reverse=True)]
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub") / f"models--{path.replace('/', '--')}"
    named = _text(hub / "refs" / (revision or "main")) or revision or ""
    return [hub / "snapshots" / named.strip()] if named else []


def _of_a_checkpoint(folder: Path) -> dict[str, Any]:
    """What the run had that wrote it."""
    saved = _table(folder / STATE_FILE).get("config")
    if not isinstance(saved, dict) or not (folder / MANIFEST_FILE).is_file():
        return {}
    names = [field.name for field in fields(ModelConfig) if field.name not in _SAYS_WHERE]
    return {name: saved[f"model.{name}"] for name in names if f"model.{name}" in saved}


def _of_a_folder(folder: Path) -> dict[str, Any]:
    """Nothing where a number is missing or is none, as what is computed from it must not fail."""
    said = _table(folder / "config.json")
    facts: dict[str, Any] = {key: said.get(name) for key, name in CHECKPOINT_FACTS.items()}
    facts |= {key: value for key, (_, value) in mixture_facts(said).items()}
    facts["max_position_embeddings"] = said.get("max_position_embeddings", _DEFAULTS.max_position_embeddings)
    if not all(isinstance(value, int) and value >= 0 for value in facts.values()) or not facts["num_heads"]:
        return {}
    rope, head_dim = said.get("rope_parameters"), said.get("head_dim")
    theta = (rope if isinstance(rope, dict) else said).get("rope_theta")
    prompt = said.get(PROMPT_FACT)
    facts |= {
        "head_dim": head_dim if isinstance(head_dim, int) else facts["hidden_size"] // facts["num_heads"],
        "tie_word_embeddings": said.get("tie_word_embeddings") is True,
        "system_prompt": prompt if isinstance(prompt, str) else _DEFAULTS.system_prompt,
        "rope_theta": float(theta) if isinstance(theta, int | float) else _DEFAULTS.rope_theta,
    }
    sizes = ModelConfig(**facts)
    params_b, active_b = parameters_b(sizes), parameters_b(sizes, sizes.active_experts)
    return facts | {"params_b": round(params_b, 6), "active_params_b": round(active_b, 6)} | _speech(folder)


def _speech(folder: Path) -> dict[str, Any]:
    """Which of our chat formats its own template writes; nothing where it has none."""
    theirs = _text(folder / "chat_template.jinja") or str(_table(folder / "tokenizer_config.json").get("chat_template"))
    if "<function=" in theirs:
        return {"chat_template": "qwen_coder", "tool_parser": "qwen3_coder"}
    if "<|im_start|>" not in theirs:
        return {}
    # Qwen3 begins every reply with a think block, which its template writes where thinking is off.
    return {"chat_template": "qwen" if "enable_thinking" in theirs else "qwen_plain", "tool_parser": "hermes"}


def _table(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_text(path) or "{}")
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
