"""This module is the one place that turns `sandbox.kind` into a provider."""

from collections.abc import Callable
from pathlib import Path

from swe_rl.config.choices import RuntimeProtocol, SandboxKind
from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import UserError
from swe_rl.sandbox.sandbox import SandboxProvider


def make_provider(
    config: SandboxConfig, scratch: Path, warn: Callable[[str], None], *, run: str = ""
) -> SandboxProvider:
    """Returns the provider that the configuration names; `run` names the run in labels.

    Raises UserError for a kind that does not work on this host.
    """
    if config.kind is SandboxKind.process:
        from swe_rl.sandbox.process.provider import ProcessProvider

        return ProcessProvider(config, scratch, warn=warn)
    if config.kind in (SandboxKind.docker, SandboxKind.podman):
        _require_module("docker", f"sandbox.kind={config.kind}", "the SDK of both engines")
        from swe_rl.sandbox.container.provider import ContainerProvider

        return ContainerProvider(config, scratch, warn=warn, run=run)
    if config.kind is SandboxKind.custom:
        from swe_rl.sandbox.foreign import make_own

        return make_own(config, scratch, warn)
    if config.kind is SandboxKind.apptainer:
        from swe_rl.sandbox.apptainer.provider import ApptainerProvider

        return ApptainerProvider(config, scratch, warn=warn)
    if config.runtime_protocol is RuntimeProtocol.openhands:
        from swe_rl.sandbox.remote.openhands import OpenHandsProvider

        return OpenHandsProvider(config)
    from swe_rl.sandbox.remote.client import RemoteProvider

    return RemoteProvider(config)


def speaks_ours(config: SandboxConfig) -> bool:
    """Tells whether sandboxes are on a server of job=runtime."""
    return config.kind is SandboxKind.remote and config.runtime_protocol is RuntimeProtocol.swe_rl


async def greet_server(config: SandboxConfig) -> None:
    """Asks the server of job=runtime once if it is well. Raises UserError where it is not, or wants another key."""
    from swe_rl.sandbox.remote.client import RemoteProvider

    provider = RemoteProvider(config)
    try:
        await provider.greet()
    finally:
        await provider.close()


def _require_module(module: str, what: str, why: str) -> None:
    import importlib.util

    if importlib.util.find_spec(module) is None:
        raise UserError(f"{what} needs the Python package {module!r} ({why}): pip install 'swe_rl[docker]'")
