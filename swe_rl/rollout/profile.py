"""Says where a trajectory's time went: its phases, for the event `program`.

Invariants:
- Phases of one trajectory are in order and never overlap; times between them are nobody's (parsing, waiting for a place
  to run a command, taking the patch, a call that came to nothing).
- The seconds of each kind add up to the trajectory's `times_s` (hold and queue together to its `queue`), less those of
  recalled replies, which passed before it began: a phase may be moved by a clock that was set, or by calls made at the
  same time, but is never cut.
- A held call counts for the engine that it was placed on in the end.
- A trajectory without time stamps has no phases.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from swe_rl.agent.agent import Turn
from swe_rl.gateway.trace import Trace, superseded_turns
from swe_rl.logger.jsonl import PhaseKind
from swe_rl.rollout.trajectory import Trajectory

# Times are rounded to this many digits of a second: 1 ms.
_DIGITS = 3


class ProfilePhase(NamedTuple):
    """A phase in unix seconds; `turn` is a place in the list of traces, None outside of turns."""

    start_s: float
    end_s: float
    kind: PhaseKind
    engine: str | None = None
    turn: int | None = None


class _Lane:
    """Lays phases one after another: each where it belongs, or later where the one before is still going on."""

    def __init__(self, start_s: float) -> None:
        self.phases: list[ProfilePhase] = []
        self._end_s = start_s

    def add(
        self,
        start_s: float,
        duration_s: float,
        kind: PhaseKind,
        engine: str | None = None,
        turn: int | None = None,
    ) -> float:
        """Returns its end, which is where the next one may begin."""
        if duration_s > 0.0:
            start_s = max(start_s, self._end_s)
            self._end_s = start_s + duration_s
            self.phases.append(ProfilePhase(start_s, self._end_s, kind, engine, turn))
            return self._end_s
        return max(start_s, self._end_s)


def phases_of(trajectory: Trajectory, traces: Sequence[Trace]) -> list[ProfilePhase]:
    """Returns the phases. `traces` are the trajectory's own, in order of turns.

    A call is laid so that it ends when its trace was made, a command so that it ends when the next call begins: before
    it an agent waits for a place, after it nothing.
    """
    began_s = trajectory.began_s
    times_s = trajectory.times_s
    if "boot" not in began_s:
        return []
    lane = _Lane(began_s["boot"])
    lane.add(began_s["boot"], times_s.get("boot", 0.0), PhaseKind.boot)
    starts_s = asked_times_s(traces, trajectory.recalled_turns)
    agent_end_s = began_s.get("agent", began_s["boot"]) + times_s.get("agent", 0.0)
    commands_s = _commands_s(trajectory.turns, traces)
    for place, trace in enumerate(traces):
        end_s = starts_s[place]
        if place >= trajectory.recalled_turns:
            end_s = _add_call(lane, trace, starts_s[place], place)
        command_s = commands_s[place]
        next_s = starts_s[place + 1] if place + 1 < len(traces) else agent_end_s
        lane.add(max(end_s, next_s - command_s), command_s, PhaseKind.tool, None, place)
    for command_s in commands_s[len(traces) :]:
        lane.add(0.0, command_s, PhaseKind.tool)
    if "grade" in began_s:
        lane.add(began_s["grade"], times_s.get("grade", 0.0), PhaseKind.grade)
    return lane.phases


def asked_times_s(traces: Sequence[Trace], recalled_turns: int) -> list[float]:
    """Returns when each call was made, in unix seconds. The first `recalled_turns` were answered at once."""
    spent_s = [call.queue_s + call.prefill_s + call.decode_s for call in traces]
    spent_s[:recalled_turns] = [0.0] * len(traces[:recalled_turns])
    return [call.created_s - call_s for call, call_s in zip(traces, spent_s, strict=True)]


def _add_call(lane: _Lane, trace: Trace, start_s: float, place: int) -> float:
    held_s = min(trace.held_s, trace.queue_s)
    end_s = lane.add(start_s, held_s, PhaseKind.hold, trace.engine, place)
    end_s = lane.add(end_s, trace.queue_s - held_s, PhaseKind.queue, trace.engine, place)
    end_s = lane.add(end_s, trace.prefill_s, PhaseKind.prefill, trace.engine, place)
    return lane.add(end_s, trace.decode_s, PhaseKind.decode, trace.engine, place)


def _commands_s(turns: Sequence[Turn], traces: Sequence[Trace]) -> list[float]:
    """Returns the seconds of the command that followed each trace; those of turns without a trace come last.

    An answer that was lost on its way and asked for again made a trace, but no turn.
    """
    commands_s = [0.0] * len(traces)
    left_out = superseded_turns(traces)
    kept = [place for place, trace in enumerate(traces) if trace.turn not in left_out]
    for place, turn in zip(kept, turns, strict=False):
        commands_s[place] = turn.command_s
    return commands_s + [turn.command_s for turn in turns[len(kept) :]]


def program_event(trajectory: Trajectory, traces: Sequence[Trace], origin_s: float) -> dict[str, Any]:
    """Returns the fields of one event: seconds since `origin_s` (unix), rounded to 1 ms, nothing shorter than that.

    `phases` are [start_s, end_s, kind, place in `engines`, place in `turns`]; `turns` are [prompt, cached, sampled]
    tokens.
    """
    engines: dict[str | None, int] = {}
    phases = []
    for start_s, end_s, kind, engine, turn in phases_of(trajectory, traces):
        start_s = round(start_s - origin_s, _DIGITS)
        end_s = round(end_s - origin_s, _DIGITS)
        if end_s > start_s:
            at = None if engine is None else engines.setdefault(engine, len(engines))
            phases.append((start_s, end_s, kind, at, turn))
    began_s = trajectory.began_s
    span_s = [round(began_s[name] - origin_s, _DIGITS) for name in ("boot", "end") if name in began_s]
    return {
        "trajectory_id": trajectory.trajectory_id,
        "group_id": trajectory.group_id,
        "step": trajectory.step,
        "status": trajectory.status.value,
        "engines": list(engines),
        "span_s": span_s if len(span_s) == 2 else None,
        "phases": phases,
        "turns": [(trace.prompt_tokens, trace.cached_tokens, len(trace.sampled_ids)) for trace in traces],
    }
