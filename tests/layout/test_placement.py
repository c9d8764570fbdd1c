"""Placement: nobody shares a GPU unless colocated, no engine straddles nodes."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.config.schema import Config, EngineConfig, EngineKind, HardwareConfig, LayoutConfig
from swe_rl.config.sizes import total_gpus
from swe_rl.layout.placement import Gpu, PlacementError, place


def config_of(layout, nodes=1, per_node=8, kind=EngineKind.vllm):
    hardware = HardwareConfig(nodes=nodes, gpus_per_node=per_node)
    return dataclasses.replace(Config(), layout=layout, hardware=hardware, engine=EngineConfig(kind=kind))


def test_dp4():
    placed = place(config_of(LayoutConfig("dp4", 4, 1, 4, 4, False)))
    assert placed.engines == tuple((Gpu(0, index),) for index in range(4))
    assert placed.trainer == tuple(Gpu(0, index) for index in range(4, 8))
    assert placed.idle == ()
    assert placed.roles()[Gpu(0, 5)] == ("trainer 1",)


def test_local_uses_no_gpu():
    placed = place(config_of(LayoutConfig(), per_node=2, kind=EngineKind.embedded))
    assert placed.engines == placed.trainer == ()
    assert len(placed.idle) == 2


def test_colocated_shares():
    placed = place(config_of(LayoutConfig("co", 2, 2, 4, 1, True), per_node=4))
    assert {gpu for gpus in placed.engines for gpu in gpus} == set(placed.trainer)
    assert placed.roles()[Gpu(0, 3)] == ("engine 1", "trainer 3")


def test_external_engines_take_nothing_here():
    placed = place(config_of(LayoutConfig("x", 4, 8, 4, 1, False), per_node=4, kind=EngineKind.external))
    assert placed.engines == () and len(placed.trainer) == 4


@pytest.mark.parametrize("layout", [LayoutConfig("a", 1, 3, 0, 1, False), LayoutConfig("b", 1, 1, 4, 1, False)])
def test_too_little_hardware_is_refused(layout):
    with pytest.raises(PlacementError, match="layout\\."):
        place(config_of(layout, nodes=2, per_node=2))


@given(
    engines=st.integers(1, 5),
    tp=st.sampled_from([1, 2, 4]),
    trainer=st.integers(1, 8),
    nodes=st.integers(1, 3),
    colocated=st.booleans(),
)
def test_placement_is_disjoint_complete_and_within_nodes(engines, tp, trainer, nodes, colocated):
    layout = LayoutConfig("p", engines, tp, trainer, 1, colocated)
    try:
        placed = place(config_of(layout, nodes=nodes))
    except PlacementError:
        assert total_gpus(layout) > nodes * 8  # 8 is a multiple of every tp: engines leave no holes
        return
    used = [gpu for gpus in placed.engines for gpu in gpus]
    assert len(used) == len(set(used)) == engines * tp
    assert len(set(placed.trainer)) == trainer
    assert all(len({gpu.node for gpu in gpus}) == 1 for gpus in placed.engines)
    assert colocated or not set(used) & set(placed.trainer)
    assert len({*used, *placed.trainer}) + len(placed.idle) == nodes * 8
    assert len({*used, *placed.trainer}) == total_gpus(layout)
