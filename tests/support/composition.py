"""Composing as a whole costs 0.1 s, and tests compose thousands of times, mostly the same options with other values.

The tree of the options is composed once for each choice, and each test gets its own copy with its values applied, as a
sweep's jobs do (`compose_all`). Whatever does not go through, and every folder of a user's own, is composed for real:
so each error is the one that a user gets. `tests/config/test_config_compose.py` composes for real throughout.
"""

import copy

from swe_rl.config import compose as composition
from swe_rl.config.explain import groups_of
from swe_rl.config.folders import conf_dir
from swe_rl.config.hydra_internals import apply_values

COMPOSE_TREE = composition._compose_tree


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
        tree = copy.deepcopy(self.trees[key])
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
