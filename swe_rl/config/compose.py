"""This module composes one frozen configuration from overrides.

Invariants:
- The same overrides and files give the same Config, from any working directory.
- A mistake in the overrides or files is a ConfigError, one paragraph; never a traceback of Hydra's.
- No folder is created and nothing is started.
"""

import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swe_rl.config.choices import ExtensionKind, SandboxKind
from swe_rl.config.composition.omegaconf_internals import plain_values
from swe_rl.config.composition.trees import choices_of, compose_tree, ready_hydra
from swe_rl.config.composition.values import flatten_config
from swe_rl.config.explain import ConfigError, explain_errors, groups_of
from swe_rl.config.folders import find_offered, option_names
from swe_rl.config.hydra_internals import decides_as_it_goes, sets_tables, sweep_jobs
from swe_rl.config.launcher import is_slurm, misspelled_keys, no_such_setting
from swe_rl.config.provenance import Origins
from swe_rl.config.schema import Config
from swe_rl.config.secrets import hide_secrets
from swe_rl.config.store import freeze_tree, from_home, other_kind

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig, ListConfig

_JOBS_PER_WORKER = 32  # To start a process costs about as much as to compose ten jobs of the same options.
PATHS = {  # These may begin with `~`; a test knows that no other text of the schema is a path.
    "paths": ("outputs", "scratch", "cache", "sync_to"),
    "job": ("runs", "output", "baseline", "candidate", "workload_from", "checkpoint", "statement", "repository"),
    "runtime": ("shared_dir",),
    "model": ("path",),
    "env": ("dataset", "eval_dataset", "instances", "scripts", "issues", "probe", "proofs", "siblings"),
    "agent": ("predictions",),
    "algo": ("teacher",),
    "trainer": ("resume",),
    "sft": ("start", "output", "tools"),
    "mine": ("repository", "lock"),
}


@dataclass(frozen=True)
class Composed:
    """Holds what was composed. `overrides` hold no secret, `choices` maps each group to its option, `launcher` is
    Hydra's and unresolved."""

    config: Config
    overrides: tuple[str, ...]
    choices: dict[str, str]
    launcher: str
    multirun: bool
    origins: Origins
    launcher_settings: dict[str, Any] = field(default_factory=dict)
    sweep_subdir: str = ""
    sweep_dir: str = ""  # It is resolved: a time in it is that of this composition.
    times: dict[str, str] = field(default_factory=dict)  # Maps forms to what `${now:FORM}` was in the values.


def compose(overrides: Sequence[str] = (), config_dir: Path | None = None) -> Composed:
    """Composes conf/ and the options of `config_dir`. Raises ConfigError, which says the nearest legal spelling."""
    safe = hide_secrets(overrides)
    with explain_errors(safe, config_dir):
        tree = compose_tree(safe, config_dir, frozenset(groups_of(config_dir)))
        return from_tree(tree, tree.hydra, safe)


