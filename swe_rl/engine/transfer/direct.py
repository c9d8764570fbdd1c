"""Brings new weights to all engines at once, from the trainer's memory, over a wire or through shared memory.

Invariants:
- Tensors travel when every server is paused and waits for them; an update counts when every server has all of them.
- The wire is opened anew whenever a server is another one than before.
- An update that failed is tried once more, with the servers that are up by then.
- A server that is started anew between two updates gets the weights through a folder, under the version that they have.
- While servers load one bucket the ranks put the next one together. No server can hold a rank in a collective.
- A server that fails leaves the others to take all buckets: they have the new weights, and it is tried again.
- The shared memory is there for the length of a round, and gone before a server's cache gets its own back.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from swe_rl.engine.engine import Engine, EngineError, EngineState, WeightSyncError, worth_asking
from swe_rl.engine.server.client import HttpClient
from swe_rl.engine.server.engine import HttpEngine, UnchangedError
from swe_rl.engine.server.features import minor_version
from swe_rl.engine.server.weights import ask_http
from swe_rl.engine.transfer.sent_weights import (
    BUFFERS,
    PACKED,
    Announced,
    SendsWeights,
    SentWeights,
    Staging,
    tensors_info,
    update_info,
)
from swe_rl.facts.weight_sync import IPC, NCCL

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_OTHER = "another engine"
_INSTEAD = " With trainer.weight_sync=disk they go through a folder."
_SENDER_S = 15.0  # The sender has this long to end after a server failed.
_PACKED_AT_INIT = (0, 28)  # This vLLM is the first that is told so when the wire is opened, not with every update.
# Inside of it the sender's weights stay as they are; it yields their version. None: all servers have the weights.
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


@dataclass(slots=True)
class _Attempt:
    """One try. All servers wait for each other at `paused`, and with the sender at `ready`."""

    version: int
    update_info: Mapping[str, Any]
    paused: asyncio.Barrier
    ready: asyncio.Barrier
    times: Times = field(default_factory=Times)


class Transfer:
    def __init__(self, engines: Sequence[Engine], sender: SendsWeights, kind: str, twice: Mapping[str, str]) -> None:
        """Keeps both ends. `twice` has second names of tensors that servers want under both."""
        self._engines = engines
        self._sender = sender
        self._kind = kind
        self._twice = twice
        self.reading: Reading | None = None
        self._wired: tuple[HttpEngine, ...] = ()
        self._announced: Sequence[Announced] = ()
        self._version = 0  # All servers have it, or had it.

    async def update(self, version: int) -> Times:
        """Gives every engine that will serve again the sender's weights. Raises WeightSyncError, TrainerError."""
        tries = 2  # a server that died since the last update is missed only now; the second try finds its successor
        for number in range(1, tries + 1):
            receivers, failures = await self._receivers()
            if not failures:
                times, failures = await self._try(receivers, version)
                if not failures:
                    times.rounds = number
                    self._version = version
                    return times
                failures = {
                    engine.name: engine.explained(failures[engine.name])
                    for engine in self._engines
                    if engine.name in failures
                }
            self._wired = ()
        raise WeightSyncError.of(failures, len(self._engines), version, _INSTEAD) from next(iter(failures.values()))

    async def restore(self, engine: Engine) -> None:
        """Gives a server that was started anew what the sender holds, through a folder. Raises EngineError."""
        async with self.reading() if self.reading is not None else nullcontext(self._version) as version:
            weights = await asyncio.to_thread(self._sender.weights)
            await engine.update_weights(weights, version)

    async def _receivers(self) -> tuple[dict[str, HttpEngine], dict[str, EngineError]]:
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
                assert isinstance(end, HttpEngine), "only servers take weights from a trainer's memory"
                receivers[engine.name] = end
        if not receivers and not failures:
            failures = {engine.name: EngineError("it is gone") for engine in wanting}
        return receivers, failures

    async def _try(self, receivers: Mapping[str, HttpEngine], version: int) -> tuple[Times, dict[str, EngineError]]:
        if self._wired != tuple(receivers.values()):
            if failures := await self._open(receivers):
                return Times(), failures
            self._wired = tuple(receivers.values())
        count = len(receivers)
        attempt = _Attempt(version, tensors_info(self._announced), asyncio.Barrier(count), asyncio.Barrier(count + 1))
        sending = asyncio.create_task(self._send(attempt))
        taking = [asyncio.create_task(_take_round(http, attempt, self._kind)) for http in receivers.values()]
        sending.add_done_callback(lambda _: _give_up(sending, taking))
        ends = await asyncio.gather(*taking, return_exceptions=True)
        failures = failures_of(receivers, ends)
        if failures:  # The sender would wait there for a server that does not come.
            await attempt.ready.abort()
        await asyncio.wait({sending}, timeout=_SENDER_S if failures else None)
        if not sending.done():  # NCCL cannot be taken back: the trainer's ranks end with the run.
            raise WeightSyncError.of(failures, len(self._engines), version, _INSTEAD)
        sent = sending.result()
        if sent.problem and not failures:
            failures = dict.fromkeys(receivers, EngineError(f"the trainer could not send: {sent.problem}"))
        attempt.times.take_sent(sent)
        return attempt.times, failures

    async def _send(self, attempt: _Attempt) -> SentWeights:
        try:
            await attempt.ready.wait()
        except asyncio.BrokenBarrierError:
            return SentWeights(problem="a server was not ready")
        return await asyncio.to_thread(self._sender.transfer_weights, self._twice)

    async def _open(self, receivers: Mapping[str, HttpEngine]) -> dict[str, EngineError]:
        """Opens the wire: all ends meet at rank 0 of the trainer."""
        answers = await asyncio.gather(
            *(_world_size(http.client) for http in receivers.values()), return_exceptions=True
        )
        if failures := failures_of(receivers, answers):
            return failures
        sizes = [size for size in answers if isinstance(size, int)]
        loopback = all(urlsplit(http.client.url).hostname in _LOOPBACK for http in receivers.values())
        host, port = await asyncio.to_thread(self._sender.wire_address, loopback)
        world = 1 + sum(sizes)
        offsets = [1 + sum(sizes[:index]) for index in range(len(sizes))]
        opening = asyncio.create_task(asyncio.to_thread(self._sender.open_wire, self._kind, host, port, world))
        ends = await asyncio.gather(
            *(
                _add_link(http, self._kind, {"master_address": host, "master_port": port, "rank_offset": offset}, world)
                for http, offset in zip(receivers.values(), offsets, strict=True)
            ),
            return_exceptions=True,
        )
        problem = await opening
        failures = failures_of(receivers, ends)
        if problem and not failures:
            failures = dict.fromkeys(receivers, EngineError(f"the trainer did not reach it: {problem}"))
        if not failures and not self._announced:
            self._announced = await asyncio.to_thread(self._sender.announce_weights, self._twice)
        return failures


