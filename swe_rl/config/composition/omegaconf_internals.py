"""This module replaces parts of OmegaConf that take most of a composition's time by quicker ones.

Invariants:
- Nothing else of swe_rl relies on OmegaConf's private names. A new version of OmegaConf is looked at here.
- A replaced part returns what OmegaConf's own returns; a test composes with both.
- OmegaConf is imported inside the functions: `--help` is answered without it.
"""

from collections import defaultdict
from copy import deepcopy
from enum import Enum
from functools import lru_cache, wraps
from io import StringIO, TextIOBase
from pathlib import Path
from typing import Any

# Nobody can change a value of these types in place, so copies of a tree share it.
_SHARED_VALUES = (str, int, float, bool, bytes, Enum, Path, type(None))


def quicken_omegaconf() -> None:
    """Spares OmegaConf work that cannot change a result.

    - It reads files by PyYAML's own parser, which takes seven times as long as libyaml. It makes the nodes of a file
      anew for each composition; nodes of a text that was read before are copied.
    - It deep-copies what it notes of each node field by field, though few are ever changed in place. It copies a tree
      by making each node anew, with its checks, and then replaces all that the new node holds.
    - After each file that it merges, it visits the whole tree by a slow walk.
    - It parses the same `${...}` each time it looks at it, and only visits the tree that comes of it.
    """
    import omegaconf._utils
    import omegaconf.base
    from omegaconf import DictConfig, ListConfig, OmegaConf

    omegaconf.base.parse = lru_cache(maxsize=4096)(omegaconf.base.parse)  # type: ignore[attr-defined]
    omegaconf.base.Metadata.__deepcopy__ = _copied_note  # type: ignore[attr-defined]
    for kind in (DictConfig, ListConfig):
        kind.__deepcopy__ = _quick_copy(kind.__deepcopy__)  # type: ignore[method-assign]
    omegaconf.base.Box._re_parent = _quick_walk(omegaconf.base.Box._re_parent)  # type: ignore[method-assign]
    # OmegaConf imports this function where it reads, so the replacement counts.
    omegaconf._utils.get_yaml_loader = _quick_reading(omegaconf._utils.get_yaml_loader)
    OmegaConf.load = staticmethod(_load_once(OmegaConf.load))  # type: ignore[method-assign]


def _copied_note(note: Any, memo: dict[int, Any]) -> Any:
    """Copies OmegaConf's `Metadata` deeply, except types, keys and truth values, which are shared."""
    copied = object.__new__(type(note))
    vars(copied).update(vars(note))
    if note.flags is None:
        copied.flags = None
    else:
        copied.flags = dict(note.flags)
    if note.resolver_cache:
        copied.resolver_cache = deepcopy(note.resolver_cache, memo)
    else:
        copied.resolver_cache = defaultdict(dict)
    return copied


def _quick_copy(slow: Any) -> Any:
    """Replaces `__deepcopy__` of a container: the nodes are copied as they are, without their constructors."""
    from omegaconf.base import Node, UnionNode

    def copied(node: Any, parent: Any, memo: dict[int, Any]) -> Any:
        made = object.__new__(type(node))
        facts = made.__dict__
        facts.update(node.__dict__)
        facts["_parent"] = parent
        facts["_metadata"] = _copied_note(facts["_metadata"], memo)
        if facts["_flags_cache"]:
            facts["_flags_cache"] = dict(facts["_flags_cache"])
        if "_content" not in facts:
            if not isinstance(facts["_val"], _SHARED_VALUES):
                facts["_val"] = deepcopy(facts["_val"], memo)
            return made
        content = facts["_content"]
        if isinstance(content, dict):
            facts["_content"] = {key: copied(child, made, memo) for key, child in content.items()}
        elif isinstance(content, list):
            facts["_content"] = [copied(child, made, memo) for child in content]
        elif isinstance(node, UnionNode) and isinstance(content, Node):
            facts["_content"] = copied(content, made, memo)
        return made

    @wraps(slow)
    def copy_tree(tree: Any, memo: dict[int, Any]) -> Any:
        # As OmegaConf's own copy, this one keeps the parent, which is not copied.
        return copied(tree, tree.__dict__["_parent"], memo)

    return copy_tree


