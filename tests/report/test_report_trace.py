"""The timeline as Chrome's trace events, held against the files that it is made from."""

import errno
import gzip
import json
import os
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from swe_rl.files.disk import DiskError
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import EventLog, StepLog, read_jsonl
from swe_rl.report.trace import ENGINES, FIRST_STEP, RUN, trace_lines, write_trace

REQUIRED = {"M": {"name", "pid", "args"}, "X": {"name", "ts", "dur", "pid", "tid"}, "C": {"name", "ts", "pid", "args"}}
PHASES = [[1.0, 1.5, "boot", None, None], [1.5, 2.0, "queue", 0, 0], [2.0, 4.25, "decode", 0, 0],
          [4.25, 5.0, "tool", None, 0], [5.0, 7.0, "decode", 1, 1], [7.5, 8.0, "grade", None, None]]  # fmt: skip


def program(step, sample, shift_s=0.0):
    group = f"train.{step}.bugs__one"
    phases = [[start + shift_s, end + shift_s, *rest] for start, end, *rest in PHASES]
    names = {"trajectory_id": f"{group}.{sample}.0", "group_id": group, "step": step, "status": "resolved"}
    span_s = [1.0 + shift_s, 9.0 + shift_s]
    return {**names, "engines": ["a", "b"], "span_s": span_s, "phases": phases, "turns": [[9, 0, 3], [20, 9, 4]]}


@pytest.fixture
def folder(tmp_path):
    """Two steps of two trajectories."""
    folder, clock = RunFolder(tmp_path / "run").create(), iter(range(1000, 2000))
    with EventLog(folder.events_jsonl, lambda: float(next(clock))) as events:
        events.write("started", name="train")
        events.write("phase", name="generate", took_s=0.75)
        events.write("weights", step=1, gather_s=0.25, load_s=0.5, logprob_diff_mean=1e-6)
        events.write("engine_lost", engine="a", reason="killed", requests=2)
        events.write("engine_back", engine="a", away_s=1.0)
        events.write("phase", name="generate", took_s=1.0)
    load = {"running": 3, "waiting": 1, "kv": 0.25, "preemptions": 0}
    with StepLog(folder, lambda: 1002.0) as log:
        for step in (1, 2):
            log.append_programs(step, "engines", [{"step": step, "engines": {"a": load}}])
            log.append_programs(step, "program", [program(step, sample, 10.0 * step) for sample in (0, 1)])
    return folder


def events_of(folder, step=None):
    return json.loads(b"".join(trace_lines(folder, step)))["traceEvents"]


def well_formed(events):
    """Required keys, and in each lane slices one inside the other or one after another."""
    lanes = defaultdict(list)
    for event in events:
        assert REQUIRED[event["ph"]] <= event.keys()
        if event["ph"] == "X":
            assert isinstance(event["ts"], int) and event["dur"] >= 0
            lanes[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for slices in lanes.values():
        open_until = []
        for start, end in sorted(slices, key=lambda one: (one[0], -one[1])):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)
    named = {(one["pid"], one["tid"]) for one in events if one["name"] == "thread_name"}
    assert named == lanes.keys()


def held_against(folder, events):
    """Counts and durations of the run's own files."""
    ours, theirs, turns = Counter(), Counter(), 0
    for step in folder.program_steps():
        for line in read_jsonl(folder.programs(step)):
            if line["event"] == "program":
                turns += len({phase[4] for phase in line["phases"]} - {None})
                for start_s, end_s, kind, _, _ in line["phases"]:
                    ours[kind] += 1
                    ours[f"{kind}_ms"] += round(1000 * end_s) - round(1000 * start_s)
    for event in events:
        if event.get("cat") == "phase":
            theirs[event["name"]] += 1
            theirs[f"{event['name']}_ms"] += event["dur"] // 1000
    assert +ours == +theirs and ours["decode_ms"] > 0
    assert sum(event.get("cat") == "turn" for event in events) == turns > 0
    updates = [event for event in events if (event["ph"], event["name"]) == ("X", "weights")]
    assert len(updates) == sum(one["event"] == "weights" for one in read_jsonl(folder.events_jsonl))


