"""The timeline's parts, read from events: programs, and what the engines had to do.

Invariants:
- Times are whole milliseconds since the run's first event.
- A program's phases are in order and lie within its span.
- What an event does not say as it should raises Malformed, and nothing else.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from swe_rl.logger.jsonl import PhaseKind


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


class Away(NamedTuple):
    """Of an engine that did not come back, `to_ms` is the last event of that start of the run."""

    engine: str
    from_ms: int
    to_ms: int


def sample_of(event: Mapping[str, Any], origin_s: float) -> Sample:
    """`origin_s`: unix seconds of the run's first event. Raises Malformed."""
    try:
        loads = {str(name)[:MAX_NAME_CHARS]: _parse_load(load) for name, load in event["engines"].items()}
        return Sample(round(1000 * (float(event["time"]) - origin_s)), loads)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise Malformed(f"not a sample of engines: {error!r}") from error


def _parse_load(load: Mapping[str, Any]) -> Load:
    share = float(load["kv"])
    if not 0.0 <= share <= 1.0:
        raise ValueError(share)
    return Load(int(load["running"]), int(load["waiting"]), round(1000 * share), int(load["preemptions"]))


def away_of(events: Iterable[Mapping[str, Any]], origin_s: float) -> list[Away]:
    """From `engine_lost` to the next `engine_back` of the same engine; what cannot be read is left out.

    Engines that were away when a run ended do not come back: a resumed run has others.
    """
    losses: list[Away] = []
    # These are away, by their places in the list.
    open_losses: dict[str, int] = {}
    for event in events:
        if event.get("event") == "resumed":
            open_losses.clear()
        try:
            name = str(event.get("engine"))[:MAX_NAME_CHARS]
            at_ms = round(1000 * (float(event["time"]) - origin_s))
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
        for place in open_losses.values():
            losses[place] = losses[place]._replace(to_ms=max(losses[place].from_ms, at_ms))
        if event.get("event") == "engine_lost" and "engine" in event and name not in open_losses:
            open_losses[name] = len(losses)
            losses.append(Away(name, at_ms, at_ms))
        elif event.get("event") == "engine_back":
            open_losses.pop(name, None)
    return losses


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


def program_of(event: Mapping[str, Any]) -> TimelineProgram:
    """Raises Malformed."""
    try:
        name = str(event["trajectory_id"])
        group = str(event["group_id"])
        step = int(event["step"])
        engines = tuple(str(engine)[:MAX_NAME_CHARS] for engine in event["engines"])
        phases = tuple(_parse_phase(values, len(engines)) for values in event["phases"])
        span = event["span_s"]
        start_ms, end_ms = map(_to_ms, span) if span else (phases[0].start_ms, phases[-1].end_ms)
        turns = tuple((int(prompt), int(cached), int(sampled)) for prompt, cached, sampled in event["turns"])
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise Malformed(f"not a program: {error!r}") from error
    ends = [start_ms, *(ms for phase in phases for ms in phase[:2])]
    if ends != sorted(ends):
        raise Malformed("not a program: its phases are not in order")
    return TimelineProgram(
        trajectory_id=name,
        group=(group.partition(f".{step}.")[2] or group)[:MAX_NAME_CHARS],
        label=_sample_label(name.removeprefix(group).strip(".")),
        status=str(event.get("status"))[:MAX_NAME_CHARS],
        engines=engines,
        start_ms=start_ms,
        end_ms=max(end_ms, ends[-1]),
        phases=phases,
        turns=turns,
    )


def _parse_phase(values: Sequence[Any], engines: int) -> DrawnPhase:
    start_s, end_s, kind, engine, turn = values
    place = -1 if engine is None else int(engine)
    if not -1 <= place < engines:
        raise IndexError(place)
    return DrawnPhase(_to_ms(start_s), _to_ms(end_s), KINDS.index(kind), place, -1 if turn is None else int(turn))


def _to_ms(seconds_s: float) -> int:
    return round(1000 * seconds_s)


def _sample_label(rest: str) -> str:
    """Of `sample.attempt`."""
    sample, _, attempt = rest.partition(".")
    again = ""
    if attempt.isdecimal() and int(attempt):
        again = f" try {int(attempt) + 1}"
    return f"#{sample[:40]}{again}"
