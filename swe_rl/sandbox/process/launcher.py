"""This module is the interface between a sandbox and the way that it isolates its commands.

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
from swe_rl.sandbox.process.overlay import Namespace, Stack
from swe_rl.sandbox.sandbox import Toolchain, Workspace


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """These are the limits that a command's processes inherit."""

    memory_kib: int  # Each process may have so much address space.
    file_kib: int  # Each written file may have this size.
    processes: int | None  # The command's user may have so many; None where that user is shared with the host.


def limits_of(config: SandboxConfig, *, count_processes: bool) -> ProcessLimits:
    """Returns the configured limits, with one of processes only where `count_processes` says so."""
    return ProcessLimits(
        memory_kib=int(config.memory_gb * 1024**2),
        file_kib=config.max_file_mb * 1024,
        processes=config.max_processes if count_processes else None,
    )


def limit_prefix(limits: ProcessLimits, bash: str, timeout_s: float) -> list[str]:
    """Returns the argv prefix that sets `limits` and execs the rest; a limit that is already lower stays as it is."""
    cpu_s = math.ceil(timeout_s) * (os.cpu_count() or 1) + 1
    wanted = [f"-v {limits.memory_kib}", f"-f {limits.file_kib}", f"-t {cpu_s}", "-c 0"]
    if limits.processes is not None:
        wanted.append(f"-u {limits.processes}")
    script = "; ".join(f"ulimit {limit} 2>/dev/null" for limit in wanted)
    return [bash, "--norc", "-c", f'{script}; exec "$@"', "limits"]


@dataclass(frozen=True, slots=True)
class SandboxFolder:
    """This is one sandbox on disk: the working copy, a temporary folder and programs of its own.

    All of it belongs to `uid` where that is given.
    """

    root: Path
    workdir: str  # Commands see the working copy under this path.
    uid: int | None
    toolchain: Toolchain | None = None
    places: tuple[str, ...] = ()  # Commands see further folders under these paths.
    # Working copy and programs are overlays in this namespace. None means that they are copies.
    namespace: Namespace | None = None
    stacks: tuple[Stack, ...] = ()  # The overlays show these, where there are any.

    @property
    def work(self) -> Path:
        """Returns the working copy's path as the launcher's namespace sees it; `reached` is for this process."""
        return self.root / "work"

    @contextlib.contextmanager
    def reached(self) -> Iterator[Root]:
        """Yields the working copy as this process reaches it. Raises SandboxError once its namespace is closed."""
        if self.namespace is None:
            yield self.work
            return
        with self.namespace.work() as descriptor:
            yield descriptor

    @property
    def programs(self) -> Path:
        """Returns the folder of this sandbox's own toolchain."""
        return self.root / "toolchain"

    @property
    def tmp(self) -> Path:
        """Returns the temporary folder, which isolated commands see as /tmp."""
        return self.root / "tmp"

    @property
    def place_folders(self) -> list[tuple[Path, str]]:
        """Returns the further folders, each with the path under which commands see it."""
        return [(self.root / f"place-{number}", seen_as) for number, seen_as in enumerate(self.places)]


@dataclass(frozen=True, slots=True)
class CommandLaunch:
    """This is what a launcher starts for one command."""

    argv: list[str]
    env: dict[str, str]


class Launcher(Protocol):
    """This is a way to start commands, isolated or not."""

    isolated: bool
    bash: str
    shares: bool  # It says whether prepared folders can be shared instead of copied.
    unbounded: tuple[str, ...]  # These words say what a command is not kept from here.

    def folder(self, root: Path, workspace: Workspace) -> SandboxFolder:
        """Decides user and workdir of a new sandbox, and makes nothing. Raises UserError for what it cannot show."""
        ...

    def launch(
        self, folder: SandboxFolder, command: str, *, timeout_s: float, status_fd: int, report_fd: int, marker: str
    ) -> CommandLaunch:
        """Returns the command line that runs `bash -c command` in `folder`.

        `status_fd` and `report_fd` are ends of one pipe, for the launcher and for what stands between it and the
        command. `started_well` and `seen_end` read what came through it.
        """
        ...

    def started_well(self, status: bytes, exit_status: int) -> bool:
        """Tells whether it was the command that ended with `exit_status`, and not the launcher.

        `status` came through the pipe.
        """
        ...

    def seen_end(self, status: bytes, exit_status: int) -> int | None:
        """Returns the command's exit status, or None where nobody saw its end.

        Then all in the sandbox was killed from outside.
        """
        ...

    def sweep(self, leader: int, marker: str, before: frozenset[int], status: bytes) -> None:
        """Kills what a command left behind outside its process group, and returns once it is gone."""
        ...
