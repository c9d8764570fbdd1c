"""Commands as plain process groups with resource limits: for hosts without bubblewrap.

Invariants:
- Not a security border: commands run as this user and can read what this user can read. They get no variable of this
  process's environment.
- Processes are counted per user by the kernel, so `sandbox.max_processes` is not enforced here.
- A folder with programs of its own is refused: they would not be found where they expect to be.
"""

from pathlib import Path

from swe_rl.errors import UserError
from swe_rl.sandbox.environment import clean_environment
from swe_rl.sandbox.process.launcher import Launch, SandboxFolder
from swe_rl.sandbox.process.limits import Limits, prelude
from swe_rl.sandbox.process_tree import MARKER, kill_command
from swe_rl.sandbox.protocol import Workspace


class PlainLauncher:
    isolated = False
    unbounded: tuple[str, ...] = ("user namespaces", "AF_VSOCK", "processes that leave their session and their parent")

    def __init__(self, bash: str, limits: Limits, search_path: str, cpus: float) -> None:
        self.bash = bash
        self._limits = limits
        self._search_path = search_path
        self._cpus = cpus

    def folder(self, root: Path, workspace: Workspace) -> SandboxFolder:
        if workspace.toolchain is not None:
            raise UserError(
                f"{root.name}: its commands need its own Python at {workspace.toolchain.seen_as} and its files at "
                f"{workspace.workdir}, which only isolated commands can be shown, and sandbox.kind=process has no "
                "isolation here: install bubblewrap (`apt-get install bubblewrap`) and use sandbox=process_swe, or "
                "build its image with job=prepare sandbox=docker and use sandbox=docker or podman"
            )
        return SandboxFolder(root, workdir=str(root / "work"), uid=None)

    def launch(
        self, folder: SandboxFolder, command: str, *, timeout_s: float, status_fd: int, report_fd: int, marker: str
    ) -> Launch:
        folder.work.mkdir(exist_ok=True)  # the command before may have removed it
        folder.tmp.mkdir(exist_ok=True)
        env = clean_environment(self._search_path, str(folder.tmp), self._cpus) | {MARKER: marker}
        return Launch([*prelude(self._limits, self.bash, timeout_s), self.bash, "-c", command], env)

    def started_well(self, status: bytes, exit_status: int) -> bool:
        return True

    def seen_end(self, status: bytes, exit_status: int) -> int | None:
        """Nothing stands between: a kill from outside looks like the command's own end."""
        return exit_status

    def sweep(self, leader: int, marker: str, before: frozenset[int], status: bytes) -> None:
        kill_command(leader, marker, before)
