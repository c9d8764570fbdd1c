"""Brings new weights to all engines at once, from the trainer's memory: what its two ways share (`wire`, `staged`).

Invariants:
- Tensors travel when every server is paused and waits for them; an update counts when every server has all of them.
- An update that failed is tried once more, with the servers that are up by then.
- A server that is started anew between two updates gets the weights through a folder, under the version that they have.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from swe_rl.engine.engine import Engine, EngineError, EngineState, UnchangedError, WeightSyncError, worth_asking
from swe_rl.engine.transfer.sent_weights import SendsWeights, SentWeights

if TYPE_CHECKING:
    from swe_rl.engine.server.engine import HttpEngine

INSTEAD = " With trainer.weight_sync=disk they go through a folder."
# A server that died since the last update is missed only now; the second try finds its successor.
_TRIES = 2
# Inside of it the sender's weights stay as they are; it yields their version.
Reading = Callable[[], AbstractAsyncContextManager[int]]


@dataclass(slots=True)
class Times:
    """The times of one update in seconds, each the slowest server's; `gather` and `wire` are the sender's."""

    pause_s: float = 0.0
    gather_s: float = 0.0
    wire_s: float = 0.0
    load_s: float = 0.0
    resume_s: float = 0.0
    sent_gb: float = 0.0
    rounds: int = 1

    def take_server(self, *, pause_s: float, load_s: float, resume_s: float) -> None:
        self.pause_s = max(self.pause_s, pause_s)
        self.load_s = max(self.load_s, load_s)
        self.resume_s = max(self.resume_s, resume_s)

    def take_sent(self, sent: SentWeights) -> None:
        self.gather_s = sent.gather_s
        self.wire_s = sent.wire_s
        self.sent_gb = sent.sent_bytes / 1e9


class Transfer(ABC):
    def __init__(self, engines: Sequence[Engine], sender: SendsWeights, twice: Mapping[str, str]) -> None:
        """Keeps both ends. `twice` has second names of tensors that servers want under both."""
        self._engines = engines
        self._sender = sender
        self._twice = twice
        # With None, what the sender holds is what all servers have.
        self.reading: Reading | None = None
        self._version = 0  # All servers have it, or had it.

    async def update(self, version: int) -> Times:
        """Gives every engine that will serve again the sender's weights. Raises WeightSyncError, TrainerError."""
        for number in range(1, _TRIES + 1):
            receivers, failures = await self._receivers()
            if not failures:
                times, failures = await self._send_round(receivers, version)
                if not failures:
                    times.rounds = number
                    self._version = version
                    return times
                failures = {
                    engine.name: engine.explained(failures[engine.name])
                    for engine in self._engines
                    if engine.name in failures
                }
            self._forget_servers()
        raise WeightSyncError.of(failures, len(self._engines), version, INSTEAD) from next(iter(failures.values()))

    async def restore(self, engine: Engine) -> None:
        """Gives a server that was started anew what the sender holds, through a folder. Raises EngineError."""
        async with self.reading() if self.reading is not None else nullcontext(self._version) as version:
            weights = await asyncio.to_thread(self._sender.weights)
            await engine.update_weights(weights, version)

    @abstractmethod
    async def _send_round(
        self, receivers: Mapping[str, "HttpEngine"], version: int
    ) -> tuple[Times, dict[str, EngineError]]:
        """Sends all tensors once. Returns the times, and who failed and why. Raises WeightSyncError, TrainerError."""

    def _forget_servers(self) -> None:
        """Lets go of what was opened for servers, some of which failed."""
        return

    async def _receivers(self) -> tuple[dict[str, "HttpEngine"], dict[str, EngineError]]:
        """Returns those of engines that are up or come up again, by the engine's name."""
        wanting = worth_asking(self._engines)
        ends = await asyncio.gather(*(engine.receiver() for engine in wanting), return_exceptions=True)
        receivers: dict[str, HttpEngine] = {}
        failures: dict[str, EngineError] = {}
        for engine, end in zip(wanting, ends, strict=True):
            if isinstance(end, EngineError):
                if engine.state is not EngineState.gone:
                    failures[engine.name] = end
            elif isinstance(end, BaseException):
                raise end
            else:
                # Only servers take weights from a trainer's memory.
                receivers[engine.name] = cast("HttpEngine", end)
        if not receivers and not failures:
            failures = {engine.name: EngineError("it is gone") for engine in wanting}
        return receivers, failures


def failures_of(receivers: Mapping[str, "HttpEngine"], ends: Sequence[object]) -> dict[str, EngineError]:
    """Returns failures by engine, without those that only followed another's."""
    failures: dict[str, EngineError] = {}
    for name, end in zip(receivers, ends, strict=True):
        if isinstance(end, EngineError):
            failures[name] = end
        elif isinstance(end, asyncio.CancelledError):
            failures[name] = EngineError("it still waited for weights that the trainer could not send")
        elif isinstance(end, BaseException):
            raise end
    return {name: error for name, error in failures.items() if not isinstance(error, UnchangedError)} or failures
