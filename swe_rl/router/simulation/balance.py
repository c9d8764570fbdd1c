"""This module tells how many engines go with a trainer. It simulates a configuration's training in virtual time, in
each way to go on, and with the same GPUs divided otherwise.

Invariants:
- Every way and every division gets the same groups in the same order.
- A large step is cut to some of the engines with their share of its groups, its places and the trainer.
- A division that the rules of memory and batches refuse is left out. If nothing can be moved, there is one division.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from swe_rl.config.choices import EngineKind, JobName, RolloutMode
from swe_rl.config.schema import Config, LayoutConfig, RouterConfig
from swe_rl.facts import memory, sizes
from swe_rl.facts.concurrency import Bounds, adapts_concurrency
from swe_rl.plan import duration
from swe_rl.plan.concurrency import bounds_of
from swe_rl.plan.engine_speed import speed_of
from swe_rl.plan.host_tier import HostTier, host_tier
from swe_rl.router.core import Router
from swe_rl.router.make import make_router
from swe_rl.router.simulation.engine_model import EngineLimits
from swe_rl.router.simulation.pace import Group, TrainerSpeed
from swe_rl.router.simulation.training import SimulatedSchedule, TrainingOutcome, Way, mean_of, simulate_training
from swe_rl.router.simulation.workload import WorkloadError

# Draws groups for a configuration, by the load's number and how many groups are wanted.
GroupsOf = Callable[[Config, int, int], Sequence[Group]]
_WARM_STEPS = 4
_LEAST_STEPS = 4
_MOST_STEPS = 12
_MOST_DIVISIONS = 16


@dataclass(frozen=True, slots=True)
class Balance:
    """Holds the outcomes of a balance. `ways` are for the configured layout, with the configured way last. `divisions`
    are for the same GPUs in that way, by the number of engines."""

    ways: list[TrainingOutcome]
    divisions: list[tuple[LayoutConfig, TrainingOutcome]]

    @property
    def flowing(self) -> TrainingOutcome:
        """Returns the outcome of the configured layout in the configured way."""
        return self.ways[-1]

    @property
    def best(self) -> LayoutConfig:
        return max(self.divisions, key=lambda division: division[1].tokens_per_h)[0]

    def to_record(self) -> dict[str, Any]:
        base = self.ways[0].tokens_per_h
        return {
            "ways": {
                way.way: way.to_record() | {"to_step": _four_digits(way.tokens_per_h / base)} for way in self.ways
            },
            "divisions": {name_division(layout): outcome.to_record() for layout, outcome in self.divisions},
            "best": name_division(self.best),
            "slower_side": self.flowing.slower_side,
        }


def name_division(layout: LayoutConfig) -> str:
    engines = f"{layout.engines} engine{'s' * (layout.engines > 1)}"
    wide = ""
    if layout.engine_tp > 1:
        wide = f" of {layout.engine_tp} GPUs"
    return f"{engines}{wide} + {layout.trainer_gpus} trainer GPU{'s' * (layout.trainer_gpus > 1)}"


def can_balance(config: Config) -> bool:
    """Tells whether there is something to balance: engines and trainer have GPUs of their own, and groups flow."""
    flows = config.rollout.mode is RolloutMode.stream
    layout = config.layout
    return flows and layout.trainer_gpus > 0 and not sizes.takes_turns(config)


def compare_divisions(config: Config, groups_of: GroupsOf, *, turns: int, loads: int) -> Balance:
    """Simulates all ways and divisions, with about `turns` turns in each simulation. Raises WorkloadError, SpeedError,
    SimulationTooSmall, SimulationError."""
    ahead = max(1, config.trainer.max_staleness_steps)
    ways = [
        simulate_division(config, groups_of, way, turns, loads)
        for way in (Way(False, 0), Way(False, 1), Way(True, ahead))
    ]
    divisions = []
    for layout in divide_gpus(config):
        divided = replace(config, layout=layout)
        same = layout == config.layout
        divisions.append(
            (layout, ways[-1] if same else simulate_division(divided, groups_of, Way(True, ahead), turns, loads))
        )
    return Balance(ways, divisions)


def simulate_division(config: Config, groups_of: GroupsOf, way: Way, turns: int, loads: int) -> TrainingOutcome:
    """Returns the mean outcome over the loads. Raises what `compare_divisions` raises."""
    wanted = max(1.0, sizes.trajectories_per_step(config) * duration.mean_turns(config))
    least = (_WARM_STEPS + _LEAST_STEPS + 1 + way.ahead) * wanted
    engines = engines_of_a_part(config, int(config.layout.engines * turns / least))
    share = engines / max(1, config.layout.engines)
    prompts = max(1, round(config.rollout.prompts_per_step * share))
    share = prompts / max(1, config.rollout.prompts_per_step)
    counted = int(turns / (wanted * share)) - _WARM_STEPS - 1 - way.ahead
    schedule = SimulatedSchedule(
        prompts=prompts,
        places=max(1, round(sizes.trajectories_under_way(config) * share)),
        warm=_WARM_STEPS,
        counted=max(_LEAST_STEPS, min(_MOST_STEPS, counted)),
    )
    part = replace(config, layout=replace(config.layout, engines=engines))
    capacity = capacity_of(part)
    trainer = trainer_of(config)
    trainer = replace(trainer, token_s=trainer.token_s / share)
    speed = speed_of(config.model, config.hardware, config.layout)
    outcomes = [
        simulate_training(
            router_of(part, config.router, capacity),
            groups_of(config, load, schedule.groups(way)),
            speed,
            limits_of(part, capacity),
            trainer,
            schedule,
            way,
            _bounds_of_part(config, schedule.places),
        )
        for load in range(loads)
    ]
    mean = mean_of(outcomes)
    return replace(mean, tokens_per_h=mean.tokens_per_h / share)


def _bounds_of_part(config: Config, places: int) -> Bounds | None:
    """Returns the bounds of rollout.concurrency=auto for a part of the engines that has `places` at most."""
    if not adapts_concurrency(config):
        return None
    whole = bounds_of(config)
    share = places / max(1, whole.most)
    return Bounds(min(places, max(1, round(whole.least * share))), places, max(1, round(whole.start * share)))


def engines_of_a_part(config: Config, wanted: int) -> int:
    """Returns the wanted number of engines, or as many more as it takes for their share of a step's prompts to be
    nearly whole: no prompt can be cut."""
    every = max(1, config.layout.engines)
    prompts = config.rollout.prompts_per_step
    shares = ((engines, prompts * engines / every) for engines in range(max(1, wanted), every))
    return next((engines for engines, share in shares if abs(share - round(share)) <= share / 8), every)


def divide_gpus(config: Config) -> list[LayoutConfig]:
    """Returns the configured layout and others of the same GPUs: more or fewer engines, with the trainer on the
    rest."""
    divided = list(_other_divisions(config))
    if len(divided) > _MOST_DIVISIONS:
        every = -(-len(divided) // _MOST_DIVISIONS)
        divided = [layout for layout in divided if layout.engines % every == 0 or layout == config.layout]
    return divided


def _other_divisions(config: Config) -> Iterator[LayoutConfig]:
    layout = config.layout
    width = max(1, config.layout.engine_tp)
    gpus = sizes.total_gpus(layout)
    for engines in range(1, gpus // width + 1):
        other = replace(layout, engines=engines, trainer_gpus=gpus - engines * width)
        if other == layout or (config.engine.kind is EngineKind.vllm and _fits_trainer(replace(config, layout=other))):
            yield other


def _fits_trainer(config: Config) -> bool:
    """Tells whether the trainer's ranks share sequences and mini-batches out evenly, and have the memory."""
    ranks = config.layout.trainer_gpus
    ways = max(1, config.layout.sequence_parallel)
    if ranks < 1 or ranks % ways or ranks % sizes.replica_ranks(config.layout):
        return False
    if sizes.trajectories_per_mini_batch(config) % sizes.data_parallel(config.layout):
        return False
    return memory.trainer_gb_per_gpu(config) <= config.hardware.gpu_memory_gb


