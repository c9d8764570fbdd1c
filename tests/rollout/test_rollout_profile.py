"""Phases are in order, never overlap and add up to what the trajectory measured, whatever the clocks did."""

import dataclasses
import itertools
from collections import defaultdict
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.agent.agent import Turn
from swe_rl.agent.scripted import ScriptedAgent
from swe_rl.env.env import Grade, GradeError
from swe_rl.files.json_text import decode_json, encode_json
from swe_rl.gateway.live import SessionSummary
from swe_rl.gateway.session import SessionSettings
from swe_rl.gateway.trace import Break, Trace
from swe_rl.logger.jsonl import PhaseKind
from swe_rl.rollout.attempt import Attempter
from swe_rl.rollout.profile import ProfilePhase, phases_of, program_event
from swe_rl.rollout.trajectory import Order, Status, Trajectory, TrajectoryId
from swe_rl.sandbox.sandbox import Workspace
from tests.support.scripted_sandbox import ScriptedProvider

NOW_S = 1_795_000_000.0
SUMMED = {"tool": "command", "hold": "queue"}  # kind of a phase: its name in times_s
seconds = st.floats(0.0, 40.0).map(lambda value: value if value > 1e-4 else 0.0)
NO_TIME = dict.fromkeys(("before", "hold", "queue", "prefill", "decode", "wait", "command"), 0.0)
CALL = st.fixed_dictionaries(
    {
        **dict.fromkeys(NO_TIME, seconds),
        "engine": st.sampled_from(["engine0", "engine1"]),
    }
)


def program(calls, *, boot_s=1.0, grade_s=2.0, skew_s=(), until_patch_s=0.5):
    """A sequential run of `calls`; `skew_s[i]` is by how much the wall clock was wrong when trace i was made.

    Returns trajectory, traces and the phases as they were.
    """
    at_s = NOW_S
    truth = [ProfilePhase(at_s, at_s + boot_s, PhaseKind.boot)]
    at_s += boot_s
    traces, turns = [], []
    began_s = {"boot": NOW_S, "agent": at_s}
    for place, (call, skew) in enumerate(itertools.zip_longest(calls, skew_s[: len(calls)], fillvalue=0.0)):
        at_s += call["before"] if place == 0 else 0.0
        for kind in (PhaseKind.hold, PhaseKind.queue, PhaseKind.prefill, PhaseKind.decode):
            truth.append(ProfilePhase(at_s, at_s + call[kind.value], kind, call["engine"], place))
            at_s += call[kind.value]
        spent_s = [call["hold"] + call["queue"], call["prefill"], call["decode"]]
        tokens = (1,) * (place + 1)
        told = (*spent_s, place, call["engine"], call["hold"])
        traces.append(
            Trace(
                "t",
                place,
                0,
                tokens,
                tokens,
                (-1.0,) * len(tokens),
                (0,) * len(tokens),
                "stop",
                None,
                at_s + skew,
                *told,
            )
        )
        at_s += call["wait"]
        truth.append(ProfilePhase(at_s, at_s + call["command"], PhaseKind.tool, None, place))
        at_s += call["command"]
        turns.append(Turn(place, "m", "c", "o", command_s=call["command"]))
    times_s = {"boot": boot_s, "agent": at_s - began_s["agent"], "grade": grade_s}
    times_s |= {name: sum(call[name] for call in calls) for name in ("queue", "prefill", "decode", "command")}
    times_s["queue"] += sum(call["hold"] for call in calls)  # a trace's queue_s has both
    began_s["grade"] = at_s = at_s + until_patch_s
    truth.append(ProfilePhase(at_s, at_s + grade_s, PhaseKind.grade))
    began_s["end"] = at_s + grade_s
    made = Trajectory("train.1.x.0.0", "x", "train.1.x", "train", 1, 0, 0, Status.resolved, 1.0, True, True)
    made.turns, made.times_s, made.began_s = turns, times_s, began_s
    return made, traces, [phase for phase in truth if phase.end_s > phase.start_s]


def sums_s(phases):
    total = defaultdict(float)
    for start_s, end_s, kind, *_ in phases:
        total[SUMMED.get(kind, str(kind))] += end_s - start_s
    return total


@given(st.lists(CALL, max_size=12), seconds, seconds)
def test_a_sequential_program_is_drawn_as_it_was(calls, boot_s, grade_s):
    trajectory, traces, truth = program(calls, boot_s=boot_s, grade_s=grade_s)
    found = phases_of(trajectory, traces)
    assert [phase[2:] for phase in found] == [phase[2:] for phase in truth]
    for ours, theirs in zip(found, truth, strict=True):
        assert ours[:2] == pytest.approx(theirs[:2], abs=1e-4)  # a float of unix seconds has 2e-7


@given(
    st.lists(CALL, max_size=12),
    st.lists(st.floats(-500.0, 500.0), max_size=12),
    st.floats(-100.0, 100.0),
)
def test_whatever_the_clock_did_phases_are_in_order_and_add_up(calls, skew_s, until_patch_s):
    trajectory, traces, _ = program(calls, skew_s=skew_s, until_patch_s=until_patch_s)
    found = phases_of(trajectory, traces)
    assert all(one.start_s < one.end_s for one in found)
    assert all(one.end_s <= other.start_s for one, other in itertools.pairwise(found))
    total = sums_s(found)
    for name in ("boot", "queue", "prefill", "decode", "command", "grade"):
        assert total[name] == pytest.approx(trajectory.times_s[name], abs=1e-4)


