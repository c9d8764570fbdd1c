"""The interface between a sandbox and the way that it isolates its commands."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from swe_rl.sandbox.protocol import Toolchain, Workspace


@dataclass(frozen=True, slots=True)
class SandboxFolder:
    """One sandbox on disk: the working copy, a temporary folder and programs of its own; owned by `uid` where given."""

    root: Path
    workdir: str  # the working copy as commands see it
    uid: int | None
    toolchain: Toolchain | None = None

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def programs(self) -> Path:
        """The copy of the toolchain."""
        return self.root / "toolchain"

    @property
    def tmp(self) -> Path:
        return self.root / "tmp"


@dataclass(frozen=True, slots=True)
class Launch:
    argv: list[str]
    env: dict[str, str]


class Launcher(Protocol):
    isolated: bool
    bash: str
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
