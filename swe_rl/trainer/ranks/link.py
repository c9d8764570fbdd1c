"""How a driver reaches the ranks of its trainer, wherever they run: the protocol, and processes of this host.

Invariants:
- A link carries requests one way and answers the other, in order; bytes follow the answer that announces them.
- Whatever a rank's end looks like where it runs, here it is EOFError or OSError, and `ended` says what is known.
- Of several ends the earliest is the reason. One that was killed could not say when, and comes first: nobody else's
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

_LOG_LINES = 3
# Not SIGABRT: by that libraries end a process whose companions are gone.
_KILLED_BY = frozenset({signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGTERM, signal.SIGILL, signal.SIGFPE})
_LOG_BYTES = 4096


@dataclass(frozen=True, slots=True)
class RankEnd:
    """`at_s`: monotonic seconds, the same clock for all processes of a host.

    `repeats`: by an error of ours (a malformed row, a full disk), which ranks that are started anew would meet again.
    """

    rank: int
    reason: str
    at_s: float
    repeats: bool = False
    wordless: bool = False  # it could not say when; it may be why another one failed

    @classmethod
    def reported(cls, rank: int, report: Sequence[Any]) -> "RankEnd":
        """`report`: the error's type, its message, when, and whether it is one of ours."""
        kind, message, at_s, ours = report
        return cls(rank, f"{kind}: {message.rstrip('. ')}", at_s, ours)

    @classmethod
    def silent(cls, rank: int, what: str, limit_s: float) -> "RankEnd":
        return cls(rank, f"no sign of life for {limit_s:.0f} s during {what}", time.monotonic())

    @classmethod
    def of(cls, rank: int, process: Any, pipe: Any, when: str, log: Path | None) -> "RankEnd | None":
        """None while it lives and has not said that it failed."""
        try:
            while pipe.poll():
                kind, *rest = pipe.recv()
                if kind == "failed":
                    return cls.reported(rank, rest)
        except Exception:  # the end of the pipe, or half of a message
            process.join(timeout=1)  # its end of the pipe is closed: so will it be
        if process.is_alive():
            return None
        reason = f"it ended {when} {status_text(process.exitcode)}{last_words(log)}"
        return cls(rank, reason, _at_s(process.exitcode), wordless=True)


def first_of(ends: Iterable[RankEnd]) -> RankEnd:
    """Of those that could not say when, the first that is given."""
    return min(ends, key=lambda end: end.at_s)


def _at_s(exit_code: int | None) -> float:
    killed = exit_code is not None and -exit_code in _KILLED_BY
    return float("-inf") if killed else float("inf")


def status_text(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"with status {exit_code}, without a word"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = " (the system does that where memory runs out)" if -exit_code == signal.SIGKILL else ""
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
    return f"; the end of {log}: {' | '.join(said)}" if said else f"; its log is {log}"


class RankLink(Protocol):
    """One rank as its driver sees it."""

    @property
    def rank(self) -> int: ...

    @property
    def is_here(self) -> bool:
        """On this host."""
        ...

    @property
    def pid(self) -> int:
        """Of its process, on the host where it runs; 0 while that is not known."""
        ...

    def send(self, request: tuple[str, tuple[Any, ...], Mapping[str, Any]]) -> None:
        """Verb, arguments, named arguments. Raises OSError where the rank is known to be gone."""
        ...

    def recv(self) -> Any:
        """The next answer, waited for. Raises EOFError or OSError where the rank is gone."""
        ...

    def recv_bytes_into(self, buffer: bytearray) -> Any:
        """Bytes that an answer announced. Raises EOFError or OSError where the rank is gone."""
        ...

    def is_alive(self) -> bool: ...

    def reported(self, report: Sequence[Any]) -> RankEnd:
        """What the rank itself said of its failure; see `RankEnd.reported`."""
        ...

    def ended(self, when: str) -> RankEnd | None:
        """None while it lives and has not said that it failed."""
        ...

    def kill(self) -> None:
        """At once, also in the middle of a request, from any thread."""
        ...

    def end(self, patience_s: float) -> None:
        """Lets it leave by itself for so long, then kills it. Returns once it is gone."""
        ...


class Ranks(Protocol):
    """A place for ranks: this host, or a cluster."""

    def launch(self, setup: RankSetup) -> Iterator[RankLink]:
        """In the order of their ranks, each as soon as there is something to kill; all are at work at the end.

        Raises UserError or TrainerError; what was started until then is the caller's to end.
        """
        ...

    def wait(self, links: Sequence[RankLink], timeout_s: float) -> list[RankLink]:
        """Those that have something to receive, the end of them included; none within `timeout_s` seconds: []."""
        ...

    def close(self) -> None:
        """Gives the place back, after its ranks have ended. May be called twice."""
        ...


class RankProcesses:
    """Meets `Ranks`."""

    def __init__(self) -> None:
        self._port: socket.socket | None = None  # held: rank 0 listens there after its imports, beside starting engines
        self._server: ForkServer | None = None

    def launch(self, setup: RankSetup) -> Iterator["RankProcess"]:
        """Where `setup` has no address yet, a free port of this host is taken."""
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
    """Meets `RankLink`."""

    is_here = True

    def __init__(self, rank: int, process: ForkedProcess, pipe: Any, log: Path | None) -> None:
        self.rank = rank
        self.pipe = pipe
        self._process = process
        self._log = log

    @classmethod
    def started(cls, setup: RankSetup, server: ForkServer) -> "RankProcess":
        """The rank `setup.rank`."""
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
