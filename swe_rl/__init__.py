"""swe_rl: post-train software-engineering agents with reinforcement learning, from one Hydra application.

Invariants:
- Importing it imports the standard library only; what a call needs is imported by the call.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from swe_rl.version import __version__

if TYPE_CHECKING:
    from swe_rl.config.schema import Config

__all__ = ["__version__", "compose"]


def compose(overrides: Sequence[str] = (), config_dir: str | Path | None = None) -> "Config":
    """The configuration that `python -m swe_rl OVERRIDES` would run, frozen; nothing is checked or started.

    `config_dir` is a folder of options of your own, as `--config-dir`. A secret among the overrides goes to this
    process's environment, as on the command line, and is in no message. Raises swe_rl.config.explain.ConfigError, a
    UserError whose text is one paragraph: the key, the reason, the nearest legal spelling.
    """
    from swe_rl.config.compose import compose as composed

    return composed(overrides, None if config_dir is None else Path(config_dir)).config
