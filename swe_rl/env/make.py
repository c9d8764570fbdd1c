"""Which environment a configuration means."""

from pathlib import Path

from swe_rl.config.choices import SandboxKind
from swe_rl.config.schema import EnvConfig
from swe_rl.env.bugs.env import BugsEnv
from swe_rl.env.protocol import Env
from swe_rl.env.swe.env import SweEnv


def make_env(config: EnvConfig, cache: Path, sandbox: SandboxKind = SandboxKind.process) -> Env:
    """`cache` holds prepared workspaces; `sandbox` decides whether an instance's workspace is a folder or an image."""
    if config.name == "bugs":
        return BugsEnv(config, cache)
    if config.name == "kodcode":
        from swe_rl.env.kodcode.env import KodcodeEnv

        return KodcodeEnv(config, cache)
    return SweEnv(config, cache, sandbox, BugsEnv(config, cache))
