import asyncio
import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.errors import UserError
from swe_rl.gateway.store import schema
from swe_rl.gateway.store.schema import VERSION, TraceStoreVersionError
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.gateway.trace import Break, Trace, TraceStoreError, joined_routes, whole_prompts


def trace(session="s", turn=0, chain=0, prompt=(1, 2), sampled=(3,), **more):
    """`prompt`: all of it, or what follows the trace `after`."""
    logprobs = tuple(-0.5 * (i + 1) for i in range(len(sampled)))
    after = more.pop("after", None)
    if after is not None:
        more |= {"base_turn": after.turn, "base_tokens": after.tokens}
    versions = more.pop("versions", (7,) * len(sampled))
    return Trace(session, turn, chain, tuple(prompt), tuple(sampled), logprobs, versions, "stop", **more)


def prompts(store, session="s"):
    return [ids.tolist() for ids in whole_prompts(store.traces(session))]


@pytest.fixture
def store(tmp_path):
    store = TraceStore(tmp_path / "traces.db")
    yield store
    store.close()


def test_all_fields_come_back(store):
    one = trace(
        break_kind=Break.branch,
        created_s=1.5,
        queue_s=0.1,
        prefill_s=0.2,
        decode_s=0.3,
        cached_tokens=4,
        engine="e",
        held_s=0.05,
    )
    store.append(one)
    assert store.traces("s") == [one]
    assert store.traces("unknown") == []


def test_a_chain_stores_only_what_is_new(store):
    turns, last = 50, None
    for turn in range(turns):
        last = trace(turn=turn, prompt=(9, 9) if last else (0,) * 1000, sampled=(1, 2, 3), after=last)
        store.append(last)
    assert prompts(store) == [[0] * 1000 + [1, 2, 3, 9, 9] * turn for turn in range(turns)]
    assert [one.prompt_tokens for one in store.traces("s")] == [1000 + 5 * turn for turn in range(turns)]
    with sqlite3.connect(store.path) as raw:
        stored = raw.execute("SELECT SUM(LENGTH(delta_ids) + LENGTH(sampled_ids)) FROM traces").fetchone()[0]
    assert stored == 4 * (1000 + 5 * turns - 2)


def test_numbers_go_on_after_what_is_committed(store):
    assert store.next_numbers("s") == (0, 0)
    store.append(trace(turn=4, chain=2))
    store.flush_sync()
    assert store.next_numbers("s") == (5, 3)


def test_numbers_go_on_after_what_waits(tmp_path, monkeypatch):
    """A session that was let go of and comes back at once must not use a number twice."""
    monkeypatch.setattr("swe_rl.gateway.store.traces._GATHER_S", 60.0)
    store = TraceStore(tmp_path / "traces.db")
    store.append(trace("s", turn=0))
    assert store.next_numbers("other") == (0, 0) and store.stats().commits == 0
    assert store.next_numbers("s") == (1, 1)
    store.close()


@pytest.mark.parametrize("versions", [(7, 7, 7), (7, 8, 8), ()])
def test_each_sampled_token_keeps_its_weight_version(store, versions):
    written = trace(sampled=range(len(versions)), versions=versions)
    store.append(written)
    assert store.traces("s") == [written]
    with sqlite3.connect(store.path) as raw:
        newest, each = raw.execute("SELECT weight_version, weight_versions FROM traces").fetchone()
    assert newest == (versions[-1] if versions else 0) and (each is None) == (len(set(versions)) < 2)


@pytest.mark.parametrize("kind", ["uint8", "uint16"])
def test_the_experts_of_tokens_come_back(store, kind):
    routes = (np.arange(4 * 3 * 2).reshape(4, 3, 2) * 10).astype(kind)
    first = trace(routes=routes)
    for one in (first, trace(turn=1, prompt=(), after=first, routes=routes[:1]), trace(turn=2, chain=1)):
        store.append(one)
    first, second, third = store.traces("s")
    assert first.routes.dtype == kind and np.array_equal(
        joined_routes([first, second]), np.concatenate([routes, routes[:1]])
    )
    assert third.routes is None and joined_routes([first, third]) is None


