"""This module does what every `check_KIND` of `swe_rl.testing` needs: it makes a class as a run does, and complains."""

from collections.abc import Mapping
from typing import Any

from swe_rl.config.choices import ExtensionKind
from swe_rl.config.schema import Extensible
from swe_rl.errors import SweRlError
from swe_rl.extension.find import Foreign
from swe_rl.extension.make import make_extension

Params = Mapping[str, Any]
NONE: Params = {}


class ConformanceError(AssertionError):
    """A class does not do what a class of its kind has to do."""


def made_of(kind: ExtensionKind, code: type, params: Params, given: Mapping[str, Any]) -> tuple[Any, Foreign]:
    """Returns an object of the class, made as a run makes it, and the name of its maker for messages.

    Raises ConformanceError where it cannot be made.
    """
    try:
        made, maker = make_extension(kind, group_for(code, params), given, {})
    except SweRlError as error:
        raise ConformanceError(str(error)) from error
    assert maker is not None
    return made, maker


def group_for(code: type, params: Params) -> Extensible:
    """Returns the configuration group that names the class by its import path."""
    return Extensible(name=code.__name__, _target_=f"{code.__module__}.{code.__qualname__}", params=dict(params))


def require(holds: bool, maker: Foreign, what: str) -> None:
    """Raises ConformanceError, which names the class and says `what` it has to do, unless this `holds`."""
    if not holds:
        raise ConformanceError(f"{maker}: {what}")
