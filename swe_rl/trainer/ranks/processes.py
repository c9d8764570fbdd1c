"""Ranks as processes of this host, each at the other end of a pipe.

Invariants:
- Processes are spawned: a rank shares nothing with its driver but its pipe.
"""

import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from swe_rl.host.addresses import free_port
from swe_rl.trainer.ranks.end import RankEnd
from swe_rl.trainer.ranks.link import RankLink
from swe_rl.trainer.ranks.rank import RankSetup, run_rank


class RankProcesses:
    """Meets `Ranks`; nothing is held beyond the processes themselves."""

    def launch(self, setup: RankSetup) -> Iterator["RankProcess"]:
        """Where `setup` has no address yet, a free port of this host is taken."""
        setup = setup if setup.address else replace(setup, address=f"127.0.0.1:{free_port()}")
        for rank in range(setup.world):
            yield RankProcess.started(replace(setup, rank=rank))

    def wait(self, links: Sequence[RankLink], timeout_s: float) -> list[RankLink]:
        pipes: dict[Any, RankLink] = {link.pipe: link for link in links if isinstance(link, RankProcess)}
        ready: list[Any] = wait(list(pipes), timeout=timeout_s)
        return [pipes[pipe] for pipe in ready]

    def close(self) -> None:
        return None


class RankProcess:
    """Meets `RankLink`."""

    is_here = True

    def __init__(self, rank: int, process: Any, pipe: Any, log: Path | None) -> None:
        self.rank = rank
        self.pipe = pipe
        self._process = process
        self._log = log

    @classmethod
    def started(cls, setup: RankSetup) -> "RankProcess":
        """The rank `setup.rank`."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=run_rank, args=(setup, theirs), name=f"trainer-{setup.rank}", daemon=True)
        process.start()
        theirs.close()
        return cls(setup.rank, process, ours, setup.log(setup.rank))

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    def send(self, request: tuple[str, tuple[Any, ...], Mapping[str, Any]]) -> None:
        self.pipe.send(request)

    def recv(self) -> Any:
        return self.pipe.recv()

    def recv_bytes_into(self, buffer: bytearray) -> Any:
        return self.pipe.recv_bytes_into(buffer)

    def is_alive(self) -> bool:
        return bool(self._process.is_alive())

    def reported(self, told: Sequence[Any]) -> RankEnd:
        return RankEnd.reported(self.rank, told)

    def ended(self, when: str) -> RankEnd | None:
        return RankEnd.of(self.rank, self._process, self.pipe, when, self._log)

    def kill(self) -> None:
        with suppress(ValueError):  # it has ended, and its handle is closed
            self._process.kill()

    def end(self, patience_s: float) -> None:
        self.pipe.close()
        self._process.join(timeout=patience_s)
        self._process.kill()
        self._process.join()
        self._process.close()