def test_a_prompt_that_does_not_go_on_from_the_end_of_its_chain_is_not_written(tmp_path):
    """By number of turn or of ids: whoever reads it would put together another prompt."""
    first = trace(turn=0)
    for wrong in ({"turn": 0, "chain": 1}, {"tokens": 4}, {"turn": 5}, {"session": "t"}):
        store = TraceStore(tmp_path / f"{len(wrong)}.{next(iter(wrong))}.db")
        store.append(first)
        store.append(trace(turn=1, prompt=(4,), sampled=(5,), after=first))
        base = {"base_turn": wrong.get("turn", 1), "base_tokens": wrong.get("tokens", 5)}
        with pytest.raises(TraceStoreError, match="goes on from turn"):
            store.append(trace(wrong.get("session", "s"), 2, wrong.get("chain", 0), (6,), **base))
            store.flush_sync()
        with pytest.raises(TraceStoreError, match="goes on from turn"):
            store.close()
        with sqlite3.connect(store.path) as raw:
            assert raw.execute("SELECT MAX(turn) FROM traces").fetchone() in ((1,), (None,))


def test_a_turn_whose_base_is_gone_is_not_guessed(store):
    first = trace(turn=0)
    store.append(first)
    store.append(trace(turn=1, prompt=(4,), after=first))
    store.flush_sync()
    with contextlib.closing(sqlite3.connect(store.path, isolation_level=None)) as raw:
        raw.execute("DELETE FROM traces WHERE turn = 0")
    with pytest.raises(TraceStoreError, match="turn 0 that it goes on from is gone"):
        store.traces("s")


def test_sessions_can_be_deleted(store):
    for name in ("b", "a", "c"):
        store.append(trace(name))
    store.delete(["a", "c", "unknown"])
    assert store.sessions() == ["b"]
    store.append(trace("a", prompt=(1, 2, 3)))
    assert store.traces("a") == [trace("a", prompt=(1, 2, 3))]


def test_a_chain_goes_on_after_reopening(tmp_path):
    path = tmp_path / "traces.db"
    first = TraceStore(path)
    first.append(trace())
    first.close()
    first.close()
    again = TraceStore(path)
    again.append(trace(turn=1, prompt=(4,), after=trace()))
    assert prompts(again) == [[1, 2], [1, 2, 3, 4]]
    again.close()
    with sqlite3.connect(path) as raw:
        assert raw.execute("SELECT base_turn FROM traces ORDER BY turn").fetchall() == [(None,), (0,)]


_ids = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)
_float32 = st.floats(max_value=0, width=32, allow_nan=False)


@given(data=st.data())
def test_any_traces_come_back_and_cost_what_is_new(data):
    written, whole, ends, new_ids = {}, {}, {}, 0
    with tempfile.TemporaryDirectory() as folder:
        store = TraceStore(Path(folder) / "t.db", max_queued_traces=2)
        for _ in range(data.draw(st.integers(1, 12))):
            session, chain = data.draw(st.sampled_from("ab")), data.draw(st.integers(0, 2))
            turn = len(written.setdefault(session, []))
            end = ends.get((session, chain)) if data.draw(st.booleans()) else None
            delta, sampled = data.draw(_ids), data.draw(_ids)
            logprobs = tuple(data.draw(_float32) for _ in sampled)
            versions = tuple(data.draw(st.integers(0, 3)) for _ in sampled)
            kind = data.draw(st.sampled_from([None, *Break]))
            base = {"base_turn": end[0], "base_tokens": len(end[1])} if end else {}
            one = Trace(session, turn, chain, delta, sampled, logprobs, versions, "length", kind, float(turn), **base)
            store.append(one)
            written[session].append(one)
            whole.setdefault(session, []).append([*(end[1] if end else ()), *delta])
            new_ids += len(delta) + len(sampled)
            ends[session, chain] = turn, (*whole[session][-1], *sampled)
            if data.draw(st.integers(0, 9)) == 0:
                store.close()
                store = TraceStore(Path(folder) / "t.db")
        for session, traces in written.items():
            assert store.traces(session) == traces and prompts(store, session) == whole[session]
        store.close()
        with sqlite3.connect(Path(folder) / "t.db") as raw:
            query = "SELECT SUM(LENGTH(delta_ids) + LENGTH(sampled_ids)) FROM traces"
            assert raw.execute(query).fetchone()[0] == 4 * new_ids


@pytest.mark.parametrize("version", [VERSION + 1, 0])
def test_another_version_is_refused_and_left_alone(tmp_path, version):
    path = tmp_path / "traces.db"
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE traces (x)")
        raw.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(TraceStoreVersionError, match=f"version {version}.*new run folder") as refused:
        TraceStore(path)
    assert isinstance(refused.value, UserError)
    with sqlite3.connect(path) as raw:
        assert raw.execute("PRAGMA user_version").fetchone() == (version,)


