"""What the trace store's one writer thread does: a group of traces and deletions in one transaction.

Invariants:
- A group is written whole or not at all.
- A trace is stored against the trace before it in its chain when it starts with that one's ids, else whole.
"""

import hashlib
import sqlite3
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from swe_rl.gateway.store import schema
from swe_rl.gateway.trace import Trace
from swe_rl.host.kill_point import kill_point

_REMEMBERED_CHAINS = 8192  # what is alive; others are read back


@dataclass(frozen=True, slots=True)
class Append:
    """A trace to store. `base_turn`: the caller vouches that its first `base_tokens` ids are that turn's prompt and
    sampled ids; None: it is compared."""

    trace: Trace
    base_turn: int | None = None
    base_tokens: int = 0


@dataclass(frozen=True, slots=True)
class _End:
    """Of a chain: its newest trace, and the hash of that one's prompt and sampled ids (None: not worked out)."""

    turn: int
    num_ids: int
    digest: bytes | None


class Chains:
    """The end of each chain: remembered while it is likely to go on, else read back."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._ends: OrderedDict[tuple[str, int], _End] = OrderedDict()

    def base(self, item: Append) -> _End | None:
        """The end that a trace extends, if it does."""
        trace = item.trace
        key = (trace.session_id, trace.chain)
        end = self._ends.get(key)
        if item.base_turn is not None and end is not None and end.turn == item.base_turn:
            return end if end.num_ids == item.base_tokens else None
        if end is None or end.digest is None:
            end = self._read(*key)
        if end is None or end.turn >= trace.turn or end.num_ids > len(trace.prompt_ids):
            return None
        return end if _digest(trace.prompt_ids[: end.num_ids]) == end.digest else None

    def remember(self, item: Append) -> None:
        trace = item.trace
        key = (trace.session_id, trace.chain)
        if item.base_turn is None:
            self._ends[key] = _end(trace)
        else:
            self._ends[key] = _End(trace.turn, len(trace.prompt_ids) + len(trace.sampled_ids), None)
        self._ends.move_to_end(key)
        if len(self._ends) > _REMEMBERED_CHAINS:
            self._ends.popitem(last=False)

    def forget(self, session_ids: Sequence[str]) -> None:
        gone = set(session_ids)
        for key in [key for key in self._ends if key[0] in gone]:
            del self._ends[key]

    def _read(self, session_id: str, chain: int) -> _End | None:
        known = "SELECT 1 FROM traces WHERE session_id = ? AND chain = ? LIMIT 1"
        if not self._connection.execute(known, (session_id, chain)).fetchone():
            return None
        stored = schema.from_rows(self._connection.execute(schema.SELECT, (session_id,)).fetchall())
        return next(_end(row) for row in reversed(stored) if row.chain == chain)


def _end(trace: Trace) -> _End:
    ids = trace.prompt_ids + trace.sampled_ids
    return _End(trace.turn, len(ids), _digest(ids))


def _digest(ids: Sequence[int]) -> bytes:
    return hashlib.blake2b(array("i", ids).tobytes(), digest_size=16).digest()


def write_group(connection: sqlite3.Connection, chains: Chains, work: Sequence[Append | tuple[str, ...]]) -> int:
    """Traces to append and sessions to delete, in order; returns the number of traces. Raises sqlite3.Error."""
    traces = 0
    connection.execute("BEGIN IMMEDIATE")
    try:
        for item in work:
            if isinstance(item, Append):
                _insert(connection, chains, item)
                traces += 1
            else:
                connection.executemany(
                    "DELETE FROM traces WHERE session_id = ?", [(session_id,) for session_id in item]
                )
                chains.forget(item)
        kill_point("traces_inserted")
        connection.execute("COMMIT")
        kill_point("traces_committed")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return traces


def _insert(connection: sqlite3.Connection, chains: Chains, item: Append) -> None:
    trace = item.trace
    base = chains.base(item)
    base_turn, known = (base.turn, base.num_ids) if base else (None, 0)
    row = schema.to_row(trace, base_turn, trace.prompt_ids[known:])
    connection.execute(schema.INSERT, row)
    chains.remember(item)
