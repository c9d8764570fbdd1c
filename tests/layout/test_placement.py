"""Placement: nobody shares a GPU unless colocated, no engine straddles nodes."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.config.choices import EngineKind, JobName
from swe_rl.config.schema import Config, EngineConfig, HardwareConfig, LayoutConfig
from swe_rl.facts.sizes import (
    engines_leave_home,
    gpus_needed,
    leaves_host,
    total_gpus,
    trainer_leaves_node,
    uses_no_gpu,
)
from swe_rl.layout.placement import PlacedGpu, PlacementError, node_of_run, place_layout


def config_of(layout, nodes=1, per_node=8, kind=EngineKind.vllm):
    hardware = HardwareConfig(nodes=nodes, gpus_per_node=per_node)
    return dataclasses.replace(Config(), layout=layout, hardware=hardware, engine=EngineConfig(kind=kind))


def layout_of(name, engines, engine_tp, trainer_gpus, *, colocated=False):
    return LayoutConfig(name=name, engines=engines, engine_tp=engine_tp, trainer_gpus=trainer_gpus, colocated=colocated)


def test_dp4():
    placed = place_layout(config_of(layout_of("dp4", 4, 1, 4)))
    assert placed.engines == tuple((PlacedGpu(0, index),) for index in range(4))
    assert placed.trainer == tuple(PlacedGpu(0, index) for index in range(4, 8))
    assert placed.idle == ()
    assert placed.roles()[PlacedGpu(0, 5)] == ("trainer 1",)


def test_local_uses_no_gpu():
    placed = place_layout(config_of(LayoutConfig(), per_node=2, kind=EngineKind.embedded))
    assert placed.engines == placed.trainer == ()
    assert len(placed.idle) == 2


def test_colocated_shares():
    placed = place_layout(config_of(layout_of("co", 2, 2, 4, colocated=True), per_node=4))
    assert {gpu for gpus in placed.engines for gpu in gpus} == set(placed.trainer)
    assert placed.roles()[PlacedGpu(0, 3)] == ("engine 1", "trainer 3")


def test_external_engines_take_nothing_here():
    placed = place_layout(config_of(layout_of("x", 4, 8, 4), per_node=4, kind=EngineKind.external))
    assert placed.engines == () and len(placed.trainer) == 4


@pytest.mark.parametrize("layout", [layout_of("a", 1, 3, 0), layout_of("b", 1, 1, 4)])
def test_too_little_hardware_is_refused(layout):
    with pytest.raises(PlacementError, match="layout\\."):
        place_layout(config_of(layout, nodes=2, per_node=2))


@given(
    engines=st.integers(1, 5),
    tp=st.sampled_from([1, 2, 4]),
    trainer=st.integers(1, 8),
    nodes=st.integers(1, 3),
    colocated=st.booleans(),
)
def test_placement_is_disjoint_complete_and_within_nodes(engines, tp, trainer, nodes, colocated):
    layout = layout_of("p", engines, tp, trainer, colocated=colocated)
    try:
        placed = place_layout(config_of(layout, nodes=nodes))
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


@given(
    job=st.sampled_from(list(JobName)),
    engines=st.integers(1, 5),
    tp=st.sampled_from([1, 2, 4]),
    trainer=st.integers(0, 8),
    nodes=st.integers(1, 2),
    colocated=st.booleans(),
)
def test_a_job_has_a_place_for_what_it_starts_alone(job, engines, tp, trainer, nodes, colocated):
    """The count that the check goes by and the map that the start goes by, of each job."""
    config = config_of(layout_of("p", engines, tp, trainer, colocated=colocated), nodes=nodes)
    config = dataclasses.replace(config, job=dataclasses.replace(config.job, name=job))
    try:
        placed = place_layout(config)
    except PlacementError:
        assert gpus_needed(config) > nodes * 8
        return
    used = {gpu for gpus in (*placed.engines, placed.trainer) for gpu in gpus}
    assert len(used) == (0 if uses_no_gpu(config.layout) else gpus_needed(config))
    away = {gpu.node for gpus in (*placed.engines, placed.trainer) for gpu in gpus} - {node_of_run(placed)}
    if placed.engines:
        assert leaves_host(config) == bool(away)


@given(
    engines=st.integers(1, 5),
    tp=st.sampled_from([1, 2, 4]),
    trainer=st.integers(0, 8),
    nodes=st.integers(1, 3),
    colocated=st.booleans(),
)
def test_what_the_rules_say_of_nodes_is_what_the_placement_does(engines, tp, trainer, nodes, colocated):
    layout = layout_of("p", engines, tp, trainer, colocated=colocated)
    try:
        placed = place_layout(config_of(layout, nodes=nodes))
    except PlacementError:
        return
    own = node_of_run(placed)
    assert engines_leave_home(layout, 8) == any(gpus[0].node != own for gpus in placed.engines)
    assert trainer_leaves_node(layout, 8) == any(gpu.node != own for gpu in placed.trainer)
