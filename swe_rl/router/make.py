"""The router that a configuration names."""

from collections.abc import Sequence
from typing import Protocol

from swe_rl.config.schema import RouterConfig
from swe_rl.errors import UserError
from swe_rl.router.core import Router
from swe_rl.router.default import DefaultPolicy

ROUTERS = ("default",)


class RouterError(UserError):
    """There is no such router, or nothing for it to route to."""


class Named(Protocol):
    @property
    def name(self) -> str: ...


def make_router(config: RouterConfig, engines: Sequence[Named]) -> Router:
    """Raises RouterError."""
    names = [engine.name for engine in engines]
    if not names or len(set(names)) != len(names):
        raise RouterError(f"router={config.name} needs engines of different names; layout.engines gave {names}")
    if config.name == "default":
        return Router(DefaultPolicy(), names)
    raise RouterError(f"router={config.name} is not known; choose one of {', '.join(ROUTERS)}")
