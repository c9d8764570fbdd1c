"""This module finds the file or override that set a value.

Invariants:
- Lookups follow the order in which Hydra merged: schema, group files, config.yaml, experiment, sweep, command line.
- Files are read on the first question only; composing costs nothing for it.
- An answer is one line without secrets.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from swe_rl.config.environment import origin_of
from swe_rl.config.folders import Option, own_options, sweeps_dir
from swe_rl.config.secrets import mask_text
from swe_rl.config.yaml_text import read_yaml

_GLOBAL_GROUPS = ("experiment", "sweep")
_MISSING = object()
_VARIABLE = re.compile(r"\$\{(?:oc|swe_rl)\.env:\s*(\w+)")


@dataclass(frozen=True)
class _Layer:
    """Holds the values of one file as written, under full keys."""

    label: str
    values: dict[str, Any]


@dataclass(frozen=True)
class Origins:
    """Answers where a value came from. `choices` maps each group to its option, `sources` are the folders that Hydra
    searched, first match wins.

    `assumed` is a line about the machine that stands for this one, if another one was taken (check/rules/hardware.py).
    `submitted` says that SLURM starts the job (`hydra/launcher`).
    """

    overrides: tuple[str, ...]
    choices: dict[str, str]
    sources: tuple[str, ...]
    assumed: str = ""
    submitted: bool = False

    def of(self, key: str) -> str:
        """Returns a value's origin: `command line: rollout.n=4`, `conf/env/bugs.yaml: ${rollout.n}`,
        `conf/model/tiny.yaml`, `schema`, or `environment: VLLM_URL (conf/engine/external.yaml)`."""
        for override in reversed(self.overrides):
            name = override.partition("=")[0].lstrip("+~").partition("@")[0]
            # `model=qwen3_14b` names a file, and the file has the value.
            chooses = name in self.choices
            if not chooses and (name == key or key.startswith(f"{name}.")):
                return f"command line: {mask_text(override)}"
        for layer in self._layers:
            value = _value_at(layer.values, key)
            if value is not _MISSING:
                return _from_layer(layer.label, value)
        return "schema"

    def own(self) -> dict[str, list[Option]]:
        """Returns options of the user's own by group: those in the folders that Hydra searched after conf/."""
        members_of: dict[str, list[Option]] = {}
        for folder in map(Path, self.sources[1:]):
            if folder.is_dir():
                for group, members in own_options(folder).items():
                    members_of.setdefault(group, []).extend(members)
        return members_of

    def chosen_by(self, group: str) -> dict[str, str]:
        """Returns the options of other groups that the chosen option of a group brings, by their groups.

        `group` is a key of `choices`, with its package: `env@env.mix.NAME`.
        """
        folder = group.partition("@")[0]
        chosen: dict[str, str] = {}
        for option in self.choices.get(group, "").strip("[]").split(","):
            chosen |= self._choices_in(f"{folder}/{option.strip()}")
        return chosen

    def _choices_in(self, name: str) -> dict[str, str]:
        path = self._find(name)
        if path is None:
            return {}
        chosen: dict[str, str] = {}
        for entry in read_yaml(path).get("defaults", []):
            if isinstance(entry, str) and entry != "_self_":
                chosen |= self._choices_in(f"{name.rpartition('/')[0]}/{entry}")
            elif isinstance(entry, dict):
                chosen |= {
                    text.removeprefix("override ").strip(" /").partition("@")[0]: str(option)
                    for text, option in entry.items()
                    if text.startswith("override ")
                }
        return chosen

    @cached_property
    def _layers(self) -> list[_Layer]:
        """Lists the layers, highest precedence first."""
        layers: list[_Layer] = []
        for group in reversed(_GLOBAL_GROUPS):
            if group in self.choices:
                layers += self._option_layers(group, self.choices[group])
        layers += self._file_layers("config", "")
        for group, option in self.choices.items():
            if group not in _GLOBAL_GROUPS and not group.startswith("hydra"):
                layers += self._option_layers(group, option)
        return layers

    def _option_layers(self, group: str, option: str) -> list[_Layer]:
        group, _, package = group.partition("@")
        if group in _GLOBAL_GROUPS:
            package = ""
        elif not package:
            package = group.replace("/", ".")
        layers: list[_Layer] = []
        for name in option.strip("[]").split(","):
            layers = self._file_layers(f"{group}/{name.strip()}", package) + layers
        return layers

    def _file_layers(self, name: str, package: str) -> list[_Layer]:
        """Returns the file, then the files of its own group that its defaults list builds on."""
        path = self._find(name)
        if path is None:
            return []
        content = read_yaml(path)
        defaults = content.pop("defaults", [])
        layers = [_Layer(_short_path(path), {package: content} if package else content)]
        for parent in reversed(defaults):
            if "/" in name and isinstance(parent, str) and parent != "_self_":
                layers += self._file_layers(f"{name.rpartition('/')[0]}/{parent}", package)
        return layers

    def _find(self, name: str) -> Path | None:
        for folder in self.sources:
            path = Path(folder) / f"{name}.yaml"
            if path.is_file():
                return path
        path = sweeps_dir() / f"{name.removeprefix('sweep/')}.yaml"
        if name.startswith("sweep/") and path.is_file():
            return path
        return None


def _from_layer(label: str, value: Any) -> str:
    """Returns a file with the reference that stands there, or the environment if that decided."""
    if not isinstance(value, str) or "${" not in value:
        return label
    for name in _VARIABLE.findall(value):
        if origin := origin_of(name):
            return f"{origin}: {name} ({label})"
    if _VARIABLE.search(value):
        return label
    return f"{label}: {value}"


def _value_at(values: Any, key: str) -> Any:
    """Returns the value at a full key. A table's own dotted names are met on the way."""
    if not key:
        return values
    if not isinstance(values, dict):
        if isinstance(values, str) and "${" in values:
            return values
        return _MISSING
    for name, value in values.items():
        if key == name or key.startswith(f"{name}."):
            return _value_at(value, key[len(name) + 1 :])
    return _MISSING


def _short_path(path: Path) -> str:
    """Returns the path from the folder that holds the groups: `conf/model/tiny.yaml`."""
    return "/".join(path.parts[-3:] if path.parent.name not in ("conf", "sweeps") else path.parts[-2:])
