"""Takes values that came from files of others, where a table should be and anything may stand."""

from collections.abc import Mapping
from typing import Any


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Returns a table as it is, and an empty one in place of anything else."""
    if isinstance(value, Mapping):
        return value
    return {}
