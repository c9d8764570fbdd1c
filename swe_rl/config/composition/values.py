"""This module lists the values of a configuration by their full keys, to show, to compare and to hash them.

Invariants:
- What is shown has its secrets masked, also those that only this process's environment knows.
- What is compared does not depend on this process's environment.
- Two runs with the same hash would compute the same.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from swe_rl.config.schema import Config
from swe_rl.config.secrets import is_secret_key, mask_tree
from swe_rl.files.redactor import MASK, mask_addresses

# These keys do not change the result of a run, or are paths: two runs that differ in nothing else are the same run.
_UNHASHED_GROUPS = ("job", "mine", "paths", "logger", "runtime", "hardware")
_HASHED_TABLE = "hardware.env_vars."  # What the run's processes read may change what they compute.
_UNHASHED_KEYS = (
    "name",
    "trainer.resume",
    "sft.output",
    "layout.name",
    "layout.trainer_gpus",  # The sums are the same in another order: a run goes on with more or fewer ranks.
    "layout.trainer_ranks",
    "layout.sequence_parallel",
    "layout.expert_parallel",
    "layout.shard_ranks",
    "trainer.max_tokens_per_micro_batch",  # A run that ran out of memory goes on with these.
    "trainer.activation_checkpointing",
    "trainer.offload_optimizer",
    "trainer.collective_timeout_s",
    "trainer.max_restarts",
    "trainer.keep_checkpoints",  # A run that filled its disk goes on with fewer.
    "trainer.weight_sync",  # The weights are the same by another way.
    "rollout.max_wait_s",  # This is patience, as is the next.
    "engine.max_away_s",
    "engine.key",  # A key may be replaced, and an evaluation that spent its budget goes on with a larger one.
    "engine.budget",
    "engine.budget_tokens",
    "engine.price_in",
    "engine.price_out",
    "engine.price_cached",
    "engine.call_timeout_s",
    "rollout.typical_trajectory_tokens",  # This is for estimates, as is the workload.
    "rollout.typical_trajectory_s",
)
_UNHASHED_TABLE = "rollout.workload."


def flatten_config(config: Config) -> dict[str, Any]:
    """Maps full keys to values in order of declaration, with secrets masked. Enum members become their names, tuples
    lists."""
    return {key: mask_tree(value, key) for key, value in _flat_items(config, "")}


def plain_config(config: Config) -> dict[str, Any]:
    """Returns `flatten_config` with the secrets of this process's environment as they are: to compare, not to show.

    What this process has in its environment must not decide whether two configurations are the same.
    """
    return {key: _hide_replaceable(key, value) for key, value in _flat_items(config, "")}


def _hide_replaceable(key: str, value: Any) -> Any:
    """Masks what may be replaced by another one without another result: text below a secret key, users of addresses."""
    if isinstance(value, dict):
        return {name: _hide_replaceable(f"{key}.{name}", item) for name, item in value.items()}
    if isinstance(value, list):
        return [_hide_replaceable(key, item) for item in value]
    if not isinstance(value, str):
        return value
    if is_secret_key(key):
        return MASK
    return mask_addresses(value)


def _flat_items(node: Any, key: str) -> Iterator[tuple[str, Any]]:
    if is_dataclass(node):
        node = {item.name: getattr(node, item.name) for item in fields(node)}
    if isinstance(node, dict) and (node or not key):
        for name, value in node.items():
            yield from _flat_items(value, f"{key}.{name}" if key else name)
    elif isinstance(node, tuple):
        yield key, _as_json(node)
    else:
        yield key, str(node) if isinstance(node, str) else node


def _as_json(node: Any) -> Any:
    """Returns tuples as lists, which is what JSON makes of them."""
    if isinstance(node, tuple | list):
        return [_as_json(item) for item in node]
    if isinstance(node, dict):
        return {name: _as_json(item) for name, item in node.items()}
    return node


def config_hash(config: Config) -> str:
    """Returns sixteen hex digits, the same for two runs that would compute the same; see `_UNHASHED_KEYS`."""
    values = {
        key: value
        for key, value in plain_config(config).items()
        if key not in _UNHASHED_KEYS
        and not key.startswith(_UNHASHED_TABLE)
        and (key.partition(".")[0] not in _UNHASHED_GROUPS or key.startswith(_HASHED_TABLE))
    }
    # Runs of before these keys have none of them in their hash.
    if config.job.repeat:
        values["job.repeat"] = config.job.repeat
    if config.job.think_s:
        values["job.think_s"] = config.job.think_s
    text = json.dumps(values, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
