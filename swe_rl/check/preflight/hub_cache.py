"""The Hugging Face hub's cache on disk: where it is, and whether something is in it as a whole.

Layout (huggingface_hub, "Understand caching"): `models--ORG--NAME/snapshots/COMMIT/...`, `refs/BRANCH` names a commit.

Invariants:
- Nothing is downloaded, and no library of the hub is imported.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from swe_rl.check.preflight.system import System

_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.(safetensors|bin)$")
_YES = {"1", "on", "yes", "true"}


@dataclass(frozen=True, slots=True)
class HubItem:
    """Something that the configuration names at `key`; `kind` is models or datasets."""

    key: str
    kind: str
    name: str
    revision: str | None = None


def told_offline(environment: Mapping[str, str]) -> str | None:
    """The variable that forbids the network, or None."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
    return next((name for name in names if environment.get(name, "").lower() in _YES), None)


def cache_folder(environment: Mapping[str, str]) -> str:
    if given := environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        return given
    return f"{hub_home(environment)}/hub"


def hub_home(environment: Mapping[str, str]) -> str:
    if given := environment.get("HF_HOME"):
        return given
    caches = environment.get("XDG_CACHE_HOME") or f"{environment.get('HOME', '~')}/.cache"
    return f"{caches}/huggingface"


def missing_from_cache(item: HubItem, folder: str, system: System) -> str | None:
    """Why the item cannot be loaded from the cache, or None if it can."""
    repository = f"{folder}/{item.kind}--{item.name.replace('/', '--')}"
    snapshots = system.list_folder(f"{repository}/snapshots")
    if not snapshots:
        return "it is not there"
    commit = _commit(item, repository, snapshots, system)
    if commit is None:
        return f"revision {item.revision or 'main'} is not there"
    files = system.list_folder(f"{repository}/snapshots/{commit}")
    if not files:
        return "its snapshot is empty"
    return _incomplete(files) if item.kind == "models" else None


def _commit(item: HubItem, repository: str, snapshots: list[str], system: System) -> str | None:
    wanted = item.revision or "main"
    if wanted in snapshots:
        return wanted
    commit = (system.read_text(f"{repository}/refs/{wanted}") or "").strip()
    return commit if commit in snapshots else None


def _incomplete(files: list[str]) -> str | None:
    """A model needs its config and either one file of weights or all shards."""
    if "config.json" not in files:
        return "it has no config.json"
    shards = [match for file in files if (match := _SHARD.search(file))]
    for _, total, ending in {match.groups() for match in shards}:
        have = {match[1] for match in shards if match[2] == total and match[3] == ending}
        if len(have) < int(total):
            return f"only {len(have)} of its {int(total)} files of weights are there"
    if not shards and not any(file.endswith((".safetensors", ".bin")) for file in files):
        return "it has no weights"
    return None
