"""Rules of the model: files that are there and are this model's, names that the program knows.

Invariants:
- Only `config.json` is read, and only in a folder; what the hub has is the preflight's.
- The names are those of swe_rl/model and swe_rl/trainer/sharded/attention.py, which a test compares.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cache
from typing import Any

from swe_rl.check.findings import Finding, Host, about, error, warning
from swe_rl.config.choices import EngineKind
from swe_rl.config.folders import PACKAGE, conf_dir
from swe_rl.config.keys import nearest
from swe_rl.config.known_models import (
    ARCHITECTURES,
    CHECKPOINT_FACTS,
    MANIFEST_FILE,
    STATE_FILE,
    facts_of,
    mixture_facts,
)
from swe_rl.config.parts import Part, starts
from swe_rl.config.schema import Config, ModelConfig
from swe_rl.config.yaml_text import read
from swe_rl.plan.sizes import uses_no_gpu

BUILTIN = "builtin:"
CHAT_TEMPLATES = ("qwen", "qwen_plain", "qwen_coder")
TOOL_PARSERS = ("hermes", "qwen3_coder", "none")
CPU_KERNEL = "by_row"
KERNELS = (CPU_KERNEL, "varlen", "flash_attn")  # fmt: skip
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_EXPORTED = ((MANIFEST_FILE, STATE_FILE), ("checkpoints",))  # a checkpoint, a run
_FROM_FILES = "folder"  # the option whose sizes are those of its files
_STEP = re.compile(r"step_\d+")
_SHOWN = 5
_FOLDER = "model.path=FOLDER with config.json, model.safetensors and a tokenizer, or ORG/NAME of the hub"


@about(Part.engines, Part.trainer, Part.warm_start)
def model_path(config: Config, host: Host) -> Iterator[Finding]:
    path = config.model.path
    fix = f"model.path={BUILTIN}{_shipped()[0]}, or {_FOLDER}" if path.startswith(BUILTIN) else _FOLDER
    yield from _no_model_or_run("model_path", "model.path", path, host, fix)


def _no_model_or_run(rule_id: str, key: str, path: str, host: Host, fix: str) -> Iterator[Finding]:
    """As `no_model`, for a key that also takes what `job/export` makes a model's folder of."""
    if is_exported(path, host):
        return
    yield from no_model(rule_id, key, path, host, fix)
    if host.exists(path) and not path.startswith(BUILTIN) and not host.exists(f"{path.rstrip('/')}/config.json"):
        words = "is neither a folder with a config.json nor a checkpoint or a run of this program"
        yield error(rule_id, key, words, fix)


def is_exported(path: str, host: Host) -> bool:
    """Whether it is a checkpoint or a run, of which a start makes a model's folder; or a checkpoint that its run has
    removed since then."""
    folder = path.rstrip("/")
    if any(all(host.exists(f"{folder}/{name}") for name in names) for names in _EXPORTED):
        return True
    checkpoints, _, step = folder.rpartition("/")
    run = checkpoints.removesuffix("checkpoints")
    return run != checkpoints and any(name.startswith(f"{step}-") for name in host.listing(f"{run}exports"))


def no_model(rule_id: str, key: str, path: str, host: Host, fix: str) -> Iterator[Finding]:
    """Where `path` is nothing at all: no model that ships, no folder, no name of the hub."""
    if path.startswith(BUILTIN):
        if path.removeprefix(BUILTIN) not in _shipped():
            yield error(rule_id, key, "no such model ships with the package", fix)
        return
    steps = _steps_beside(path, host)
    if not steps and not is_local(path, host):
        if not _HUB_ID.fullmatch(path):
            yield error(rule_id, key, "is neither a folder of this machine nor a name of the hub", fix)
    elif not host.exists(path):
        make = warning if host.elsewhere and not steps else error  # the machine that it is meant for may have it
        words = "there is no such folder on this machine"
        if steps:
            words = f"{words}; the run has the checkpoints {', '.join(steps[-_SHOWN:])}"
            fix = f"{key}={path.rstrip('/').rpartition('/')[0]}/{steps[-1]}"
        yield make(rule_id, key, words, fix)


