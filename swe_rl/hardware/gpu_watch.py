"""This module looks at the memory of this run's GPUs on its own node now and then, and warns before it runs out.

Invariants:
- A run goes on whatever the driver says, and without one nothing is looked at.
- A GPU is warned of once, and again only after it had room in between.
- For GPUs in MIG mode the slices are looked at, each by its UUID: the card's own numbers are not theirs.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from swe_rl.host.gpus import (
    DriverError,
    Gpu,
    RunsPrograms,
    only_visible,
    read_gpus,
    read_slice_memory,
    visible_devices,
    visible_slices,
)
from swe_rl.host.machine import Driver
from swe_rl.host.program import Unanswered

# Memory fills up over minutes. Asking the driver costs little at this pace.
EVERY_S = 30.0
# Engines are given up to 0.95 of the memory on purpose.
FULL = 0.97
# A GPU that is below this has room again, so the next shortage is worth a word.
ROOM = 0.9

Look = Callable[[], Sequence[Gpu]]
Say = Callable[[str], None]


def look_here() -> Sequence[Gpu]:
    """Returns the GPUs that this process sees. Raises DriverError or Unanswered."""
    return look_at(Driver(), visible_devices(os.environ.get("CUDA_VISIBLE_DEVICES")))


def look_at(system: RunsPrograms, entries: Sequence[str] | None) -> Sequence[Gpu]:
    """Returns GPUs, and in place of those in MIG mode their slices, as far as `entries` show them. Raises DriverError
    or Unanswered."""
    gpus = only_visible(read_gpus(system), entries)
    whole = [gpu for gpu in gpus if not gpu.mig]
    if len(whole) < len(gpus):
        return [*whole, *visible_slices(read_slice_memory(system), entries)]
    return whole


class Watch:
    """Decides which GPUs to warn of. It has no effects except those of `say`."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._warned: set[str] = set()

    def see(self, gpus: Sequence[Gpu]) -> None:
        for gpu in gpus:
            if gpu.mig or not gpu.memory_mib or gpu.used_mib is None:
                continue
            share = gpu.used_mib / gpu.memory_mib
            if share >= FULL and gpu.uuid not in self._warned:
                self._warned.add(gpu.uuid)
                self._say(
                    f"{gpu.label}: {gpu.used_mib} of {gpu.memory_mib} MiB are in use; the next one may fail. "
                    "For an engine lower engine.gpu_memory_utilization, for the trainer "
                    "trainer.max_tokens_per_micro_batch"
                )
            elif share < ROOM:
                self._warned.discard(gpu.uuid)


@contextmanager
def watched_gpus(say: Say, look: Look = look_here, *, every_s: float = EVERY_S) -> Iterator[None]:
    """Looks from a thread of its own until the block is left."""
    over = threading.Event()
    worker = threading.Thread(target=_watch_gpus, args=(over, Watch(say), look, every_s), name="gpu_watch", daemon=True)
    worker.start()
    try:
        yield
    finally:
        over.set()
        worker.join(1.0)


def _watch_gpus(over: threading.Event, watch: Watch, look: Look, every_s: float) -> None:
    while not over.wait(every_s):
        try:
            watch.see(look())
        except DriverError:
            return
        except Unanswered:
            continue