@pytest.mark.parametrize(
    ("version", "columns"),
    [
        (1, ["held_s", "weight_versions", "routes", "role", "parent_turn", "sub_agent"]),
        (2, ["weight_versions", "routes", "role", "parent_turn", "sub_agent"]),
        (3, ["routes", "role", "parent_turn", "sub_agent"]),
        (4, ["role", "parent_turn", "sub_agent"]),
        (5, ["sub_agent"]),
    ],
)
def test_a_store_of_an_older_version_is_read_and_gone_on_with(tmp_path, version, columns):
    """As it was written before traces told how long they were held, a version a token, its experts, or a role."""
    path = tmp_path / "traces.db"
    store, first = TraceStore(path), trace(sampled=(3, 4), queue_s=3.0, held_s=2.0, engine="e")
    store.append(first)
    store.close()
    with sqlite3.connect(path) as raw:
        for column in columns:
            raw.execute(f"ALTER TABLE traces DROP COLUMN {column}")
        raw.execute(f"PRAGMA user_version = {version}")
    again = TraceStore(path)
    again.append(trace(turn=1, prompt=(4,), sampled=(5, 6), after=first, held_s=1.0, versions=(8, 9)))
    held_s = 0.0 if version == 1 else 2.0
    assert [(one.queue_s, one.held_s, one.engine) for one in again.traces("s")] == [(3.0, held_s, "e"), (0.0, 1.0, "")]
    assert [one.weight_versions.tolist() for one in again.traces("s")] == [[7, 7], [8, 9]]
    assert prompts(again) == [[1, 2], [1, 2, 3, 4, 4]]
    again.close()
    with sqlite3.connect(path) as raw:
        assert raw.execute("PRAGMA user_version").fetchone() == (VERSION,)


def test_what_is_no_store_is_refused(tmp_path):
    path = tmp_path / "traces.db"
    path.write_bytes(b"no database, but long enough to be looked at" * 100)
    with pytest.raises(TraceStoreError, match="cannot be opened"):
        TraceStore(path)
    with pytest.raises(TraceStoreError, match="cannot be opened"):
        TraceStore(tmp_path / "missing" / "traces.db")


