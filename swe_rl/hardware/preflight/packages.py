"""Packages that this configuration will import: installed, and of a version that was tried.

Invariants:
- Nothing is imported to find out: the installed metadata is read.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from swe_rl.config.choices import EngineKind, GradingKind, RuntimeKind, SandboxKind, WandbMode
from swe_rl.config.findings import Finding, error
from swe_rl.config.schema import Config
from swe_rl.hardware.preflight.hub_cache import is_hub_id
from swe_rl.hardware.preflight.probe import value_of
from swe_rl.hardware.preflight.system import System


@dataclass(frozen=True, slots=True)
class Need:
    """`distributions`: the first is what to install, any of them will do. `tried` is a range of versions."""

    distributions: tuple[str, ...]
    tried: str
    key: str
    wanted: Callable[[Config, System], bool]

    @property
    def install(self) -> str:
        return f"pip install '{self.distributions[0]}{self.tried}'"


def _torch(config: Config, _: System) -> bool:
    return config.engine.kind is EngineKind.embedded or config.layout.trainer_gpus > 0


def _containers(config: Config, _: System) -> bool:
    """The sandboxes' own, or those of a runtime job that is started from this installation."""
    return config.sandbox.kind in (SandboxKind.docker, SandboxKind.podman) or config.runtime.kind is RuntimeKind.job


def _hub_data(config: Config, system: System) -> bool:
    names = (config.env.dataset, config.env.eval_dataset or "builtin:")
    return any(is_hub_id(name, system) or name.endswith(".parquet") for name in names)


def _submits(config: Config, system: System) -> bool:
    return config.hardware.partition is not None and "SLURM_JOB_ID" not in system.environment


NEEDS = (
    Need(("torch",), ">=2.11,<2.14", "engine.kind", _torch),
    Need(("transformers",), ">=5.17,<5.20", "model.path", _torch),
    Need(("ray",), ">=2.60,<3", "hardware.ray_address", lambda config, _: config.hardware.ray_address is not None),
    Need(("peft",), ">=0.21.2,<0.22", "trainer.lora_rank", lambda config, _: config.trainer.lora_rank > 0),
    Need(("docker",), ">=7,<8", "sandbox.kind", _containers),
    Need(("swebench",), ">=5.0.2,<6", "env.grading", lambda config, _: config.env.grading is GradingKind.swebench),
    Need(("mini-swe-agent",), ">=2.4,<3", "agent.name", lambda config, _: config.agent.name == "mini_swe"),
    Need(("datasets",), ">=4,<6", "env.dataset", _hub_data),
    Need(("wandb",), ">=0.28,<0.32", "logger.wandb", lambda config, _: config.logger.wandb is not WandbMode.disabled),
    Need(("submitit",), ">=1.5.4,<2", "runtime.kind", lambda config, _: config.runtime.kind is RuntimeKind.job),
    Need(("hydra-submitit-launcher",), ">=1.2,<2", "hardware.partition", _submits),
)


def ask(config: Config, system: System) -> Iterator[Finding]:
    for need in NEEDS:
        if need.wanted(config, system):
            yield from _of(config, system, need)


def _of(config: Config, system: System, need: Need) -> Iterator[Finding]:
    installed = {name: found for name in need.distributions if (found := system.version(name)) is not None}
    if not installed:
        message = f"needs the package {need.distributions[0]}, which is not installed"
    elif not any(_tried(found, need.tried) for found in installed.values()):
        shown = ", ".join(f"{name} {found}" for name, found in installed.items())
        message = f"{shown} is installed; this version was tried with {need.tried}"
    else:
        return
    yield error("preflight_package", need.key, value_of(config, need.key), message, need.install)


def _tried(found: str, tried: str) -> bool:
    """Local builds and release candidates of a version count as that version."""
    return SpecifierSet(tried).contains(Version(found).base_version)
