"""Rules of the model check that its files are there and are this model's, and that the program knows its names.

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

from swe_rl.check.findings import Finding, Host, error, error_if, rule_about, warning
from swe_rl.config.choices import FAST_ARCHITECTURES, EngineKind
from swe_rl.config.folders import PACKAGE, conf_dir
from swe_rl.config.keys import nearest_words
from swe_rl.config.known_models import (
    CHECKPOINT_FACTS,
    MANIFEST_FILE,
    MIXTURE_FACTS,
    STATE_FILE,
    causal_architectures,
    facts_of,
    mixture_facts,
    text_part,
)
from swe_rl.config.parts import Part, started_parts
from swe_rl.config.schema import Config, ModelConfig
from swe_rl.config.yaml_text import read_yaml
from swe_rl.facts.sizes import uses_no_gpu
from swe_rl.templates.names import OWN, OWN_PARSERS, TEMPLATES

BUILTIN = "builtin:"
CHAT_TEMPLATES = (*TEMPLATES, OWN)
TOOL_PARSERS = ("hermes", "qwen3_coder", OWN, "none")
CPU_KERNEL = "by_row"
KERNELS = (CPU_KERNEL, "varlen", "flash_attn")  # fmt: skip
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_EXPORTED = ((MANIFEST_FILE, STATE_FILE), ("checkpoints",))  # the first names tell a checkpoint, the second a run
# A path that begins so is meant for a folder, though an owner on the hub may have any name.
_FOLDER_NAMES = frozenset(
    [
        "model",
        "models",
        "checkpoint",
        "checkpoints",
        "ckpt",
        "ckpts",
        "weights",
        "export",
        "exports",
        "run",
        "runs",
        "output",
        "outputs",
        "data",
        "tmp",
    ]
)
_FROM_FILES = "folder"  # this option takes its sizes from the files
_STEP = re.compile(r"step_\d+")
_SHOWN = 5
# Keys of a config.json that begin so are of layers that are not attention alone.
_STATES = ("mamba_", "linear_conv", "ssm_", "state_size", "conv_")
_FOLDER = "model.path=FOLDER with config.json, model.safetensors and a tokenizer, or ORG/NAME of the hub"


@rule_about(Part.engines, Part.trainer, Part.warm_start)
def model_path(config: Config, host: Host) -> Iterator[Finding]:
    path = config.model.path
    if path.startswith(BUILTIN):
        fix = f"model.path={BUILTIN}{_shipped_models()[0]}, or {_FOLDER}"
    else:
        fix = _FOLDER
    findings = list(_no_model_or_run("model_path", "model.path", path, host, fix))
    yield from findings
    if not findings and _is_unknown_name(config.model, host):
        yield warning(
            "model_path",
            "model.path",
            f"there is no such folder on this machine, so it is taken for a model of the hub, which the hub's cache "
            f"here does not have; its sizes are taken from model={config.model.name}",
            f"nothing if the hub has it; else {_FOLDER}",
        )


def _is_unknown_name(model: ModelConfig, host: Host) -> bool:
    """Tells whether the path is a name of the hub that no option has and of which nothing is in the cache here."""
    if is_local(model.path, host) or is_exported(model.path, host) or not _HUB_ID.fullmatch(model.path):
        return False
    known = model.name == _FROM_FILES or model.path in _known_paths()  # model_unread looks at the first
    return not known and not host.elsewhere and not facts_of(model.path, model.revision)


def _no_model_or_run(rule_id: str, key: str, path: str, host: Host, fix: str) -> Iterator[Finding]:
    """Finds a path that is neither a model nor something of which `job/export` makes a model's folder."""
    if is_exported(path, host):
        return
    yield from no_model(rule_id, key, path, host, fix)
    if host.exists(path) and not path.startswith(BUILTIN) and not host.exists(f"{path.rstrip('/')}/config.json"):
        words = "is neither a folder with a config.json nor a checkpoint or a run of this program"
        yield error(rule_id, key, words, fix)


def is_exported(path: str, host: Host) -> bool:
    """Tells whether a path is a checkpoint or a run, of which a start makes a model's folder.

    A checkpoint that its run has removed since then counts too.
    """
    folder = path.rstrip("/")
    if any(all(host.exists(f"{folder}/{name}") for name in names) for names in _EXPORTED):
        return True
    checkpoints, _, step = folder.rpartition("/")
    run = checkpoints.removesuffix("checkpoints")
    return run != checkpoints and any(name.startswith(f"{step}-") for name in host.listing(f"{run}exports"))


