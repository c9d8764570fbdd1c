"""The trace store keeps every completion of a run in one SQLite file.

Invariants:
- One thread writes. What waits is committed in groups, at most `_GATHER_S` after it came. The queue is bounded: a full
  one makes its callers wait, or tells them that it is full. Nothing is ever dropped, and the order is kept.
- A flush returns when everything appended before it is committed; a process that is killed after it loses none of it.
- Readers see what is committed, and flush first if something that they read still waits.
- A trace stores only what is new: bytes grow with new tokens, not with the sum of the prompts.
- The first failure of the writer is kept: every later append, flush or read raises it as TraceStoreError.
- The thread is woken once a group, not once an item: an event loop that puts items in does not compete with it for the
  interpreter while it answers.
- An item that is put `at_once`, and a queue that fills up, end the gathering.
"""

import asyncio
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from swe_rl.gateway.store import schema
from swe_rl.gateway.store.writer import Chains, write_group
from swe_rl.gateway.trace import Trace, TraceStoreError

T = TypeVar("T")


class Gathering(Generic[T]):
    """Queues items and hands them out in groups: `take` waits `gather_s` seconds from the first item on, and at most
    `limit` items wait."""

    def __init__(self, limit: int, gather_s: float) -> None:
        self._limit = limit
        self._many = max(1, limit // 4)
        self._gather_s = gather_s
        self._items: deque[T] = deque()
        self._taken: list[T] = []
        self._room = threading.Condition()
        self._some = threading.Event()
        self._hurry = threading.Event()

    def try_put(self, item: T) -> bool:
        """Puts an item in without waiting. Returns False if the queue is full."""
        with self._room:
            if len(self._items) >= self._limit:
                return False
            self._add(item)
            return True

    def put(self, item: T, *, at_once: bool = False) -> None:
        """Puts an item in; blocks while the queue is full."""
        with self._room:
            while len(self._items) >= self._limit:
                self._room.wait()
            self._add(item)
            if at_once:
                self._hurry.set()

    def take(self) -> list[T]:
        """Returns all that waits, oldest first; blocks until there is something. Only one thread may take."""
        self._some.wait()
        self._hurry.wait(self._gather_s)
        return self.take_now()

    def take_now(self) -> list[T]:
        with self._room:
            taken = self._taken = list(self._items)
            self._items.clear()
            self._some.clear()
            self._hurry.clear()
            self._room.notify_all()
            return taken

    def done(self) -> None:
        """Notes that the group taken last has been dealt with."""
        with self._room:
            self._taken = []

    def unfinished(self) -> list[T]:
        """Returns what waits, and what was taken and is not `done`."""
        with self._room:
            return [*self._taken, *self._items]

    def __len__(self) -> int:
        return len(self._items)

    def _add(self, item: T) -> None:
        self._items.append(item)
        if len(self._items) == 1:
            self._some.set()
        if len(self._items) == self._many:
            self._hurry.set()


# The query goes from one session to the next by the primary key. DISTINCT would look at every turn.
_SESSIONS = """
WITH RECURSIVE sessions (id) AS (
    SELECT MIN(session_id) FROM traces
    UNION ALL
    SELECT (SELECT MIN(session_id) FROM traces WHERE session_id > id) FROM sessions WHERE id IS NOT NULL
)
SELECT id FROM sessions WHERE id IS NOT NULL
"""
# So many traces may wait in memory. A disk that is too slow then holds up the calls, not the memory.
_QUEUED_TRACES = 256
# A commit writes to the disk. All traces that come within this time share one.
_GATHER_S = 0.02


@dataclass(frozen=True, slots=True)
class StoreStats:
    queued: int
    traces: int
    commits: int
    commit_s: float


@dataclass(frozen=True, slots=True)
class _Delete:
    session_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Flush:
    done: "Future[None]"


class _Stop:
    pass


_Item = Trace | _Delete | _Flush | _Stop


class TraceStore:
    """Opens the file and starts the writer. Raises TraceStoreVersionError or TraceStoreError if the file cannot be
    used."""

    def __init__(
        self, path: Path, *, clock: Callable[[], float] = time.monotonic, max_queued_traces: int = _QUEUED_TRACES
    ) -> None:
        self.path = Path(path)
        self._clock = clock
        self._writer = schema.open_store(self.path)
        self._reader = schema.open_store(self.path)
        self._reading = threading.Lock()
        self._queue: Gathering[_Item] = Gathering(max_queued_traces, _GATHER_S)
        self._error: BaseException | None = None
        self._closed = False
        self._traces = self._commits = 0
        self._commit_s = 0.0
        self._thread = threading.Thread(target=self._write, name="trace-store", daemon=True)
        self._thread.start()

    def append(self, trace: Trace) -> None:
        """Hands a trace to the writer; blocks while the queue is full. Raises TraceStoreError."""
        self.check()
        self._queue.put(trace)

    async def append_async(self, trace: Trace) -> None:
        """Appends a trace without ever blocking the event loop. Raises TraceStoreError."""
        self.check()
        if not self._queue.try_put(trace):
            await asyncio.to_thread(self._queue.put, trace)

    def flush_sync(self) -> None:
        """Returns when all that was appended or deleted is committed. Raises TraceStoreError."""
        self._flush().result()

    async def flush(self) -> None:
        """Returns when all that was appended or deleted is committed, without blocking the event loop. Raises
        TraceStoreError."""
        await asyncio.wrap_future(await asyncio.to_thread(self._flush))

    def traces(self, session_id: str) -> list[Trace]:
        """Returns a session's traces in order of turns. Raises TraceStoreError."""
        self._settle(session_id)
        return schema.from_rows(self._query(schema.SELECT, session_id))

    def sessions(self) -> list[str]:
        """Returns the ids of all sessions with a trace, sorted. Raises TraceStoreError."""
        self.flush_sync()
        return [row[0] for row in self._query(_SESSIONS)]

    def next_numbers(self, session_id: str) -> tuple[int, int]:
        """Returns the turn and the chain that a session goes on with: (0, 0) for an unknown one. It flushes only when
        some of the session's traces wait. Raises TraceStoreError."""
        self._settle(session_id)
        row = self._query("SELECT MAX(turn), MAX(chain) FROM traces WHERE session_id = ?", session_id)[0]
        if row[0] is None:
            return (0, 0)
        return (row[0] + 1, row[1] + 1)

    def delete(self, session_ids: Iterable[str]) -> None:
        """Forgets whole sessions; this is committed when it returns. Raises TraceStoreError."""
        self._put(_Delete(tuple(session_ids)))
        self.flush_sync()

    def stats(self) -> StoreStats:
        return StoreStats(len(self._queue), self._traces, self._commits, self._commit_s)

    def close(self) -> None:
        """Commits what waits and closes the file; closing again does nothing. Raises TraceStoreError if that failed."""
        if self._closed:
            return
        self._closed = True
        self._queue.put(_Stop(), at_once=True)
        self._thread.join()
        self._refuse_latecomers()
        self._reader.close()
        self._writer.close()
        if self._error is not None:
            raise self._failure()

    def _refuse_latecomers(self) -> None:
        """Fails the flushes that came while the store closed: their callers would wait for ever."""
        for item in self._queue.take_now():
            if isinstance(item, _Flush) and item.done.set_running_or_notify_cancel():
                item.done.set_exception(TraceStoreError(f"the trace store {self.path} is closed"))

    def _put(self, item: _Item) -> None:
        self.check()
        self._queue.put(item, at_once=True)

    def _flush(self) -> "Future[None]":
        done: Future[None] = Future()
        self._put(_Flush(done))
        return done

    def check(self) -> None:
        """Raises TraceStoreError if the store takes no more traces, with the first failure."""
        if self._closed:
            raise TraceStoreError(f"the trace store {self.path} is closed")
        if self._error is not None:
            raise self._failure()

    def _failure(self) -> TraceStoreError:
        failure = TraceStoreError(
            f"traces could not be written to {self.path} ({self._error}); the run stops, because it would train on "
            "incomplete trajectories: make space or repair the disk and resume it"
        )
        failure.__cause__ = self._error
        return failure

    def _settle(self, session_id: str) -> None:
        """Flushes if something of the session waits. Readers of sessions that are over need not wake the writer."""
        waiting = self._queue.unfinished()
        if any(
            session_id in ((item.session_id,) if isinstance(item, Trace) else item.session_ids)
            for item in waiting
            if isinstance(item, Trace | _Delete)
        ):
            self.flush_sync()

    def _query(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        self.check()
        try:
            with self._reading:
                return self._reader.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise schema.unusable_error(self.path, error, "read") from error

    def _write(self) -> None:
        chains = Chains(self._writer)
        running = True
        while running:
            group = self._queue.take()
            running = not any(isinstance(item, _Stop) for item in group)
            if self._error is None:
                try:
                    self._commit(group, chains)
                except Exception as error:
                    # Whatever it is, it belongs to the callers and not to this thread.
                    self._error = error
            for item in group:
                if isinstance(item, _Flush):
                    self._answer(item)
            # The group's tokens must not be held until there is another group.
            del group
            self._queue.done()

    def _commit(self, group: list[_Item], chains: Chains) -> None:
        work = [
            item if isinstance(item, Trace) else item.session_ids for item in group if isinstance(item, Trace | _Delete)
        ]
        if work:
            started_s = self._clock()
            self._traces += write_group(self._writer, chains, work)
            self._commits += 1
            self._commit_s += self._clock() - started_s

    def _answer(self, flush: _Flush) -> None:
        if not flush.done.set_running_or_notify_cancel():
            # The caller gave up: an answer would raise here and end the writer.
            return
        if self._error is None:
            flush.done.set_result(None)
        else:
            flush.done.set_exception(self._failure())
