"""Brings new weights to engines on the same GPUs, through buffers of the GPU's memory that trainer and engines share.

Invariants:
- While servers load one bucket the ranks put the next one together. No server can hold a rank in a collective.
- A server that fails leaves the others to take all buckets: they have the new weights, and it is tried again.
- The shared memory is there for the length of a round, and gone before a server's cache gets its own back.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from swe_rl.engine.engine import EngineError
from swe_rl.engine.server.weights import ask_http
from swe_rl.engine.transfer.belt import Belt
from swe_rl.engine.transfer.direct import Times, Transfer, failures_of
from swe_rl.engine.transfer.sent_weights import BUFFERS, SentWeights, Staging, update_info

if TYPE_CHECKING:
    from swe_rl.engine.server.engine import HttpEngine


class StagedTransfer(Transfer):
    async def _send_round(
        self, receivers: Mapping[str, "HttpEngine"], version: int
    ) -> tuple[Times, dict[str, EngineError]]:
        staging = await asyncio.to_thread(self._sender.open_staging, self._twice)
        if staging.problem:
            await asyncio.to_thread(self._sender.close_staging)
            return Times(), dict.fromkeys(receivers, EngineError(f"the trainer shares no memory: {staging.problem}"))
        belt = Belt(receivers, BUFFERS)
        times = Times()
        filling = asyncio.create_task(self._fill(belt, len(staging.buckets)))
        taking = (_take_staged(name, http, staging, belt, version, times) for name, http in receivers.items())
        ends = await asyncio.gather(*taking, return_exceptions=True)
        sent = await filling
        times.take_sent(sent)
        return times, failures_of(receivers, ends)

    async def _fill(self, belt: Belt, count: int) -> SentWeights:
        """Fills buckets until all is put together, or nobody takes it any more. Raises TrainerError."""
        parts: list[SentWeights] = []
        try:
            for number in range(count):
                if not await belt.wait_for_room(number):
                    break
                parts.append(await asyncio.to_thread(self._sender.stage, number))
                await belt.note_filled(number)
            await belt.wait_until_left()
            await asyncio.to_thread(self._sender.close_staging)
            await belt.note_cleared()
        except BaseException as error:
            await belt.note_failure(str(error) or type(error).__name__)
            raise
        return SentWeights(
            sum(part.gather_s for part in parts),
            sum(part.wire_s for part in parts),
            sum(part.sent_bytes for part in parts),
        )


async def _take_staged(name: str, http: "HttpEngine", staging: Staging, belt: Belt, version: int, times: Times) -> None:
    """Does one server's part of a round. Raises EngineError."""
    began_s = time.monotonic()
    load_s = 0.0
    try:
        async with http.renewing(version) as client:
            await ask_http(client, "/init_weight_transfer_engine", {"init_info": {"handles": staging.handles}})
            await ask_http(client, "/start_weight_update")
            started_s = time.monotonic()
            for number, bucket in enumerate(staging.buckets):
                await belt.wait_until_filled(number)
                asked_s = time.monotonic()
                await ask_http(client, "/update_weights", {"update_info": update_info(bucket, number)})
                load_s += time.monotonic() - asked_s
                await belt.note_taken(name, number)
            asked_s = time.monotonic()
            await ask_http(client, "/finish_weight_update")
            loaded_s = time.monotonic()
            load_s += loaded_s - asked_s
            await belt.leave(name)
            # The cache wakes behind this block, into the memory that the buffers held.
            await belt.wait_until_cleared()
    finally:
        await belt.leave(name)
    times.take_server(pause_s=started_s - began_s, load_s=load_s, resume_s=time.monotonic() - loaded_s)
