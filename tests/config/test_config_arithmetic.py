"""Rules of arithmetic against the thing itself: rows of a slice, heads dealt out to GPUs, GPUs dealt out to engines."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from swe_rl.check.check import check_config
from swe_rl.check.findings import Host
from swe_rl.check.rules.data import find_overlap
from swe_rl.config.choices import EngineKind
from swe_rl.config.schema import Config
from swe_rl.layout.placement import PlacementError, place_layout

HOST = Host(environment={}, file_exists=lambda _: False, folder_writable=lambda _: True)
ROWS = range(60)  # as many as any slice below can name
edge = st.none() | st.integers(0, 50)


def sliced(name, start, end):
    return f"{name}[{'' if start is None else start}:{'' if end is None else end}]"


@given(start=edge, end=edge, other_start=edge, other_end=edge)
def test_slices_meet_where_their_rows_do(start, end, other_start, other_end):
    shared = set(ROWS[start:end]) & set(ROWS[other_start:other_end])
    found = find_overlap(sliced("train", start, end), sliced("train", other_start, other_end))
    assert (found is not None) == bool(shared)
    if found and found[1] is not None:
        assert set(range(*found)) == shared
    assert find_overlap(sliced("train", start, end), sliced("test", other_start, other_end)) is None
    assert find_overlap(sliced("train.v-2", start, end), sliced("train.v-2", other_start, other_end)) == found


def dealt(heads, kv_heads, ways):
    """True if each GPU can get the same number of query heads and whole key-value heads that its query heads use."""
    if heads % ways:
        return False
    per_gpu = heads // ways
    group = heads // kv_heads  # query heads of one key-value head
    shares = [{query // group for query in range(gpu * per_gpu, (gpu + 1) * per_gpu)} for gpu in range(ways)]
    return len({len(share) for share in shares}) == 1 and (kv_heads % ways == 0 or all(len(one) == 1 for one in shares))


@given(kv_heads=st.integers(1, 8), group=st.integers(1, 8), ways=st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 16]))
def test_heads_divide_as_they_can_be_dealt_out(kv_heads, group, ways):
    base = Config()
    heads = kv_heads * group
    config = dataclasses.replace(
        base,
        model=dataclasses.replace(base.model, num_heads=heads, num_kv_heads=kv_heads),
        layout=dataclasses.replace(base.layout, trainer_gpus=ways, sequence_parallel=ways),
    )
    refused = any(
        one.rule_id == "heads" and one.key == "layout.sequence_parallel" for one in check_config(config, host=HOST)
    )
    if refused:
        assert not (dealt(heads, kv_heads, ways) and (kv_heads % ways == 0 or ways % kv_heads == 0))
    else:
        assert dealt(heads, kv_heads, ways)


@given(
    nodes=st.integers(1, 3),
    per_node=st.integers(1, 8),
    engines=st.integers(1, 6),
    tp=st.integers(1, 8),
    trainer=st.integers(1, 12),
    colocated=st.booleans(),
)
def test_what_passes_can_be_placed(nodes, per_node, engines, tp, trainer, colocated):
    """No layout that the rules let through is refused by the placement, and no engine straddles nodes there."""
    base = Config()
    config = dataclasses.replace(
        base,
        layout=dataclasses.replace(
            base.layout, name="x", engines=engines, engine_tp=tp, trainer_gpus=trainer, colocated=colocated
        ),
        hardware=dataclasses.replace(base.hardware, nodes=nodes, gpus_per_node=per_node, gpu_memory_gb=80.0),
        engine=dataclasses.replace(base.engine, kind=EngineKind.vllm),
    )
    refused = {one.rule_id for one in check_config(config, host=HOST)} & {"gpus", "engine_node"}
    try:
        placed = place_layout(config)
    except PlacementError:
        assert refused
    else:
        assert all(len({gpu.node for gpu in engine}) == 1 for engine in placed.engines)
        if not refused:
            assert len(placed.engines) == engines and len(placed.trainer) == trainer
