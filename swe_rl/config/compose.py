"""From overrides to one frozen configuration.

Invariants:
- The same overrides and files give the same Config, from any working directory.
- A mistake in the overrides or files is a ConfigError, one paragraph; never a traceback of Hydra's.
- No folder is created and nothing is started.
"""

import copy
import hashlib
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swe_rl.config.choices import ExtensionKind, SandboxKind
from swe_rl.config.explain import ConfigError, explained, groups_of
from swe_rl.config.folders import conf_dir, offered, option_names
from swe_rl.config.hydra_internals import apply_values, combinations, decides_as_it_goes, search
from swe_rl.config.launcher import is_slurm, misspelled, no_such_setting
from swe_rl.config.provenance import Origins
from swe_rl.config.schema import Config
from swe_rl.config.secrets import hide_secrets, mask_value
from swe_rl.config.store import freeze, from_home, other_kind, register

if TYPE_CHECKING:
    from omegaconf import DictConfig, ListConfig

# What does not change the result of a run, or is a path: two runs that differ in nothing else are the same run.
_UNHASHED_GROUPS = ("job", "paths", "logger", "runtime", "hardware")
_JOBS_PER_WORKER = 8  # starting a process costs about as much as composing one job
_HASHED_TABLE = "hardware.env_vars."  # what the run's processes read may change what they compute
_UNHASHED_KEYS = (
    "name",
    "trainer.resume",
    "sft.output",
    "layout.name",
    "layout.trainer_gpus",  # the same sums in another order: a run goes on with another number of ranks
    "layout.trainer_ranks",
    "layout.sequence_parallel",
    "layout.expert_parallel",
    "layout.shard_ranks",
    "trainer.max_tokens_per_micro_batch",  # the same sums in less memory, as the next two: a run that ran out goes on
    "trainer.activation_checkpointing",
    "trainer.offload_optimizer",
    "trainer.collective_timeout_s",
    "trainer.max_restarts",
    "trainer.keep_checkpoints",  # a run that filled its disk goes on with fewer
    "trainer.weight_sync",  # the same weights by another way
    "rollout.max_wait_s",  # patience, as is the next
    "engine.max_away_s",
    "rollout.typical_trajectory_tokens",  # for estimates, as is the workload
    "rollout.typical_trajectory_s",
)
PATHS = {  # may begin with `~`; a test knows all other words of the schema as no paths
    "paths": ("outputs", "scratch", "cache", "sync_to"),
    "job": ("runs", "output", "baseline", "candidate", "workload_from", "checkpoint", "statement", "repository"),
    "runtime": ("shared_dir",),
    "model": ("path",),
    "env": ("dataset", "eval_dataset", "instances", "probe", "proofs"),
    "algo": ("teacher",),
    "trainer": ("resume",),
    "sft": ("start", "output"),
}
_UNHASHED_TABLE = "rollout.workload."


@dataclass(frozen=True)
class Composed:
    """`overrides` hold no secret; `choices` maps each group to the chosen option; `launcher` is Hydra's, its settings
    unresolved."""

    config: Config
    overrides: tuple[str, ...]
    choices: dict[str, str]
    launcher: str
    multirun: bool
    origins: Origins
    launcher_settings: dict[str, Any] = field(default_factory=dict)
    sweep_subdir: str = ""
    sweep_dir: str = ""  # resolved: a time in it is that of this composition


def compose(overrides: Sequence[str] = (), config_dir: Path | None = None) -> Composed:
    """Composes conf/ under `overrides`; `config_dir` is a folder of the user's own options.

    Raises ConfigError (exit status 2) with the key, the reason and the nearest legal spelling.
    """
    safe = hide_secrets(overrides)
    with explained(safe, config_dir):
        tree = _compose_tree(safe, config_dir)
        return from_tree(tree, tree.hydra, safe)


