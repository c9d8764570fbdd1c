"""Knows which lists of mined tasks ship with swe_rl, and where a list is.

Invariants:
- A name with a slash, or with the ending of a list, is a path. Any other name is that of a shipped list.
"""

from pathlib import Path

LIST_SUFFIX = ".lock.json"
_SHIPPED = Path(__file__).parents[1] / "env" / "mining" / "lists"


def shipped_lists() -> list[str]:
    """Returns the names of the lists that ship with swe_rl."""
    return sorted(path.name.removesuffix(LIST_SUFFIX) for path in _SHIPPED.glob(f"*{LIST_SUFFIX}"))


def is_list_path(name: str) -> bool:
    """Tells whether `mine.lock` names a file of the user's, and not a shipped list."""
    return "/" in name or name.endswith(".json")


def list_path(name: str) -> Path:
    """Returns the file of a list: a shipped one by its name, any other by its path."""
    if is_list_path(name):
        return Path(name)
    return _SHIPPED / f"{name}{LIST_SUFFIX}"
