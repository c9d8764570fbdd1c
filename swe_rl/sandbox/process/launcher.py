"""The interface between a sandbox and the way that it isolates its commands.

Invariants:
- No code runs between fork and exec in this (large, threaded) process: limits are set after the exec.
- The CPU limit is a backstop for what escapes a timeout; it cannot end a command before its timeout would.
"""

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from swe_rl.config.schema import SandboxConfig
from swe_rl.sandbox.confined_path import Root
from swe_rl.sandbox.process.overlay import Namespace
from swe_rl.sandbox.protocol import Toolchain, Workspace


@dataclass(frozen=True, slots=True)
class Limits:
    memory_kib: int  # address space of each process
    file_kib: int  # size of each written file
    processes: int | None  # of the command's user; None where that user is shared with the rest of the host


def limits_of(config: SandboxConfig, *, count_processes: bool) -> Limits:
    return Limits(
        memory_kib=int(config.memory_gb * 1024**2),
        file_kib=config.max_file_mb * 1024,
        processes=config.max_processes if count_processes else None,
    )


def prelude(limits: Limits, bash: str, timeout_s: float) -> list[str]:
    """The argv prefix that sets `limits` and execs the rest; a limit that is already lower stays as it is."""
    cpu_s = math.ceil(timeout_s) * (os.cpu_count() or 1) + 1
    wanted = [f"-v {limits.memory_kib}", f"-f {limits.file_kib}", f"-t {cpu_s}", "-c 0"]
    if limits.processes is not None:
        wanted.append(f"-u {limits.processes}")
    script = "; ".join(f"ulimit {limit} 2>/dev/null" for limit in wanted)
    return [bash, "--norc", "-c", f'{script}; exec "$@"', "limits"]


@dataclass(frozen=True, slots=True)
class SandboxFolder:
    """One sandbox on disk: the working copy, a temporary folder and programs of its own; owned by `uid` where given."""

    root: Path
    workdir: str  # the working copy as commands see it
    uid: int | None
    toolchain: Toolchain | None = None
    places: tuple[str, ...] = ()  # further folders, as the commands see them
    namespace: Namespace | None = None  # in which working copy and programs are overlays; None: they are copies

    @property
    def work(self) -> Path:
        """As the launcher's namespace sees it; see `reached`."""
        return self.root / "work"

    @contextlib.contextmanager
    def reached(self) -> Iterator[Root]:
        """The working copy as this process reaches it. Raises SandboxError once its namespace is closed."""
        if self.namespace is None:
            yield self.work
            return
        with self.namespace.work() as descriptor:
            yield descriptor

    @property
    def programs(self) -> Path:
        """The toolchain, this sandbox's own."""
        return self.root / "toolchain"

    @property
    def tmp(self) -> Path:
        return self.root / "tmp"

    @property
    def place_folders(self) -> list[tuple[Path, str]]:
        return [(self.root / f"place-{number}", seen_as) for number, seen_as in enumerate(self.places)]


@dataclass(frozen=True, slots=True)
class Launch:
    argv: list[str]
    env: dict[str, str]


class Launcher(Protocol):
    isolated: bool
    bash: str
    shares: bool  # whether prepared folders can be shared instead of copied
    unbounded: tuple[str, ...]  # what a command is not kept from here, in words

    def folder(self, root: Path, workspace: Workspace) -> SandboxFolder:
        """Decides user and workdir of a new sandbox; touches nothing. Raises UserError for what it cannot show."""
        ...

    def launch(
        self, folder: SandboxFolder, command: str, *, timeout_s: float, status_fd: int, report_fd: int, marker: str
    ) -> Launch:
        """The command line that runs `bash -c command` in `folder`. `status_fd`, `report_fd`: ends of one pipe, for the
        launcher and for what stands between it and the command; see `started_well` and `seen_end`.
        """
        ...

    def started_well(self, status: bytes, exit_status: int) -> bool:
        """False when the launcher, not the command, ended with `exit_status`; `status` came through the pipe."""
        ...

    def seen_end(self, status: bytes, exit_status: int) -> int | None:
        """The command's exit status; None where nobody saw its end: all in the sandbox was killed from outside."""
        ...

    def sweep(self, leader: int, marker: str, before: frozenset[int], status: bytes) -> None:
        """Kills what a command left behind outside its process group; returns once it is gone."""
        ...
