"""What the gateway has to do and what its processes can: calls a second, cores, memory; measured figures and sums.

Invariants:
- `gateway.processes=1` is the driver itself: no process beside it. With more, each call costs the driver less, and its
  own process the rest.
- Memory is of the conversations under way, wherever they are held, and of the processes beside the driver. A large
  vocabulary adds to each of these; by how much was not measured.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from swe_rl.config.schema import Config
from swe_rl.plan import duration, sizes

Points = Sequence[tuple[float, float]]
# docs/benchmarks/gateway_cost.md, "What a call costs by its size": tokens of the conversation, milliseconds of
# processor time of the gateway's process with HTTP and SQLite.
CALL_MS: Points = ((1_024, 1.25), (8_192, 1.37), (16_384, 1.54), (65_536, 1.55), (122_880, 1.99))
# "More than one core": of the driver, and of all processes beside it together.
DRIVER_MS = 0.62
PROCESS_MS: Points = ((8_192, 1.52), (65_536, 1.98))
USE = 0.6  # of a core, beyond which an event loop is late
SESSION_BYTES_PER_TOKEN = 17  # "The driver": 1.54 GB with 1,000 trajectories of 64k tokens, 0.40 GB in a small run
PROCESS_GB = 0.07  # resident at its start, with the tiny model's tokenizer


@dataclass(frozen=True, slots=True)
class GatewayNeed:
    """`load`: of the busiest process, 1 is as much as it can without being late."""

    processes: int
    calls_per_s: float
    calls_per_s_at_most: float
    load: float
    cores: float
    memory_gb: float

    def to_record(self) -> dict[str, float]:
        return {name: float(f"{value:.3g}") for name, value in asdict(self).items()} | {"processes": self.processes}


def need(config: Config, calls_per_s: float, context_tokens: float) -> GatewayNeed:
    processes = max(1, config.gateway.processes)  # fewer are refused, and planned in part
    alone_ms, beside_ms = interpolated(context_tokens, CALL_MS), interpolated(context_tokens, PROCESS_MS)
    busiest_ms = alone_ms if processes == 1 else max(DRIVER_MS, beside_ms / processes)
    call_ms = alone_ms if processes == 1 else DRIVER_MS + beside_ms
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
    """Of steps whose rollouts take so long; None where that is not known."""
    if rollouts_s <= 0:
        return None
    calls = sizes.trajectories_per_step(config) * duration.mean_turns(config)
    return need(config, calls / rollouts_s, duration.mean_context_tokens(config))


def interpolated(at: float, points: Points) -> float:
    """Between measured points; beyond them the nearest."""
    for (low, low_value), (high, high_value) in zip(points, points[1:], strict=False):
        if at <= high:
            share = max(0.0, at - low) / (high - low)
            return low_value + share * (high_value - low_value)
    return points[-1][1]
