"""New weights from the trainer's GPUs into servers on the same GPUs: buckets of whole tensors in shared memory.

Invariants:
- While servers load one bucket the ranks put the next one together; no rank is in a collective while a server works,
  so a server that fails or hangs holds none of them.
- A server that fails leaves the others to take all buckets: they have the new weights, and it is tried again.
- The shared memory is there for the length of a round, and gone before a server's cache gets its own back.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence

from swe_rl.engine.protocol import Engine, EngineError
from swe_rl.engine.server.engine import HttpEngine
from swe_rl.engine.server.weights import ask
from swe_rl.engine.transfer.direct import Times, Transfer, failures_of
from swe_rl.engine.transfer.protocol import BUFFERS, IPC, SendsWeights, Sent, Staging, update_info


class Belt:
    """Buckets on their way from one who fills them to several who take them.

    - Bucket k is filled when everybody who still takes has taken bucket k - `buffers`: nothing is overwritten unread.
    - Nobody waits for one who left, nor for a filler that failed.
    - Whoever has left waits at `cleared` until the filler has put the buffers away.
    """

    def __init__(self, takers: Iterable[str], buffers: int) -> None:
        self._next = dict.fromkeys(takers, 0)  # the bucket that each takes next
        self._buffers = buffers
        self._filled = 0
        self._is_clear = False
        self._failure: str | None = None
        self._changed = asyncio.Condition()

    async def room(self, number: int) -> bool:
        """Waits until bucket `number` may be filled; False where nobody takes it any more."""
        async with self._changed:
            await self._changed.wait_for(lambda: all(one > number - self._buffers for one in self._next.values()))
            return bool(self._next)

    async def put(self, number: int) -> None:
        async with self._changed:
            self._filled = number + 1
            self._changed.notify_all()

    async def left(self) -> None:
        """Waits until nobody takes any more."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._next)

    async def clear(self) -> None:
        """The buffers are put away."""
        async with self._changed:
            self._is_clear = True
            self._changed.notify_all()

    async def fail(self, reason: str) -> None:
        """Nothing is filled any more."""
        async with self._changed:
            self._failure = reason
            self._changed.notify_all()

    async def filled(self, number: int) -> None:
        """Waits until bucket `number` can be taken. Raises EngineError where that will not be."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._filled > number or self._failure is not None)
            self._check()

    async def taken(self, name: str, number: int) -> None:
        async with self._changed:
            self._next[name] = number + 1
            self._changed.notify_all()

    async def leave(self, name: str) -> None:
        """It takes no more. May be called twice."""
        async with self._changed:
            self._next.pop(name, None)
            self._changed.notify_all()

    async def cleared(self) -> None:
        """Waits until the buffers are put away. Raises EngineError where the filler failed."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._is_clear or self._failure is not None)
            self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise EngineError(f"the trainer stopped putting weights together: {self._failure}")


class StagedTransfer(Transfer):
    def __init__(self, engines: Sequence[Engine], sender: SendsWeights, twice: Mapping[str, str]) -> None:
        super().__init__(engines, sender, IPC, twice)

    async def _try(self, receivers: Mapping[str, HttpEngine], version: int) -> tuple[Times, dict[str, EngineError]]:
        """Raises TrainerError."""
        staging = await asyncio.to_thread(self._sender.open_staging, self._twice)
        if staging.problem:
            await asyncio.to_thread(self._sender.close_staging)
            return Times(), dict.fromkeys(receivers, EngineError(f"the trainer shares no memory: {staging.problem}"))
        belt, times = Belt(receivers, BUFFERS), Times()
        filling = asyncio.create_task(self._fill(belt, len(staging.buckets)))
        taking = (_take(name, http, staging, belt, version, times) for name, http in receivers.items())
        ends = await asyncio.gather(*taking, return_exceptions=True)
        sent = await filling
        times.take_sent(sent)
        return times, failures_of(receivers, ends)

    async def _fill(self, belt: Belt, count: int) -> Sent:
        """Until all is put together, or nobody takes it any more. Raises TrainerError."""
        parts: list[Sent] = []
        try:
            for number in range(count):
                if not await belt.room(number):
                    break
                parts.append(await asyncio.to_thread(self._sender.stage, number))
                await belt.put(number)
            await belt.left()
            await asyncio.to_thread(self._sender.close_staging)
            await belt.clear()
        except BaseException as error:
            await belt.fail(str(error) or type(error).__name__)
            raise
        return Sent(
            sum(part.gather_s for part in parts),
            sum(part.wire_s for part in parts),
            sum(part.sent_bytes for part in parts),
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
            await belt.cleared()  # the cache wakes with the end of this block, into the memory that the buffers held
    finally:
        await belt.leave(name)
    times.take_server(pause_s=started_s - began_s, load_s=load_s, resume_s=time.monotonic() - loaded_s)
