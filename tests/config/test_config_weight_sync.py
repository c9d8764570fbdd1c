"""`trainer.weight_sync=auto`: memory where engines and trainer are on one host and in step, a folder elsewhere."""

import pytest

from swe_rl.config.choices import WeightSync
from swe_rl.config.compose import compose
from swe_rl.plan import weight_sync
from swe_rl.plan.sizes import read_elsewhere, wanted_sync
from swe_rl.plan.weight_sync import GLOO, IPC, NCCL, NoVllmBesideTrainerError, require_wire, transfer_kind

DP4 = ("model=qwen3_14b", "layout=dp4", "hardware=h200x8")


def config(*overrides):
    return compose([*DP4, *overrides]).config


@pytest.mark.parametrize(
    ("overrides", "way"),
    [
        ((), WeightSync.nccl),
        (("trainer.weight_sync=disk",), WeightSync.disk),
        (("layout=colocated8",), WeightSync.ipc),
        (("layout=colocated8", "layout.engines=4"), WeightSync.ipc),  # more ranks than engines, on one node
        (("layout=dp8_tp2_2nodes", "hardware=a100x16"), WeightSync.disk),
        (("layout=dp8_tp2_2nodes", "hardware=a100x16", "trainer.weight_sync=ipc"), WeightSync.ipc),
        (("trainer.max_staleness_steps=1",), WeightSync.disk),
        (("hardware.ray_address=auto",), WeightSync.disk),
        (("hardware.mig=true",), WeightSync.disk),
        (("hardware.nodes=2", "hardware.gpus_per_node=4"), WeightSync.disk),  # engines on one node, ranks on the other
        (("engine=external", "engine.urls=[http://a:1]"), WeightSync.disk),
        (("engine.command=/other/python",), WeightSync.disk),
        (("job=rollout",), WeightSync.disk),
        (("model=tiny", "layout=local", "engine=vllm", "hardware=cpu"), WeightSync.disk),
    ],
)
def test_what_auto_means(overrides, way):
    assert wanted_sync(config(*overrides), {}) is way


@pytest.mark.parametrize(
    ("environment", "own", "shared"),
    [
        ({}, WeightSync.nccl, WeightSync.ipc),
        ({"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}, WeightSync.disk, WeightSync.ipc),  # no NCCL between slices
        ({"SWE_RL_VLLM_COMMAND": "/other/python"}, WeightSync.disk, WeightSync.ipc),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, WeightSync.nccl, WeightSync.disk),
        ({"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"}, WeightSync.nccl, WeightSync.disk),
    ],
)
def test_what_auto_means_on_a_machine(environment, own, shared):
    assert (wanted_sync(config(), environment), wanted_sync(config("layout=colocated8"), environment)) == (own, shared)


@pytest.mark.parametrize(
    ("overrides", "elsewhere"),
    [
        (("layout=colocated8",), False),
        (("layout=colocated8", "layout.engines=4"), False),
        (("layout=dp8_tp2_2nodes", "hardware=a100x16"), True),
        (("layout=dp8_tp2_2nodes", "hardware=a100x16", "layout.engines=4"), True),  # the second node has ranks alone
        (("layout=dp8_tp2_2nodes", "hardware=a100x16", "trainer.weight_sync=ipc"), True),  # for a server started anew
        (("layout=dp8_tp2_2nodes", "hardware=a100x16", "job=rollout"), False),
    ],
)
def test_who_reads_weights_on_another_node(overrides, elsewhere):
    assert read_elsewhere(config(*overrides), {}) is elsewhere


def test_nccl_is_chosen_where_vllm_is_beside_the_trainer(monkeypatch):
    monkeypatch.delenv("SWE_RL_VLLM_COMMAND", raising=False)
    for there, kind in ((True, NCCL), (False, None)):
        monkeypatch.setattr(weight_sync.importlib.util, "find_spec", lambda _, there=there: object() if there else None)
        assert transfer_kind(config()) == kind
    assert transfer_kind(config("layout=colocated8")) == IPC  # nothing of vLLM is the trainer's end of it
    assert transfer_kind(config("model=tiny", "layout=local2", "engine=vllm", "trainer.weight_sync=nccl")) == GLOO


def test_servers_of_another_environment_get_folders(monkeypatch):
    monkeypatch.setattr(weight_sync.importlib.util, "find_spec", lambda _: object())
    monkeypatch.setenv("SWE_RL_VLLM_COMMAND", "/other/python")
    assert transfer_kind(config()) is None
    assert transfer_kind(config("trainer.weight_sync=nccl")) == NCCL


def test_asked_for_by_name_it_is_refused_before_anything_starts(monkeypatch):
    monkeypatch.setattr(weight_sync.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(NoVllmBesideTrainerError, match=r"extra `gpu` here, or take trainer\.weight_sync=disk"):
        require_wire(config("trainer.weight_sync=nccl"))
    require_wire(config())
    require_wire(config("layout=colocated8"))