def no_model(rule_id: str, key: str, path: str, host: Host, fix: str) -> Iterator[Finding]:
    """Finds that `path` is nothing at all: no model that ships, no folder, no name of the hub."""
    if path.startswith(BUILTIN):
        if path.removeprefix(BUILTIN) not in _shipped_models():
            yield error(rule_id, key, "no such model ships with the package", fix)
        return
    steps = _steps_beside(path, host)
    make = error_if(not host.elsewhere or bool(steps))  # the machine that the path is meant for may have it
    if not steps and not is_local(path, host):
        owner = path.partition("/")[0]
        if not _HUB_ID.fullmatch(path):
            yield make(rule_id, key, "is neither a folder of this machine nor a name of the hub (ORG/NAME)", fix)
        elif host.listing(owner) and path not in _known_paths():
            words = (
                f"the folder {owner}/ of this machine has no such folder in it, and it would be looked for on the hub"
            )
            yield make(rule_id, key, words, fix)
        elif owner.lower() in _FOLDER_NAMES and not facts_of(path):
            words = f"there is no such folder on this machine, and no model of the hub is meant by a name with {owner}/"
            yield make(rule_id, key, words, fix)
    elif not host.exists(path):
        words = "there is no such folder on this machine"
        if steps:
            words = f"{words}; the run has the checkpoints {', '.join(steps[-_SHOWN:])}"
            fix = f"{key}={path.rstrip('/').rpartition('/')[0]}/{steps[-1]}"
        yield make(rule_id, key, words, fix)


def _steps_beside(path: str, host: Host) -> list[str]:
    """Returns the checkpoints of a run, the newest last, where `path` is in their folder."""
    folder = path.rstrip("/").rpartition("/")[0]
    if not folder.endswith("checkpoints"):
        return []
    return sorted(filter(_STEP.fullmatch, host.listing(folder)))


def _shipped_models() -> list[str]:
    return sorted(folder.parent.name for folder in (PACKAGE / "model/checkpoints").glob("*/model.safetensors"))


@cache
def _known_models() -> Mapping[str, Mapping[str, Any]]:
    """Returns the models that conf/model/ describes, by option: which files each one's sizes belong to.

    model=folder describes none.
    """
    files = sorted((conf_dir() / "model").glob("*.yaml"))
    return {path.stem: {**asdict(ModelConfig()), **read_yaml(path)} for path in files if path.stem != _FROM_FILES}


def _known_paths() -> frozenset[object]:
    return frozenset(values.get("path") for values in _known_models().values())


def is_as_shipped(model: ModelConfig) -> bool:
    """Tells whether the sizes are those of the option that the model is named after: a test has counted these."""
    shipped = _known_models().get(model.name, {})
    keys = ("params_b", "head_dim", *CHECKPOINT_FACTS, *MIXTURE_FACTS)
    return bool(shipped) and all(shipped.get(key) == getattr(model, key) for key in keys)


@rule_about(Part.engines, Part.trainer, Part.warm_start)
def model_of_its_name(config: Config, _: Host) -> Iterator[Finding]:
    """Refuses a path that another option of conf/model has, with this option's sizes."""
    model = config.model
    known = _known_models()
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


@rule_about(Part.engines, Part.trainer, Part.warm_start)
def model_unread(config: Config, host: Host) -> Iterator[Finding]:
    """Finds that model=folder takes all sizes from files, and there are none."""
    model = config.model
    there = host.exists(model.path) or not is_local(model.path, host)  # otherwise model_path says so
    if model.name == _FROM_FILES and there and not facts_of(model.path, model.revision):
        make = error_if(not host.elsewhere)
        yield make(
            "model_unread",
            "model.path",
            "model=folder takes the sizes from the files of that model, and there are none here that can be read",
            f"{_FOLDER} that its cache holds; or the model option that fits",
        )


@rule_about(Part.engines, Part.trainer)
def check_architecture(config: Config, host: Host) -> Iterator[Finding]:
    model = config.model
    kind = model_type(model, host)
    trains = Part.trainer in started_parts(config)
    computed_here = config.engine.kind is EngineKind.embedded or trains
    if kind is None or not computed_here or kind in FAST_ARCHITECTURES:
        return
    known = causal_architectures()
    if known and kind not in known:
        yield error(
            "architecture",
            "model.path",
            f"its config.json says model_type={kind}, which is no causal language model of the transformers here"
            + "".join(f" (it has {name})" for name in nearest_words(str(kind), sorted(known), count=1)),
            "a newer transformers, or another model" + ("" if trains else "; or engine=vllm"),
        )
    elif trains and (config.layout.trainer_gpus or config.layout.trainer_ranks):
        shared = {"sequence_parallel": "a sequence", "expert_parallel": "experts"}
        for key in (key for key in shared if getattr(config.layout, key) > 1):
            yield error(
                "architecture",
                f"layout.{key}",
                f"the config.json of model.path says model_type={kind}, and ranks share {shared[key]} only of "
                f"{', '.join(FAST_ARCHITECTURES)}",
                f"layout.{key}=1, or a model of one of these kinds",
            )
        states = sorted(name for name in _read_facts(model, host) if name.startswith(_STATES))
        if states:
            yield warning(
                "rows_alone",
                "model.path",
                f"its config.json has {states[0]}: its layers have convolutions or states, which would run on from row "
                "to row, so ranks compute one row at a time, not several packed ones",
                "nothing, if that is fast enough; or a model whose layers are attention alone",
            )


