"""Which node each rank of the trainer is on, given what is free on the nodes of a cluster.

Invariants:
- Pure. As few nodes as hold the ranks; ranks are numbered node by node, the first node first.
- Ranks that share a sequence (`sp` neighbours) are on one node: what they exchange does not leave it.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from swe_rl.layout.placement import PlacementError


class Room(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def here(self) -> bool: ...


def rank_nodes(rooms: Sequence[Room], free: Sequence[float], world: int, sp: int, resource: str) -> list[int]:
    """The index in `rooms` for each of `world` ranks. `free[i]`: units of `resource` (CPU, GPU) that room i has.

    One node alone is `here`, where that suffices. Raises PlacementError with what every node has.
    """
    groups = [rank_places([units], sp) // sp for units in free]
    chosen: list[int] = []
    for index in sorted(range(len(rooms)), key=lambda index: _preference(rooms, groups, index, world // sp)):
        if sum(groups[one] for one in chosen) * sp < world and groups[index]:
            chosen.append(index)
    if sum(groups[one] for one in chosen) * sp < world:
        raise PlacementError(_too_few(rooms, free, world, sp, resource))
    ranks: list[int] = []
    for index in sorted(chosen, key=lambda index: (not rooms[index].here, index)):
        ranks += [index] * min(groups[index] * sp, world - len(ranks))
    return ranks


def rank_places(units: Iterable[float], sp: int) -> int:
    """How many ranks fit nodes with so many units each, `sp` at a time on one of them."""
    return sum(int(unit + 1e-6) // sp * sp for unit in units)


def _preference(rooms: Sequence[Room], groups: Sequence[int], index: int, wanted: int) -> tuple[int, bool, int]:
    """The fullest hands first, more than enough counting as enough; then this node, then the order given."""
    return -min(groups[index], wanted), not rooms[index].here, index


def _too_few(rooms: Sequence[Room], free: Sequence[float], world: int, sp: int, resource: str) -> str:
    there = "; ".join(f"{room.name}: {units:g}" for room, units in zip(rooms, free, strict=True))
    together = f", {sp} at a time on one node (layout.sequence_parallel={sp})" if sp > 1 else ""
    return (
        f"The trainer's {world} ranks need {world} {resource}s of the Ray cluster{together}; free are "
        f"{there or 'none'}. Start more nodes with `ray start --address=...`, end what holds them (`ray status`), or "
        "take a smaller layout."
    )
