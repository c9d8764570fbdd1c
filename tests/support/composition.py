"""Composing as a whole costs 0.1 s, and tests compose thousands of times, mostly the same options with other values.

The tree of the options is composed once for each choice, and each test gets its own copy with its values applied, as a
sweep's jobs do (`compose_all`). Whatever does not go through, and every folder of a user's own, is composed for real:
so each error is the one that a user gets. `tests/config/test_config_compose.py` composes for real throughout.

Of a composition, a third is the making of nodes of the files of conf/ and of the schema, which stay as they are: those
of each file are made once, and each composition gets a copy.
"""

import copy

from hydra._internal.config_repository import ConfigRepository
from omegaconf.base import Node

from swe_rl.config import compose as composition
from swe_rl.config.explain import groups_of
from swe_rl.config.folders import conf_dir
from swe_rl.config.hydra_internals import _copied_note, apply_values

COMPOSE_TREE = composition._compose_tree
LOAD_CONFIG = ConfigRepository.load_config
OWN = ("pkg://hydra.conf", f"file://{conf_dir()}", "structured://")


class SharedFiles:
    """Stands for `ConfigRepository.load_config`. Folders of a user's own are read each time."""

    def __init__(self):
        self.results = {}

    def load(self, repository, config_path):
        if tuple(f"{source.scheme()}://{source.path}" for source in repository.sources) != OWN:
            return LOAD_CONFIG(repository, config_path=config_path)
        if config_path not in self.results:
            self.results[config_path] = LOAD_CONFIG(repository, config_path=config_path)
        if self.results[config_path] is None:
            return None
        result = copy.copy(self.results[config_path])  # Hydra itself copies its defaults list
        result.config = copied(result.config)
        return result


def copied(node, parent=None):
    """As `copy.deepcopy` copies a tree of OmegaConf's, in a third of the time; all that it holds are plain values."""
    facts = dict(vars(node))
    facts["_metadata"] = _copied_note(facts["_metadata"], {})
    facts["_parent"], facts["_flags_cache"] = parent, facts["_flags_cache"] and dict(facts["_flags_cache"])
    made = object.__new__(type(node))
    vars(made).update(facts)
    content = facts.get("_content")
    if isinstance(content, dict):
        vars(made)["_content"] = {key: copied(child, made) for key, child in content.items()}
    elif isinstance(content, list):
        vars(made)["_content"] = [copied(child, made) for child in content]
    elif isinstance(content, Node):
        vars(made)["_content"] = copied(content, made)
    return made


class SharedTrees:
    def __init__(self):
        self.trees = {}

    def __call__(self, overrides, config_dir):
        """Stands for `_compose_tree`."""
        if config_dir is None:
            try:
                return self._copied(overrides)
            except Exception:  # the user's mistake, which the real composition words
                pass
        return COMPOSE_TREE(overrides, config_dir)

    def _copied(self, overrides):
        groups = frozenset(groups_of(None))
        chosen = composition._choices(overrides, groups)
        key = (conf_dir(), chosen)
        if key not in self.trees:
            self.trees[key] = COMPOSE_TREE(list(chosen), None)
        values = [override for override in overrides if override not in chosen]
        if not values:
            return self.trees[key]  # composing only reads it
        tree = copied(self.trees[key])
        apply_values(_parsed(values), tree)
        return tree


def _parsed(values):
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser

    with composition._hydra(None):
        loader = GlobalHydra.instance().config_loader()
        parsed = OverridesParser.create(config_loader=loader).parse_overrides(values)
    assert not any(override.is_sweep_override() for override in parsed)
    return parsed
