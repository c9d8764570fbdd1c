"""The module is a rank on another node of the job, as a program: `python -P -m swe_rl.trainer.ranks.step HOST PORT
RANK`.

It is a step of SLURM's, comes to its driver with the key that is in its environment, and is then what a rank's process
is on the driver's own host.

Invariants:
- The end of standard input ends it at once, also in the middle of a collective: that is how its driver's end, and the
  job's, arrive here. A scheduler's signals are the driver's to heed.
- It uses the GPU that the driver names among those that SLURM gave this node.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from swe_rl.engine.vllm.devices import visible_devices
from swe_rl.errors import UserError
from swe_rl.hardware.slurm.nodes import NodesError
from swe_rl.layout.placement import PlacedGpu
from swe_rl.trainer.ranks.door import come_in
from swe_rl.trainer.ranks.rank import RankSetup, run_rank

KEY = "SWE_RL_RANK_KEY"


@dataclass(frozen=True, slots=True)
class RankWork:
    """The work of a rank on another node. `gpu` is its GPU's number among those of this node; with `mig` a slice's."""

    setup: RankSetup
    gpu: int
    mig: bool


class Pipe:
    """The driver as its own host's ranks reach it: one that is gone is the end of the pipe, not a broken network."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, answer: Any) -> None:
        self._connection.send(answer)

    def send_bytes(self, content: Any) -> None:
        self._connection.send_bytes(content)

    def recv(self) -> Any:
        try:
            return self._connection.recv()
        except ConnectionError as error:
            raise EOFError from error


def main(arguments: list[str]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_input, name="driver", daemon=True).start()
    host, port, rank = arguments
    pipe = Pipe(come_in(host, int(port), bytes.fromhex(os.environ.pop(KEY)), int(rank)))
    pipe.send((os.getpid(), time.monotonic()))
    work: RankWork = pipe.recv()
    try:
        setup = on_this_node(work, os.environ)
    except UserError as error:
        pipe.send(("failed", type(error).__name__, str(error), time.monotonic(), True))
        return
    print(f"rank {setup.rank} has GPU {setup.gpus[setup.rank]}", flush=True)
    run_rank(setup, pipe)


def on_this_node(work: RankWork, environ: Mapping[str, str]) -> RankSetup:
    """Returns the setup with the rank's GPU as a process of this node calls it. What it prints is the step's to write.

    Raises DeviceError, and NodesError where this node does not see the run's folder.
    """
    logs = work.setup.logs
    if logs is not None and not logs.is_dir():
        raise NodesError(
            f"{logs} is not there: ranks write their part of a checkpoint into the run's folder. Set paths.outputs to "
            "a folder that all nodes see under the same path"
        )
    device = visible_devices([PlacedGpu(0, work.gpu)], environ, mig=work.mig)
    return replace(work.setup, gpus=(device,) * work.setup.world, logs=None)


def _end_with_input() -> None:
    try:
        while os.read(0, 4096):
            pass
    finally:
        os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