def _quick_walk(slow: Any) -> Any:
    """Replaces `Box._re_parent`, which tells each node below its parent, by a walk without imports and checks of types
    for each node."""
    from omegaconf.base import UnionNode

    @wraps(slow)
    def walk(box: Any) -> None:
        content = vars(box)["_content"]
        if isinstance(box, UnionNode):
            slow(box)
        elif isinstance(content, dict | list):
            for node in content.values() if isinstance(content, dict) else content:
                if node is None:
                    continue
                facts = node.__dict__
                facts["_parent"] = box
                if facts["_flags_cache"] is not None:
                    node._invalidate_flags_cache()
                if "_content" in facts:
                    walk(node)

    return walk


def _quick_reading(make: Any) -> Any:
    loader = _quick_loader(make())
    return wraps(make)(lambda: loader)


def _quick_loader(slow: Any) -> Any:
    """Makes OmegaConf's loader on libyaml. A text with an error is read again by `slow`, OmegaConf's own loader, which
    quotes the line."""
    from yaml import YAMLError, load  # type: ignore[import-untyped, unused-ignore]
    from yaml.constructor import SafeConstructor  # type: ignore[import-untyped, unused-ignore]
    from yaml.resolver import Resolver  # type: ignore[import-untyped, unused-ignore]

    try:
        from yaml.cyaml import CParser  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        # PyYAML was built without libyaml.
        return slow

    class Loader(CParser, slow):  # type: ignore[misc]
        def __init__(self, stream: Any) -> None:
            if isinstance(stream, str):
                self.text = stream
            else:
                self.text = stream.read()
            self.label = getattr(stream, "name", None)
            CParser.__init__(self, self.text)
            SafeConstructor.__init__(self)
            Resolver.__init__(self)

        def get_single_data(self) -> Any:
            try:
                return super().get_single_data()
            except YAMLError:
                stream = StringIO(self.text)
                stream.name = self.label or "<text>"
                return load(stream, Loader=slow)

    return Loader


def _load_once(load: Any) -> Any:
    """Replaces `OmegaConf.load`: each caller gets a copy of the nodes that the text of its stream was made into."""
    made: dict[str, Any] = {}

    @wraps(load)
    def load_or_copy(file: Any) -> Any:
        if not isinstance(file, TextIOBase):
            return load(file)
        text = file.read()
        if text not in made:
            file.seek(0)
            made[text] = load(file)
        return deepcopy(made[text])

    return load_or_copy


def plain_values(box: Any) -> Any:
    """Returns what `OmegaConf.to_container(box, resolve=True, throw_on_missing=True)` returns, or raises its errors.

    OmegaConf looks at each node in seven ways before it takes its value; most values are plain.
    """
    from omegaconf import DictConfig, ListConfig, OmegaConf
    from omegaconf.base import Container
    from omegaconf.errors import InterpolationResolutionError, MissingMandatoryValue

    def values_of(box: Any) -> Any:
        content = box.__dict__["_content"]
        if isinstance(box, DictConfig) and isinstance(content, dict):
            return {key: value_of(box, key, child) for key, child in content.items()}
        if isinstance(box, ListConfig) and isinstance(content, list):
            return [value_of(box, index, child) for index, child in enumerate(content)]
        return OmegaConf.to_container(box, resolve=True, throw_on_missing=True)

    def value_of(box: Any, key: Any, child: Any) -> Any:
        facts = child.__dict__
        if "_val" in facts:
            value = facts["_val"]
            if not isinstance(value, str) or not ("${" in value or value == "???"):
                return value
        try:
            node = box._get_child(key, throw_on_missing_value=True)._dereference_node()
        except (MissingMandatoryValue, InterpolationResolutionError) as error:
            box._format_and_raise(key=key, value=None, cause=error)
        if isinstance(node, Container):
            return values_of(node)
        return node._value()

    return values_of(box)
