"""The models that conf/model/ describes: which files each option's sizes belong to."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from swe_rl.config.folders import conf_dir
from swe_rl.config.yaml_text import read


@cache
def known_models() -> Mapping[str, Mapping[str, Any]]:
    """Option to the values of its file."""
    return {path.stem: dict(read(path)) for path in sorted((conf_dir() / "model").glob("*.yaml"))}
