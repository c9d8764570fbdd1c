"""One program of the timeline: read from its event, packed for the page.

Invariants:
- Times are whole milliseconds; phases are in order and lie within the program's span.
- What an event does not say as it should raises Malformed, and nothing else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from swe_rl.logger.events import PhaseKind

KINDS = tuple(kind.value for kind in PhaseKind)
MAX_NAME_CHARS = 200


class Malformed(ValueError):
    """An event that is not what a run writes."""


class DrawnPhase(NamedTuple):
    """`kind`: place in KINDS; `engine`: place in the program's engines, -1 none; `turn`: -1 none."""

    start_ms: int
    end_ms: int
    kind: int
    engine: int
    turn: int


@dataclass(frozen=True, slots=True)
class Program:
    trajectory_id: str
    group: str  # the instance
    label: str  # which of its samples
    status: str
    engines: tuple[str, ...]
    start_ms: int
    end_ms: int
    phases: tuple[DrawnPhase, ...]
    turns: tuple[tuple[int, int, int], ...]  # prompt, cached, sampled tokens

    def packed(
        self, first_ms: int, engines: Sequence[str], groups: Sequence[str], statuses: Sequence[str]
    ) -> list[Any]:
        """[label, group, status, start, end, phases, turns]: places in the lists given, ms since `first_ms`.

        Three numbers a phase: ms since the phase before it (or the start), its own ms, and
        `kind + kinds * (1 + engine + (1 + engines) * turns since the phase before)`, of which the page takes the
        parts again; phases outside of turns count no turn. Three numbers a turn.
        """
        flat: list[int] = []
        at, turn = self.start_ms, 0
        places = [engines.index(name) for name in self.engines]
        for phase in self.phases:
            engine = places[phase.engine] if phase.engine >= 0 else -1
            ahead = max(0, phase.turn - turn) if phase.turn >= 0 else 0
            turn += ahead
            code = phase.kind + len(KINDS) * (1 + engine + (1 + len(engines)) * ahead)
            flat += (phase.start_ms - at, phase.end_ms - phase.start_ms, code)
            at = phase.end_ms
        return [
            self.label,
            groups.index(self.group),
            statuses.index(self.status),
            self.start_ms - first_ms,
            self.end_ms - first_ms,
            flat,
            [number for counts in self.turns for number in counts],
        ]


def program_of(event: Mapping[str, Any]) -> Program:
    """Raises Malformed."""
    try:
        name, group, step = str(event["trajectory_id"]), str(event["group_id"]), int(event["step"])
        engines = tuple(str(engine)[:MAX_NAME_CHARS] for engine in event["engines"])
        phases = tuple(_phase(values, len(engines)) for values in event["phases"])
        span = event["span_s"]
        start_ms, end_ms = map(_ms, span) if span else (phases[0].start_ms, phases[-1].end_ms)
        turns = tuple((int(prompt), int(cached), int(sampled)) for prompt, cached, sampled in event["turns"])
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise Malformed(f"not a program: {error!r}") from error
    ends = [start_ms, *(ms for phase in phases for ms in phase[:2])]
    if ends != sorted(ends):
        raise Malformed("not a program: its phases are not in order")
    return Program(
        trajectory_id=name,
        group=(group.partition(f".{step}.")[2] or group)[:MAX_NAME_CHARS],
        label=_label(name.removeprefix(group).strip(".")),
        status=str(event.get("status"))[:MAX_NAME_CHARS],
        engines=engines,
        start_ms=start_ms,
        end_ms=max(end_ms, ends[-1]),
        phases=phases,
        turns=turns,
    )


def _phase(values: Sequence[Any], engines: int) -> DrawnPhase:
    start_s, end_s, kind, engine, turn = values
    place = -1 if engine is None else int(engine)
    if not -1 <= place < engines:
        raise IndexError(place)
    return DrawnPhase(_ms(start_s), _ms(end_s), KINDS.index(kind), place, -1 if turn is None else int(turn))


def _ms(seconds_s: float) -> int:
    return round(1000 * seconds_s)


def _label(rest: str) -> str:
    """Of `sample.attempt`."""
    sample, _, attempt = rest.partition(".")
    again = f" try {int(attempt) + 1}" if attempt.isdecimal() and int(attempt) else ""
    return f"#{sample[:40]}{again}"
