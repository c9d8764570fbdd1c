"""Samples of the engines' load and their losses, as the page gets them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import EventLog
from swe_rl.report.page import losses, losses_tile
from swe_rl.report.timeline import programs_of
from swe_rl.report.timeline_events import (
    MAX_SAMPLES,
    Load,
    Malformed,
    Sample,
    away_of,
    away_within,
    packed,
    sample_of,
    thinned,
)


def load(running=1, waiting=0, kv=0.5, preemptions=0):
    return {"running": running, "waiting": waiting, "kv": kv, "preemptions": preemptions}


def event(time_s, **engines):
    return {"time": time_s, "event": "engines", "step": 1, "engines": engines}


def sample(at_ms, kv=0):
    return Sample(at_ms, {"engine0": Load(1, 0, kv, 0)})


def test_a_sample():
    one = sample_of(event(103.5, engine0=load(3, 2, 0.1234, 7)), 100.0)
    assert one == Sample(3500, {"engine0": Load(3, 2, 123, 7)})


@pytest.mark.parametrize(
    "change",
    [
        {"engines": None},
        {"engines": {"engine0": None}},
        {"engines": {"engine0": load(kv=1.1)}},
        {"engines": {"engine0": load(kv=float("nan"))}},
        {"engines": {"engine0": load(running="many")}},
        {"time": None},
        {"time": 1e308},
    ],
    ids=repr,
)
def test_a_malformed_sample(change):
    with pytest.raises(Malformed):
        sample_of(event(1.0, engine0=load()) | change, 0.0)


@given(st.lists(st.integers(0, 1000), max_size=3000))
def test_thinning_keeps_order_and_peaks(shares):
    samples = [sample(at_ms, kv) for at_ms, kv in enumerate(shares)]
    kept = thinned(samples)
    assert len(kept) == min(len(samples), MAX_SAMPLES)
    assert [one.at_ms for one in kept] == sorted(one.at_ms for one in kept)
    if samples:
        assert max(one.kv for one in kept) == max(shares)


def test_packing_names_every_engine_also_where_it_is_not_told():
    samples = [Sample(1500, {"b": Load(1, 2, 30, 4)}), Sample(900, {"a": Load(5, 6, 70, 8)})]
    assert packed(samples, 1000, ["a", "b"]) == {
        "at": [0, 500],
        "loads": [[5, 6, 70, 8, -1, -1, -1, -1], [-1, -1, -1, -1, 1, 2, 30, 4]],
    }
    assert packed([], 0, ["a"]) is None


def loss(time_s, engine="engine0", **more):
    return {"time": time_s, "event": "engine_lost", "engine": engine, "reason": "killed", **more}


def back(time_s, engine="engine0", away_s=1.0):
    return {"time": time_s, "event": "engine_back", "engine": engine, "away_s": away_s}


def test_times_away():
    events = [loss(12.0), loss(13.0, "engine1"), back(14.5), loss(20.0), {"event": "engine_lost"}, back(21.0, "other")]
    away = away_of(events, 10.0)
    assert away == [("engine0", 2000, 4500), ("engine1", 3000, None), ("engine0", 10000, None)]
    names = ["engine0", "engine1"]
    assert away_within(away, 4000, 11000, names) == [[0, 0, 500], [1, 0, 7000], [0, 6000, 7000]]
    assert away_within(away, 0, 1000, names) == []
    assert away_within(away, 0, 11000, ["engine1"]) == [[0, 3000, 11000]]


def test_losses_and_what_they_cost():
    events = [
        {"time": 10.0, "event": "started"},
        loss(12.0, requests=3, work_s=4.5),
        loss(12.5, "engine1", requests=1, work_s=0.5),
        back(14.0, away_s=2.0),
        loss("soon", requests=None),
    ]
    rows = losses(events)
    assert [(row["engine"], row["at_s"], row["requests"], row["away_s"]) for row in rows] == [
        ("engine0", 2.0, 3, 2.0),
        ("engine1", 2.5, 1, None),
    ]
    (tile,) = losses_tile(rows)
    assert tile["value"] == "2"
    assert tile["detail"] == "away for 2.0s in all, 1 not back\n4 requests begun anew, 5.0s of work lost"
    assert losses([]) == [] and losses_tile([]) == []


def program(step, start_s, end_s):
    return {
        "trajectory_id": f"train.{step}.x.0.0",
        "group_id": f"train.{step}.x",
        "step": step,
        "status": "resolved",
        "engines": ["engine0"],
        "span_s": [start_s, end_s],
        "phases": [[start_s, end_s, "decode", 0, 0]],
        "turns": [[1, 0, 1]],
    }


def test_a_step_has_its_own_samples_and_losses(tmp_path):
    folder = RunFolder(tmp_path).create()
    times = iter([100.0, 101.0, 102.0, 103.0, 104.0, 109.0, 110.0, 111.0, 112.0])
    with EventLog(folder.events_jsonl, clock=lambda: next(times)) as log:
        log.write("started")
        log.write("engines", step=1, engines={"engine0": load(kv=0.25), "engine1": load(0, kv=0.0)})
        log.write("engine_lost", engine="engine1", reason="killed")
        log.write("engine_back", engine="engine1", away_s=1.0)
        log.write("engines", step=1, engines={"engine0": load(kv=1.0), "engine1": None})
        log.write("program", **program(1, 0.5, 5.0))
        log.write("engines", step=2, engines={"engine0": load(kv=0.125)})
        log.write("program", **program(2, 9.5, 11.0))
        log.write("engines", engines={"engine0": load()})  # of job=serve
    first, second = programs_of(folder)["steps"]
    assert first["engines"] == ["engine0", "engine1"]  # the second one had nothing to do
    assert first["samples"] == {"at": [500], "loads": [[1, 0, 250, 0], [0, 0, 0, 0]]}
    assert first["away"] == [[1, 1500, 2500]] and second["away"] == []
    assert second["engines"] == ["engine0"] and second["samples"]["loads"] == [[1, 0, 125, 0]]