def _steps_beside(path: str, host: Host) -> list[str]:
    """The checkpoints of a run, the newest last, where `path` is in their folder."""
    folder = path.rstrip("/").rpartition("/")[0]
    return sorted(filter(_STEP.fullmatch, host.listing(folder))) if folder.endswith("checkpoints") else []


def _shipped() -> list[str]:
    return sorted(folder.parent.name for folder in (PACKAGE / "model/checkpoints").glob("*/model.safetensors"))


@cache
def _known_models() -> Mapping[str, Mapping[str, Any]]:
    """The models that conf/model/ describes, by option: which files each one's sizes belong to. model=folder describes
    none."""
    files = sorted((conf_dir() / "model").glob("*.yaml"))
    return {path.stem: {**asdict(ModelConfig()), **read(path)} for path in files if path.stem != _FROM_FILES}


@about(Part.engines, Part.trainer, Part.warm_start)
def model_of_its_name(config: Config, _: Host) -> Iterator[Finding]:
    """A path that another option of conf/model has, with this option's sizes."""
    model, known = config.model, _known_models()
    option = next((name for name, values in known.items() if values.get("path") == model.path), None)
    if option is None:
        return
    wrong = [key for key in CHECKPOINT_FACTS if known[option].get(key, getattr(model, key)) != getattr(model, key)]
    if wrong:
        path = known.get(model.name, {}).get("path")
        yield error(
            "model_sizes",
            "model.path",
            f"is the model of model={option}, and model.{wrong[0]}={getattr(model, wrong[0])} is that of another one",
            f"model={option}" + (f", or model.path={path}" if path and path != model.path else ""),
        )


@about(Part.engines, Part.trainer, Part.warm_start)
def model_unread(config: Config, host: Host) -> Iterator[Finding]:
    """model=folder takes all sizes from files, and there are none."""
    model = config.model
    there = host.exists(model.path) or not is_local(model.path, host)  # else model_path says so
    if model.name == _FROM_FILES and there and not facts_of(model.path, model.revision):
        make = warning if host.elsewhere else error
        yield make(
            "model_unread",
            "model.path",
            "model=folder takes the sizes from the files of that model, and there are none here that can be read",
            f"{_FOLDER} that its cache holds; or the model option that fits",
        )


@about(Part.engines, Part.trainer)
def architecture(config: Config, host: Host) -> Iterator[Finding]:
    model = config.model
    kind = _facts(model, host).get("model_type") if is_local(model.path, host) else None
    computed_here = config.engine.kind is EngineKind.embedded or Part.trainer in starts(config)
    if computed_here and kind is not None and kind not in ARCHITECTURES:
        yield error(
            "architecture",
            "model.path",
            f"its config.json says model_type={kind}; trainer and embedded engine compute {', '.join(ARCHITECTURES)}",
            "a model of one of these kinds" + (", or engine=vllm" if Part.trainer not in starts(config) else ""),
        )


@about(Part.engines, Part.trainer)
def model_in_its_folder(config: Config, host: Host) -> Iterator[Finding]:
    """The sizes that its own `config.json` has."""
    model = config.model
    file_facts = _facts(model, host) if is_local(model.path, host) else {}
    said = {key: (name, file_facts[name]) for key, name in CHECKPOINT_FACTS.items() if name in file_facts}
    for key, (name, value) in {**said, **(mixture_facts(file_facts) if file_facts else {})}.items():
        if value != getattr(model, key):
            yield error(
                "model_sizes",
                f"model.{key}",
                f"the config.json of {model.path} {f'says {name}={value}' if value else f'has no {name}'}",
                f"model.{key}={value}, or model=folder, which reads it",
            )


