"""This module estimates what the gateway has to do and what its processes can: calls a second, cores, memory. The
figures were measured.

Invariants:
- `gateway.processes=1` is the driver itself: no process beside it. With more, each call costs the driver less, and its
  own process the rest.
- Memory is that of the conversations under way, wherever they are held, and of the processes beside the driver. A large
  vocabulary adds to each of these; by how much was not measured.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from swe_rl.config.schema import Config
from swe_rl.facts import sizes
from swe_rl.plan import duration

Points = Sequence[tuple[float, float]]
# From docs/engineering/benchmarks.md, "What a call costs by its size": tokens of the conversation, and milliseconds of
# processor time of the gateway's process with HTTP and SQLite.
CALL_MS: Points = ((1_024, 1.25), (8_192, 1.37), (16_384, 1.54), (65_536, 1.55), (122_880, 1.99))
# From "More than one core" there: the time of the driver, and of all processes beside it together.
DRIVER_MS = 0.62
PROCESS_MS: Points = ((8_192, 1.52), (65_536, 1.98))
# Beyond this share of a core an event loop is late.
USE = 0.6
# From "The driver" there: 1.54 GB with 1,000 trajectories of 64k tokens, 0.40 GB in a small run.
SESSION_BYTES_PER_TOKEN = 17
# A process has so much resident at its start, with the tiny model's tokenizer.
PROCESS_GB = 0.07


@dataclass(frozen=True, slots=True)
class GatewayNeed:
    """Says what the gateway needs. `load` is that of the busiest process; 1 is as much as it can take without being
    late."""

    processes: int
    calls_per_s: float
    calls_per_s_at_most: float
    load: float
    cores: float
    memory_gb: float

    def to_record(self) -> dict[str, float]:
        return {name: float(f"{value:.3g}") for name, value in asdict(self).items()} | {"processes": self.processes}


def gateway_need(config: Config, calls_per_s: float, context_tokens: float) -> GatewayNeed:
    # Fewer processes are refused, but planned for in part.
    processes = max(1, config.gateway.processes)
    alone_ms = interpolate_points(context_tokens, CALL_MS)
    beside_ms = interpolate_points(context_tokens, PROCESS_MS)
    if processes == 1:
        busiest_ms = alone_ms
        call_ms = alone_ms
    else:
        busiest_ms = max(DRIVER_MS, beside_ms / processes)
        call_ms = DRIVER_MS + beside_ms
    held_gb = sizes.trajectories_under_way(config) * context_tokens * SESSION_BYTES_PER_TOKEN / 1e9
    return GatewayNeed(
        processes=processes,
        calls_per_s=calls_per_s,
        calls_per_s_at_most=1000 * USE / busiest_ms,
        load=calls_per_s * busiest_ms / 1000 / USE,
        cores=calls_per_s * call_ms / 1000,
        memory_gb=held_gb + (processes * PROCESS_GB if processes > 1 else 0.0),
    )


def step_need(config: Config, rollouts_s: float) -> GatewayNeed | None:
    """Returns the need of steps whose rollouts take so long, or None if that is not known."""
    if rollouts_s <= 0:
        return None
    calls_per_s = sizes.trajectories_per_step(config) * duration.mean_turns(config) / rollouts_s
    return gateway_need(config, calls_per_s, duration.mean_context_tokens(config))


def interpolate_points(at: float, points: Points) -> float:
    """Interpolates between measured points; beyond them it takes the nearest."""
    for (low, low_value), (high, high_value) in zip(points, points[1:], strict=False):
        if at <= high:
            share = max(0.0, at - low) / (high - low)
            return low_value + share * (high_value - low_value)
    return points[-1][1]