def compose_all(jobs: Sequence[Sequence[str]], config_dir: Path | None = None) -> list[Composed]:
    """Composes each job of a sweep, in order, as `compose` would. Where there are many, several processes share the
    work. Raises ConfigError."""
    safe = [hide_secrets(job) for job in jobs]
    groups = frozenset(groups_of(config_dir))
    order = sorted(range(len(safe)), key=lambda index: choices_of(safe[index], groups))
    workers = min(os.cpu_count() or 1, len(safe) // _JOBS_PER_WORKER, 8)
    if workers < 2 or threading.active_count() > 1:  # A fork copies no thread.
        done = _compose_chunk([safe[index] for index in order], config_dir)
    else:
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        compose((), config_dir)  # The forks share what is imported now.
        size = -(-len(order) // workers)
        chunks = [[safe[index] for index in order[start : start + size]] for start in range(0, len(order), size)]
        with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
            parts = list(pool.map(partial(_compose_chunk, config_dir=config_dir), chunks))
        done = [composed for part in parts for composed in part]
    return [composed for _, composed in sorted(zip(order, done, strict=True), key=lambda pair: pair[0])]


def _compose_chunk(jobs: Sequence[list[str]], config_dir: Path | None) -> list[Composed]:
    """Composes jobs, whose equal choices follow one another. `jobs` hold no secret."""
    done: list[Composed] = []
    groups = frozenset(groups_of(config_dir))
    for job in jobs:
        with explain_errors(job, config_dir):
            tree = compose_tree(job, config_dir, groups)
            done.append(from_tree(tree, tree.hydra, job))
    return done


def from_tree(tree: "DictConfig", hydra: "DictConfig", overrides: Sequence[str]) -> Composed:
    """Freezes a composition of Hydra's, `tree`. `hydra` is the node of that name that belongs to it."""
    from omegaconf import OmegaConf

    keys = [item.name for item in fields(Config)]
    unknown = [str(key) for key in tree if key not in keys and key != "hydra"]
    if unknown:
        raise ConfigError(
            f"Unknown key {unknown[0]!r} at the top of a file of conf/. Top-level keys: {', '.join(keys)}."
        )
    choices = {str(group): str(option) for group, option in hydra.runtime.choices.items() if option is not None}
    choices = {**_find_several(overrides, keys), **choices}
    sources = [str(source.path) for source in hydra.runtime.config_sources if source.schema == "file"]
    values = {key: _resolve_tree(tree, key) for key in keys}
    times = {form: text for (form,), text in OmegaConf.get_cache(tree).get("now", {}).items()}
    for group, names in PATHS.items():
        for table in (values[group], *_mix_parts(group, values[group])):
            table |= {name: from_home(path) for name in names if (path := table[name])}
    _name_extensions(values, choices)
    launcher = _as_table(OmegaConf.to_container(hydra.launcher, resolve=False) if hydra.launcher else {})
    sweep = _as_table(OmegaConf.to_container(hydra.sweep, resolve=False))
    for key in misspelled_keys(launcher):
        raise ConfigError(no_such_setting(key))
    return Composed(
        config=freeze_tree(Config, values),
        overrides=tuple(overrides),
        choices=choices,
        launcher=choices.get("hydra/launcher", "basic"),
        multirun=str(hydra.mode).endswith("MULTIRUN"),
        origins=Origins(tuple(overrides), choices, tuple(sources), submitted=is_slurm(launcher)),
        launcher_settings=launcher,
        sweep_subdir=str(sweep["subdir"]),
        sweep_dir=_folder_of_sweeps(hydra, sweep),
        times=times,
    )


def _folder_of_sweeps(hydra: "DictConfig", sweep: Mapping[str, Any]) -> str:
    """Returns the resolved folder, or the folder as it is written if that fails: only a sweep needs it, and Hydra then
    says what is wrong."""
    from omegaconf.errors import OmegaConfBaseException

    try:
        return str(hydra.sweep.dir)
    except OmegaConfBaseException:
        return str(sweep["dir"])


def _find_several(overrides: Sequence[str], groups: Sequence[str]) -> dict[str, str]:
    """Finds choices such as `logger=[wandb,tensorboard]`: Hydra tells no choice of a group with several options."""
    pairs = [override.partition("=") for override in overrides]
    return {group: options for group, _, options in pairs if group in groups and options.startswith("[")}


def _name_extensions(values: dict[str, Any], choices: dict[str, str]) -> None:
    """Names a user's class after its option, and never as one of ours, whose rules are not about it.

    Raises ConfigError if several options of the user's own are chosen: the last would silently win.
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
        if isinstance(group, dict):
            _name_own_class(group, theirs, shipped[kind])
    of_env = shipped[ExtensionKind.env]
    for name, part in _named_parts(values[ExtensionKind.env]).items():
        option = choices.get(f"env@env.mix.{name}", "")
        _name_own_class(part, [option] if option and option not in of_env else [], of_env)
    sandbox = values[ExtensionKind.sandbox]
    if isinstance(sandbox, dict) and sandbox.get("kind") == SandboxKind.process and _is_own(sandbox):
        sandbox["kind"] = SandboxKind.custom


def _name_own_class(group: dict[str, Any], theirs: Sequence[str], shipped: Sequence[str]) -> None:
    """Names a user's class after `theirs`, the chosen options of the user's own, or else after itself."""
    if not isinstance(target := group.get("_target_"), str):
        return
    name = str(group.get("name"))
    if not name or (name in (*shipped, "default") and not target.startswith("swe_rl.")):
        if theirs:
            group["name"] = theirs[0]
        else:
            group["name"] = target.rpartition(".")[2]


def _mix_parts(group: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the parts of a mix, each of which has the keys of an environment; of another group nothing."""
    if group != "env":
        return []
    return list(_named_parts(values).values())


def _named_parts(values: Any) -> dict[str, dict[str, Any]]:
    """Returns the parts of the mix in the values of `env`."""
    if not isinstance(values, dict) or not isinstance(values["mix"], dict):
        return {}
    return {name: part for name, part in values["mix"].items() if isinstance(part, dict)}


def _is_own(sandbox: dict[str, Any]) -> bool:
    return sandbox.get("_target_") is not None or sandbox.get("name") in find_offered().get(ExtensionKind.sandbox, {})


def _resolve_tree(tree: "DictConfig", key: str) -> Any:
    """Returns plain values. A copy of the tree without Hydra's own part would cost as much as all the rest."""
    from omegaconf import Container
    from omegaconf.errors import InterpolationValidationError

    try:
        node = tree[key]
    except InterpolationValidationError as error:  # Only `name` is no table at the top: `name=${rollout}`.
        refused = other_kind(key, [] if "ListConfig" in str(error) else {})
    else:
        if not isinstance(node, Container):
            return node
        return plain_values(node)
    raise ValueError(refused)  # In the handler OmegaConf's own words would be its cause.


def _as_table(values: Any) -> dict[str, Any]:
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def expand_sweep(overrides: Sequence[str], config_dir: Path | None = None) -> list[list[str]]:
    """Returns the overrides of each job of a `--multirun`, in the basic sweeper's order, or an empty list for other
    sweepers. Raises ConfigError."""
    safe = hide_secrets(overrides)
    with explain_errors(safe, config_dir), ready_hydra(config_dir):
        from hydra.core.global_hydra import GlobalHydra
        from hydra.core.override_parser.overrides_parser import OverridesParser
        from hydra.types import RunMode

        loader = GlobalHydra.instance().config_loader()
        hydra = loader.load_configuration("config", safe, RunMode.MULTIRUN).hydra
        if decides_as_it_goes(hydra.sweeper):
            return []
        swept = [f"{key}={value}" for key, value in (hydra.sweeper.get("params") or {}).items()]
        parser = OverridesParser.create(config_loader=loader)
        given = parser.parse_overrides(given_overrides(hydra.overrides.task))
        _refuse_hidden_sweeps(given)
        jobs = sweep_jobs([*parser.parse_overrides(swept), *given])
        return [[*given_overrides(hydra.overrides.hydra), *job] for job in jobs]


def _refuse_hidden_sweeps(overrides: Sequence["Override"], *, merged: bool = True) -> None:
    """Raises ConfigError if a later override of the same key would hide what is swept over.

    With `merged`, the sweeper keeps all tables of one key, as a single run does; others keep the last one.
    """
    seen: dict[str, Override] = {}
    for override in overrides:
        key = override.get_key_element().lstrip("+~")
        before = seen.setdefault(key, override)
        seen[key] = override
        tables = sets_tables(before) and sets_tables(override)
        swept = before.is_sweep_override() or override.is_sweep_override()
        if before is not override and (not merged if tables else swept):
            raise ConfigError(
                f"{before.input_line} and {override.input_line} both set {key}, and the sweeper would leave out the "
                f"first. Write one override with all values of {key}."
            )


def compose_fixed(overrides: Sequence[str], config_dir: Path | None = None) -> Composed:
    """Composes what all jobs of a `--multirun` share, without what is swept over. Raises ConfigError."""
    safe = hide_secrets(overrides)
    with explain_errors(safe, config_dir), ready_hydra(config_dir):
        from hydra.core.global_hydra import GlobalHydra
        from hydra.core.override_parser.overrides_parser import OverridesParser
        from hydra.types import RunMode

        loader = GlobalHydra.instance().config_loader()
        parser = OverridesParser.create(config_loader=loader)
        parsed = parser.parse_overrides(safe)
        _refuse_hidden_sweeps(parsed, merged=False)
        fixed = [text for text, override in zip(safe, parsed, strict=True) if not override.is_sweep_override()]
        tree = loader.load_configuration("config", fixed, RunMode.MULTIRUN)
        return from_tree(tree, tree.hydra, fixed)


def given_overrides(node: "ListConfig") -> list[str]:
    """Returns overrides as they were given: reading a node's items one by one would resolve references to secrets."""
    from omegaconf import OmegaConf

    texts = OmegaConf.to_container(node, resolve=False)
    assert isinstance(texts, list)
    return [str(text) for text in texts]


def resolved_yaml(composed: Composed) -> str:
    """Writes the resolved configuration as YAML, each value with its origin as a comment, secrets masked."""
    lines: list[str] = []
    parents: tuple[str, ...] = ()
    for key, value in flatten_config(composed.config).items():
        *path, leaf = key.split(".")
        shared = 0
        while shared < min(len(path), len(parents)) and path[shared] == parents[shared]:
            shared += 1
        lines += [f"{'  ' * depth}{path[depth]}:" for depth in range(shared, len(path))]
        parents = tuple(path)
        lines.append(f"{'  ' * len(path)}{leaf}: {_write_scalar(value)}  # {composed.origins.of(key)}")
    return "\n".join(lines) + "\n"


def _write_scalar(value: Any) -> str:
    """Writes a value as JSON, which is YAML. Words that YAML reads as strings stay bare."""
    if isinstance(value, str) and value.replace("_", "").isalpha() and value.lower() not in _YAML_WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)


_YAML_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n", "none"} - {"none"})
