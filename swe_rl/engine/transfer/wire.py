"""Brings new weights to engines over a wire (NCCL, or Gloo without a GPU), in one collective of trainer and servers.

Invariants:
- The wire is opened anew whenever a server is another one than before, and after every failure.
- Servers and sender wait for each other before anything is sent: nobody enters a collective that another one misses.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from swe_rl.engine.engine import Engine, EngineError, UnchangedError, WeightSyncError
from swe_rl.engine.server.client import HttpClient
from swe_rl.engine.server.features import minor_version
from swe_rl.engine.server.weights import ask_http
from swe_rl.engine.transfer.direct import INSTEAD, Times, Transfer, failures_of
from swe_rl.engine.transfer.sent_weights import PACKED, Announced, SendsWeights, SentWeights, tensors_info
from swe_rl.facts.weight_sync import NCCL

if TYPE_CHECKING:
    from swe_rl.engine.server.engine import HttpEngine

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_OTHER = "another engine"
_SENDER_S = 15.0  # The sender has this long to end after a server failed.
_PACKED_AT_INIT = (0, 28)  # This vLLM is the first that is told so when the wire is opened, not with every update.


@dataclass(slots=True)
class _Exchange:
    """One sending of all tensors. All servers wait for each other at `paused`, and with the sender at `ready`."""

    version: int
    update_info: Mapping[str, Any]
    paused: asyncio.Barrier
    ready: asyncio.Barrier
    times: Times = field(default_factory=Times)


class WireTransfer(Transfer):
    def __init__(self, engines: Sequence[Engine], sender: SendsWeights, kind: str, twice: Mapping[str, str]) -> None:
        super().__init__(engines, sender, twice)
        self._kind = kind
        self._wired: tuple[HttpEngine, ...] = ()  # The wire is open to these.
        self._announced: Sequence[Announced] = ()

    async def _send_round(
        self, receivers: Mapping[str, "HttpEngine"], version: int
    ) -> tuple[Times, dict[str, EngineError]]:
        if self._wired != tuple(receivers.values()):
            if failures := await self._open(receivers):
                return Times(), failures
            self._wired = tuple(receivers.values())
        count = len(receivers)
        exchange = _Exchange(version, tensors_info(self._announced), asyncio.Barrier(count), asyncio.Barrier(count + 1))
        sending = asyncio.create_task(self._send(exchange))
        taking = [asyncio.create_task(_take_round(http, exchange, self._kind)) for http in receivers.values()]
        sending.add_done_callback(lambda _: _give_up(sending, taking))
        ends = await asyncio.gather(*taking, return_exceptions=True)
        failures = failures_of(receivers, ends)
        if failures:
            # The sender would wait there for a server that does not come.
            await exchange.ready.abort()
        await asyncio.wait({sending}, timeout=_SENDER_S if failures else None)
        if not sending.done():
            # NCCL cannot be taken back: the trainer's ranks end with the run.
            raise WeightSyncError.of(failures, len(self._engines), version, INSTEAD)
        sent = sending.result()
        if sent.problem and not failures:
            failures = dict.fromkeys(receivers, EngineError(f"the trainer could not send: {sent.problem}"))
        exchange.times.take_sent(sent)
        return exchange.times, failures

    async def _send(self, exchange: _Exchange) -> SentWeights:
        try:
            await exchange.ready.wait()
        except asyncio.BrokenBarrierError:
            return SentWeights(problem="a server was not ready")
        return await asyncio.to_thread(self._sender.transfer_weights, self._twice)

    async def _open(self, receivers: Mapping[str, "HttpEngine"]) -> dict[str, EngineError]:
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

    def _forget_servers(self) -> None:
        self._wired = ()


async def _take_round(http: "HttpEngine", exchange: _Exchange, kind: str) -> None:
    """Does one server's part of a round. Raises EngineError."""
    began_s = time.monotonic()
    try:
        async with http.renewing(exchange.version) as client:
            await _meet_servers(exchange.paused)
            await ask_http(client, "/start_weight_update")
            paused_s = time.monotonic()
            await exchange.ready.wait()
            packed = PACKED if kind == NCCL and not _packed_at_init(http) else {}
            await ask_http(client, "/update_weights", {"update_info": {**exchange.update_info, **packed}})
            taken_s = time.monotonic()
            await ask_http(client, "/finish_weight_update")
            loaded_s = time.monotonic()
    except BaseException as error:
        # A cancelled one counts, too: the others would wait for it at a barrier for ever.
        await exchange.paused.abort()
        await exchange.ready.abort()
        if isinstance(error, asyncio.BrokenBarrierError):
            raise EngineError(f"{_OTHER} did not begin") from error
        raise
    resume_s = time.monotonic() - loaded_s
    exchange.times.take_server(pause_s=paused_s - began_s, load_s=loaded_s - taken_s, resume_s=resume_s)


async def _meet_servers(servers: asyncio.Barrier) -> None:
    try:
        await servers.wait()
    except asyncio.BrokenBarrierError as error:
        raise UnchangedError(f"{_OTHER} could not be paused") from error


async def _add_link(http: "HttpEngine", kind: str, where: Mapping[str, object], world: int) -> None:
    packed = PACKED if kind == NCCL and _packed_at_init(http) else {}
    await ask_http(http.client, "/init_weight_transfer_engine", {"init_info": {**where, "world_size": world, **packed}})


def _packed_at_init(http: "HttpEngine") -> bool:
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