@about(Part.engines, Part.trainer, Part.warm_start)
def mixture(config: Config, _: Host) -> Iterator[Finding]:
    """A mixture of experts says how many of them a token passes, and how wide they are."""
    model = config.model
    if model.num_experts and not 0 < model.active_experts <= model.num_experts:
        why = f"a token passes at least one and at most model.num_experts={model.num_experts} experts"
        yield error("mixture", "model.active_experts", why, f"model.active_experts={min(8, model.num_experts)}")
    if model.num_experts and not model.expert_intermediate_size:
        why = f"an expert of model.num_experts={model.num_experts} needs a width"
        yield error("mixture", "model.expert_intermediate_size", why, "model.expert_intermediate_size=768")


@about(Part.warm_start)
def experts_of_a_dense_model(config: Config, host: Host) -> Iterator[Finding]:
    """Whose MLPs become two experts each of as many slices as a token passes (`model/tiny.py`)."""
    model, start = config.model, config.sft.start
    if start is None:
        return
    fix = f"sft.start=null, or {_FOLDER.replace('model.path', 'sft.start')}"
    yield from _no_model_or_run("sft_start", "sft.start", start, host, fix)
    folder = str(PACKAGE / "model/checkpoints" / start.removeprefix(BUILTIN)) if start.startswith(BUILTIN) else start
    if not model.num_experts or not model.active_experts or facts_of(folder).get("num_experts"):
        return
    active, whole = model.active_experts, model.intermediate_size
    if model.num_experts != 2 * active:
        why = f"sft.start makes two experts of each slice, of which a token passes model.active_experts={active}"
        yield error("sft_start", "model.num_experts", why, f"model.num_experts={2 * active}, or sft.start=null")
    if whole % active or model.expert_intermediate_size != whole // active:
        why = f"sft.start cuts MLPs of model.intermediate_size={whole} into model.active_experts={active} slices"
        fix = "sft.start=null" if whole % active else f"model.expert_intermediate_size={whole // active}"
        yield error("sft_start", "model.expert_intermediate_size", why, fix)


@about(Part.engines, Part.warm_start)
def model_words(config: Config, _: Host) -> Iterator[Finding]:
    model = config.model
    for key, value, known in (
        ("model.chat_template", model.chat_template, CHAT_TEMPLATES),
        ("model.tool_parser", model.tool_parser, TOOL_PARSERS),
    ):
        if value not in known:
            near = (nearest(value, known) or known)[0]
            yield error("model_words", key, f"is not known; there are {', '.join(known)}", f"{key}={near}")
    tags = {"qwen_coder": "qwen3_coder", "qwen": "hermes", "qwen_plain": "hermes"}.get(model.chat_template)
    if tags and model.tool_parser in TOOL_PARSERS and model.tool_parser not in (tags, "none"):
        yield warning(
            "model_words",
            "model.tool_parser",
            f"model.chat_template={model.chat_template} asks for tool calls in another form, which it does not read",
            f"model.tool_parser={tags}",
        )


@about(Part.trainer, Part.warm_start)
def attention_kernel(config: Config, _: Host) -> Iterator[Finding]:
    value, cpu = config.trainer.attention, uses_no_gpu(config.layout)
    known = ("auto", CPU_KERNEL) if cpu else ("auto", *KERNELS)
    if value not in known:
        words = (
            f"layout={config.layout.name} uses no GPU, and a CPU has {CPU_KERNEL} only"
            if value in KERNELS
            else (f"there is no such kernel; there are {', '.join(KERNELS)}")
        )
        yield error("attention", "trainer.attention", words, "trainer.attention=auto")


def is_local(path: str, host: Host) -> bool:
    return path.startswith(("/", "./", "../", "~")) or (not path.startswith(BUILTIN) and host.exists(path))


def _facts(model: ModelConfig, host: Host) -> dict[str, Any]:
    text = host.read_text(f"{model.path.rstrip('/')}/config.json")
    try:
        facts = json.loads(text) if text else {}
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}
