"""This module does what every `check_KIND` of `swe_rl.testing` needs: it makes a class as a run does, and complains."""

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

from swe_rl.config.choices import ExtensionKind
from swe_rl.config.schema import Extensible
from swe_rl.errors import SweRlError
from swe_rl.extension.find import Foreign
from swe_rl.extension.make import make_extension

Params = Mapping[str, Any]
NONE: Params = {}

_TICK_S = 0.05  # The event loop and the thread that watches it both wake so often.
_KEPT_S = 1.0  # A method may keep the event loop from others for so long.


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


class LoopWatch:
    """This measures how long somebody kept the event loop from others at most, while the context lasts.

    A thread counts how often it woke between two wake-ups of the loop. Wall time would not do: on a busy machine it
    passes for the loop and for the thread alike, and nobody kept either.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._ticks_since_beat = 0
        self._ended = threading.Event()

    async def __aenter__(self) -> "LoopWatch":
        self._beating = asyncio.ensure_future(self._beat())
        self._thread = threading.Thread(target=self._count_ticks, daemon=True)
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ended.set()
        self._beating.cancel()

    async def _beat(self) -> None:
        while True:
            self._ticks_since_beat = 0
            await asyncio.sleep(_TICK_S)

    def _count_ticks(self) -> None:
        while not self._ended.wait(_TICK_S):
            self._ticks_since_beat += 1
            self.longest_s = max(self.longest_s, self._ticks_since_beat * _TICK_S)

    def require_free(self, maker: object, what: str) -> None:
        """Raises ConformanceError if `what` of the class kept the event loop for too long."""
        if self.longest_s > _KEPT_S:
            raise ConformanceError(
                f"{maker}: {what} kept the event loop for {self.longest_s:.1f} s: await what takes long"
            )
