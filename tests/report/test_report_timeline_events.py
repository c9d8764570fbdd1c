"""Programs, samples of the engines' load and their losses, as the timeline reads them from events."""

import pytest

from swe_rl.report.page import losses_tile, lost_engines
from swe_rl.report.timeline_events import KINDS, Load, Malformed, Sample, away_of, program_of, sample_of


def load(running=1, waiting=0, kv=0.5, preemptions=0):
    return {"running": running, "waiting": waiting, "kv": kv, "preemptions": preemptions}


def event(time_s, **engines):
    return {"time": time_s, "event": "engines", "step": 1, "engines": engines}


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


def loss(time_s, engine="engine0", **more):
    return {"time": time_s, "event": "engine_lost", "engine": engine, "reason": "killed", **more}


def back(time_s, engine="engine0", away_s=1.0):
    return {"time": time_s, "event": "engine_back", "engine": engine, "away_s": away_s}


def test_times_away():
    events = [loss(12.0), loss(13.0, "engine1"), back(14.5), loss(20.0), {"event": "engine_lost"}, back(21.0, "other")]
    away = away_of(events, 10.0)
    assert away == [("engine0", 2000, 4500), ("engine1", 3000, 11000), ("engine0", 10000, 11000)], "to the last event"


def test_an_engine_that_was_away_at_the_end_of_a_start_is_another_one_in_the_next():
    """The second start loses it after 90 s and has it back after 2 s: nothing was away for 92 s."""
    phase = {"time": 12.0, "event": "phase"}
    events = [loss(10.0), phase, {"time": 50.0, "event": "resumed"}, loss(100.0), back(102.0)]
    assert away_of(events, 0.0) == [("engine0", 10_000, 12_000), ("engine0", 100_000, 102_000)]
    rows = lost_engines(events)
    assert [row["away_s"] for row in rows] == [None, 1.0]


def test_losses_and_what_they_cost():
    events = [
        {"time": 10.0, "event": "started"},
        loss(12.0, requests=3, work_s=4.5),
        loss(12.5, "engine1", requests=1, work_s=0.5),
        back(14.0, away_s=2.0),
        loss("soon", requests=None),
    ]
    rows = lost_engines(events)
    assert [(row["engine"], row["at_s"], row["requests"], row["away_s"]) for row in rows] == [
        ("engine0", 2.0, 3, 2.0),
        ("engine1", 2.5, 1, None),
    ]
    (tile,) = losses_tile(rows)
    assert tile["value"] == "2"
    assert tile["detail"] == "away for 2.0s in all, 1 not back\n4 requests begun anew, 5.0s of work lost"
    assert lost_engines([]) == [] and losses_tile([]) == []


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


BROKEN = [
    {"phases": None},
    {"phases": [[1.0, 0.5, "boot", None, None]]},
    {"phases": [[11.0, 12.0, "boot", None, None], [11.5, 13.0, "grade", None, None]]},
    {"phases": [[11.0, 12.0, "sleep", None, None]]},
    {"phases": [[11.0, 12.0, "decode", 7, 0]]},
    {"phases": [[11.0, 12.0, "decode"]]},
    {"phases": [["a", "b", "decode", 0, 0]]},
    {"phases": [], "span_s": None},
    {"span_s": [1.0]},
    {"span_s": [None, None]},
    {"span_s": [1e308, 1e308]},
    {"turns": [[1, 2]]},
    {"turns": [None]},
    {"engines": 3},
    {"trajectory_id": None, "group_id": None, "phases": 0},
]


@pytest.mark.parametrize("change", BROKEN, ids=repr)
def test_a_malformed_program(change):
    with pytest.raises(Malformed):
        program_of(program(1, 10.0, 12.0) | change)


def test_a_program():
    made = program_of(program(1, 10.0, 12.5) | {"trajectory_id": "train.1.x.0.1"})
    assert (made.group, made.label, made.status) == ("x", "#0 try 2", "resolved")
    assert (made.start_ms, made.end_ms, made.engines) == (10000, 12500, ("engine0",))
    assert [tuple(phase) for phase in made.phases] == [(10000, 12500, KINDS.index("decode"), 0, 0)]
