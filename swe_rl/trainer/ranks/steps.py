"""Runs ranks on several nodes of one SLURM job: processes of this host, and steps of the job elsewhere.

Invariants:
- The requests and the ranks' code are those of one host; only the way to the other nodes differs.
- A rank is on the node, and has the GPU, that the layout gives it.
- What a rank on another node prints is in its log on this side, as SLURM brings it here.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any

from swe_rl.config.folders import PACKAGE
from swe_rl.hardware.slurm.nodes import step_command, step_environment
from swe_rl.host.addresses import address_of, held_port, port_of
from swe_rl.trainer.ranks.door import RankDoor
from swe_rl.trainer.ranks.forked import ForkServer, needed_by
from swe_rl.trainer.ranks.link import RankEnd, RankLink, RankProcess, last_words, status_text
from swe_rl.trainer.ranks.rank import RankSetup
from swe_rl.trainer.ranks.step import KEY, RankWork
from swe_rl.trainer.trainer import TrainerError

# All steps have this long to come, from the first step's start on: Python from a shared disk is slow.
_START_S = 300.0
_LOOK_S = 0.5
# SLURM takes up to this long to end a step whose input has ended.
_LEAVE_S = 15.0
_HELLO_S = 20.0


@dataclass(frozen=True, slots=True)
class RankSite:
    """The place of a rank. `node` is a name, or None for this one; `gpu` is its number there, as the layout counts."""

    node: str | None
    gpu: int


class RankSteps:
    """Ranks as processes of this host and as SLURM steps."""

    def __init__(
        self,
        sites: Sequence[RankSite],
        here: str,
        *,
        environ: Mapping[str, str],
        mig: bool = False,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Keeps the plan. `sites` is by rank, the first one on this node; `here` is how the others reach this node."""
        self._sites = tuple(sites)
        self._here = here
        self._environ = environ
        self._mig = mig
        self._say = say
        self._door: RankDoor | None = None
        self._port: socket.socket | None = None
        self._server: ForkServer | None = None

    def launch(self, setup: RankSetup) -> Iterator["RankProcess | RankStep"]:
        """Starts the ranks. Raises TrainerError."""
        self._door = door = RankDoor()
        host = address_of(self._here)
        # Rank 0 listens there after its imports, beside starting engines, so the port is held until then.
        self._port = held_port(host)
        setup = replace(setup, address=f"{host}:{port_of(self._port)}")
        away: list[RankStep] = []
        for rank, site in enumerate(self._sites):
            rank_setup = replace(setup, rank=rank)
            if site.node is None:
                self._server = self._server or ForkServer(needed_by(setup.model.path), setup.log(0))
                yield RankProcess.started(rank_setup, self._server)
                continue
            away.append(RankStep.started(rank_setup, site.node, (host, str(door.port)), self._environment(door)))
            yield away[-1]
        until = time.monotonic() + _START_S
        for link in away:
            link.begin(door, RankWork(replace(setup, rank=link.rank), self._sites[link.rank].gpu, self._mig), until)
        self._say(
            "; ".join(f"rank {link.rank} on GPU {self._sites[link.rank].gpu} of node {link.node}" for link in away)
        )

    def wait(self, links: Sequence[RankLink], timeout_s: float) -> list[RankLink]:
        over: list[RankLink] = [link for link in links if isinstance(link, RankStep) and not link.is_alive()]
        # A node that is lost closes no connection.
        if over:
            return over
        pipes: dict[Any, RankLink] = {link.pipe: link for link in links if isinstance(link, RankProcess | RankStep)}
        ready: list[Any] = wait(list(pipes), timeout=timeout_s)
        return [pipes[pipe] for pipe in ready]

    def close(self) -> None:
        if self._door is not None:
            self._door.close()
            self._door = None
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._port is not None:
            self._port.close()

    def _environment(self, door: RankDoor) -> dict[str, str]:
        environment = step_environment(self._environ)
        # SLURM says there which GPUs are the job's.
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        path = [str(PACKAGE.parent), *filter(None, [environment.get("PYTHONPATH")])]
        return {**environment, "PYTHONPATH": os.pathsep.join(path), KEY: door.key.hex()}


