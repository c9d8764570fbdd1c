"""This module writes for the trace store's one writer thread: a group of traces and deletions in one transaction.

Invariants:
- A group is written whole or not at all.
- The prefix rule is checked here, once: a trace must go on from the end of its chain, with as many ids as it says. Any
  other trace is an error, which ends the run: nobody could read its prompt.
"""

import sqlite3
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from swe_rl.files.kill_point import kill_point
from swe_rl.gateway.store import schema
from swe_rl.gateway.trace import Trace, TraceStoreError

# These are more chains than a run has at once. The others are read back.
_REMEMBERED_CHAINS = 8192


@dataclass(frozen=True, slots=True)
class _End:
    """Marks the end of a chain: its newest trace, and the number of that trace's prompt and sampled ids."""

    turn: int
    tokens: int


class Chains:
    """Knows the end of each chain. It remembers chains that are likely to go on, and reads the others back."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._ends: OrderedDict[tuple[str, int], _End] = OrderedDict()

    def check(self, trace: Trace) -> None:
        """Raises TraceStoreError if the trace does not go on from the end of its chain."""
        if trace.base_turn is None:
            return
        key = (trace.session_id, trace.chain)
        end = self._ends.get(key) or self._read(*key)
        if end != _End(trace.base_turn, trace.base_tokens):
            raise TraceStoreError(
                f"session {trace.session_id}, turn {trace.turn} goes on from turn {trace.base_turn} with "
                f"{trace.base_tokens} ids, but chain {trace.chain} ends with {end}"
            )

    def remember(self, trace: Trace) -> None:
        key = (trace.session_id, trace.chain)
        self._ends[key] = _End(trace.turn, trace.tokens)
        self._ends.move_to_end(key)
        if len(self._ends) > _REMEMBERED_CHAINS:
            self._ends.popitem(last=False)

    def forget(self, session_ids: Sequence[str]) -> None:
        gone = set(session_ids)
        for key in [key for key in self._ends if key[0] in gone]:
            del self._ends[key]

    def _read(self, session_id: str, chain: int) -> _End | None:
        stored = schema.from_rows(self._connection.execute(schema.SELECT, (session_id,)).fetchall())
        return next((_End(trace.turn, trace.tokens) for trace in reversed(stored) if trace.chain == chain), None)


def write_group(connection: sqlite3.Connection, chains: Chains, work: Sequence[Trace | tuple[str, ...]]) -> int:
    """Appends traces and deletes sessions, in order. Returns the number of traces.

    Raises sqlite3.Error, TraceStoreError.
    """
    traces = 0
    connection.execute("BEGIN IMMEDIATE")
    try:
        for item in work:
            if isinstance(item, Trace):
                chains.check(item)
                connection.execute(schema.INSERT, schema.to_row(item))
                chains.remember(item)
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
