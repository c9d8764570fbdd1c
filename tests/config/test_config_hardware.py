"""hardware=auto: this machine in the words of conf/hardware/, and what stands for it where it is too small."""

from dataclasses import replace
from functools import partial

import pytest

from swe_rl.check.check import check_config
from swe_rl.check.findings import Host, Severity
from swe_rl.check.rules.hardware import on_smallest_machine, smallest_machine
from swe_rl.config import known_hardware
from swe_rl.config.choices import JobName
from swe_rl.config.compose import compose
from swe_rl.config.composition.values import config_hash
from swe_rl.config.known_hardware import describe_hardware
from swe_rl.config.schema import HardwareConfig
from swe_rl.facts.sizes import gpus_needed, gpus_there
from swe_rl.host.machine import Machine

CARD = ["model=qwen3_14b", "layout=dp4", "router=tr"]


@pytest.fixture
def on(monkeypatch):
    """Composes as on a machine with these facts."""

    def composed(*overrides, **facts):
        base = {"nodes": 1, "gpus": 0, "gpu_name": "", "gpu_memory_gb": 0.0, "gpu_share": 1.0, "mig": False}
        machine = Machine(**{**base, "cpus": 16, "memory_gb": 64.0, "compiler": True, "time_limit_min": 0, **facts})
        monkeypatch.setattr(known_hardware, "this_machine", lambda: machine)
        return compose(overrides)

    return composed


H200 = {"gpus": 8, "gpu_name": "NVIDIA H200", "gpu_memory_gb": 150.8}


def errors(composed):
    """But for packages: what is installed here is another rule's."""
    found = check_config(composed.config, composed.origins)
    return [one for one in found if one.severity is Severity.error and one.rule_id != "packages"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA GH200 480GB", "nvidia_gh200_480gb"),  # another chip than an H200
        ("Tesla T4", "tesla_t4"),
    ],
)
def test_a_kind_is_known_by_the_drivers_name(on, name, kind):
    hardware = on(gpus=1, gpu_name=name, gpu_memory_gb=40.0).config.hardware
    assert hardware.gpu_kind == kind
    assert (hardware.gpu_bf16_tflops > 0) == (kind in {option.gpu_kind for option in known_hardware.known_hardware()})


def test_the_default_is_this_machine(on):
    hardware = on(**H200).config.hardware
    assert (hardware.name, hardware.gpus_per_node, hardware.gpu_memory_gb, hardware.cpus_per_node) == (
        "auto", 8, 150.8, 16,
    )  # fmt: skip


def test_a_slice_has_its_share():
    whole = Machine(1, 1, "NVIDIA A100-SXM4-40GB", 42.9, 1.0, False, 8, 64.0, True, 0)
    part = describe_hardware(replace(whole, gpus=2, gpu_memory_gb=20.0, gpu_share=3 / 7, mig=True))
    assert (part["gpu_kind"], part["mig"], part["gpu_bf16_tflops"]) == ("a100_mig", True, pytest.approx(133.7, abs=0.1))
    assert describe_hardware(whole)["gpu_bf16_tflops"] == pytest.approx(312.0)


def test_every_key_of_the_option_is_answered():
    machine = Machine(1, 0, "", 0.0, 1.0, False, 2, 4.0, True, 0)
    answered = describe_hardware(machine).keys()
    assert answered and answered <= {*HardwareConfig.__dataclass_fields__}


def test_the_cards_command_on_a_machine_with_the_gpus(on):
    composed = on(*CARD, memory_gb=1000.0, **H200)
    assert errors(composed) == [] and on_smallest_machine(composed) is composed


def test_without_the_gpus_train_names_them_and_both_ways_out(on):
    [found] = errors(on(*CARD))
    assert (found.rule_id, found.message) == (
        "gpus", "needs 8 GPUs (4 for engines, 4 for the trainer); this machine has no GPU",
    )  # fmt: skip
    assert "hardware=a100x8 with a launcher" in found.fix and "layout=local model=tiny" in found.fix


@pytest.mark.parametrize("there", [2, 3, 4, 6])
@pytest.mark.parametrize("layout", ["dp4", "colocated8", "mig2", "dp8_tp2_2nodes", "tp8_fsdp8"])
def test_the_smaller_layout_that_is_offered_fits(on, layout, there):
    composed = on("model=qwen3_0_6b", f"layout={layout}", gpus=there, gpu_name="NVIDIA H200", gpu_memory_gb=150.8)
    offers = [found.fix.rpartition("smaller layout: ")[2] for found in errors(composed) if found.rule_id == "gpus"]
    if gpus_needed(composed.config) <= there:
        assert offers == []
        return
    smaller = compose(["model=qwen3_0_6b", f"layout={layout}", *offers[0].split()])
    assert 0 < gpus_needed(smaller.config) <= there
    assert not [one for one in errors(smaller) if one.rule_id in ("gpus", "sequence_parallel")]


