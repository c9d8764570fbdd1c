"""Ranks on nodes: as few as hold them, neighbours of a sequence together, numbered node by node."""

from dataclasses import dataclass
from itertools import combinations, groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.layout.placement import PlacementError, describe_shortage, rank_nodes, rank_places, ranks_together


@dataclass(frozen=True)
class Room:
    name: str
    here: bool = False


def rooms_of(number, here=0):
    return [Room(f"node{index}", index == here) for index in range(number)]


def test_one_node_alone_is_this_one_where_it_suffices():
    assert rank_nodes(rooms_of(3, here=1), [8.0, 4.0, 8.0], 4, 2, "GPU") == [1] * 4
    assert rank_nodes(rooms_of(3, here=1), [8.0, 2.0, 8.0], 4, 2, "GPU") == [0] * 4


def test_this_node_comes_first_and_a_sequence_never_leaves_a_node():
    assert rank_nodes(rooms_of(2, here=1), [8.0, 8.0], 16, 4, "GPU") == [1] * 8 + [0] * 8
    assert rank_nodes(rooms_of(3), [3.0, 3.0, 3.0], 6, 2, "GPU") == [0, 0, 1, 1, 2, 2]


def test_a_replica_never_leaves_a_node_where_there_are_several():
    assert [ranks_together(8, 2, share) for share in (None, 8, 4, 1)] == [2, 2, 4, 2]
    assert rank_nodes(rooms_of(3), [6.0, 6.0, 6.0], 8, ranks_together(8, 1, 4), "GPU") == [0] * 4 + [1] * 4
    with pytest.raises(
        PlacementError, match=r"4 at a time on one node \(layout.sequence_parallel, layout.shard_ranks\)"
    ):
        rank_nodes(rooms_of(2), [6.0, 3.0], 8, ranks_together(8, 1, 4), "GPU")


@pytest.mark.parametrize(
    ("free", "together", "way_out"),
    [
        ([6.0, 3.0], 4, "or take more nodes with `ray start"),
        ([0.0], 16, "or take more nodes with `ray start"),
        ([6.0, 8.0], 16, "or take nodes with 16 GPUs each, or .* 8 ranks at a time at most .*, and more nodes or"),
        ([8.0] * 4, 16, r"or take nodes with 16 GPUs each, or .* 8 ranks at a time at most .* over all nodes\)\.$"),
    ],
)
def test_more_nodes_are_the_way_out_only_where_one_is_wide_enough(free, together, way_out):
    with pytest.raises(PlacementError, match=way_out):
        rank_nodes(rooms_of(len(free)), free, 2 * together, together, "GPU")
    narrower = int(max(free))
    if 0 < narrower < together:  # as said: with so many at a time, more nodes do help
        assert rank_nodes(rooms_of(4), [*free, *free, *free][:4], 2 * narrower, narrower, "GPU")


def test_too_little_room_says_what_every_node_has():
    with pytest.raises(PlacementError, match="need 6 GPUs of the Ray cluster, 4 at a time .*node0: 3; node1: 4"):
        rank_nodes(rooms_of(2), [3.0, 4.0], 6, 4, "GPU")
    with pytest.raises(PlacementError, match="free are none"):
        rank_nodes([], [], 1, 1, "CPU")


@given(
    free=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    sp=st.integers(1, 4),
    groups=st.integers(1, 6),
    data=st.data(),
)
def test_every_placement_is_legal_and_smallest(free, sp, groups, data):
    rooms, world = rooms_of(len(free), data.draw(st.integers(0, len(free) - 1))), sp * groups
    short = describe_shortage({room.name: units for room, units in zip(rooms, free, strict=True)}, world, sp, "GPU")
    assert (short is not None) == (rank_places(free, sp) < world)
    if short:
        with pytest.raises(PlacementError):
            rank_nodes(rooms, free, world, sp, "GPU")
        return
    ranks = rank_nodes(rooms, free, world, sp, "GPU")
    assert len(ranks) == world
    assert all(ranks.count(node) <= free[node] for node in ranks)
    assert all(len(set(ranks[first : first + sp])) == 1 for first in range(0, world, sp))
    assert len([node for node, _ in groupby(ranks)]) == len(set(ranks))  # node by node
    fewest = next(
        size
        for size in range(1, len(free) + 1)
        if any(rank_places([free[node] for node in some], sp) >= world for some in combinations(range(len(free)), size))
    )
    assert len(set(ranks)) == fewest
