"""From overrides to one frozen configuration.

Invariants:
- The same overrides and files give the same Config, from any working directory.
- A mistake in the overrides or files is a ConfigError, one paragraph; never a traceback of Hydra's.
- No folder is created and nothing is started.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swe_rl.config.explain import explained
from swe_rl.config.folders import conf_dir
from swe_rl.config.provenance import Origins
from swe_rl.config.schema import Config
from swe_rl.config.secrets import hide_secrets, mask_value
from swe_rl.config.store import freeze, register

if TYPE_CHECKING:
    from omegaconf import DictConfig

# What does not change the result of a run, or is a path: two runs that differ in nothing else are the same run.
_UNHASHED = ("name", "job.", "paths.", "logger.", "trainer.resume", "sft.output")


@dataclass(frozen=True)
class Composed:
    """`overrides` hold no secret; `choices` maps each group to the chosen option; `launcher` is Hydra's."""

    config: Config
    overrides: tuple[str, ...]
    choices: dict[str, str]
    launcher: str
    multirun: bool
    origins: Origins


def compose(overrides: Sequence[str] = (), config_dir: Path | None = None) -> Composed:
    """Composes conf/ under `overrides`; `config_dir` is a folder of the user's own options, searched first.

    Raises ConfigError (exit status 2) with the key, the reason and the nearest legal spelling.
    """
    safe = hide_secrets(overrides)
    with explained(safe, config_dir):
        tree = _compose_tree(safe, config_dir)
        return from_tree(tree, safe)


def from_tree(tree: "DictConfig", overrides: Sequence[str]) -> Composed:
    """`tree` is a whole composition of Hydra's, its `hydra` node included."""
    from omegaconf import OmegaConf

    runtime = tree.hydra.runtime
    choices = {str(group): str(option) for group, option in runtime.choices.items() if option is not None}
    sources = [str(source.path) for source in runtime.config_sources if source.schema == "file"]
    own = [field.name for field in fields(Config)]
    values = OmegaConf.to_container(OmegaConf.masked_copy(tree, own), resolve=True, throw_on_missing=True)
    assert isinstance(values, dict)
    return Composed(
        config=freeze(Config, {str(key): value for key, value in values.items()}),
        overrides=tuple(overrides),
        choices=choices,
        launcher=choices.get("hydra/launcher", "basic"),
        multirun=str(tree.hydra.mode).endswith("MULTIRUN"),
        origins=Origins(tuple(overrides), choices, tuple(sources)),
    )


def _compose_tree(overrides: list[str], config_dir: Path | None) -> "DictConfig":
    from hydra import compose as hydra_compose
    from hydra.core.global_hydra import GlobalHydra
    from hydra.initialize import initialize_config_dir

    register()
    with initialize_config_dir(config_dir=str(conf_dir()), job_name="swe_rl", version_base="1.3"):
        if config_dir is not None:
            from hydra.core.config_search_path import SearchPathQuery

            search_path = GlobalHydra.instance().config_loader().get_search_path()
            search_path.prepend("command-line", f"file://{config_dir.resolve()}", SearchPathQuery("schema", None))
        return hydra_compose("config", overrides=overrides, return_hydra_config=True)


def flatten(config: Config) -> dict[str, Any]:
    """Full key to value, in order of declaration, secrets masked; enum members become their names, tuples lists."""
    return dict(_flat(config, ""))


def _flat(node: Any, key: str) -> Iterator[tuple[str, Any]]:
    if is_dataclass(node):
        node = {field.name: getattr(node, field.name) for field in fields(node)}
    if isinstance(node, dict) and (node or not key):
        for name, value in node.items():
            yield from _flat(value, f"{key}.{name}" if key else name)
    elif isinstance(node, tuple):
        yield key, [mask_value(key, item) for item in node]
    else:
        value = mask_value(key, node)
        yield key, str(value) if isinstance(value, str) else value


def config_hash(config: Config) -> str:
    """Sixteen hex digits, the same for two runs that would compute the same; see `_UNHASHED`."""
    values = {key: value for key, value in flatten(config).items() if not key.startswith(_UNHASHED)}
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
