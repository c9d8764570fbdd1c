"""New weights from the trainer's GPUs into servers on the same GPUs: buckets of whole tensors in shared memory.

Invariants:
- While servers load one bucket the ranks put the next one together; no rank is in a collective while a server works,
  so a server that fails or hangs holds none of them.
- A server that fails leaves the others to take all buckets: they have the new weights, and it is tried again.
- The shared memory is there for the length of a round, and gone before a server's cache gets its own back.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence

from swe_rl.engine.protocol import Engine, EngineError
from swe_rl.engine.server.engine import HttpEngine
from swe_rl.engine.server.weights import ask
from swe_rl.engine.transfer.belt import Belt
from swe_rl.engine.transfer.buckets import BUFFERS, update_info
from swe_rl.engine.transfer.direct import Times, Transfer, failures_of
from swe_rl.engine.transfer.staging import StagesWeights, Staging
from swe_rl.engine.transfer.wire import IPC, SendsWeights, Sent


class StagedTransfer(Transfer):
    def __init__(
        self, engines: Sequence[Engine], sender: SendsWeights, stager: StagesWeights, twice: Mapping[str, str]
    ) -> None:
        super().__init__(engines, sender, IPC, twice)
        self._stager = stager

    async def _try(self, receivers: Mapping[str, HttpEngine], version: int) -> tuple[Times, dict[str, EngineError]]:
        """Raises TrainerError."""
        staging = await asyncio.to_thread(self._stager.open_staging, self._twice)
        if staging.problem:
            await asyncio.to_thread(self._stager.close_staging)
            return Times(), dict.fromkeys(receivers, EngineError(f"the trainer shares no memory: {staging.problem}"))
        belt, times = Belt(receivers, BUFFERS), Times()
        filling = asyncio.create_task(self._fill(belt, len(staging.buckets)))
        taking = (_take(name, http, staging, belt, version, times) for name, http in receivers.items())
        ends = await asyncio.gather(*taking, return_exceptions=True)
        sent = await filling
        times.gather_s, times.wire_s, times.sent_gb = sent.gather_s, sent.wire_s, sent.sent_bytes / 1e9
        return times, failures_of(receivers, ends)

    async def _fill(self, belt: Belt, count: int) -> Sent:
        """Until all is put together, or nobody takes it any more. Raises TrainerError."""
        parts: list[Sent] = []
        try:
            for number in range(count):
                if not await belt.room(number):
                    break
                parts.append(await asyncio.to_thread(self._stager.stage, number))
                await belt.put(number)
            await belt.left()
            await asyncio.to_thread(self._stager.close_staging)
            await belt.clear()
        except BaseException as error:
            await belt.fail(str(error) or type(error).__name__)
            raise
        return Sent(
            sum(one.gather_s for one in parts), sum(one.wire_s for one in parts), sum(one.sent_bytes for one in parts)
        )


async def _take(name: str, http: HttpEngine, staging: Staging, belt: Belt, version: int, times: Times) -> None:
    """One server's part of a round. Raises EngineError."""
    began_s, load_s = time.monotonic(), 0.0
    try:
        async with http.renewing(version) as client:
            await ask(client, "/init_weight_transfer_engine", {"init_info": {"handles": staging.handles}})
            await ask(client, "/start_weight_update")
            started_s = time.monotonic()
            for number, bucket in enumerate(staging.buckets):
                await belt.filled(number)
                asked_s = time.monotonic()
                await ask(client, "/update_weights", {"update_info": update_info(bucket, number)})
                load_s += time.monotonic() - asked_s
                await belt.taken(name, number)
            asked_s = time.monotonic()
            await ask(client, "/finish_weight_update")
            loaded_s = time.monotonic()
            load_s += loaded_s - asked_s
            await belt.leave(name)
            await belt.cleared()
    finally:
        await belt.leave(name)
    times.pause_s = max(times.pause_s, started_s - began_s)
    times.load_s = max(times.load_s, load_s)
    times.resume_s = max(times.resume_s, time.monotonic() - loaded_s)
