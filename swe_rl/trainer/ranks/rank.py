"""What a rank's process does: it builds its part of the trainer, then carries out what its driver asks for.

Invariants:
- All ranks get the same requests in the same order; only rank 0 sends results back, but for what
  each has of its own; the others their state.
- An exception ends the rank after it was reported: its collectives can no longer be trusted.
- While it works it gives signs of life (`pulse`): each micro-batch, each tensor that is read, gathered or written.
- Ctrl-C is the driver's to heed. That a rank ends with its driver is for whoever starts it to see to.
- Nobody leaves before all have taken down their collectives, and rank 0, where they meet, is the last.
- What libraries print goes to the rank's log.
- Where engines share the GPUs, no rank keeps memory there after a request but what it holds.
"""

import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swe_rl.config.schema import AlgoConfig, LossConfig, ModelConfig, TrainerConfig
from swe_rl.errors import SweRlError
from swe_rl.trainer.pulse import ALIVE, Pulse
from swe_rl.trainer.ranks.fork_server import importing
from swe_rl.trainer.ranks.rows_file import RowsFile

DRIVERS_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2})  # that reach all of us
# A verb is a method of `RankTrainer`; only these ask for more than to call it and to send what rank 0 says.
_OF_ALL = frozenset({"open_staging"})  # whose results differ by rank
_BY_PIPE = frozenset({"send_weights"})  # whose result is more than one answer
# Times trainer.collective_timeout_s, the driver's patience with a silent rank: so long a rank waits in a collective.
# The driver, who hears all of them, decides first, and names the one that is silent.
_LONGER = 2
_GOES_ON = frozenset({"stage"})  # comes many times in a row, and `close_staging` after them


@dataclass(frozen=True, slots=True)
class RankSetup:
    """Everything a rank needs.

    `device` is `cpu` or `cuda`. `gpus[r]` is what CUDA_VISIBLE_DEVICES is for rank r; without them it takes the r-th
    visible one. `logs`: a folder for one file a rank; None: the ranks print where the driver prints. `shares_gpus`:
    engines are on the same ones.
    """

    model: ModelConfig
    trainer: TrainerConfig
    algo: AlgoConfig
    pad_token_id: int
    temperature: float
    rank: int
    world: int
    sp: int
    address: str
    device: str
    gpus: tuple[str, ...] = ()
    logs: Path | None = None
    loss: LossConfig = field(default_factory=LossConfig)
    shares_gpus: bool = False
    ep: int = 1
    shard_ranks: int | None = None

    def log(self, rank: int) -> Path | None:
        return self.logs / f"rank{rank}.log" if self.logs else None


def run_rank(setup: RankSetup, pipe: Any) -> None:
    """As a process of its own, which ends with it; `pipe` leads to the driver."""
    _become_a_rank(setup)
    status = carry_out(setup, pipe)
    sys.stderr.flush()
    os._exit(status)  # not by way of destructors: a library's threads would end this in std::terminate


def name_of(rank: int) -> str:
    """Of its process, as `ps -o comm` and `top` show it: the system keeps 15 characters."""
    return f"trainer-rank{rank}"


def carry_out(setup: RankSetup, pipe: Any) -> int:
    """Answers ("ready" | "done", result) or ("failed", error's type, its message, when, is it ours) for each request;
    before that any number of ("alive",). Returns the status that a process of its own ends with; afterwards its
    collectives are not to be used.
    """
    try:
        patience_s = setup.trainer.collective_timeout_s
        beat = Pulse(lambda: pipe.send((ALIVE,)), patience_s)
        beat()  # now and after the import, which takes minutes where the libraries are on a shared disk
        with importing():
            import torch
            import transformers.modeling_utils  # noqa: F401 - the first of what a model's module imports

            from swe_rl.trainer.sharded.mesh import make_mesh, process_group
        beat()
        torch.set_num_threads(setup.trainer.num_threads)
        device = torch.device("cpu") if setup.device == "cpu" else torch.device("cuda", 0 if setup.gpus else setup.rank)
        with process_group(setup.rank, setup.world, device, setup.address, _LONGER * patience_s):
            _serve(setup, make_mesh(setup.sp, device, setup.ep, setup.shard_ranks), pipe, beat)
        pipe.send(("done", None))
        if setup.rank == 0:  # it holds the store where ranks meet: gone too early, NCCL's watchdogs of others complain
            pipe.recv()  # EOFError, once all others have left
        return 0
    except (EOFError, BrokenPipeError):
        return 1  # the driver is gone; open collectives must not hold this process
    except BaseException as error:
        when = time.monotonic()
        sys.excepthook(type(error), error, error.__traceback__)
        pipe.send(("failed", type(error).__name__, str(error), when, isinstance(error, SweRlError)))
        return 1


def _become_a_rank(setup: RankSetup) -> None:
    for number in DRIVERS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, DRIVERS_SIGNALS)
    if setup.gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = setup.gpus[setup.rank]
    with suppress(OSError):  # elsewhere than on Linux
        Path("/proc/self/comm").write_text(name_of(setup.rank))
    write_log(setup)


def write_log(setup: RankSetup) -> None:
    """From now on what this process prints is in the rank's log, where it has one."""
    log = setup.log(setup.rank)
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for stream in (1, 2):
            os.dup2(descriptor, stream)
        os.close(descriptor)


def _serve(setup: RankSetup, mesh: Any, pipe: Any, beat: Pulse) -> None:
    from swe_rl.algo.foreign.loss import make_loss
    from swe_rl.trainer.sharded.assemble import sharded_trainer

    trainer = sharded_trainer(
        setup.model,
        setup.trainer,
        setup.algo,
        mesh,
        pad_token_id=setup.pad_token_id,
        temperature=setup.temperature,
        loss=make_loss(setup.loss, setup.algo),
        beat=beat,
    )
    _give_back(setup)
    pipe.send(("ready", None))
    verb = ""
    while verb != "close":
        verb, arguments, named = pipe.recv()
        beat.at_once()
        by_pipe = (pipe,) if verb in _BY_PIPE else ()
        result = _carried_out(getattr(trainer, verb), (*by_pipe, *arguments), named)
        if verb not in _GOES_ON:
            _give_back(setup)
        if verb != "close":  # which is answered once the collectives are down
            pipe.send(("done", result if mesh.rank == 0 or verb in _OF_ALL else None))


def _carried_out(verb: Callable[..., Any], arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Rows are mapped for as long as it takes."""
    return verb(*(value.rows() if isinstance(value, RowsFile) else value for value in arguments), **named)


def _give_back(setup: RankSetup) -> None:
    """What torch keeps for later, and what waits in reference cycles, to whoever shares the GPU."""
    if setup.shares_gpus and setup.device == "cuda":
        import torch

        gc.collect()
        torch.cuda.empty_cache()
