"""This module has the trace store's tables, their version, and the form of a trace as a row.

Invariants:
- `PRAGMA user_version` is the version of the schema. A file of an older version that is known is brought up to it in
  one transaction, when it is opened; any other file is never touched.
- Ids and weight versions are little-endian int32, log-probabilities little-endian float32: what engines compute in.
- `base_turn` is the trace whose prompt and sampled ids the prompt starts with, an earlier turn of the same session;
  `delta_ids` is what follows them. If `base_turn` is NULL, the prompt is whole.
- `weight_version` is that of the last sampled token; `weight_versions` has one entry a token. NULL: all are the same.
- `routes` begins with three little-endian uint16: the number of layers, of experts a token, and of bytes a number. Then
  come the numbers of the experts. NULL: not known.
"""

import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from swe_rl.algo.row import Routes, Versions
from swe_rl.errors import UserError
from swe_rl.files.lines import lines_of
from swe_rl.gateway.trace import Break, SegmentRole, Trace, TraceStoreError

VERSION = 6
# SQLite's write-ahead log does not work on these file systems: they have no memory that machines share.
_NETWORK_FILE_SYSTEMS = ("nfs", "lustre", "gpfs", "beegfs", "fuse", "cifs", "smb", "9p")
_COLUMNS = (
    "session_id, turn, chain, base_turn, delta_ids, sampled_ids, logprobs, weight_version, finish_reason, break_kind, "
    "created_s, queue_s, prefill_s, decode_s, cached_tokens, engine, held_s, weight_versions, routes, role, "
    "parent_turn, sub_agent"
)
INSERT = f"INSERT INTO traces ({_COLUMNS}) VALUES ({', '.join('?' * 22)})"
SELECT = f"SELECT {_COLUMNS} FROM traces WHERE session_id = ? ORDER BY turn"
_CREATE = """
CREATE TABLE traces (
    session_id TEXT NOT NULL, turn INTEGER NOT NULL, chain INTEGER NOT NULL, base_turn INTEGER,
    delta_ids BLOB NOT NULL, sampled_ids BLOB NOT NULL, logprobs BLOB NOT NULL,
    weight_version INTEGER NOT NULL, finish_reason TEXT NOT NULL, break_kind TEXT,
    created_s REAL NOT NULL, queue_s REAL NOT NULL, prefill_s REAL NOT NULL, decode_s REAL NOT NULL,
    cached_tokens INTEGER NOT NULL, engine TEXT NOT NULL, held_s REAL NOT NULL DEFAULT 0,
    weight_versions BLOB, routes BLOB, role TEXT, parent_turn INTEGER, sub_agent INTEGER,
    PRIMARY KEY (session_id, turn)
)
"""
# Has by version the columns that the next version added, with their types and the values that they have in older
# traces. Version 1 did not store how long a request was held: 0. In version 2 a trace has one weight version, in
# version 3 no routes, in version 4 no role (it is `main`) and no parent, and in version 5 no sub-agent.
_UPGRADES = {
    1: (("held_s", "REAL NOT NULL DEFAULT 0", "0"),),
    2: (("weight_versions", "BLOB", "NULL"),),
    3: (("routes", "BLOB", "NULL"),),
    4: (("role", "TEXT", "NULL"), ("parent_turn", "INTEGER", "NULL")),
    5: (("sub_agent", "INTEGER", "NULL"),),
}
_IDS = np.dtype("<i4")
_LOGPROBS = np.dtype("<f4")
# These numbers stand before the routes.
_SIZES = np.dtype("<u2")


class TraceStoreVersionError(UserError):
    """The file was written with another schema."""


def open_store(path: Path) -> sqlite3.Connection:
    """Opens or creates the file. Raises TraceStoreVersionError, TraceStoreError."""
    connection = None
    try:
        connection = sqlite3.connect(path, timeout=30.0, isolation_level=None, check_same_thread=False)
        _prepare_schema(connection, path)
    except sqlite3.Error as error:
        if connection is not None:
            connection.close()
        raise unusable_error(path, error, "opened") from error
    except TraceStoreVersionError:
        assert connection is not None
        connection.close()
        raise
    return connection


def read_traces(path: Path, session_id: str, *, in_use: bool) -> list[Trace]:
    """Reads the committed traces of a session from a file of any known version: nothing is made, upgraded or written.
    `in_use` says that a run still writes the file. Raises TraceStoreError."""
    try:
        # Nobody writes a file without a log. It can then be opened even in a folder that is read-only.
        quiet = "&immutable=1"
        if in_use or path.with_name(f"{path.name}-wal").exists():
            quiet = ""
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro{quiet}", uri=True, timeout=5.0)
        try:
            select = SELECT
            version = _schema_version(connection)
            for before, columns in _UPGRADES.items():
                for column, _, value in columns:
                    if version <= before:
                        select = select.replace(column, value)
            return from_rows(connection.execute(select, (session_id,)).fetchall())
        finally:
            connection.close()
    except (sqlite3.Error, ValueError) as error:
        raise TraceStoreError(f"{path.name} cannot be read: {error}. It may be of another version.") from error


