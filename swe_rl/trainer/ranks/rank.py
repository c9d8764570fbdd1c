"""The module is what a rank's process does: it builds its part of the trainer, then does what its driver asks for.

Invariants:
- All ranks get the same requests in the same order; only rank 0 sends results back, but for what each has of its own;
  the others their state.
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
from swe_rl.trainer.ranks.fork_server import pause_collection
from swe_rl.trainer.ranks.rows_file import RowsFile

# These signals reach all processes of a terminal or a job, ranks included.
DRIVERS_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2})
# A verb is a method of `RankTrainer`; only these ask for more than to call it and to send what rank 0 says.
# Its results differ by rank.
_OF_ALL = frozenset({"open_staging"})
# Its result is more than one answer.
_BY_PIPE = frozenset({"send_weights"})
# A rank waits in a collective this many times as long as its driver waits for a silent rank
# (trainer.collective_timeout_s). So the driver, who hears all of them, decides first, and names the one that is silent.
_LONGER = 2
# It comes many times in a row, and `close_staging` after them, so memory is given back at the end only.
_GOES_ON = frozenset({"stage"})


@dataclass(frozen=True, slots=True)
class RankSetup:
    """Everything that a rank needs.

    `device` is `cpu` or `cuda`. `gpus[r]` is what CUDA_VISIBLE_DEVICES is for rank r; without them it takes the r-th
    visible one. `logs` is a folder for one file a rank; None lets the ranks print where the driver prints. With
    `shares_gpus` engines are on the same ones.
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
    temperatures: dict[int, float] = field(default_factory=dict)

    def log(self, rank: int) -> Path | None:
        if self.logs:
            return self.logs / f"rank{rank}.log"
        return None


def run_rank(setup: RankSetup, pipe: Any) -> None:
    """Runs a rank as a process of its own, which ends with it. `pipe` leads to the driver."""
    _become_a_rank(setup)
    status = carry_out(setup, pipe)
    sys.stderr.flush()
    # Destructors are left out: a library's threads would end this process in std::terminate.
    os._exit(status)


def name_of(rank: int) -> str:
    """Returns the name of its process, as `ps -o comm` and `top` show it: the system keeps 15 characters."""
    return f"trainer-rank{rank}"


def carry_out(setup: RankSetup, pipe: Any) -> int:
    """Answers ("ready" | "done", result) or ("failed", error's type, message, when, is it ours) to each request.

    Before an answer it may send any number of ("alive",). Returns the status that a process of its own ends with;
    afterwards its collectives are not to be used.
    """
    try:
        patience_s = setup.trainer.collective_timeout_s
        beat = Pulse(lambda: pipe.send((ALIVE,)), patience_s)
        # Signs come now and after the import, which takes minutes where the libraries are on a shared disk.
        beat()
        with pause_collection():
            import torch
            import transformers.modeling_utils  # noqa: F401 - the first of what a model's module imports

            from swe_rl.trainer.sharded.mesh import make_mesh, process_group
        beat()
        torch.set_num_threads(setup.trainer.num_threads)
        device = _device_of(setup)
        with process_group(setup.rank, setup.world, device, setup.address, _LONGER * patience_s):
            _serve_calls(setup, make_mesh(setup.sp, device, setup.ep, setup.shard_ranks), pipe, beat)
        pipe.send(("done", None))
        # Rank 0 holds the store where ranks meet: if it went too early, NCCL's watchdogs of the others would complain.
        if setup.rank == 0:
            # This raises EOFError once all others have left.
            pipe.recv()
        return 0
    except (EOFError, BrokenPipeError):
        # The driver is gone, and open collectives must not hold this process.
        return 1
    except BaseException as error:
        when = time.monotonic()
        sys.excepthook(type(error), error, error.__traceback__)
        pipe.send(("failed", type(error).__name__, str(error), when, isinstance(error, SweRlError)))
        return 1


def _device_of(setup: RankSetup) -> Any:
    """Returns the torch device of a rank. With `gpus` it sees its own GPU alone, which then has the number 0."""
    import torch

    if setup.device == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", 0 if setup.gpus else setup.rank)


def _become_a_rank(setup: RankSetup) -> None:
    for number in DRIVERS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, DRIVERS_SIGNALS)
    if setup.gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = setup.gpus[setup.rank]
    # The call is Linux's only.
    with suppress(OSError):
        Path("/proc/self/comm").write_text(name_of(setup.rank))
    write_log(setup)


def write_log(setup: RankSetup) -> None:
    """Makes what this process prints from now on go to the rank's log, where it has one."""
    log = setup.log(setup.rank)
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for stream in (1, 2):
            os.dup2(descriptor, stream)
        os.close(descriptor)


def _serve_calls(setup: RankSetup, mesh: Any, pipe: Any, beat: Pulse) -> None:
    from swe_rl.algo.foreign.loss import make_loss
    from swe_rl.trainer.sharded.assemble import sharded_trainer

    trainer = sharded_trainer(
        setup.model,
        setup.trainer,
        setup.algo,
        mesh,
        pad_token_id=setup.pad_token_id,
        temperature=setup.temperature,
        temperatures=setup.temperatures,
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
        # `close` is answered once the collectives are down.
        if verb != "close":
            pipe.send(("done", result if mesh.rank == 0 or verb in _OF_ALL else None))


def _carried_out(verb: Callable[..., Any], arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Carries out a request. Rows are mapped for as long as it takes."""
    return verb(*(value.rows() if isinstance(value, RowsFile) else value for value in arguments), **named)


def _give_back(setup: RankSetup) -> None:
    """Gives back what torch keeps for later, and what waits in reference cycles, to whoever shares the GPU."""
    if setup.shares_gpus and setup.device == "cuda":
        import torch

        gc.collect()
        torch.cuda.empty_cache()
