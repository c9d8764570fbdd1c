"""This module places engines and trainer on GPUs: engines first, then the trainer, node by node; and it chooses the
nodes of a cluster that the ranks are on.

Invariants:
- The same configuration gives the same map on every machine.
- An engine never straddles two nodes; a colocated layout maps engines and trainer onto the same GPUs.
- A GPU is named by (node, index on that node); nothing here asks a machine what it has.
- Ranks take as few nodes as hold them; ranks that share a sequence, and those of a replica if there are several, are
  neighbours on one node: what they exchange in each layer does not leave it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import lcm
from typing import Protocol

from swe_rl.config.parts import Part, started_parts, starts_trainer
from swe_rl.config.schema import Config, HardwareConfig
from swe_rl.errors import UserError
from swe_rl.facts.sizes import is_elsewhere, uses_no_gpu


class PlacementError(UserError):
    """The layout does not fit the hardware."""


@dataclass(frozen=True, order=True, slots=True)
class PlacedGpu:
    node: int
    index: int


@dataclass(frozen=True, slots=True)
class LayoutPlacement:
    """Has the GPUs of a layout. `engines[i]` are the GPUs of engine i, in tensor-parallel order; `trainer` those of the
    trainer, by rank.

    Neighbouring trainer ranks share a sequence (`sequence_parallel` at a time), and the parameters (`shard_ranks`).
    """

    engines: tuple[tuple[PlacedGpu, ...], ...]
    trainer: tuple[PlacedGpu, ...]
    idle: tuple[PlacedGpu, ...]

    def roles(self) -> dict[PlacedGpu, tuple[str, ...]]:
        """Maps every GPU to the roles on it, `engine 0`, `trainer 3`, or none."""
        roles: dict[PlacedGpu, list[str]] = {gpu: [] for gpu in self.idle}
        for number, gpus in enumerate(self.engines):
            for gpu in gpus:
                roles.setdefault(gpu, []).append(f"engine {number}")
        for rank, gpu in enumerate(self.trainer):
            roles.setdefault(gpu, []).append(f"trainer {rank}")
        return {gpu: tuple(roles[gpu]) for gpu in sorted(roles)}


def node_of_run(placement: LayoutPlacement) -> int:
    """Returns the number of the node that the run itself is on: the trainer's, whose ranks it starts; else the
    first."""
    if placement.trainer:
        return placement.trainer[0].node
    return 0


def place_layout(config: Config) -> LayoutPlacement:
    """Places what this job starts of the layout (`sizes.gpus_needed` is the number of GPUs).

    Raises PlacementError if there are too few GPUs, or if an engine is wider than a node.
    """
    layout = config.layout
    every = _every_gpu(config.hardware)
    if uses_no_gpu(layout):
        return LayoutPlacement((), (), tuple(every))
    free = list(every)
    engines: list[tuple[PlacedGpu, ...]] = []
    if not is_elsewhere(config.engine.kind) and Part.engines in started_parts(config):
        engines = [_take_on_one_node(free, layout.engine_tp, number) for number in range(layout.engines)]
    shared = sorted(gpu for gpus in engines for gpu in gpus)
    pool = sorted({*shared, *free}) if layout.colocated else free
    ranks = 0
    if starts_trainer(config):
        ranks = layout.trainer_gpus
    if ranks > len(pool):
        raise PlacementError(
            f"layout.trainer_gpus={layout.trainer_gpus}: {len(pool)} GPUs are left of the {len(every)} of "
            f"hardware={config.hardware.name}. Take a larger hardware option or fewer layout.engines."
        )
    trainer = tuple(pool[:ranks])
    used = {*shared, *trainer}
    return LayoutPlacement(tuple(engines), trainer, tuple(gpu for gpu in every if gpu not in used))


def _take_on_one_node(free: list[PlacedGpu], width: int, number: int) -> tuple[PlacedGpu, ...]:
    """Removes the first `width` free GPUs that share a node."""
    for node in sorted({gpu.node for gpu in free}):
        there = [gpu for gpu in free if gpu.node == node][:width]
        if len(there) == width:
            for gpu in there:
                free.remove(gpu)
            return tuple(there)
    raise PlacementError(
        f"layout.engine_tp={width}: no node has {width} free GPUs for engine {number}. "
        "Take a larger hardware option, fewer layout.engines or a smaller layout.engine_tp."
    )


def _every_gpu(hardware: HardwareConfig) -> list[PlacedGpu]:
    return [PlacedGpu(node, index) for node in range(hardware.nodes) for index in range(hardware.gpus_per_node)]


class Room(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def here(self) -> bool: ...


def ranks_together(world: int, sp: int, shard_ranks: int | None) -> int:
    """Returns how many ranks at a time are on one node: whole sequences, and whole replicas if there are several."""
    return lcm(sp, shard_ranks if shard_ranks and shard_ranks < world else 1)


def rank_nodes(rooms: Sequence[Room], free: Sequence[float], world: int, together: int, resource: str) -> list[int]:
    """Returns the index in `rooms` for each of `world` ranks. Room i has `free[i]` units of `resource` (CPU, GPU), and
    `together` comes from `ranks_together`.

    If one node alone suffices, it is the one that is `here`. Raises PlacementError with what every node has.
    """
    groups = [rank_places([units], together) // together for units in free]
    chosen: list[int] = []
    for index in sorted(range(len(rooms)), key=lambda index: _preference_key(rooms, groups, index, world // together)):
        if sum(groups[number] for number in chosen) * together < world and groups[index]:
            chosen.append(index)
    there = dict(zip((room.name for room in rooms), free, strict=True))
    if (short := describe_shortage(there, world, together, resource)) is not None:
        raise PlacementError(f"The trainer's {short[0]}. End what holds them (`ray status`), or take {short[1]}.")
    ranks: list[int] = []
    for index in sorted(chosen, key=lambda index: (not rooms[index].here, index)):
        ranks += [index] * min(groups[index] * together, world - len(ranks))
    return ranks


def rank_places(units: Iterable[float], together: int) -> int:
    """Returns how many ranks fit nodes with so many units each, `together` at a time on one of them."""
    return sum(int(unit + 1e-6) // together * together for unit in units)


def _preference_key(rooms: Sequence[Room], groups: Sequence[int], index: int, wanted: int) -> tuple[int, bool, int]:
    """Returns a sort key: the nodes with most room first, more than enough counting as enough; then this node, then the
    order given."""
    return -min(groups[index], wanted), not rooms[index].here, index


def describe_shortage(free: Mapping[str, float], world: int, together: int, resource: str) -> tuple[str, str] | None:
    """Says what `rank_nodes` lacks, by node, and a way out: more nodes do not help if each is too narrow. Returns None
    if nothing is short."""
    if rank_places(free.values(), together) >= world:
        return None
    there = "; ".join(f"{name}: {units:g}" for name, units in free.items()) or "none"
    keys = "layout.sequence_parallel, layout.shard_ranks"
    at_a_time = ""
    if together > 1:
        at_a_time = f", {together} at a time on one node ({keys})"
    what = f"{world} ranks need {world} {resource}s of the Ray cluster{at_a_time}; free are {there}"
    widest = int(max(free.values(), default=0.0) + 1e-6)
    if not 0 < widest < together:
        return what, "more nodes with `ray start --address=...`, or a smaller layout"
    too_few = ""
    if rank_places(free.values(), 1) < world:
        too_few = ", and more nodes or a smaller layout"
    return what, (
        f"nodes with {together} {resource}s each, or smaller layout.sequence_parallel and layout.shard_ranks, with "
        f"{widest} ranks at a time at most (layout.shard_ranks=null splits one copy of the model over all nodes)"
        f"{too_few}"
    )
