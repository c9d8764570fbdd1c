"""The engines below the lanes: samples of their load (event `engines`), and when they were lost.

Invariants:
- Times are whole milliseconds since the run's first event, until they are packed for a step.
- At most `MAX_SAMPLES` of a step; of those between two that stay, the one with the fullest caches is kept.
- What an event does not say as it should raises Malformed, and nothing else.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from swe_rl.report.timeline_program import MAX_NAME_CHARS, Malformed

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
