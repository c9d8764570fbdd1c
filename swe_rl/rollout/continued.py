"""This module lets attempts go on at their last turn after a kill of the process or of their sandbox.

Invariants:
- What was sampled is recalled and never sampled again, as long as the agent asks the same
  (`gateway/chains/recall.py`) and its commands say the same in a fresh sandbox (`rollout/recorded_commands.py`).
- The turns that are recalled are in a file of their own until their step is recorded. So they outlive one kill after
  another, also in the middle of recalling.
- An attempt whose sandbox broke goes on once. If that breaks as well, it is sampled again: its own commands may be what
  breaks sandboxes.
- Only attempts of agents whose conversation is outside of the sandbox go on: others say different things each time.
"""

import contextlib
import hashlib
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from swe_rl.config.schema import Config
from swe_rl.files.disk import disk_error
from swe_rl.gateway.chains.recall import Recall
from swe_rl.gateway.store.schema import read_traces
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.gateway.trace import Trace
from swe_rl.rollout.recorded_commands import CommandLog, RecordedSandbox, move_log, remove_log
from swe_rl.rollout.trajectory import TrajectoryId
from swe_rl.sandbox.sandbox import Sandbox

# The conversation of these agents depends on nothing but replies and what commands say.
CONTINUED = ("bash", "mini_swe", "pdb")
_TRACES = "turns.db"


@dataclass(frozen=True, slots=True)
class KeptAttempts:
    """These attempts were under way when their process ended. `sampled_tokens` is what they had sampled."""

    attempts: int
    sampled_tokens: int


def can_continue(config: Config) -> bool:
    """Tells whether attempts of this configuration go on after a kill."""
    known = config.agent.name in CONTINUED and config.agent._target_ is None
    return config.rollout.continue_attempts and known and config.gateway.processes == 1


class ContinuedAttempts:
    """Knows the recorded turns and commands of attempts that may go on. `folder` is the run's own for them. `say` hears
    of what is kept and dropped."""

    def __init__(self, folder: Path, store: TraceStore, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._store = store
        self._say = say
        self._recalls: dict[str, Recall] = {}
        self._handed: dict[str, list[Trace]] = {}
        self._of_earlier: set[str] = set()  # An earlier process sampled the turns of these.
        self._earlier_tokens = 0

    def keep(self, ids: Iterable[TrajectoryId]) -> KeptAttempts:
        """Keeps the turns of attempts that the run's trace store is about to forget, each under its first name, unless
        more of it is kept already. Raises TraceStoreError, DiskError."""
        by_first: dict[str, list[TrajectoryId]] = {}
        for name in ids:
            by_first.setdefault(str(replace(name, attempt=0)), []).append(name)
        if not by_first and not (self._folder / _TRACES).is_file():
            return KeptAttempts(0, 0)
        try:
            self._folder.mkdir(exist_ok=True)
        except OSError as error:
            raise disk_error(self._folder, error) from error
        with closing(TraceStore(self._folder / _TRACES)) as kept:
            for first, names in by_first.items():
                self._keep_best(kept, first, names)
            kept.flush_sync()
            attempts = kept.sessions()
            sampled_tokens = sum(_count_sampled(kept.traces(name)) for name in attempts)
        self._say(f"{len(attempts)} attempts that were under way go on: {sampled_tokens} tokens are not sampled again")
        return KeptAttempts(len(attempts), sampled_tokens)

    def _keep_best(self, kept: TraceStore, first: str, names: list[TrajectoryId]) -> None:
        """Keeps the attempt of these that got furthest, unless what is kept already got further."""
        best = max(names, key=lambda name: _count_sampled(self._store.traces(str(name))))
        traces = self._store.traces(str(best))
        if _count_sampled(traces) <= _count_sampled(kept.traces(first)):
            return
        kept.delete([first])
        for trace in traces:
            kept.append(replace(trace, session_id=first))
        self._keep_log(best, names, first)

    def _keep_log(self, best: TrajectoryId, names: list[TrajectoryId], first: str) -> None:
        """Gives the commands of the attempt that goes on its first name. One that was just put in the place of another
        may not have a file of its own yet."""
        paths = [self._log_path(str(name)) for name in (best, *names)]
        there = [path for path in paths if path.is_file()]
        if there and there[0] != self._log_path(first):
            move_log(there[0], self._log_path(first))

    def hand_over(self, before: str, after: str) -> None:
        """Gives the turns of an attempt that broke to the one in its place. Raises TraceStoreError, DiskError."""
        self._handed[after] = self._store.traces(before)
        move_log(self._log_path(before), self._log_path(after))

    def recall(self, name: str) -> Recall | None:
        """Returns the recorded turns of an attempt, or None where there are none. Raises TraceStoreError."""
        traces: Sequence[Trace] = self._handed.pop(name, ())
        if not traces and (self._folder / _TRACES).is_file():
            traces = read_traces(self._folder / _TRACES, name, in_use=True)
            self._of_earlier.add(name)
        if not traces:
            return None
        self._recalls[name] = Recall(traces)
        return self._recalls[name]

    def recorded(self, name: str, sandbox: Sandbox) -> Sandbox:
        """Returns the sandbox of an attempt with its commands recorded."""
        return RecordedSandbox(sandbox, CommandLog(self._log_path(name)))

    def ended(self, name: str) -> None:
        """Notes that an attempt's agent has ended, and says what of its record was not used."""
        recall = self._recalls.pop(name, None)
        if recall is not None and name in self._of_earlier:
            self._earlier_tokens += recall.recalled_tokens
        if recall is not None and recall.dropped_tokens:
            self._say(
                f"{name} went on after {recall.recalled_turns} recorded turns: a command said something else, and "
                f"{recall.dropped_tokens} recorded tokens are sampled again"
            )

    def take_earlier_tokens(self) -> int:
        """Returns how many tokens, since the last call, are in attempts and were sampled by an earlier process."""
        taken = self._earlier_tokens
        self._earlier_tokens = 0
        return taken

    def forget(self, names: Iterable[str], *, at_the_end: bool = False) -> None:
        """Forgets attempts that are recorded whole, and all others at the end of the run, when nothing is left to go on
        with. Raises TraceStoreError, OSError."""
        if at_the_end:
            shutil.rmtree(self._folder, ignore_errors=True)
            return
        names = list(names)
        for name in names:
            remove_log(self._log_path(name))
        if (self._folder / _TRACES).is_file():
            self._forget_turns(names)
        with contextlib.suppress(OSError):  # There are other attempts in it, or it was never made.
            self._folder.rmdir()

    def _forget_turns(self, names: list[str]) -> None:
        with closing(TraceStore(self._folder / _TRACES)) as kept:
            kept.delete(names)
            is_empty = not kept.sessions()
        if is_empty:
            for path in self._folder.glob(f"{_TRACES}*"):
                path.unlink()

    def _log_path(self, name: str) -> Path:
        digest = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
        return self._folder / f"{digest}.jsonl"


def _count_sampled(traces: Sequence[Trace]) -> int:
    return sum(len(trace.sampled_ids) for trace in traces)