def test_a_flushed_trace_survives_a_kill(tmp_path):
    path = tmp_path / "traces.db"
    program = (
        "import sys, time; from pathlib import Path\n"
        "from swe_rl.gateway.store.traces import TraceStore; from swe_rl.gateway.trace import Trace\n"
        f"store = TraceStore(Path({str(path)!r}))\n"
        "for turn in range(40): store.append(Trace('s', turn, 0, (1,) * (turn + 1), (1,), (-1.0,), (0,), 'stop'))\n"
        "store.flush_sync(); print('flushed', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "flushed\n"
        process.send_signal(signal.SIGKILL)
    store = TraceStore(path)
    assert prompts(store) == [[1] * (turn + 1) for turn in range(40)]
    store.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk_surfaces_and_nothing_hangs(tmp_path):
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no mounts here")
    try:
        store = TraceStore(tmp_path / "traces.db", max_queued_traces=4)
        with pytest.raises(TraceStoreError, match=r"traces\.db.*full.*resume"):
            for turn in range(100):
                store.append(trace(turn=turn, prompt=range(turn, turn + 5000)))
            store.flush_sync()
        with pytest.raises(TraceStoreError):
            store.append(trace(turn=200))
        with pytest.raises(TraceStoreError):
            store.traces("s")
        with pytest.raises(TraceStoreError):
            store.close()
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


@pytest.mark.parametrize("name", ["plain", "my share"])
def test_a_network_file_system_is_known_by_its_mount(tmp_path, monkeypatch, name):
    folder, read = tmp_path / name, Path.read_text
    shown = f"overlay / overlay rw 0 0\nfs:/x {str(folder).replace(' ', chr(92) + '040')} nfs4 rw 0 0\n"
    monkeypatch.setattr(
        Path, "read_text", lambda path, **how: shown if str(path) == "/proc/mounts" else read(path, **how)
    )
    assert schema._on_network(folder / "traces.db") and not schema._on_network(tmp_path / "traces.db")


async def test_a_bad_trace_surfaces_at_the_next_flush(tmp_path):
    store = TraceStore(tmp_path / "traces.db")
    store.append(trace(turn=0))
    store.append(trace(turn=0))
    with pytest.raises(TraceStoreError, match="UNIQUE"):
        await store.flush()
    with pytest.raises(TraceStoreError, match="UNIQUE"):
        await store.append_async(trace(turn=1))
    with pytest.raises(TraceStoreError):
        store.close()


class _SlowStart:
    """Holds the writer at its first reading of the clock."""

    def __init__(self):
        self.go, self.waits = threading.Event(), threading.Event()

    def __call__(self):
        self.waits.set()
        self.go.wait(10)
        return time.monotonic()


async def test_a_full_queue_makes_callers_wait_and_drops_nothing(tmp_path):
    clock = _SlowStart()
    store = TraceStore(tmp_path / "traces.db", clock=clock, max_queued_traces=2)
    store.append(trace(turn=0))
    assert clock.waits.wait(5)
    await store.append_async(trace(turn=1))
    await store.append_async(trace(turn=2))
    blocked = asyncio.create_task(store.append_async(trace(turn=3)))
    await asyncio.sleep(0.05)
    assert not blocked.done() and store.stats().queued == 2
    clock.go.set()
    await blocked
    await store.flush()
    assert [one.turn for one in store.traces("s")] == [0, 1, 2, 3]
    assert store.stats().traces == 4 and store.stats().commits <= 3  # turns 1 and 2 went in one
    store.close()
    with pytest.raises(TraceStoreError, match="closed"):
        store.append(trace(turn=9))


def test_a_lock_of_somebody_else_is_waited_for(store):
    """A copy of the file is being made, say."""
    store.append(trace(turn=0))
    store.flush_sync()
    with contextlib.closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        store.append(trace(turn=1))
        flushing = threading.Thread(target=store.flush_sync)
        flushing.start()
        flushing.join(0.3)
        assert flushing.is_alive()
        other.execute("ROLLBACK")
        flushing.join(20)
    assert not flushing.is_alive() and [one.turn for one in store.traces("s")] == [0, 1]


async def test_a_caller_who_gives_up_does_not_end_the_writer(store):
    other = sqlite3.connect(store.path, isolation_level=None)
    with contextlib.closing(other):
        other.execute("BEGIN IMMEDIATE")  # the writer waits for this lock with the flush in its hands
        store.append(trace(turn=0))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(store.flush(), 0.3)
        other.execute("ROLLBACK")
    store.append(trace(turn=1))
    await asyncio.wait_for(store.flush(), 20)
    assert [one.turn for one in store.traces("s")] == [0, 1]


def test_many_threads_may_append(store):
    def write(name):
        for turn in range(50):
            store.append(trace(name, turn=turn, prompt=range(turn + 1)))

    threads = [threading.Thread(target=write, args=(f"s{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(store.traces(f"s{i}")) for i in range(4)] == [50] * 4


def test_a_network_file_system_gets_a_rollback_journal(tmp_path, monkeypatch):
    for network, journal in ((False, "wal"), (True, "delete")):
        monkeypatch.setattr(schema, "_on_network", lambda path, network=network: network)
        store = TraceStore(tmp_path / f"{journal}.db")
        store.append(trace())
        assert store.traces("s") == [trace()]
        store.close()
        with sqlite3.connect(store.path) as raw:
            assert raw.execute("PRAGMA journal_mode").fetchone() == (journal,)


@pytest.mark.parametrize("damage", ["noise", "cut", "inside"])
def test_a_damaged_file_names_the_way_on(tmp_path, damage):
    path = tmp_path / "traces.db"
    store = TraceStore(path)
    for turn in range(200):
        store.append(trace(session=f"s{turn}", prompt=tuple(range(100))))
    store.close()
    whole = path.read_bytes()
    noise = random.Random(1).randbytes(len(whole) - 4096)
    path.write_bytes({"noise": noise, "cut": whole[:5000], "inside": whole[:4096] + noise}[damage])
    with pytest.raises(TraceStoreError, match=r"damaged.*`mv .*traces\.db .*traces\.db\.damaged`, then resume"):
        damaged = TraceStore(path)
        try:
            damaged.sessions()
        finally:
            damaged.close()


def test_a_file_that_cannot_be_made_is_not_called_damaged(tmp_path):
    with pytest.raises(TraceStoreError, match="can be written and has space") as refused:
        TraceStore(tmp_path / "none" / "traces.db")
    assert "damaged" not in str(refused.value)
