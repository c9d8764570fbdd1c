"""The module has the trainer of many ranks as one object: started, asked and stopped from here, wherever they run.

Invariants:
- It meets `TrainsPolicy`; every request goes to all ranks and returns when all have answered.
- A rank that fails, dies, or gives no sign of life in time ends all of them, and the error says which one was first and
  why: what the others then say of broken connections is not the reason. How long a request takes is no matter.
- Rows are written once, to a file that all ranks read (`rows_file`); nothing of them passes through a link.
- `close` leaves no rank behind, whatever happened before.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from torch import Tensor

from swe_rl.algo.row import Row
from swe_rl.config.choices import KlEstimator
from swe_rl.engine.transfer.sent_weights import Staging, WritesFiles
from swe_rl.trainer.checkpoint.folder import capture_rng
from swe_rl.trainer.pulse import ALIVE, Silence
from swe_rl.trainer.ranks.link import RankEnd, RankLink, RankProcesses, Ranks, first_of
from swe_rl.trainer.ranks.rank import RankSetup
from swe_rl.trainer.ranks.rows_file import lend_rows, remove_left
from swe_rl.trainer.send.hand_over import receive_bucket
from swe_rl.trainer.trainer import RankLost, TrainerError, TrainMetrics, TrainsPolicy

P = ParamSpec("P")
R = TypeVar("R")


# Engines take the weights of a group of ranks as a mapping, or as files. Nothing is moved before somebody asks; whoever
# asks for tensors gets those of the last request.
class GroupWeights(WritesFiles):
    """The weights of all ranks. Names are as in transformers; tied weights are there once."""

    def __init__(self, group: "TrainerGroup") -> None:
        self._group = group
        self._tensors: dict[str, Tensor] | None = None

    def fetch(self) -> dict[str, Tensor]:
        """Returns the weights, brought into this process's memory once. Raises TrainerError."""
        if self._tensors is None:
            self._tensors = self._group.fetch_weights()
        return self._tensors

    def write_files(self, folder: Path, twice: Mapping[str, str]) -> None:
        """Has all ranks write the files, each its share, without a way through this process. Raises TrainerError."""
        self._group.ask("write_weights", folder, twice)

    def __getitem__(self, name: str) -> Tensor:
        return self.fetch()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.fetch())

    def __len__(self) -> int:
        return len(self.fetch())


# A request looks this often for ranks that died without a word.
_POLL_S = 0.2
# The start gets this many times the patience: a process that imports its libraries from a shared disk gives no sign.
_START = 2
# After `close` a rank has this long to leave by itself, for instance to end the writing of a checkpoint; then it is
# killed.
_STOP_S = 30.0
# A failed rank's companions have this long to say what they know, which often is the real reason.
_OTHERS_S = 3.0


def _by_all_ranks(verb: Callable[Concatenate[Any, P], R]) -> "Callable[Concatenate[TrainerGroup, P], R]":
    """Returns the verb of the same name, as every rank's `RankTrainer` carries it out; its result is rank 0's."""
    name = verb.__name__

    def ask(group: "TrainerGroup", /, *arguments: P.args, **named: P.kwargs) -> R:
        result: R = group.ask(name, *arguments, **named)
        return result

    return ask


