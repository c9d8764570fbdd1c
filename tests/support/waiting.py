"""Waiting for what another task, thread or process brings about, and looking whether a process lives."""

import asyncio
import time
from collections.abc import Callable, Iterable

import psutil


async def until(holds: Callable[[], object], timeout_s: float = 10.0, pause_s: float = 0.01) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not holds():  # noqa: ASYNC110 - what is waited for publishes no event
        assert time.monotonic() < deadline_s, f"it did not come to that in {timeout_s:g} s"
        await asyncio.sleep(pause_s)


def wait_until(holds: Callable[[], object], timeout_s: float = 10.0, pause_s: float = 0.02) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, f"it did not come to that in {timeout_s:g} s"
        time.sleep(pause_s)


def alive(process: psutil.Process | int) -> bool:
    """A zombie is not: it waits only for a parent that may be dead, too."""
    try:
        return (psutil.Process(process) if isinstance(process, int) else process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(processes: Iterable[psutil.Process | int], timeout_s: float = 20.0) -> bool:
    """Whether all of them end in that time."""
    processes = list(processes)
    deadline_s = time.monotonic() + timeout_s
    while any(map(alive, processes)):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True
