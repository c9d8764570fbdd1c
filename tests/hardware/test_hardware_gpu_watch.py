"""Warnings of GPUs that are almost full: once, again after there was room, never for what is not known."""

import threading
import time

import pytest

from swe_rl.hardware.gpu_watch import Watch, watched_gpus
from swe_rl.host.gpus import DriverError, Gpu
from swe_rl.host.program import Unanswered


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