def _four_digits(value: float) -> float:
    return float(f"{value:.4g}")


# What a configuration says of engines, router and trainer.


@dataclass(frozen=True, slots=True)
class _Named:
    name: str


def capacity_of(config: Config) -> int:
    """Returns how many tokens of keys and values one engine holds. Without a GPU it is what its sequences need at full
    length.

    Raises WorkloadError for servers whose capacity is not known.
    """
    if sizes.uses_no_gpu(config.layout):
        return config.engine.max_num_seqs * config.engine.max_model_len
    if config.engine.kind is EngineKind.external:
        if config.engine.kv_cache_tokens <= 0:
            raise WorkloadError(
                "engine=external does not say how many tokens of keys and values one of its servers holds: set "
                "engine.kv_cache_tokens to what the server printed at its start"
            )
        return config.engine.kv_cache_tokens
    return memory.kv_tokens_per_engine(config)


def tier_of(config: Config) -> HostTier:
    """Returns the tier that the engines of the simulated training have: what its trainer leaves of a node's memory."""
    if config.job.name is JobName.simulate:
        of_training = replace(config.job, name=JobName.train)
    else:
        of_training = config.job
    return host_tier(replace(config, job=of_training))


def router_of(config: Config, router: RouterConfig, capacity_tokens: int, host: HostTier | None = None) -> Router:
    return make_router(
        router,
        [_Named(f"engine{index}") for index in range(config.layout.engines)],
        capacity_tokens=capacity_tokens,
        max_num_seqs=config.engine.max_num_seqs,
        host=host or tier_of(config),
    )


def limits_of(config: Config, capacity_tokens: int, host: HostTier | None = None) -> EngineLimits:
    return EngineLimits(
        kv_capacity_tokens=capacity_tokens,
        max_num_seqs=config.engine.max_num_seqs,
        max_num_batched_tokens=config.engine.max_num_batched_tokens,
        prefix_caching=config.engine.prefix_caching,
        host_tokens=(host or tier_of(config)).tokens,
    )


def trainer_of(config: Config) -> TrainerSpeed:
    return TrainerSpeed(duration.train_token_s(config), duration.sync_s(config))
