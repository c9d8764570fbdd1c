"""The one place that turns `sandbox.kind` into a provider."""

from collections.abc import Callable
from pathlib import Path

from swe_rl.config.schema import SandboxConfig, SandboxKind
from swe_rl.errors import UserError
from swe_rl.sandbox.process import ProcessProvider
from swe_rl.sandbox.protocol import SandboxProvider

AVAILABLE_KINDS = (SandboxKind.process,)


def make_provider(config: SandboxConfig, scratch: Path, warn: Callable[[str], None]) -> SandboxProvider:
    """Raises UserError for a kind that is not built in, or that does not work on this host."""
    if config.kind is SandboxKind.process:
        return ProcessProvider(config, scratch, warn=warn)
    available = ", ".join(AVAILABLE_KINDS)
    raise UserError(f"sandbox.kind={config.kind} is not available in this version; available: {available}")