class TrainerGroup:
    """The trainer of many ranks. It takes one request at a time; `close` alone may come in the middle, which then
    fails.
    """

    def __init__(self, setup: RankSetup, *, in_memory: bool = False, ranks: Ranks | None = None) -> None:
        """Keeps the plan. `setup` is rank 0's, with `address` left empty: whoever starts the ranks finds one.

        With `in_memory` the engines are in this process, so `weights` brings them here. `ranks` says where the ranks
        run; None stands for processes of this host.
        """
        self._setup = setup
        self._place: Ranks = ranks or RankProcesses()
        self._patience_s = setup.trainer.collective_timeout_s
        self._in_memory = in_memory
        self._ranks: list[RankLink] = []
        self._closed = threading.Event()
        self._failure: TrainerError | None = None
        self._asking = threading.Lock()

    def start(self) -> None:
        """Returns once every rank has its weights and the probe agreed. Raises TrainerError, or what `Ranks` says."""
        if self._setup.logs is not None:
            remove_left(self._setup.logs)
        with self._asking:
            try:
                self._launch()
            except BaseException:
                self._end(0.0)
                raise
            self._answers("its start", patience_s=_START * self._patience_s)

    @property
    def pids(self) -> list[int]:
        return [rank.pid for rank in self._ranks]

    open_wire = _by_all_ranks(TrainsPolicy.open_wire)
    announce_weights = _by_all_ranks(TrainsPolicy.announce_weights)
    transfer_weights = _by_all_ranks(TrainsPolicy.transfer_weights)
    stage = _by_all_ranks(TrainsPolicy.stage)
    close_staging = _by_all_ranks(TrainsPolicy.close_staging)
    wait = _by_all_ranks(TrainsPolicy.wait)
    load = _by_all_ranks(TrainsPolicy.load)
    forget_moments = _by_all_ranks(TrainsPolicy.forget_moments)

    def train_step(self, rows: Sequence[Row], step: int, lr: float | None = None) -> TrainMetrics:
        metrics: TrainMetrics = self._ask_of("train_step", rows, step, lr)
        return metrics

    def sequence_kl(self, rows: Sequence[Row], estimator: KlEstimator) -> dict[str, float]:
        sums: dict[str, float] = self._ask_of("sequence_kl", rows, estimator)
        return sums

    def row_logprobs(self, rows: Sequence[Row]) -> list[list[float]]:
        logprobs: list[list[float]] = self._ask_of("row_logprobs", rows)
        return logprobs

    def weights(self) -> "GroupWeights":
        """Returns the weights for engines: those of now, not a copy, until the next step of training."""
        weights = GroupWeights(self)
        if self._in_memory:
            weights.fetch()
        return weights

    def fetch_weights(self) -> dict[str, Tensor]:
        """Returns all weights, in this process's memory."""
        tensors: dict[str, Tensor] = {}
        with self._asking:
            self._request(("send_weights", (), {}), into=tensors)
        return tensors

    def wire_address(self, loopback: bool) -> tuple[str, int]:
        """Returns the address of rank 0, which is the sender."""
        # Ranks on another host cannot reach this one's loopback.
        here = all(rank.is_here for rank in self._ranks[:1])
        address: tuple[str, int] = self.ask("wire_address", loopback and here)
        return address

    def open_staging(self, twice: Mapping[str, str]) -> Staging:
        """Opens the buffers of all ranks' GPUs."""
        with self._asking:
            opened = self._request(("open_staging", (twice,), {}))
        problems = [f"rank {rank}: {staging.problem}" for rank, staging in sorted(opened.items()) if staging.problem]
        handles = {
            device: buffers for staging in opened.values() for device, buffers in (staging.handles or {}).items()
        }
        return Staging(opened[0].buckets, handles, "; ".join(problems) or None)

    def save(self, folder: Path, **state: Any) -> Path:
        """Calls `Checkpoints.save`. The random numbers that a run goes on with are those of this process."""
        target: Path = self.ask("save", folder, **{"rng": capture_rng(gpus=False), **state})
        return target

    def failure(self) -> TrainerError | None:
        """Returns the failure of a rank that ended since the last request; all others are stopped then."""
        # Whoever asks at the moment learns of the failure by the answer.
        if self._asking.acquire(blocking=False):
            try:
                if self._failure is None and any(not rank.is_alive() for rank in self._ranks):
                    self._failed("between two requests")
            finally:
                self._asking.release()
        return self._failure

    def close(self) -> None:
        """Ends all ranks; what they were writing is finished first, where they still can."""
        self._closed.set()
        # Whoever asks waits for answers, and meets the end of the pipes.
        if not self._asking.acquire(blocking=False):
            for rank in list(self._ranks):
                rank.kill()
            self._asking.acquire()
        try:
            if self._ranks and all(rank.is_alive() for rank in self._ranks):
                # A rank that fails now is gone, which is what was asked for.
                with suppress(TrainerError):
                    self._request(("close", (), {}))
            self._end(_STOP_S)
        finally:
            self._asking.release()

    def _launch(self) -> None:
        for rank in self._place.launch(self._setup):
            self._ranks.append(rank)
            # It came too late for `close` to see it.
            if self._closed.is_set():
                rank.kill()

    def _ask_of(self, verb: str, rows: Sequence[Row], *arguments: Any) -> Any:
        """Asks `verb` with rows, which go through a file. Raises DiskError and what `ask` raises."""
        with lend_rows(rows, self._setup.logs) as file:
            return self.ask(verb, file, *arguments)

    def ask(self, verb: str, /, *arguments: Any, **named: Any) -> Any:
        """Returns what rank 0 says to `verb`, a method of `RankTrainer`, once all ranks have carried it out.

        Raises TrainerError, RankLost.
        """
        with self._asking:
            return self._request((verb, arguments, named))[0]

    def _request(
        self, request: tuple[str, tuple[Any, ...], Mapping[str, Any]], into: dict[str, Tensor] | None = None
    ) -> dict[int, Any]:
        """Returns the results by rank. Tensors that rank 0 sends meanwhile go to `into`."""
        verb = request[0]
        if not self._ranks:
            raise self._failure or TrainerError(
                f"The trainer's ranks are not running, so `{verb}` cannot be asked of them."
            )
        for rank in self._ranks:
            try:
                rank.send(request)
            except OSError as error:
                raise self._failed(f"before `{verb}`") from error
        return self._answers(f"`{verb}`", into)

    def _answers(
        self, what: str, into: dict[str, Tensor] | None = None, patience_s: float | None = None
    ) -> dict[int, Any]:
        """Returns the results by rank, once all ranks have answered. `patience_s` is the patience with a
        silent rank.
        """
        if patience_s is None:
            patience_s = self._patience_s
        asked = list(self._ranks)
        results: dict[int, Any] = {}
        silence = Silence(rank.rank for rank in asked)
        while asked:
            for rank in self._place.wait(asked, _POLL_S):
                try:
                    kind, *rest = rank.recv()
                    silence.heard(rank.rank)
                    if kind == ALIVE:
                        continue
                    if kind == "bucket" and into is not None:
                        into.update(receive_bucket(rest[0], rank))
                        continue
                except (EOFError, OSError) as error:
                    raise self._failed(f"during {what}") from error
                asked.remove(rank)
                if kind == "failed":
                    raise self._failed(f"during {what}", {rank.rank: rank.reported(rest)})
                results[rank.rank] = rest[0]
                silence.over(rank.rank)
            if asked and silence.longest()[1] > patience_s:
                silent, _ = silence.longest()
                raise self._failed(what, {silent: RankEnd.silent(silent, what, patience_s)})
        return results

    def _failed(self, when: str, known: Mapping[int, RankEnd] | None = None) -> TrainerError:
        """Waits a moment for what the others know, ends them, and tells of the first that ended."""
        # Who is heard first is seldom who failed first: a broken collective raises on all the others at once.
        ends = dict(known or {})
        until = time.monotonic() + _OTHERS_S
        while time.monotonic() < until and len(ends) < len(self._ranks):
            for rank in self._ranks:
                if rank.rank not in ends:
                    end = rank.ended(when)
                    if end is not None:
                        ends |= {rank.rank: end}
            time.sleep(_POLL_S / 4)
        first = first_of(ends.values())
        self._end(0.0)
        silent = "".join(
            f"; rank {end.rank}: {end.reason}" for end in ends.values() if end is not first and end.wordless
        )
        message = (
            f"Rank {first.rank} of {self._setup.world} of the trainer failed: {first.reason}{silent}. All ranks were "
            "stopped; trainer.resume=auto goes on from the newest checkpoint."
        )
        lost = RankLost(message, rank=first.rank, reason=first.reason)
        self._failure = TrainerError(message) if first.repeats else lost
        return self._failure

    def _end(self, patience_s: float) -> None:
        """Ends all ranks, rank 0 last: until then the others may need its store."""
        until = time.monotonic() + patience_s
        ranks = self._ranks
        self._ranks = []
        if not patience_s:
            for rank in ranks:
                rank.kill()
        for rank in reversed(ranks):
            rank.end(max(0.0, until - time.monotonic()))
        self._place.close()
