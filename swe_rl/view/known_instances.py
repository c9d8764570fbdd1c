"""This module finds what a data set says of an instance: its task, and the known fix to show beside an agent's patch.

Invariants:
- Only data sets of this machine are read: those that come with swe_rl, and files. Nothing is fetched, and no code of a
  user's environment is run. Of other instances nothing is known.
- A data set that was read stays in memory as the tasks and the patches of its instances. Of a larger file than
  64 MB nothing is known, because a run in training reads it, too.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swe_rl.errors import SweRlError
from swe_rl.files.json_text import decode_json, encode_json
from swe_rl.files.tables import as_mapping

if TYPE_CHECKING:
    from swe_rl.config.schema import EnvConfig
    from swe_rl.dataset.instance import Instance

Record = Mapping[str, Any]
_log = logging.getLogger(__name__)
_BUILT_IN = "builtin:bugs"
_MOST_BYTES = 64_000_000
# These keys decide which rows a data set has, and how they are read.
_KEYS = ("name", "dataset", "split", "eval_split", "eval_dataset", "columns", "eval_columns", "grading")


def known_fix(config: Record, instance_id: str) -> str | None:
    """Returns the patch that solves an instance of the run with this configuration; None where it is not known here."""
    known = _known_instance(config, instance_id)
    if known is None:
        return None
    return known.patch


def task_text(config: Record, instance_id: str) -> str | None:
    """Returns the text of the issue that an agent was given; None where it is not known here."""
    known = _known_instance(config, instance_id)
    if known is None:
        return None
    return known.task


@dataclass(frozen=True, slots=True)
class _Known:
    task: str
    patch: str


def _known_instance(config: Record, instance_id: str) -> _Known | None:
    """Returns an instance of the environment, or of a part of a mix, whose name may be in front of the id."""
    env = as_mapping(config.get("env"))
    for name, part in as_mapping(env.get("mix")).items():
        known = _known_in(as_mapping(part), instance_id.removeprefix(f"{name}."))
        if known is not None:
            return known
    return _known_in(env, instance_id)


def _known_in(env: Record, instance_id: str) -> _Known | None:
    datasets = [name for name in (env.get("dataset"), env.get("eval_dataset")) if name is not None]
    if env.get("_target_") or not datasets or not all(map(_is_here, datasets)):
        return None
    given = {key: env[key] for key in _KEYS if key in env}
    return _read_known(encode_json(given).decode()).get(instance_id)


def _is_here(dataset: Any) -> bool:
    if not isinstance(dataset, str):
        return False
    if dataset == _BUILT_IN:
        return True
    try:
        return Path(dataset).is_file() and Path(dataset).stat().st_size <= _MOST_BYTES
    except OSError:
        return False


@lru_cache(8)
def _read_known(env: str) -> dict[str, _Known]:
    """Returns the instances of both splits of an environment, which is given as JSON."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from swe_rl.config.schema import EnvConfig

    known: dict[str, _Known] = {}
    try:
        config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(EnvConfig), decode_json(env.encode())))
        assert isinstance(config, EnvConfig)
        for split in dict.fromkeys((config.split, config.eval_split)):
            for instance in _read_instances(config, split):
                known[instance.instance_id] = _Known(instance.problem_statement, instance.patch)
    except (SweRlError, OmegaConfBaseException, OSError, ValueError) as error:
        _log.info("instances cannot be read: %s", error)
    return known


def _read_instances(config: "EnvConfig", split: str) -> Sequence["Instance"]:
    """Returns a split's instances. Raises InstanceError."""
    from swe_rl.env.bugs.env import BugsEnv
    from swe_rl.env.swe.read import read_split

    if config.name == "bugs":
        # Nothing is prepared, so that the cache is not used.
        return BugsEnv(config, Path()).instances(split)
    return read_split(config, split).instances