@given(st.lists(CALL, max_size=12), st.lists(st.floats(-500.0, 500.0), max_size=12))
def test_the_event_keeps_order_and_sums_within_its_rounding(calls, skew_s):
    trajectory, traces, _ = program(calls, skew_s=skew_s)
    event = decode_json(encode_json(program_event(trajectory, traces, NOW_S - 60.0)))
    phases = event["phases"]
    assert all(start_s < end_s for start_s, end_s, *_ in phases)
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(phases))
    assert all(value == round(value, 3) for phase in phases for value in phase[:2])
    total = sums_s(phases)
    for name in ("boot", "queue", "prefill", "decode", "command", "grade"):
        assert total[name] == pytest.approx(trajectory.times_s[name], abs=1.001e-3 * (len(calls) + 1))
    for _, _, kind, engine, turn in phases:
        assert (turn is None) == (kind in ("boot", "grade"))
        assert (engine is None) == (kind in ("boot", "tool", "grade"))
        if engine is not None:
            assert event["engines"][engine] == traces[turn].engine
    assert event["turns"] == [[n + 1, n, n + 1] for n in range(len(traces))]
    assert event["span_s"][0] == 60.0 and event["step"] == 1 and event["status"] == "resolved"


def test_what_was_sampled_before_the_attempt_began_takes_none_of_its_time():
    """A run that was killed goes on: two replies of 40 s are recalled at once, and only then is one sampled."""
    sampled = NO_TIME | {"engine": "engine0", "decode": 40.0, "command": 1.0}
    recalled = sampled | {"decode": 0.0}
    trajectory, traces, truth = program([recalled, recalled, sampled])
    traces = [dataclasses.replace(trace, decode_s=40.0) for trace in traces]
    trajectory.recalled_turns = 2
    trajectory.times_s["decode"] = 120.0
    found = phases_of(trajectory, traces)
    assert [phase[2:] for phase in found] == [phase[2:] for phase in truth]
    for ours, theirs in zip(found, truth, strict=True):
        assert ours[:2] == pytest.approx(theirs[:2], abs=1e-4)
    assert found[-1].end_s == pytest.approx(trajectory.began_s["end"])


def test_an_answer_that_was_lost_has_no_command():
    call = NO_TIME | {"decode": 1.0, "command": 0.5, "engine": "e"}
    trajectory, traces, _ = program([call, call, call])
    repeated = Trace("t", 1, 1, (1,), (1,), (-1.0,), (0,), "stop", Break.duplicate, traces[1].created_s, decode_s=1.0)
    traces = [traces[0], repeated, dataclasses.replace(traces[2], chain=1)]  # the first one's answer never came
    trajectory.turns = trajectory.turns[1:]
    tools = [phase.turn for phase in phases_of(trajectory, traces) if phase.kind is PhaseKind.tool]
    assert tools == [1, 2]


def test_commands_of_turns_that_left_no_trace_still_count():
    call = NO_TIME | {"decode": 1.0, "command": 0.5, "engine": "e"}
    trajectory, traces, _ = program([call, call])
    found = phases_of(trajectory, traces[:1])
    assert sums_s(found)["command"] == pytest.approx(1.0, abs=1e-5)
    assert [phase.turn for phase in found if phase.kind is PhaseKind.tool] == [0, None]


def test_without_stamps_there_is_nothing_to_draw():
    trajectory, traces, _ = program([])
    trajectory.began_s = {}
    assert phases_of(trajectory, traces) == []
    event = program_event(trajectory, traces, 0.0)
    assert event["phases"] == [] and event["span_s"] is None


def test_the_event_of_a_trajectory_is_small():
    call = {**dict.fromkeys(NO_TIME, 0.1), "decode": 9.1, "command": 3.3, "engine": "e"}
    trajectory, traces, _ = program([call] * 20)
    event = program_event(trajectory, traces, NOW_S - 3600.0)
    assert len(encode_json(event)) < 40 * len(event["phases"])


async def test_an_attempt_stamps_what_it_measures(config, instance):
    """The hook in `Attempter`: a failed grading too."""
    ticks = itertools.count(100.0)

    class Env:
        def __init__(self, error=None):
            self.error = error

        def workspace(self, instance):
            return Workspace()

        def prompt(self, instance):
            return "p"

        async def grade(self, *_):
            if self.error:
                raise self.error
            return Grade(True, True, {"t::a": True}, {})

    async def closed(session_id):
        return SessionSummary(1, 3, {}, {})

    gateway = SimpleNamespace(
        open_session=lambda *_: None,
        session_url=lambda _: "http://g",
        waited_s=lambda _: 0.0,
        ended=lambda _: None,
        close_session=closed,
    )
    order = Order(instance(), TrajectoryId("train", 1, "one", 0, 0), SessionSettings(96, 1024))
    for env in (Env(), Env(GradeError("no"))):
        attempter = Attempter(
            env,
            ScriptedAgent(["true"]),
            gateway,
            ScriptedProvider(lambda command: "ZGlmZiAtLWdpdA==:"),
            config.rollout,
            config.env,
            model_name="tiny",
            wall_clock=lambda: next(ticks),
        )
        trajectory, _ = await attempter.run(order)
        assert list(trajectory.began_s) == ["boot", "agent", "grade", "end"]
        assert sorted(trajectory.began_s.values()) == list(trajectory.began_s.values())
        assert {phase.kind for phase in phases_of(trajectory, [])} >= {PhaseKind.boot, PhaseKind.grade}
