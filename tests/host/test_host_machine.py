"""What a machine has, as nvidia-smi, CUDA_VISIBLE_DEVICES, SLURM and control groups tell it."""

import pytest

from swe_rl.host.machine import count_cpus, describe_machine, memory_bytes, this_machine
from swe_rl.host.program import Completed, Unanswered

SLICES = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-7f57f032)
  MIG 3g.20gb     Device  0: (UUID: MIG-377e0049)
  MIG 2g.10gb     Device  1: (UUID: MIG-f39aa248)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-8c7c9c30)
  MIG 3g.20gb     Device  0: (UUID: MIG-0c0ffee0)
"""


class Driver:
    """nvidia-smi with given GPUs: memory in MiB and MIG mode of each."""

    def __init__(self, *gpus, name="NVIDIA H200", slices=SLICES, fails=None):
        self.rows = [f"{index}, GPU-{index}aa, {name}, {mib}, 3, {mig}" for index, (mib, mig) in enumerate(gpus)]
        self.slices, self.fails = slices, fails

    def run(self, command, timeout_s=4.0, environment=None):
        if isinstance(self.fails, Exception):
            raise self.fails
        if self.fails is not None:
            return Completed(9, "", self.fails)
        return Completed(0, self.slices if "-L" in command else "\n".join(self.rows) + "\n")


class NoDriver:
    def run(self, command, timeout_s=4.0, environment=None):
        return None


def machine(driver, **environ):
    return describe_machine(driver, environ, cpus=64, memory_bytes=512 * 10**9)


WHOLE = [(143771, "Disabled")] * 4


def test_whole_gpus():
    seen = machine(Driver(*WHOLE))
    assert (seen.gpus, seen.gpu_name, seen.mig, seen.gpu_share, seen.driver) == (4, "NVIDIA H200", False, 1.0, "")
    assert seen.gpu_memory_gb == pytest.approx(143771 * 1024**2 / 1e9, abs=0.05)
    assert (seen.nodes, seen.cpus, seen.memory_gb, seen.time_limit_min) == (1, 64, 512.0, 0)


def test_the_smallest_gpu_counts():
    assert machine(Driver((81559, "Disabled"), (24564, "Disabled"))).gpu_memory_gb == 25.8


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        ("0,2", 2),
        ("", 0),
        ("-1", 0),
        ("GPU-1aa", 1),
        ("7", 0),
        ("0,-1,1", 1),
        ("0,x,1", 1),
        ("0,77,1", 1),
        ("x,0", 0),
        (" 0 , 1", 2),
    ],
)
def test_only_what_the_process_sees_counts(visible, count):
    assert machine(Driver(*WHOLE), CUDA_VISIBLE_DEVICES=visible).gpus == count


@pytest.mark.parametrize(
    ("visible", "count", "smallest_gb", "sevenths"),
    [(None, 3, 10.0, 2), ("MIG-377e0049,MIG-0c0ffee0", 2, 20.0, 3), ("MIG-f39aa248", 1, 10.0, 2)],
)
def test_slices(visible, count, smallest_gb, sevenths):
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    seen = machine(Driver((40960, "Enabled"), (40960, "Enabled"), name="NVIDIA A100-SXM4-40GB"), **environ)
    assert (seen.mig, seen.gpus, seen.gpu_memory_gb, seen.gpu_share * 7) == (True, count, smallest_gb, sevenths)
    assert seen.gpu_name == "NVIDIA A100-SXM4-40GB"


def test_whole_gpus_beside_split_ones_are_taken():
    seen = machine(Driver((40960, "Enabled"), (40960, "Disabled")))
    assert (seen.mig, seen.gpus) == (False, 1)


def test_a_split_gpu_without_slices_says_so():
    seen = machine(Driver((40960, "Enabled"), slices="GPU 0: NVIDIA A100 (UUID: GPU-7)\n"))
    assert (seen.gpus, seen.driver) == (0, "the GPUs are in MIG mode and have no slice")


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        (NoDriver(), "there is no `nvidia-smi` on PATH, so no NVIDIA driver on this machine"),
        (Driver(fails="NVIDIA-SMI has failed"), "nvidia-smi fails: NVIDIA-SMI has failed"),
        (Driver(fails=Unanswered("`nvidia-smi` gave no answer in 10 s")), "`nvidia-smi` gave no answer in 10 s"),
    ],
)
def test_without_a_driver_there_is_no_gpu_and_a_reason(driver, reason):
    seen = machine(driver)
    assert (seen.gpus, seen.gpu_memory_gb, seen.driver) == (0, 0.0, reason)


def test_an_allocation_of_slurm_sets_lower_limits():
    seen = machine(
        Driver(*WHOLE),
        SLURM_JOB_NUM_NODES="2",
        SLURM_CPUS_ON_NODE="16",
        SLURM_MEM_PER_NODE="32768",
        SLURM_JOB_START_TIME="1000",
        SLURM_JOB_END_TIME="8200",
    )
    assert (seen.nodes, seen.cpus, seen.memory_gb, seen.time_limit_min) == (2, 16, 34.3, 120)


@pytest.mark.parametrize("end", ["", "garbage", "0", "900"])
def test_an_allocation_without_an_end_has_no_limit(end):
    assert machine(NoDriver(), SLURM_JOB_START_TIME="1000", SLURM_JOB_END_TIME=end).time_limit_min == 0


@pytest.mark.parametrize(
    ("quota", "most"), [("100000 100000", 1), ("150000 100000", 2), ("max 100000", None), ("", None), ("x", None)]
)
def test_a_container_has_its_quota_of_cpus(quota, most):
    free = count_cpus(lambda path: None)
    assert count_cpus(lambda path: quota) == (min(free, most) if most else free)


def test_a_container_has_its_memory():
    assert memory_bytes(lambda path: "1000000" if path.endswith("memory.max") else None) == 1_000_000
    assert memory_bytes(lambda path: "max\n") == memory_bytes(lambda path: None) > 10**8


def test_this_machine_is_asked_once():
    assert this_machine() is this_machine()
    assert this_machine().cpus >= 1 and this_machine().memory_gb > 0
