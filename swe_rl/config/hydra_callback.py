"""This Hydra callback keeps secrets that a YAML file spells out out of the sweep's `multirun.yaml`.

Invariants:
- Jobs are composed anew from their overrides, so masking the sweep's own copy changes no job.
"""

from collections.abc import Iterator
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from swe_rl.config.secrets import mask_value


class MaskSecrets(Callback):
    """Masks secrets when a sweep starts. conf/config.yaml names this class."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        for key, value in _iter_leaves(OmegaConf.to_container(config, resolve=False)):
            masked = mask_value(key, value)
            if masked != value and not str(value).startswith("${"):
                with read_write(config), open_dict(config):
                    OmegaConf.update(config, key, masked)


def _iter_leaves(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        for name, value in node.items():
            yield from _iter_leaves(value, f"{key}.{name}" if key else str(name))
    elif not isinstance(node, list):
        yield key, node