def test_every_lane_has_what_its_files_say(folder):
    events = events_of(folder)
    well_formed(events)
    held_against(folder, events)
    lane = [one for one in events if one["ph"] == "X" and (one["pid"], one["tid"]) == (FIRST_STEP + 1, 1)]
    assert [(one["name"], one["ts"], one["dur"]) for one in lane] == [
        ("resolved", 11_000_000, 8_000_000), ("boot", 11_000_000, 500_000), ("turn 1", 11_500_000, 3_500_000),
        ("queue", 11_500_000, 500_000), ("decode", 12_000_000, 2_250_000), ("tool", 14_250_000, 750_000),
        ("turn 2", 15_000_000, 2_000_000), ("decode", 15_000_000, 2_000_000), ("grade", 17_500_000, 500_000),
    ]  # fmt: skip
    assert lane[2]["args"] == {"prompt_tokens": 9, "cached_tokens": 0, "sampled_tokens": 3}
    assert [one["args"] for one in lane if one["name"] == "decode"] == [{"engine": "a"}, {"engine": "b"}]
    whole = [(one["name"], one["ts"], one["dur"]) for one in events if one["ph"] == "X" and one["pid"] == RUN]
    assert whole == [
        ("generate", 250_000, 750_000), ("weights", 1_250_000, 750_000),
        ("generate", 4_000_000, 1_000_000), ("a away", 3_000_000, 1_000_000),
    ]  # fmt: skip
    [loads, _] = [one for one in events if one["ph"] == "C"]
    assert (loads["name"], loads["ts"], loads["pid"]) == ("a", 2_000_000, ENGINES)
    assert loads["args"] == {"running": 3, "waiting": 1, "KV cache %": 25.0}


def test_an_update_of_weights_is_as_long_as_it_took(tmp_path):
    """Engines loaded while the trainer gathered, and had fallen asleep before it trained."""
    folder = RunFolder(tmp_path / "run").create()
    clock = iter((0.0, 100.0))
    with EventLog(folder.events_jsonl, lambda: next(clock)) as events:
        events.write("started", name="train")
        events.write("weights", sync_s=6.0, gather_s=5.0, load_s=5.5, wake_s=1.0, sleep_s=2.0, check_s=0.5)
    [update] = [one for one in events_of(folder) if one["ph"] == "X"]
    assert (update["ts"], update["dur"]) == (93_500_000, 6_500_000)


def test_one_step_has_no_other_s_lanes(folder):
    processes = {event["pid"] for event in events_of(folder, 2)}
    assert processes == {ENGINES, FIRST_STEP + 2}


def test_a_line_that_is_torn_or_strange_is_left_out(folder):
    before = events_of(folder)
    with folder.programs(2).open("a") as file:
        file.write('{"event":"program","trajectory_id":"x"}\n{"event":"engines","time":1,"engines":3}\n{"eve')
    with folder.events_jsonl.open("a") as file:
        file.write('{"event":"phase","name":"train","time":"x","took_s":1}\n{"time":5,"event":"phase","took_s":null}\n')
    assert events_of(folder) == before


def test_a_file_is_whole_also_where_it_is_packed(folder, tmp_path):
    plain, packed = tmp_path / "trace.json", tmp_path / "new" / "trace.json.gz"
    assert write_trace(folder, plain) == plain.stat().st_size
    write_trace(folder, packed)
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert not [*tmp_path.rglob(".*.tmp")]


def test_a_folder_that_takes_no_change_any_more_is_said(folder, tmp_path, monkeypatch):
    for name in ("replace", "unlink"):
        monkeypatch.setattr(Path, name, _read_only)
    with pytest.raises(DiskError, match=r"trace\.json: Read-only file system .* point job\.output at another disk"):
        write_trace(folder, tmp_path / "trace.json")


def _read_only(*_, **__):
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_a_large_run_is_read_step_by_step(folder):
    """The pieces of a step are there before the next one's file is read."""
    pieces = trace_lines(folder)
    for piece in pieces:
        if b'"step 1"' in piece:
            break
    folder.programs(2).write_text("")
    assert sum(b'"cat":"trajectory"' in piece for piece in pieces) == 2
