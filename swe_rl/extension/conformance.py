"""What every `check_KIND` of `swe_rl.testing` does: makes a class as a run does, and says what it does wrong."""

from collections.abc import Mapping
from typing import Any

from swe_rl.config.choices import ExtensionKind
from swe_rl.config.schema import Extensible
from swe_rl.errors import SweRlError
from swe_rl.extension.find import Foreign
from swe_rl.extension.make import make

Params = Mapping[str, Any]
NONE: Params = {}


class ConformanceError(AssertionError):
    """A class does not do what its kind has to."""


def made_of(kind: ExtensionKind, code: type, params: Params, given: Mapping[str, Any]) -> tuple[Any, Foreign]:
    """Raises ConformanceError."""
    try:
        made, maker = make(kind, group_for(code, params), given, {})
    except SweRlError as error:
        raise ConformanceError(str(error)) from error
    assert maker is not None
    return made, maker


def group_for(code: type, params: Params) -> Extensible:
    return Extensible(name=code.__name__, _target_=f"{code.__module__}.{code.__qualname__}", params=dict(params))


def require(holds: bool, maker: Foreign, what: str) -> None:
    """Raises ConformanceError."""
    if not holds:
        raise ConformanceError(f"{maker}: {what}")
