"""What a supervised engine is given: how its servers and their clients come about.

Invariants:
- Nothing is started here; every call of a maker makes a new one.
"""

from collections.abc import Callable
from dataclasses import dataclass

from swe_rl.engine.http import HttpEngine
from swe_rl.engine.vllm_server import VllmServer


@dataclass(frozen=True, slots=True)
class Makers:
    """`server`: from a model folder, whether to run eagerly, and whether a MIG slice is called by its number (which
    raises DeviceError where it has none); `client`: from the server's address."""

    server: Callable[[str, bool, bool], VllmServer]
    client: Callable[[str], HttpEngine]