def test_a_driver_that_fails_is_named(on):
    config = on(*CARD).config
    host = Host(driver=lambda: "nvidia-smi fails: version mismatch")
    assert "this machine has no GPU (nvidia-smi fails: version mismatch)" in check_config(config, host=host)[0].message


@pytest.mark.parametrize("job", ["check", "plan", "simulate"])
def test_jobs_that_only_speak_answer_for_the_smallest_machine(on, job):
    composed = on_smallest_machine(on(*CARD, f"job={job}"))
    assert composed.origins.assumed == "assumed hardware=a100x8: 8 x a100 of 80 GB (this machine has no GPU)"
    assert composed.config.hardware.name == "a100x8" and errors(composed) == []
    assert composed.origins.of("hardware.gpu_memory_gb") == "conf/hardware/a100x8.yaml"


def test_a_partition_means_another_machine(on, monkeypatch):
    """The machine that submits has cores and memory of its own, which no node of the partition needs to have."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    composed = on_smallest_machine(on("hardware.partition=cpu", "job=check", cpus=64))
    assert composed.origins.assumed == "assumed hardware=cpu: 2 CPUs, 4 GB (SLURM takes the job elsewhere)"
    assert composed.config.hardware.partition == "cpu"
    assert (
        on_smallest_machine(on(*CARD, "hardware.partition=gpu", "job=check", **H200)).config.hardware.name == "a100x8"
    )
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    inside = on("hardware.partition=cpu", "job=check", cpus=64)
    assert on_smallest_machine(inside) is inside


def test_a_larger_model_takes_larger_memory(on):
    composed = on_smallest_machine(
        on("model=qwen3_14b", "layout=colocated4", "job=check", "layout.sequence_parallel=4")
    )
    assert composed.config.hardware.gpu_memory_gb > 80 and errors(composed) == []


def test_a_layout_of_several_nodes_takes_several(on):
    composed = on_smallest_machine(on("model=qwen3_32b", "layout=colocated32_tp4", "job=check"))
    assert gpus_there(composed.config.hardware) == 32
    assert "hardware.nodes=4" in composed.origins.assumed


def test_what_was_set_by_hand_stays(on):
    composed = on_smallest_machine(on(*CARD, "job=check", "hardware.cpus_per_node=7", "+hardware.env_vars.A=b"))
    assert (composed.config.hardware.cpus_per_node, composed.config.hardware.env_vars) == (7, {"A": "b"})
    assert composed.config.hardware.gpus_per_node == 8


def test_a_machine_that_was_chosen_is_not_replaced(on):
    composed = on(*CARD, "job=check", "hardware=local_gpu")
    assert on_smallest_machine(composed) is composed and [found.rule_id for found in errors(composed)][0] == "gpus"


def test_a_job_that_starts_is_never_answered_for_another_machine(on):
    for name in set(JobName) - {JobName.check, JobName.plan, JobName.simulate, JobName.describe}:
        composed = on(*CARD, f"job={name}")
        assert on_smallest_machine(composed) is composed


def test_the_smallest_machine_is_the_smallest():
    """Against every candidate by brute force: fewer GPUs first, then less memory."""
    config = compose([*CARD, "hardware=cpu"]).config
    small = HardwareConfig(name="small", gpus_per_node=8, gpu_memory_gb=80.0, memory_gb=2000.0)
    others = [
        replace(small, name="one", gpus_per_node=1),
        replace(small, name="short", gpu_memory_gb=40.0),
        replace(small, name="large", gpu_memory_gb=141.0),
        replace(small, name="wide", gpus_per_node=16),
        replace(small, name="theirs", gpus_per_node=8, gpu_memory_gb=79.0, partition="gpu"),
    ]
    pick = partial(smallest_machine, config)
    assert pick([*others, small]).name == "small"
    assert pick(list(others)).name == "large"
    assert pick([others[0], others[1]]).name == "short"  # does not hold it, and says so by its errors
    assert pick([]) is None


def test_the_machine_is_not_part_of_a_runs_identity(on):
    """A run is continued on another node, with other cores."""
    assert config_hash(on(cpus=4).config) == config_hash(on(cpus=64, **H200).config)
    assert config_hash(on("+hardware.env_vars.A=b").config) != config_hash(on().config)


@pytest.mark.parametrize(("cpus", "memory_gb"), [(1, 1.0), (2, 4.0), (192, 2000.0)])
def test_the_default_run_is_right_on_every_machine(on, cpus, memory_gb):
    composed = on(cpus=cpus, memory_gb=memory_gb)
    assert errors(composed) == []
