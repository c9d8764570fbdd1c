"""This Hydra callback keeps secrets that a YAML file spells out out of the sweep's `multirun.yaml`.

Invariants:
- Jobs are composed anew from their overrides, so masking the sweep's own copy changes no job.
"""

from collections.abc import Iterator
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from swe_rl.config.secrets import mask_tree


class MaskSecrets(Callback):
    """Masks secrets when a sweep starts. conf/config.yaml names this class."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        for key, value in _iter_values(OmegaConf.to_container(config, resolve=False)):
            masked = mask_tree(value, key)
            if masked != value and not str(value).startswith("${"):
                with read_write(config), open_dict(config):
                    OmegaConf.update(config, key, masked)


def _iter_values(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yields what is no table, by its full key: plain values, and lists as a whole."""
    if isinstance(node, dict):
        for name, value in node.items():
            yield from _iter_values(value, f"{key}.{name}" if key else str(name))
    else:
        yield key, node
