"""This module names a run by what it is: its model, its environment and, of a training, its algorithm.

Invariants:
- What a run's folder says may be damaged: whatever is no table or has no name leaves its place empty.
"""

from collections.abc import Mapping
from typing import Any

from swe_rl.config.choices import EngineKind
from swe_rl.config.parts import AGENTS_WITHOUT_MODEL
from swe_rl.files.tables import as_mapping

_SEPARATOR = " · "


def acting_model(config: Mapping[str, Any]) -> str:
    """Returns the model of a run, or what acts in its place: an endpoint's model, or an agent that asks none."""
    engine = as_mapping(config.get("engine"))
    agent = option_name(config, "agent")
    if agent in AGENTS_WITHOUT_MODEL:
        return agent
    if engine.get("kind") == EngineKind.endpoint and engine.get("model"):
        return str(engine["model"])
    return option_name(config, "model")


def option_name(config: Mapping[str, Any], group: str) -> str:
    """Returns the name of the option that a group has, or an empty text."""
    return str(as_mapping(config.get(group)).get("name") or "")


def algorithm_of(config: Mapping[str, Any]) -> str:
    """Returns the algorithm of a training, and an empty text for any other job."""
    if as_mapping(config.get("job")).get("name") == "train":
        return option_name(config, "algo")
    return ""


def name_run(config: Mapping[str, Any]) -> str:
    """Returns `tiny · bugs · grpo`, with a name of the user's own before it: `mine: tiny · bugs · grpo`."""
    parts = (acting_model(config), option_name(config, "env"), algorithm_of(config))
    what = _SEPARATOR.join(filter(None, parts))
    given_name = str(config.get("name") or "")
    if given_name in ("", as_mapping(config.get("job")).get("name")):
        return what
    return ": ".join(filter(None, (given_name, what)))
