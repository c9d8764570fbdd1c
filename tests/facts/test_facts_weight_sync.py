"""`trainer.weight_sync=auto`: memory where the parts can, a folder elsewhere; the same for plan, check and run."""

from types import SimpleNamespace

import pytest

from swe_rl.check.check import check_config
from swe_rl.config.choices import WeightSync
from swe_rl.config.compose import compose
from swe_rl.engine.transfer.staged import StagedTransfer
from swe_rl.engine.update import make_transfer
from swe_rl.engine.vllm.arguments import ServerChoice, server_arguments
from swe_rl.facts import weight_sync
from swe_rl.facts.sizes import read_elsewhere, wanted_sync
from swe_rl.facts.weight_sync import GLOO, IPC, NCCL, NoVllmBesideTrainerError, require_wire, transfer_kind
from swe_rl.job.plan import make_plan

DP4 = ("model=qwen3_14b", "layout=dp4", "hardware=h200x8")

RANKS_ON_TWO_NODES = ("layout.engines=2", "layout.trainer_gpus=6", "hardware.nodes=2", "hardware.gpus_per_node=4")


def config(*overrides):
    return compose([*DP4, *overrides]).config


def vllm_here(monkeypatch, there):
    monkeypatch.setattr(weight_sync, "installed_version", lambda _: "0.26.0" if there else None)


@pytest.mark.parametrize(
    ("overrides", "way"),
    [
        ((), WeightSync.nccl),
        (("trainer.weight_sync=disk",), WeightSync.disk),
        (("layout=colocated8",), WeightSync.ipc),
        (("layout=colocated8", "layout.engines=4"), WeightSync.ipc),  # more ranks than engines, on one node
        (("layout=dp8_tp2_2nodes", "hardware=a100x16"), WeightSync.disk),
        (("layout=dp8_tp2_2nodes", "hardware=a100x16", "trainer.weight_sync=ipc"), WeightSync.ipc),
        (("trainer.max_staleness_steps=1",), WeightSync.disk),  # a server started anew would miss its step's weights
        (("rollout.mode=stream", "trainer.max_staleness_steps=1"), WeightSync.nccl),
        (
            ("rollout.mode=stream", "trainer.max_staleness_steps=2", "hardware.nodes=2", "hardware.gpus_per_node=4"),
            WeightSync.disk,
        ),
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
        ((*RANKS_ON_TWO_NODES, "trainer.weight_sync=nccl"), True),  # each rank writes its share for one started anew
    ],
)
def test_who_reads_weights_on_another_node(overrides, elsewhere):
    assert read_elsewhere(config(*overrides)) is elsewhere


def test_nccl_is_chosen_where_vllm_is_beside_the_trainer(monkeypatch):
    monkeypatch.delenv("SWE_RL_VLLM_COMMAND", raising=False)
    for there, kind in ((True, NCCL), (False, None)):
        vllm_here(monkeypatch, there)
        assert transfer_kind(config()) == kind
    assert transfer_kind(config("layout=colocated8")) == IPC  # nothing of vLLM is the trainer's end of it
    assert transfer_kind(config("model=tiny", "layout=local2", "engine=vllm", "trainer.weight_sync=nccl")) == GLOO


def test_servers_of_another_environment_get_folders(monkeypatch):
    vllm_here(monkeypatch, True)
    monkeypatch.setenv("SWE_RL_VLLM_COMMAND", "/other/python")
    assert transfer_kind(config()) is None
    assert transfer_kind(config("trainer.weight_sync=nccl")) == NCCL


def test_asked_for_by_name_it_is_refused_before_anything_starts(monkeypatch):
    vllm_here(monkeypatch, False)
    with pytest.raises(NoVllmBesideTrainerError, match=r"extra `gpu` here, or take trainer\.weight_sync=disk"):
        require_wire(config("trainer.weight_sync=nccl"))
    require_wire(config())
    require_wire(config("layout=colocated8"))


STREAM = ("rollout.mode=stream", "trainer.max_staleness_steps=1")
ADAPTER = ("trainer.lora_rank=32", "trainer.lora_serving=adapter")
SENT = {"disk": None, "nccl": NCCL, "ipc": IPC}


@pytest.mark.parametrize("has_vllm", [True, False], ids=["vllm here", "no vllm here"])
@pytest.mark.parametrize(
    "overrides",
    [(), STREAM, ("trainer.max_staleness_steps=1",), ("layout=colocated8",), ADAPTER, (*STREAM, *ADAPTER)],
    ids=["step", "stream", "a step ahead", "shared GPUs", "adapter", "adapter in a stream"],
)
def test_plan_check_and_run_choose_the_same(overrides, has_vllm, monkeypatch):
    """What the plan names is what servers are started with and how the run sends; asked for by name it is allowed."""
    monkeypatch.delenv("SWE_RL_VLLM_COMMAND", raising=False)
    vllm_here(monkeypatch, has_vllm)
    by_itself = config(*overrides)
    way = make_plan(by_itself)["time"]["weights_by"]
    assert transfer_kind(by_itself) == SENT[way]
    words = " ".join(server_arguments(by_itself, ServerChoice(0, 8000, "m", "0")))
    assert ("--weight-transfer-config" in words) == (SENT[way] is not None) and (SENT[way] or "") in words
    made = make_transfer(by_itself, [], SimpleNamespace())
    assert (made is not None) == (SENT[way] is not None) and isinstance(made, StagedTransfer) == (way == "ipc")
    by_name = config(*overrides, f"trainer.weight_sync={way}")
    found = {finding.rule_id for finding in check_config(by_name) if finding.key == "trainer.weight_sync"}
    assert not found and transfer_kind(by_name) == transfer_kind(by_itself)


def test_nobody_starts_what_auto_cannot_send(monkeypatch):
    vllm_here(monkeypatch, False)
    require_wire(config(*STREAM))
    assert make_plan(config(*STREAM))["time"]["weights_by"] == "disk"
