"""What the timeline shows, read from events and packed for the page: programs, and the engines below their lanes.

Invariants:
- Times are whole milliseconds since the run's first event, until they are packed for a step.
- At most `MAX_SAMPLES` of a step; of those between two that stay, the one with the fullest caches is kept.
- A program's phases are in order and lie within its span.
- What an event does not say as it should raises Malformed, and nothing else.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from swe_rl.logger.jsonl import PhaseKind

MAX_SAMPLES = 400


class Load(NamedTuple):
    """`kv`: thousandths of the engine's cache; `preemptions`: since its start."""

    running: int
    waiting: int
    kv: int
    preemptions: int


@dataclass(frozen=True, slots=True)
class Sample:
    at_ms: int
    loads: Mapping[str, Load]

    @property
    def kv(self) -> int:
        return sum(load.kv for load in self.loads.values())


class Away(NamedTuple):
    """`to_ms` None: it did not come back."""

    engine: str
    from_ms: int
    to_ms: int | None


def sample_of(event: Mapping[str, Any], origin_s: float) -> Sample:
    """`origin_s`: unix seconds of the run's first event. Raises Malformed."""
    try:
        loads = {str(name)[:MAX_NAME_CHARS]: _load(load) for name, load in event["engines"].items()}
        return Sample(round(1000 * (float(event["time"]) - origin_s)), loads)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise Malformed(f"not a sample of engines: {error!r}") from error


def _load(load: Mapping[str, Any]) -> Load:
    share = float(load["kv"])
    if not 0.0 <= share <= 1.0:
        raise ValueError(share)
    return Load(int(load["running"]), int(load["waiting"]), round(1000 * share), int(load["preemptions"]))


def thinned(samples: Sequence[Sample]) -> list[Sample]:
    if len(samples) <= MAX_SAMPLES:
        return list(samples)
    bounds = [place * len(samples) // MAX_SAMPLES for place in range(MAX_SAMPLES + 1)]
    return [max(samples[low:high], key=lambda sample: sample.kv) for low, high in zip(bounds, bounds[1:], strict=False)]


def packed(samples: Sequence[Sample], first_ms: int, engines: Sequence[str]) -> dict[str, Any] | None:
    """`at`: ms since `first_ms`; `loads`: for each of `engines` its four numbers a sample, flat (-1: not told)."""
    kept = thinned(sorted(samples, key=lambda sample: sample.at_ms))
    if not kept:
        return None
    unknown = Load(-1, -1, -1, -1)
    loads = [[number for sample in kept for number in sample.loads.get(name, unknown)] for name in engines]
    return {"at": [max(0, sample.at_ms - first_ms) for sample in kept], "loads": loads}


def away_of(events: Iterable[Mapping[str, Any]], origin_s: float) -> list[Away]:
    """From `engine_lost` to the next `engine_back` of the same engine; what cannot be read is left out."""
    losses: list[Away] = []
    for event in events:
        try:
            name, at_ms = str(event["engine"])[:MAX_NAME_CHARS], round(1000 * (float(event["time"]) - origin_s))
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
        open_loss = next((i for i, loss in enumerate(losses) if loss.engine == name and loss.to_ms is None), None)
        if event.get("event") == "engine_lost" and open_loss is None:
            losses.append(Away(name, at_ms, None))
        elif event.get("event") == "engine_back" and open_loss is not None:
            losses[open_loss] = losses[open_loss]._replace(to_ms=at_ms)
    return losses


def away_within(away: Iterable[Away], first_ms: int, end_ms: int, engines: Sequence[str]) -> list[list[int]]:
    """[engine, from, to] of the step's own time, ms since `first_ms`."""
    rows = []
    for loss in away:
        start_ms, stop_ms = max(loss.from_ms, first_ms), end_ms if loss.to_ms is None else min(loss.to_ms, end_ms)
        if loss.engine in engines and start_ms < stop_ms:
            rows.append([engines.index(loss.engine), start_ms - first_ms, stop_ms - first_ms])
    return rows


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
class TimelineProgram:
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


def program_of(event: Mapping[str, Any]) -> TimelineProgram:
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
    return TimelineProgram(
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
