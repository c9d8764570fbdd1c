"""This module reads what a model's own files say of it, in the keys of `model`.

Invariants:
- Only text is read: config.json, the chat template beside it, and the record of a checkpoint. Nothing of a folder is
  run, and nothing is fetched.
- A file that is missing or makes no sense has no facts; the rules say so (check/rules/model.py).
"""

import ast
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

from swe_rl.config.choices import FAST_ARCHITECTURES
from swe_rl.config.schema import ModelConfig
from swe_rl.host.parameter_count import count_parameters
from swe_rl.templates.names import OWN, OWN_PARSERS

_CAUSAL_TABLE = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"
# Maps keys of `model` to their names in a checkpoint's config.json.
CHECKPOINT_FACTS = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "vocab_size": "vocab_size",
}
# Does the same for a mixture of experts; a dense model's file has none of them. transformers 5 writes the first one's
# alias.
MIXTURE_FACTS = {
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "active_experts": ("num_experts_per_tok",),
    "expert_intermediate_size": ("moe_intermediate_size",),
}
# A checkpoint has these two files. Without the second it is not whole.
STATE_FILE = "state.json"
MANIFEST_FILE = "manifest.json"
# An export writes the words that the model was trained with under this name into config.json.
PROMPT_FACT = "swe_rl_system_prompt"
# The names under which families list their layers, one entry a layer.
_LISTS_OF_LAYERS = ("layers_block_type", "layer_types", "hybrid_override_pattern")
# The format of safetensors allows no longer header.
_MOST_HEADER_BYTES = 100_000_000
_DEFAULTS = ModelConfig(system_prompt="standard")
# No file decides these keys of `model`.
_SAYS_WHERE = ("name", "path", "revision")