@rule_about(Part.engines, Part.trainer)
def model_in_its_folder(config: Config, host: Host) -> Iterator[Finding]:
    """Finds sizes that differ from those of the model's own `config.json`."""
    model = config.model
    file_facts = _read_facts(model, host) if is_local(model.path, host) else {}
    said = {key: (name, file_facts[name]) for key, name in CHECKPOINT_FACTS.items() if name in file_facts}
    for key, (name, value) in {**said, **(mixture_facts(file_facts) if file_facts else {})}.items():
        if value != getattr(model, key):
            yield error(
                "model_sizes",
                f"model.{key}",
                f"the config.json of {model.path} {f'says {name}={value}' if value else f'has no {name}'}",
                f"model.{key}={value}, or model=folder, which reads it",
            )


@rule_about(Part.engines, Part.trainer, Part.warm_start)
def check_mixture(config: Config, _: Host) -> Iterator[Finding]:
    """Refuses a mixture of experts that does not say how many a token passes, and how wide they are."""
    model = config.model
    if model.num_experts and not 0 < model.active_experts <= model.num_experts:
        why = f"a token passes at least one and at most model.num_experts={model.num_experts} experts"
        yield error("mixture", "model.active_experts", why, f"model.active_experts={min(8, model.num_experts)}")
    if model.num_experts and not model.expert_intermediate_size:
        why = f"an expert of model.num_experts={model.num_experts} needs a width"
        yield error("mixture", "model.expert_intermediate_size", why, "model.expert_intermediate_size=768")


@rule_about(Part.warm_start)
def experts_of_a_dense_model(config: Config, host: Host) -> Iterator[Finding]:
    """Refuses sizes of experts that cannot be made from a dense model.

    Each of its MLPs becomes two experts for each slice, of which there are as many as a token passes (`model/tiny.py`).
    """
    model = config.model
    start = config.sft.start
    if start is None:
        return
    fix = f"sft.start=null, or {_FOLDER.replace('model.path', 'sft.start')}"
    yield from _no_model_or_run("sft_start", "sft.start", start, host, fix)
    if start.startswith(BUILTIN):
        folder = str(PACKAGE / "model/checkpoints" / start.removeprefix(BUILTIN))
    else:
        folder = start
    if not model.num_experts or not model.active_experts or facts_of(folder).get("num_experts"):
        return
    active = model.active_experts
    whole = model.intermediate_size
    if model.num_experts != 2 * active:
        why = f"sft.start makes two experts of each slice, of which a token passes model.active_experts={active}"
        yield error("sft_start", "model.num_experts", why, f"model.num_experts={2 * active}, or sft.start=null")
    if whole % active or model.expert_intermediate_size != whole // active:
        why = f"sft.start cuts MLPs of model.intermediate_size={whole} into model.active_experts={active} slices"
        if whole % active:
            fix = "sft.start=null"
        else:
            fix = f"model.expert_intermediate_size={whole // active}"
        yield error("sft_start", "model.expert_intermediate_size", why, fix)


@rule_about(Part.engines, Part.warm_start)
def model_words(config: Config, _: Host) -> Iterator[Finding]:
    model = config.model
    for key, value, known in (
        ("model.chat_template", model.chat_template, CHAT_TEMPLATES),
        ("model.tool_parser", model.tool_parser, TOOL_PARSERS),
    ):
        if value not in known:
            near = (nearest_words(value, known) or known)[0]
            yield error("model_words", key, f"is not known; there are {', '.join(known)}", f"{key}={near}")
    tags = OWN_PARSERS.get(model.chat_template)
    if tags and model.tool_parser in TOOL_PARSERS and model.tool_parser not in (tags, OWN, "none"):
        yield warning(
            "model_words",
            "model.tool_parser",
            f"model.chat_template={model.chat_template} asks for tool calls in another form, which it does not read",
            f"model.tool_parser={tags}",
        )


@rule_about(Part.trainer, Part.warm_start)
def attention_kernel(config: Config, _: Host) -> Iterator[Finding]:
    value = config.trainer.attention
    cpu = uses_no_gpu(config.layout)
    known = ("auto", CPU_KERNEL) if cpu else ("auto", *KERNELS)
    if value not in known:
        if value in KERNELS:
            words = f"layout={config.layout.name} uses no GPU, and a CPU has {CPU_KERNEL} only"
        else:
            words = f"there is no such kernel; there are {', '.join(KERNELS)}"
        yield error("attention", "trainer.attention", words, "trainer.attention=auto")


def is_local(path: str, host: Host) -> bool:
    return path.startswith(("/", "./", "../", "~")) or (not path.startswith(BUILTIN) and host.exists(path))


def model_type(model: ModelConfig, host: Host) -> str | None:
    """Returns the `model_type` that the config.json of a local folder has; None where there is none."""
    if is_local(model.path, host):
        kind = _read_facts(model, host).get("model_type")
    else:
        kind = None
    if not isinstance(kind, str):
        return None
    return kind


def _read_facts(model: ModelConfig, host: Host) -> dict[str, Any]:
    text = host.read_text(f"{model.path.rstrip('/')}/config.json")
    try:
        facts = json.loads(text) if text else {}
    except ValueError:
        return {}
    if not isinstance(facts, dict):
        return {}
    kind = {"model_type": facts["model_type"]} if "model_type" in facts else {}
    return {**text_part(facts), **kind}  # a multimodal model has its type beside that of its text