def unusable_error(path: Path, error: sqlite3.Error, wanted: str) -> TraceStoreError:
    """Makes the error for a file that cannot be used. It names the way on: a damaged file is set aside, and a run goes
    on without it."""
    said = f"the trace store {path} cannot be {wanted} ({error})"
    if isinstance(error, sqlite3.OperationalError):
        return TraceStoreError(f"{said}; check that its folder can be written and has space")
    return TraceStoreError(
        f"{said}: the file is damaged, or no trace store. The run goes on without it: `mv {path} {path}.damaged`, then "
        f"resume. The tokens of the steps before are then in no file of the run that can be read; steps.jsonl, "
        f"trajectories/ and checkpoints/ stay as they are. `sqlite3 {path}.damaged .recover` may save some"
    )


def _prepare_schema(connection: sqlite3.Connection, path: Path) -> None:
    version = _schema_version(connection)
    empty = not connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    if version != VERSION and version not in _UPGRADES and not (empty and version == 0):
        raise TraceStoreVersionError(
            f"the trace store {path} has schema version {version}, this program reads and writes version {VERSION}; "
            "continue the run with the version that began it, or start a new run folder"
        )
    # Write-ahead logs need shared memory, which network file systems do not have.
    journal = "WAL"
    if _on_network(path):
        journal = "DELETE"
    connection.execute(f"PRAGMA journal_mode = {journal}")
    connection.execute("PRAGMA synchronous = NORMAL")
    if empty:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(_CREATE)
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    else:
        _upgrade_schema(connection)


def _upgrade_schema(connection: sqlite3.Connection) -> None:
    """Brings an older file up to this version. Another process may be opening the same file: the second one finds it
    done."""
    if _schema_version(connection) == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    while (version := _schema_version(connection)) != VERSION:
        for column, kind, _ in _UPGRADES[version]:
            connection.execute(f"ALTER TABLE traces ADD COLUMN {column} {kind}")
        connection.execute(f"PRAGMA user_version = {version + 1}")
    connection.execute("COMMIT")


def _schema_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _on_network(path: Path) -> bool:
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    folder = path.resolve().parent
    best = ""
    kind = ""
    for line in lines_of(mounts, ends=False):
        fields = [re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), field) for field in line.split()]
        if len(fields) > 2 and folder.is_relative_to(fields[1]) and len(fields[1]) >= len(best):
            best = fields[1]
            kind = fields[2]
    return kind.startswith(_NETWORK_FILE_SYSTEMS)


def to_row(trace: Trace) -> tuple[Any, ...]:
    newest, each = _pack_versions(trace.weight_versions)
    return (
        trace.session_id, trace.turn, trace.chain, trace.base_turn,
        _pack_values(trace.delta_ids, _IDS), _pack_values(trace.sampled_ids, _IDS),
        _pack_values(trace.logprobs, _LOGPROBS),
        newest, trace.finish_reason, trace.break_kind and trace.break_kind.value,
        trace.created_s, trace.queue_s, trace.prefill_s, trace.decode_s, trace.cached_tokens, trace.engine,
        trace.held_s, each, None if trace.routes is None else _packed_routes(trace.routes),
        trace.role.value, trace.parent_turn, trace.sub_agent,
    )  # fmt: skip


def from_rows(rows: Sequence[tuple[Any, ...]]) -> list[Trace]:
    """Makes traces of a session's rows, which are in order of turns. Their arrays are read-only. Raises
    TraceStoreError."""
    known: dict[int, Trace] = {}
    for session_id, turn, chain, base_turn, delta_ids, sampled_ids, logprobs, version, reason, kind, *more in rows:
        if base_turn is not None and base_turn not in known:
            raise TraceStoreError(f"session {session_id}, turn {turn}: turn {base_turn} that it goes on from is gone")
        sub_agent = more.pop() or 0
        parent_turn = more.pop()
        role = SegmentRole(more.pop() or SegmentRole.main)
        routes = more.pop()
        each = more.pop()
        sampled = np.frombuffer(sampled_ids, _IDS)
        if base_turn is None:
            base: list[Any] = [None, 0]
        else:
            base = [base_turn, known[base_turn].tokens]
        base += [None if routes is None else _unpack_routes(routes), role, parent_turn, sub_agent]
        if each is None:
            versions = np.full(len(sampled), version, np.int32)
        else:
            versions = np.frombuffer(each, _IDS)
        known[turn] = Trace(
            session_id, turn, chain, np.frombuffer(delta_ids, _IDS), sampled, np.frombuffer(logprobs, _LOGPROBS),
            versions, reason, Break(kind) if kind else None, *more, *base,
        )  # fmt: skip
    return list(known.values())


def _pack_values(values: Any, kind: "np.dtype[Any]") -> bytes:
    packed: bytes = values.astype(kind, copy=False).tobytes()
    return packed


def _pack_versions(versions: Versions) -> tuple[int, bytes | None]:
    """Returns the two columns of the weight versions."""
    newest = 0
    if len(versions):
        newest = int(versions[-1])
    return newest, None if (versions == newest).all() else _pack_values(versions, _IDS)


def _packed_routes(routes: Routes) -> bytes:
    sizes = np.array([*routes.shape[1:], routes.itemsize], _SIZES)
    return sizes.tobytes() + np.ascontiguousarray(routes).astype(f"<u{routes.itemsize}", copy=False).tobytes()


def _unpack_routes(packed: bytes) -> Routes:
    layers, experts, size = np.frombuffer(packed, _SIZES, 3).tolist()
    numbers: Routes = np.frombuffer(packed, f"<u{size}", offset=3 * _SIZES.itemsize).reshape(-1, layers, experts)
    return numbers
