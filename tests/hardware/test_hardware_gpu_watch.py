"""Warnings of GPUs that are almost full: once, again after there was room, never for what is not known."""

import threading
import time

import pytest

from swe_rl.hardware.gpu_watch import Watch, look_at, watched_gpus
from swe_rl.host.gpus import DriverError, Gpu
from swe_rl.host.program import Completed, Unanswered


def gpu(used, index=0, total=1000, mig=False):
    return Gpu(index, f"GPU-{index}", "H100", total, used, mig)


def test_once_until_there_was_room():
    said = []
    watch = Watch(said.append)
    for used in (900, 970, 990, 950, 980, 899, 971):
        watch.see([gpu(used), gpu(10, index=1)])
    assert len(said) == 2 and said[0].startswith("GPU 0: 970 of 1000 MiB")


@pytest.mark.parametrize("one", [gpu(None), gpu(999, total=None), gpu(999, mig=True)])
def test_nothing_is_said_of_what_is_not_known(one):
    said = []
    Watch(said.append).see([one])
    assert said == []


def test_a_driver_that_hangs_is_asked_again_and_a_missing_one_is_not():
    said, answers = [], iter([Unanswered("slow"), [gpu(999)], DriverError("none"), AssertionError("asked again")])

    def look():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with watched_gpus(said.append, look, every_s=0.01):
        until = time.monotonic() + 5
        while "gpu_watch" in [thread.name for thread in threading.enumerate()]:
            assert time.monotonic() < until
            time.sleep(0.01)
    assert len(said) == 1


A, B = "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f", "MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb"
LISTING = f"""GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-2)
  MIG 3g.20gb     Device  0: (UUID: {A})
  MIG 3g.20gb     Device  1: (UUID: {B})
"""
SLICE = (
    "<mig_device><index>{}</index><fb_memory_usage><total>19968 MiB</total><reserved>0 MiB</reserved>"
    "<used>{} MiB</used></fb_memory_usage></mig_device>"
)


class Driver:
    """Answers as nvidia-smi does for one whole A100 and one that is cut in two."""

    def run(self, command, timeout_s=1.0, environment=None):
        if "-L" in command:
            return Completed(0, LISTING, "")
        if "-x" in command:
            cards = "<gpu><mig_devices>None</mig_devices></gpu><gpu><product_name>A100</product_name><mig_devices>" + (
                f"{SLICE.format(0, 100)}{SLICE.format(1, 19900)}</mig_devices></gpu>"
            )
            head = '<?xml version="1.0" ?><!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">'
            return Completed(0, f"{head}<nvidia_smi_log>{cards}</nvidia_smi_log>", "")
        rows = "0, GPU-1, A100, 40960, 40900, Disabled", "1, GPU-2, A100, 40960, 20000, Enabled"
        return Completed(0, "\n".join(rows), "")


@pytest.mark.parametrize(
    ("entries", "full"),
    [
        (None, ["GPU 0", f"MIG slice {B}"]),
        ([A], ["GPU 0"]),  # an entry of a slice does not tell which cards are hidden
        ([B], ["GPU 0", f"MIG slice {B}"]),
        (["1"], [f"MIG slice {B}"]),
        (["0"], ["GPU 0"]),
    ],
)
def test_slices_are_watched_by_their_uuid(entries, full):
    said = []
    Watch(said.append).see(look_at(Driver(), entries))
    assert [text.partition(":")[0] for text in said] == full
