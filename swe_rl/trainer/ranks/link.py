"""The module is how a driver reaches its trainer's ranks: the protocol, and the processes of this host.

Invariants:
- A link carries requests one way and answers the other, in order; bytes follow the answer that announces them.
- Whatever a rank's end looks like where it runs, here it is EOFError or OSError, and `ended` says what is known.
- The earliest of several ends is the reason. A rank that was killed could not say when, and comes first: nobody else's
  failure kills a process.
- A rank shares nothing with its driver but its pipe. It is forked from a process that is made for that.
"""

import signal
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Protocol

from swe_rl.host.addresses import LOOPBACK, held_port, port_of
from swe_rl.trainer.ranks.forked import ForkedProcess, ForkServer, needed_by
from swe_rl.trainer.ranks.rank import RankSetup, run_rank

# A message quotes this many last lines of a rank's log: enough for an error of the system, short enough to read.
_LOG_LINES = 3
# SIGABRT is not among them: libraries end a process by it when its companions are gone.
_KILLED_BY = frozenset({signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGTERM, signal.SIGILL, signal.SIGFPE})
_LOG_BYTES = 4096


@dataclass(frozen=True, slots=True)
class RankEnd:
    """How a rank ended. `at_s` is in monotonic seconds, the same clock for all processes of a host.

    `repeats` says that it is an error of ours (a malformed row, a full disk), which ranks that are started anew would
    meet again.
    """

    rank: int
    reason: str
    at_s: float
    repeats: bool = False
    # The rank could not say when it ended; it may be why another one failed.
    wordless: bool = False

    @classmethod
    def reported(cls, rank: int, report: Sequence[Any]) -> "RankEnd":
        """Returns the end of a rank by its `report`: the error's type, its message, when, and whether it is one of
        ours.
        """
        kind, message, at_s, ours = report
        return cls(rank, f"{kind}: {message.rstrip('. ')}", at_s, ours)

    @classmethod
    def silent(cls, rank: int, what: str, limit_s: float) -> "RankEnd":
        return cls(rank, f"no sign of life for {limit_s:.0f} s during {what}", time.monotonic())

    @classmethod
    def of(cls, rank: int, process: Any, pipe: Any, when: str, log: Path | None) -> "RankEnd | None":
        """Returns how a rank's process ended; None while it lives and has not said that it failed."""
        try:
            while pipe.poll():
                kind, *rest = pipe.recv()
                if kind == "failed":
                    return cls.reported(rank, rest)
        except Exception:  # the end of the pipe, or half of a message
            # Its end of the pipe is closed, so its process will end as well, but perhaps a moment later.
            process.join(timeout=1)
        if process.is_alive():
            return None
        reason = f"it ended {when} {status_text(process.exitcode)}{last_words(log)}"
        return cls(rank, reason, _at_s(process.exitcode), wordless=True)


def first_of(ends: Iterable[RankEnd]) -> RankEnd:
    """Returns the earliest end; among those that could not say when, the first that is given."""
    return min(ends, key=lambda end: end.at_s)


def _at_s(exit_code: int | None) -> float:
    killed = exit_code is not None and -exit_code in _KILLED_BY
    if killed:
        return float("-inf")
    return float("inf")


def status_text(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"with status {exit_code}, without a word"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = ""
    if -exit_code == signal.SIGKILL:
        hint = " (the system does that where memory runs out)"
    return f"by {name}{hint}, without a word"


def last_words(log: Path | None) -> str:
    if log is None:
        return ""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_BYTES))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    said = [line.strip() for line in lines if line.strip()][-_LOG_LINES:]
    if said:
        return f"; the end of {log}: {' | '.join(said)}"
    return f"; its log is {log}"