def text_part(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns what a config.json says of the language model, which a multimodal one has in a table of its own."""
    inner = facts.get("text_config")
    if isinstance(inner, dict):
        return {**facts, **inner}
    return facts


def mixture_facts(facts: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Maps keys of `model` to the name and the number in a config.json; a dense model gets the first name and 0."""
    found = {
        key: next(((name, facts[name]) for name in names if facts.get(name)), (names[0], 0))
        for key, names in MIXTURE_FACTS.items()
    }
    if found["num_experts"][1] and not found["expert_intermediate_size"][1]:
        # Mixtral and gpt-oss have no dense layer, so their experts have the plain name.
        found["expert_intermediate_size"] = ("intermediate_size", facts.get("intermediate_size"))
    return found


def plain_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Maps keys of `model` to the numbers of a config.json, also of families that give fewer of them.

    A model of states has no heads: it counts as one head that is as wide as the model. One whose layers are listed has
    as many as the list, and one whose MLPs are experts alone has their width.
    """
    numbers = {key: facts.get(name) for key, name in CHECKPOINT_FACTS.items()}
    if facts.get("model_type") in FAST_ARCHITECTURES:
        return numbers
    listed = next((facts[name] for name in _LISTS_OF_LAYERS if facts.get(name)), None)
    others = {
        "num_layers": None if listed is None else len(listed),
        "num_heads": 1,
        "num_kv_heads": numbers["num_heads"] or 1,
        "intermediate_size": facts.get("moe_intermediate_size") or numbers["hidden_size"],
    }
    return numbers | {key: value for key, value in others.items() if numbers[key] is None}


@cache
def causal_architectures() -> frozenset[str]:
    """Returns the `model_type` of every causal language model that the installed transformers computes.

    Its table is read as text, because an import would load torch. Empty where transformers is not installed.
    """
    package = find_spec("transformers")
    places = None
    if package:
        places = package.submodule_search_locations
    text = None
    if places:
        text = _read_text(Path(places[0]) / "models/auto/modeling_auto.py")
    for node in ast.parse(text or "").body:
        target = None
        if isinstance(node, ast.Assign):
            target = node.targets[0]
        if isinstance(target, ast.Name) and target.id == _CAUSAL_TABLE and isinstance(node, ast.Assign):
            call = node.value
            if isinstance(call, ast.Call):
                return frozenset(dict(ast.literal_eval(call.args[0])))
            return frozenset()
    return frozenset()


def parameters_b(model: ModelConfig, experts: int | None = None) -> float:
    """Counts the parameters of a Qwen3, or of another fast family, with these facts in billions: embeddings, attention
    with norms, gated MLP or experts.

    `experts` says how many of each layer's are counted; None for all. A dense layer counts its MLP.
    """
    if experts is None:
        experts = model.num_experts
    queries = model.num_heads * model.head_dim
    keys = model.num_kv_heads * model.head_dim
    attention = model.hidden_size * (2 * queries + 2 * keys) + 2 * model.head_dim
    mlp = 3 * model.hidden_size * model.intermediate_size
    if experts:
        router = model.num_experts * model.hidden_size
        mlp = experts * 3 * model.hidden_size * model.expert_intermediate_size + router
    layers = model.num_layers * (attention + mlp + 2 * model.hidden_size)
    embeddings = model.vocab_size * model.hidden_size * (1 if model.tie_word_embeddings else 2)
    return (layers + embeddings + model.hidden_size) / 1e9


def resolve_fact(key: str, path: str, revision: str | None = None) -> Any:
    """Resolves `${swe_rl.model:num_layers,${model.path},${model.revision}}` in conf/: a value of `model` as the files
    of that model have it, or the schema's default if there are none."""
    return facts_of(path, revision).get(key, getattr(_DEFAULTS, key))


@cache
def facts_of(path: str, revision: str | None = None) -> Mapping[str, Any]:
    """Maps keys of `model` to what the files say; empty if nothing can be read.

    `path` is a model's folder, a checkpoint of this program, a run with one, or a name of the hub whose files are in
    the hub's cache.
    """
    for folder in folders_of(path, revision):
        facts = _of_a_checkpoint(folder) or _of_a_folder(folder)
        if facts:
            return facts
    return {}


def folders_of(path: str, revision: str | None) -> list[Path]:
    """Returns the folders that may have the model's files; none for a name of the hub that is not in its cache."""
    place = Path(path).expanduser()
    if place.parent.name == "checkpoints" and not place.exists():
        # The run has removed this checkpoint, and has others of the same sizes.
        place = place.parent.parent
    if place.is_dir():
        return [place, *sorted((place / "checkpoints").glob("step_*"), reverse=True)]
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub") / f"models--{path.replace('/', '--')}"
    named = _read_text(hub / "refs" / (revision or "main")) or revision or ""
    if named:
        return [hub / "snapshots" / named.strip()]
    return []


def _of_a_checkpoint(folder: Path) -> dict[str, Any]:
    """Returns the facts of the run that wrote the checkpoint, or nothing if the folder is no whole checkpoint."""
    saved = _read_table(folder / STATE_FILE).get("config")
    if not isinstance(saved, dict) or not (folder / MANIFEST_FILE).is_file():
        return {}
    names = [field.name for field in fields(ModelConfig) if field.name not in _SAYS_WHERE]
    return {name: saved[f"model.{name}"] for name in names if f"model.{name}" in saved}


def _of_a_folder(folder: Path) -> dict[str, Any]:
    """Returns the facts of a model's folder, or nothing if a number is missing or makes no sense: computing with it
    would fail."""
    whole = _read_table(folder / "config.json")
    said = text_part(whole)
    facts = plain_facts(said)
    facts |= {key: value for key, (_, value) in mixture_facts(said).items()}
    facts["max_position_embeddings"] = said.get("max_position_embeddings", _DEFAULTS.max_position_embeddings)
    if not all(isinstance(value, int) and value >= 0 for value in facts.values()) or not facts["num_heads"]:
        return {}
    rope = said.get("rope_parameters")
    head_dim = said.get("head_dim")
    theta = (rope if isinstance(rope, dict) else said).get("rope_theta")
    prompt = said.get(PROMPT_FACT)
    if not isinstance(head_dim, int):
        head_dim = facts["hidden_size"] // facts["num_heads"]
    if not isinstance(prompt, str):
        prompt = _DEFAULTS.system_prompt
    if not isinstance(theta, int | float):
        theta = _DEFAULTS.rope_theta
    facts |= {
        "head_dim": head_dim,
        "tie_word_embeddings": said.get("tie_word_embeddings") is True,
        "system_prompt": prompt,
        "rope_theta": float(theta),
    }
    sizes = ModelConfig(**facts)
    stored = _stored_parameters(folder)
    families = [table.get("model_type") for table in (said, whole)]
    if stored is None and families[0] not in FAST_ARCHITECTURES and _can_be_counted(families):
        counted = count_parameters(folder / "config.json")
        stored = None
        if counted:
            stored = _StoredParameters(*counted)
    if stored is None:
        params_b = parameters_b(sizes)
        active_b = parameters_b(sizes, sizes.active_experts)
    else:
        params_b = stored.all_b
        share = 1.0
        if sizes.num_experts:
            share = sizes.active_experts / sizes.num_experts
        active_b = stored.all_b - stored.experts_b * (1.0 - share)
    return facts | {"params_b": round(params_b, 6), "active_params_b": round(active_b, 6)} | _chat_facts(folder)


def _can_be_counted(families: Sequence[Any]) -> bool:
    """Tells whether transformers can make a model of one of the families: a child that tries takes seconds."""
    return any(isinstance(family, str) and family in causal_architectures() for family in families)


@dataclass(frozen=True, slots=True)
class _StoredParameters:
    """Billions of parameters in the files of a model; `experts_b` of them belong to experts that tokens choose."""

    all_b: float
    experts_b: float


def _stored_parameters(folder: Path) -> _StoredParameters | None:
    """Counts the parameters by the headers of the safetensors files; None where there are none, or they are cut."""
    files = sorted(folder.glob("*.safetensors"))
    counted = experts = 0
    for path in files:
        shapes = _shapes_in(path)
        if shapes is None:
            return None
        for name, shape in shapes.items():
            counted += prod(shape)
            if ".experts." in name:
                experts += prod(shape)
    if counted:
        return _StoredParameters(counted / 1e9, experts / 1e9)
    return None


def _shapes_in(path: Path) -> dict[str, list[int]] | None:
    """Returns the shape of each tensor: a safetensors file begins with the length of a JSON header, then has it."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > _MOST_HEADER_BYTES:
                return None
            header = json.loads(file.read(length))
        return {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _chat_facts(folder: Path) -> dict[str, Any]:
    """Returns the chat format of the model's own template, or nothing if it has none: one of ours where that begins a
    conversation in the same way, else the template itself."""
    from swe_rl.templates.formats import recognized
    from swe_rl.templates.own.files import read_texts, read_tokens

    texts = read_texts(folder)
    if texts is None:
        return {}
    if texts.with_tools is None:
        name = recognized(texts.text, read_tokens(folder).variables)
    else:
        name = OWN
    return {"chat_template": name, "tool_parser": OWN_PARSERS.get(name, OWN)}


def _read_table(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_read_text(path) or "{}")
    except ValueError:
        return {}
    if isinstance(content, dict):
        return content
    return {}


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
