"""This module finds out what became of a recorded attempt: its reward and its instance."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from swe_rl.imitation.record import wrong_field

# The first of these that a record has is its reward: ours, SWE-smith's and SWE-rebench's, nebius'.
_REWARDS = ("reward", "resolved", "target")
_WORDS = {"true": 1.0, "false": 0.0}
_IDS = ("instance_id", "task_id", "problem_id")
# mini-swe-agent and SWE-agent name a file after its instance, with these endings.
_ENDINGS = (".traj.json", ".traj")


def find_reward(record: Mapping[str, Any], where: str, inside: str = "") -> float | None:
    """Returns the reward that a record tells; None where it tells none. Raises DataError for one that is no number."""
    name = next((name for name in _REWARDS if record.get(name) is not None), None)
    if name is None:
        return None
    value = record[name]
    if isinstance(value, str):
        value = _WORDS.get(value.strip().lower(), value)
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        full_name = f"{inside}{name}"
        raise wrong_field(where, full_name, f"is {value!r}", "It has to be a number, true or false") from error


def lost_reward(record: Mapping[str, Any]) -> bool:
    """Tells whether this is an outcome as we write it, of an attempt that got no reward.

    Records of others that tell no reward have no such pair of fields: they are of unknown worth, not of none.
    """
    return isinstance(record.get("status"), str) and "reward" in record and record["reward"] is None


def find_instance(record: Mapping[str, Any]) -> str | None:
    """Returns the id of the instance that a record is about; None where it names none."""
    return next((str(record[name]) for name in _IDS if isinstance(record.get(name), str | int)), None)


def instance_of_file(where: str) -> str | None:
    """Returns the id of the instance that a file is named after; None for any other name.

    Programs that wrap those agents call every file alike: attempts at all tasks would be those at one instance.
    """
    name = PurePath(where).name
    ending = next((ending for ending in _ENDINGS if name.endswith(ending)), None)
    if ending is None:
        return None
    return name.removesuffix(ending) or None