class RankStep:
    """One rank as a SLURM step. It is without a connection until `begin` has returned."""

    is_here = False

    def __init__(self, rank: int, node: str, process: "subprocess.Popen[bytes]", log: Path | None) -> None:
        self.rank = rank
        self.node = node
        self.pid = 0
        self.pipe: Connection | None = None
        self._process = process
        self._log = log
        # Added to the rank's clock, it gives ours.
        self._clock_s = 0.0

    @classmethod
    def started(cls, setup: RankSetup, node: str, where: tuple[str, str], environment: Mapping[str, str]) -> "RankStep":
        """Starts the step. Raises OSError."""
        program = (sys.executable, "-P", "-m", "swe_rl.trainer.ranks.step", *where, str(setup.rank))
        log = setup.log(setup.rank)
        output: IO[bytes] | None = None
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            output = log.open("ab")
        try:
            process = subprocess.Popen(
                [*step_command(node, f"trainer{setup.rank}"), *program],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=dict(environment),
                # Ctrl-C is the driver's to heed.
                start_new_session=True,
            )
        finally:
            if output is not None:
                output.close()
        return cls(setup.rank, node, process, log)

    def begin(self, door: RankDoor, work: RankWork, until: float) -> None:
        """Returns once the rank has come and was told its work. `until` is in monotonic seconds. Raises
        TrainerError.
        """
        while self.pipe is None:
            self.pipe = door.take(self.rank, _LOOK_S)
            if self.pipe is None and not self.is_alive():
                raise self._absent(f"its step ended {status_text(self._status())}")
            if self.pipe is None and time.monotonic() > until:
                raise self._absent(f"it did not come within {_START_S:.0f} s")
        try:
            if not self.pipe.poll(_HELLO_S):
                raise self._absent(f"it said nothing for {_HELLO_S:.0f} s")
            self.pid, clock_s = self.pipe.recv()
            self._clock_s = time.monotonic() - clock_s
            self.pipe.send(work)
        except (EOFError, OSError) as error:
            raise self._absent("it left before it was told its work") from error

    def send(self, request: tuple[str, tuple[Any, ...], Mapping[str, Any]]) -> None:
        self._connected().send(request)

    def recv(self) -> Any:
        pipe = self._connected()
        if not self.is_alive() and not pipe.poll():
            raise EOFError
        return pipe.recv()

    def recv_bytes_into(self, buffer: bytearray) -> Any:
        return self._connected().recv_bytes_into(buffer)

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def reported(self, report: Sequence[Any]) -> RankEnd:
        return self._seen_from_here(RankEnd.reported(self.rank, report))

    def ended(self, when: str) -> RankEnd | None:
        end = RankEnd.of(self.rank, self, self.pipe, when, self._log)
        if end is None:
            return None
        return self._seen_from_here(end)

    # RankEnd asks these of a process of multiprocessing, so a step has them as well.

    def join(self, timeout: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)

    @property
    def exitcode(self) -> int | None:
        return self._status()

    def kill(self) -> None:
        """Closes the rank's input, whose end ends it, wherever it is."""
        if self._process.stdin is not None:
            with suppress(OSError, ValueError):
                self._process.stdin.close()

    def end(self, patience_s: float) -> None:
        if self.pipe is not None:
            self.pipe.close()
        self.join(patience_s)
        self.kill()
        self.join(_LEAVE_S)
        # srun ends its step by force, then goes itself.
        for last in (self._process.terminate, self._process.kill):
            if self.is_alive():
                last()
                self.join(_LEAVE_S)

    def _connected(self) -> Connection:
        if self.pipe is None:
            raise EOFError
        return self.pipe

    def _status(self) -> int | None:
        """Returns the status as that of a process of this host: negative for a signal."""
        status = self._process.poll()
        if status is not None and status > 128:
            return 128 - status
        return status

    def _seen_from_here(self, end: RankEnd) -> RankEnd:
        return replace(end, reason=f"{end.reason} (on node {self.node})", at_s=end.at_s + self._clock_s)

    def _absent(self, why: str) -> TrainerError:
        return TrainerError(
            f"Rank {self.rank} of the trainer did not start on node {self.node}: {why}{last_words(self._log)}"
        )