def compose_all(jobs: Sequence[Sequence[str]], config_dir: Path | None = None) -> list[Composed]:
    """Composes each job of a sweep, in order, as `compose` would, faster. Raises ConfigError.

    Jobs that choose the same options share one composition, to which each job's values are applied; where there are
    many, several processes share the work.
    """
    safe = [hide_secrets(job) for job in jobs]
    groups = frozenset(groups_of(config_dir))
    order = sorted(range(len(safe)), key=lambda index: _choices(safe[index], groups))
    workers = min(os.cpu_count() or 1, len(safe) // _JOBS_PER_WORKER, 8)
    if workers < 2 or threading.active_count() > 1:  # a fork copies no thread
        done = _compose_chunk([safe[index] for index in order], config_dir)
    else:
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        compose((), config_dir)  # what is imported now is shared by the forks
        size = -(-len(order) // workers)
        chunks = [[safe[index] for index in order[start : start + size]] for start in range(0, len(order), size)]
        with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
            parts = list(pool.map(partial(_compose_chunk, config_dir=config_dir), chunks))
        done = [composed for part in parts for composed in part]
    return [composed for _, composed in sorted(zip(order, done, strict=True), key=lambda pair: pair[0])]


def _choices(overrides: Sequence[str], groups: frozenset[str]) -> tuple[str, ...]:
    """The overrides that decide which files are composed, or that are Hydra's own; the others are values."""
    return tuple(override for override in overrides if not _is_value(override, groups))


def _is_value(override: str, groups: frozenset[str]) -> bool:
    key = override.partition("=")[0].lstrip("+~")
    return not (key in groups or "/" in key or "@" in key or key.partition(".")[0] == "hydra")


def _compose_chunk(jobs: Sequence[list[str]], config_dir: Path | None) -> list[Composed]:
    """Jobs of equal choices follow one another; `jobs` hold no secret."""
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser

    done: list[Composed] = []
    shared: tuple[str, ...] | None = None
    base: DictConfig | None = None
    groups = frozenset(groups_of(config_dir))
    with _hydra(config_dir):
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    for job in jobs:
        with explained(job, config_dir):
            choices = _choices(job, groups)
            if base is None or choices != shared:
                base, shared = _compose_tree(list(choices), config_dir), choices
            tree = copy.deepcopy(base)
            values = parser.parse_overrides([override for override in job if override not in choices])
            apply_values(values, tree)
            done.append(from_tree(tree, tree.hydra, job))
    return done


def from_tree(tree: "DictConfig", hydra: "DictConfig", overrides: Sequence[str]) -> Composed:
    """`tree` is a composition of Hydra's, `hydra` the node of that name that belongs to it."""
    from omegaconf import OmegaConf

    keys = [item.name for item in fields(Config)]
    unknown = [str(key) for key in tree if key not in keys and key != "hydra"]
    if unknown:
        raise ConfigError(
            f"Unknown key {unknown[0]!r} at the top of a file of conf/. Top-level keys: {', '.join(keys)}."
        )
    choices = {str(group): str(option) for group, option in hydra.runtime.choices.items() if option is not None}
    choices = {**_several(overrides, keys), **choices}
    sources = [str(source.path) for source in hydra.runtime.config_sources if source.schema == "file"]
    values = {key: _resolved(tree, key) for key in keys}
    for group, names in PATHS.items():
        values[group] |= {name: from_home(path) for name in names if (path := values[group][name])}
    _name_extensions(values, choices)
    launcher = _table(OmegaConf.to_container(hydra.launcher, resolve=False) if hydra.launcher else {})
    sweep = _table(OmegaConf.to_container(hydra.sweep, resolve=False))
    for key in misspelled(launcher):
        raise ConfigError(no_such_setting(key))
    return Composed(
        config=freeze(Config, values),
        overrides=tuple(overrides),
        choices=choices,
        launcher=choices.get("hydra/launcher", "basic"),
        multirun=str(hydra.mode).endswith("MULTIRUN"),
        origins=Origins(tuple(overrides), choices, tuple(sources), submitted=is_slurm(launcher)),
        launcher_settings=launcher,
        sweep_subdir=str(sweep["subdir"]),
        sweep_dir=_folder_of_sweeps(hydra, sweep),
    )


def _folder_of_sweeps(hydra: "DictConfig", sweep: Mapping[str, Any]) -> str:
    """Resolved; as it is written where that fails, because only a sweep needs it, and Hydra then says what is wrong."""
    from omegaconf.errors import OmegaConfBaseException

    try:
        return str(hydra.sweep.dir)
    except OmegaConfBaseException:
        return str(sweep["dir"])


def _several(overrides: Sequence[str], groups: Sequence[str]) -> dict[str, str]:
    """`logger=[wandb,tensorboard]`: Hydra tells no choice of a group of which several options are chosen."""
    pairs = [override.partition("=") for override in overrides]
    return {group: options for group, _, options in pairs if group in groups and options.startswith("[")}


def _name_extensions(values: dict[str, Any], choices: dict[str, str]) -> None:
    """Somebody's own class is called as its option, and never as one of ours, whose rules are not about it.

    Raises ConfigError where several options of somebody's own are chosen: the last would silently win.
    """
    shipped = option_names()
    for kind in ExtensionKind:
        group = values[kind]
        chosen = [option.strip() for option in choices.get(kind, "").strip("[]").split(",")]
        theirs = [option for option in chosen if option and option not in shipped[kind]]
        if len(theirs) > 1:
            raise ConfigError(
                f"{kind}={choices[kind]} names {len(theirs)} options that are not part of swe_rl. A run has one {kind} "
                f"of your own: write one that calls the others, or choose one of {', '.join(theirs)}."
            )
        if isinstance(group, dict) and isinstance(target := group.get("_target_"), str):
            name = str(group.get("name"))
            if not name or (name in (*shipped[kind], "default") and not target.startswith("swe_rl.")):
                group["name"] = theirs[0] if theirs else target.rpartition(".")[2]
    sandbox = values[ExtensionKind.sandbox]
    if isinstance(sandbox, dict) and sandbox.get("kind") == SandboxKind.process and _is_own(sandbox):
        sandbox["kind"] = SandboxKind.custom


def _is_own(sandbox: dict[str, Any]) -> bool:
    return sandbox.get("_target_") is not None or sandbox.get("name") in offered().get(ExtensionKind.sandbox, {})


def _resolved(tree: "DictConfig", key: str) -> Any:
    """Plain values; a copy of the tree without Hydra's own part would cost as much as all the rest."""
    from omegaconf import Container, OmegaConf
    from omegaconf.errors import InterpolationValidationError

    try:
        node = tree[key]
    except InterpolationValidationError as error:  # `name=${rollout}`: the only key at the top that is no table
        refused = other_kind(key, [] if "ListConfig" in str(error) else {})
    else:
        if not isinstance(node, Container):
            return node
        return OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
    raise ValueError(refused)  # outside of the handler: OmegaConf's own words would be shown as its cause


def _table(values: Any) -> dict[str, Any]:
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def expand(overrides: Sequence[str], config_dir: Path | None = None) -> list[list[str]]:
    """The overrides of each job of a `--multirun`, in the basic sweeper's order; empty for other sweepers.

    Raises ConfigError.
    """
    safe = hide_secrets(overrides)
    with explained(safe, config_dir), _hydra(config_dir):
        from hydra.core.global_hydra import GlobalHydra
        from hydra.core.override_parser.overrides_parser import OverridesParser
        from hydra.types import RunMode

        loader = GlobalHydra.instance().config_loader()
        hydra = loader.load_configuration("config", safe, RunMode.MULTIRUN).hydra
        if decides_as_it_goes(hydra.sweeper):
            return []
        swept = [f"{key}={value}" for key, value in (hydra.sweeper.get("params") or {}).items()]
        parser = OverridesParser.create(config_loader=loader)
        parsed = parser.parse_overrides([*swept, *given_overrides(hydra.overrides.task)])
        return [[*given_overrides(hydra.overrides.hydra), *job] for job in combinations(parsed)]


def compose_fixed(overrides: Sequence[str], config_dir: Path | None = None) -> Composed:
    """What all jobs of a `--multirun` share: the composition without what is swept over. Raises ConfigError."""
    safe = hide_secrets(overrides)
    with explained(safe, config_dir), _hydra(config_dir):
        from hydra.core.global_hydra import GlobalHydra
        from hydra.core.override_parser.overrides_parser import OverridesParser
        from hydra.types import RunMode

        loader = GlobalHydra.instance().config_loader()
        parser = OverridesParser.create(config_loader=loader)
        parsed = zip(safe, parser.parse_overrides(safe), strict=True)
        fixed = [text for text, override in parsed if not override.is_sweep_override()]
        tree = loader.load_configuration("config", fixed, RunMode.MULTIRUN)
        return from_tree(tree, tree.hydra, fixed)


def given_overrides(node: "ListConfig") -> list[str]:
    """A list of overrides as given: reading its items one by one would resolve references to secrets."""
    from omegaconf import OmegaConf

    texts = OmegaConf.to_container(node, resolve=False)
    assert isinstance(texts, list)
    return [str(text) for text in texts]


def _compose_tree(overrides: list[str], config_dir: Path | None) -> "DictConfig":
    from hydra import compose as hydra_compose

    with _hydra(config_dir):
        return hydra_compose("config", overrides=overrides, return_hydra_config=True)


@contextmanager
def _hydra(config_dir: Path | None) -> Iterator[None]:
    """Hydra made ready to compose; what was ready before is put back."""
    from hydra.initialize import initialize_config_dir

    register()
    with initialize_config_dir(config_dir=str(conf_dir()), job_name="swe_rl", version_base="1.3"):
        if config_dir is not None:
            if not config_dir.is_dir():
                raise ConfigError(f"--config-dir {config_dir}: there is no such folder.")
            search(conf_dir(), config_dir)
        yield


def flatten(config: Config) -> dict[str, Any]:
    """Full key to value, in order of declaration, secrets masked; enum members become their names, tuples lists."""
    return dict(_flat(config, ""))


def _flat(node: Any, key: str) -> Iterator[tuple[str, Any]]:
    if is_dataclass(node):
        node = {item.name: getattr(node, item.name) for item in fields(node)}
    if isinstance(node, dict) and (node or not key):
        for name, value in node.items():
            yield from _flat(value, f"{key}.{name}" if key else name)
    elif isinstance(node, tuple):
        yield key, [mask_value(key, item) for item in node]  # JSON writes tuples inside of it as lists
    else:
        value = mask_value(key, node)
        yield key, str(value) if isinstance(value, str) else value


def config_hash(config: Config) -> str:
    """Sixteen hex digits, the same for two runs that would compute the same; see `_UNHASHED_KEYS`."""
    values = {
        key: value
        for key, value in flatten(config).items()
        if key not in _UNHASHED_KEYS
        and not key.startswith(_UNHASHED_TABLE)
        and (key.partition(".")[0] not in _UNHASHED_GROUPS or key.startswith(_HASHED_TABLE))
    }
    text = json.dumps(values, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def resolved_yaml(composed: Composed) -> str:
    """The resolved configuration as YAML, each value with its origin as a comment, secrets masked."""
    lines: list[str] = []
    parents: tuple[str, ...] = ()
    for key, value in flatten(composed.config).items():
        *path, leaf = key.split(".")
        shared = 0
        while shared < min(len(path), len(parents)) and path[shared] == parents[shared]:
            shared += 1
        lines += [f"{'  ' * depth}{path[depth]}:" for depth in range(shared, len(path))]
        parents = tuple(path)
        lines.append(f"{'  ' * len(path)}{leaf}: {_scalar(value)}  # {composed.origins.of(key)}")
    return "\n".join(lines) + "\n"


def _scalar(value: Any) -> str:
    """JSON is YAML; words that YAML reads as strings stay bare."""
    if isinstance(value, str) and value.replace("_", "").isalpha() and value.lower() not in _YAML_WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)


_YAML_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n", "none"} - {"none"})