class RankLink(Protocol):
    """One rank as its driver sees it."""

    @property
    def rank(self) -> int: ...

    @property
    def is_here(self) -> bool:
        """True where the rank runs on this host."""
        ...

    @property
    def pid(self) -> int:
        """The number of its process, on the host where it runs; 0 while that is not known."""
        ...

    def send(self, request: tuple[str, tuple[Any, ...], Mapping[str, Any]]) -> None:
        """Sends a verb, arguments and named arguments. Raises OSError where the rank is known to be gone."""
        ...

    def recv(self) -> Any:
        """Returns the next answer, waited for. Raises EOFError or OSError where the rank is gone."""
        ...

    def recv_bytes_into(self, buffer: bytearray) -> Any:
        """Receives bytes that an answer announced. Raises EOFError or OSError where the rank is gone."""
        ...

    def is_alive(self) -> bool: ...

    def reported(self, report: Sequence[Any]) -> RankEnd:
        """Returns what the rank itself said of its failure; see `RankEnd.reported`."""
        ...

    def ended(self, when: str) -> RankEnd | None:
        """Returns how the rank ended; None while it lives and has not said that it failed."""
        ...

    def kill(self) -> None:
        """Ends the rank at once, also in the middle of a request, from any thread."""
        ...

    def end(self, patience_s: float) -> None:
        """Lets it leave by itself for so long, then kills it. Returns once it is gone."""
        ...


class Ranks(Protocol):
    """A place for ranks: this host, or a cluster."""

    def launch(self, setup: RankSetup) -> Iterator[RankLink]:
        """Yields the ranks in their order, each as soon as there is something to kill; all are at work at the end.

        Raises UserError or TrainerError; what was started until then is the caller's to end.
        """
        ...

    def wait(self, links: Sequence[RankLink], timeout_s: float) -> list[RankLink]:
        """Returns the links that have something to receive, their end included; [] if none has within `timeout_s`
        seconds.
        """
        ...

    def close(self) -> None:
        """Gives the place back, after its ranks have ended. May be called twice."""
        ...


class RankProcesses:
    """Ranks as processes of this host."""

    def __init__(self) -> None:
        # The port is held until rank 0 listens there, after its imports: engines that start at the same time take
        # ports, too.
        self._port: socket.socket | None = None
        self._server: ForkServer | None = None

    def launch(self, setup: RankSetup) -> Iterator["RankProcess"]:
        """Starts the ranks. Where `setup` has no address yet, a free port of this host is taken."""
        if not setup.address:
            self._port = held_port()
            setup = replace(setup, address=f"{LOOPBACK}:{port_of(self._port)}")
        self._server = ForkServer(needed_by(setup.model.path), setup.log(0))
        for rank in range(setup.world):
            yield RankProcess.started(replace(setup, rank=rank), self._server)

    def wait(self, links: Sequence[RankLink], timeout_s: float) -> list[RankLink]:
        pipes: dict[Any, RankLink] = {link.pipe: link for link in links if isinstance(link, RankProcess)}
        ready: list[Any] = wait(list(pipes), timeout=timeout_s)
        return [pipes[pipe] for pipe in ready]

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._port is not None:
            self._port.close()


class RankProcess:
    """One rank as a process of this host."""

    is_here = True

    def __init__(self, rank: int, process: ForkedProcess, pipe: Any, log: Path | None) -> None:
        self.rank = rank
        self.pipe = pipe
        self._process = process
        self._log = log

    @classmethod
    def started(cls, setup: RankSetup, server: ForkServer) -> "RankProcess":
        """Starts the rank `setup.rank`."""
        process, ours = server.start(run_rank, (setup,))
        return cls(setup.rank, process, ours, setup.log(setup.rank))

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, request: tuple[str, tuple[Any, ...], Mapping[str, Any]]) -> None:
        self.pipe.send(request)

    def recv(self) -> Any:
        return self.pipe.recv()

    def recv_bytes_into(self, buffer: bytearray) -> Any:
        return self.pipe.recv_bytes_into(buffer)

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def reported(self, report: Sequence[Any]) -> RankEnd:
        return RankEnd.reported(self.rank, report)

    def ended(self, when: str) -> RankEnd | None:
        return RankEnd.of(self.rank, self._process, self.pipe, when, self._log)

    def kill(self) -> None:
        self._process.kill()

    def end(self, patience_s: float) -> None:
        self.pipe.close()
        self._process.join(timeout=patience_s)
        self._process.kill()
        self._process.join()
