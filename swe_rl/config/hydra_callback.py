"""A Hydra callback: secrets that a YAML file spells out do not reach the sweep's `multirun.yaml`.

Invariants:
- Jobs are composed anew from their overrides, so masking the sweep's own copy changes no job.
"""

from collections.abc import Iterator
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from swe_rl.config.secrets import mask_value


class MaskSecrets(Callback):
    """Named in conf/config.yaml."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        for key, value in _leaves(OmegaConf.to_container(config, resolve=False)):
            masked = mask_value(key, value)
            if masked != value and not str(value).startswith("${"):
                with read_write(config), open_dict(config):
                    OmegaConf.update(config, key, masked)


def _leaves(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        for name, value in node.items():
            yield from _leaves(value, f"{key}.{name}" if key else str(name))
    elif not isinstance(node, list):
        yield key, node
