"""Which environment a configuration means."""

from pathlib import Path

from swe_rl.config.schema import EnvConfig
from swe_rl.env.bugs.env import BugsEnv
from swe_rl.env.protocol import Env
from swe_rl.errors import UserError


def make_env(config: EnvConfig, cache: Path) -> Env:
    """Raises UserError for an environment that cannot run yet."""
    if config.name not in ("bugs", "jsonl"):
        raise UserError(f"env={config.name} composes but cannot run yet; env=bugs runs on this machine")
    return BugsEnv(config, cache)
