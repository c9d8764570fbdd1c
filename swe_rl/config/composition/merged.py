"""This module keeps what Hydra merged for the options of each group: merges take most of the time of a composition.

A composition is a list of files, which Hydra merges one after the other. First come Hydra's own options and the schema,
then the options of our groups, each of which writes the table of its group alone, then the files that write anywhere.
So the table of a group follows from the files before the groups and from the group's own files, whatever the other
groups have. Such a table is merged once, and copied into the later compositions that have the same files.

Invariants:
- A tree has what Hydra's own merges give; a test composes with both.
- Nothing is kept beyond a change of the files: `keep_merges` names their state.
- What is kept shares no node with anything else: a merge puts nodes of the files into the tree, and later ones change
  them in place.
- A list of files in another form, and one whose merge fails, is left to Hydra, with its own errors.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omegaconf import DictConfig

_SCHEMA = "base_config"  # conf/config.yaml begins with it, so all files before it are Hydra's own.
_HYDRA = "hydra"

# The path of a file below conf/, and the table that its values go to.
_File = tuple[str, str]


@dataclass(frozen=True)
class _Head:
    """Holds what the files before the groups merge to: the root without a child, and each child without a parent."""

    root: "DictConfig"
    children: dict[str, Any]

    def copy_root(self) -> "DictConfig":
        return deepcopy(self.root)

    def copy_child(self, name: str) -> Any:
        return deepcopy(self.children[name])


class MergedGroups:
    """Holds the merged tables of the files in one state, and what Hydra read to find out which files these are."""

    def __init__(self) -> None:
        self.state: Hashable = None
        self.is_used = False
        self.read: dict[str, Any] = {}
        self.heads: dict[tuple[_File, ...], _Head] = {}
        self.tables: dict[tuple[tuple[_File, ...], tuple[_File, ...]], Any] = {}

    def compose(self, defaults: Sequence[Any], merge: Callable[["DictConfig", Sequence[Any]], None]) -> "DictConfig":
        """Returns the tree of `defaults`, the entries of Hydra's list. `merge` merges entries into a tree, in order.

        Raises ValueError for a list in another form, and whatever `merge` raises.
        """
        first, groups, tail = _split(defaults)
        files = tuple(map(_file_of, first))
        head = self._merged_head(files, first, merge)
        if not groups.keys() <= head.children.keys():
            raise ValueError("the schema lacks the table of a group")
        tree = head.copy_root()
        for name in head.children:
            if name in groups:
                child = deepcopy(self._merged_table(files, name, groups[name], merge))
            else:
                child = head.copy_child(name)
            _put_child(tree, name, child)
        merge(tree, tail)
        return tree

    def _merged_head(self, files: tuple[_File, ...], first: Sequence[Any], merge: Any) -> _Head:
        from omegaconf import OmegaConf

        if files not in self.heads:
            tree = OmegaConf.create()
            merge(tree, first)
            children: dict[str, Any] = dict(tree._content)  # type: ignore[arg-type]
            for child in children.values():
                child._set_parent(None)
            tree._content.clear()  # type: ignore[union-attr]
            self.heads[files] = _Head(deepcopy(tree), deepcopy(children))
        return self.heads[files]

    def _merged_table(self, files: tuple[_File, ...], group: str, entries: Sequence[Any], merge: Any) -> Any:
        key = (files, tuple(map(_file_of, entries)))
        if key not in self.tables:
            head = self.heads[files]
            tree = head.copy_root()  # The files of a group write to no other child, so it is merged alone.
            _put_child(tree, group, head.copy_child(group))
            merge(tree, entries)
            table = tree._get_node(group)
            table._set_parent(None)  # type: ignore[union-attr]  # Else the table would keep the root.
            self.tables[key] = deepcopy(table)
        return self.tables[key]


def _put_child(tree: "DictConfig", name: str, child: Any) -> None:
    tree._content[name] = child  # type: ignore[index]
    child._set_parent(tree)


_KEPT = MergedGroups()


@contextmanager
def keep_merges(state: Hashable) -> Iterator[None]:
    """Lets the compositions inside use what earlier ones merged from files in the same `state`."""
    if _KEPT.state != state:
        _KEPT.__init__()  # type: ignore[misc]
        _KEPT.state = state
    _KEPT.is_used = True
    try:
        yield
    finally:
        _KEPT.is_used = False


def kept_merges() -> MergedGroups | None:
    """Returns what may be used for the composition that is being made, or None outside of `keep_merges`."""
    if _KEPT.is_used:
        return _KEPT
    return None


def _file_of(entry: Any) -> _File:
    return str(entry.config_path), str(entry.package)


def _split(defaults: Sequence[Any]) -> tuple[Sequence[Any], dict[str, list[Any]], Sequence[Any]]:
    """Returns the entries up to the schema, those of each group, and those from the first that writes anywhere on."""
    paths = [entry.config_path for entry in defaults]
    begin = paths.index(_SCHEMA) + 1
    groups: dict[str, list[Any]] = {}
    end = begin
    for entry in defaults[begin:]:
        package = entry.package or ""
        if entry.primary or not package or "." in package or package == _HYDRA:
            break
        groups.setdefault(package, []).append(entry)
        end += 1
    return defaults[:begin], groups, defaults[end:]