async def _take_round(http: HttpEngine, attempt: _Attempt, kind: str) -> None:
    """Does one server's part of a round. Raises EngineError."""
    began_s = time.monotonic()
    try:
        async with http.renewing(attempt.version) as client:
            await _meet_servers(attempt.paused)
            await ask_http(client, "/start_weight_update")
            paused_s = time.monotonic()
            await attempt.ready.wait()
            packed = PACKED if kind == NCCL and not _packed_at_init(http) else {}
            await ask_http(client, "/update_weights", {"update_info": {**attempt.update_info, **packed}})
            taken_s = time.monotonic()
            await ask_http(client, "/finish_weight_update")
            loaded_s = time.monotonic()
    except BaseException as error:  # A cancelled one counts, too: the others would wait for it at a barrier for ever.
        await attempt.paused.abort()
        await attempt.ready.abort()
        if isinstance(error, asyncio.BrokenBarrierError):
            raise EngineError(f"{_OTHER} did not begin") from error
        raise
    resume_s = time.monotonic() - loaded_s
    attempt.times.take_server(pause_s=paused_s - began_s, load_s=loaded_s - taken_s, resume_s=resume_s)


async def _meet_servers(servers: asyncio.Barrier) -> None:
    try:
        await servers.wait()
    except asyncio.BrokenBarrierError as error:
        raise UnchangedError(f"{_OTHER} could not be paused") from error


async def _add_link(http: HttpEngine, kind: str, where: Mapping[str, object], world: int) -> None:
    packed = PACKED if kind == NCCL and _packed_at_init(http) else {}
    await ask_http(http.client, "/init_weight_transfer_engine", {"init_info": {**where, "world_size": world, **packed}})


def _packed_at_init(http: HttpEngine) -> bool:
    return minor_version(http.features.version) >= _PACKED_AT_INIT


async def _world_size(client: HttpClient) -> int:
    """Returns the number of workers of a server."""
    answer = await client.get("/get_world_size")
    return int(answer.json().get("world_size", 1)) if answer.ok else 1


def _give_up(sending: "asyncio.Task[SentWeights]", taking: "Sequence[asyncio.Task[None]]") -> None:
    """Cancels servers that still wait for what a sender cannot send: they learn of it late, or not at all."""
    if sending.cancelled() or sending.exception() or sending.result().problem:
        for task in taking:
            asyncio.get_running_loop().call_later(_SENDER_S, task.cancel)


def failures_of(receivers: Mapping[str, HttpEngine], ends: Sequence[object]) -> dict[str, EngineError]:
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
