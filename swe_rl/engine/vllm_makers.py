"""What a supervised engine is given: how its servers and their clients come about, and whom it tells of their lives.

Invariants:
- Nothing is started here; every call of a maker makes a new one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from swe_rl.engine.http import HttpEngine
from swe_rl.engine.vllm_server import VllmServer

Record = Callable[[str, Mapping[str, object]], None]  # an event's name and fields


@dataclass(frozen=True, slots=True)
class Makers:
    """`server`: from a model folder and whether to run eagerly; `client`: from the server's address."""

    server: Callable[[str, bool], VllmServer]
    client: Callable[[str], HttpEngine]
