"""Two nodes of a SLURM cluster of this machine, held for runs that start parts of themselves there as steps.

Invariants:
- One cluster for all workers; each run finds its own steps by what its root gave to their environment.
- Nothing of it is left after `close`.
"""

import os
import shutil
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.slurm.cluster import Cluster

_STARTS_S = 60.0
_ENVIRONMENT = "held.environment"


class Allocation:
    """Starts a cluster when it is first asked for. Raises RuntimeError where no cluster can be started."""

    def __init__(self) -> None:
        self._cluster: Cluster | None = None
        self._root: Path | None = None
        self._lock = threading.Lock()

    def environment(self) -> Mapping[str, str]:
        """Of a process inside the held job."""
        from tests.slurm.cluster import Cluster, missing

        with self._lock:
            if self._cluster is None:
                if reason := missing():
                    raise RuntimeError(reason)
                self._root = Path(tempfile.mkdtemp(prefix="storm-"))
                self._root.chmod(0o755)
                self._cluster = Cluster(self._root)
                self._cluster.__enter__()
                written = self._root / _ENVIRONMENT
                lines = [f"env -0 > {written}.aside", f"mv {written}.aside {written}", "sleep infinity"]
                self._cluster.script("held", *lines, nodes="2", ntasks_per_node="1", gres="gpu:1", partition="cpu")
                self._cluster.wait_until(written.exists, "the held job", _STARTS_S)
            assert self._root is not None
            pairs = (entry.partition(b"=") for entry in (self._root / _ENVIRONMENT).read_bytes().split(b"\0") if entry)
            variables = {name.decode(): value.decode(errors="replace") for name, _, value in pairs}
            held = {name: value for name, value in variables.items() if name.startswith("SLURM")}
            return {**held, **self._cluster.environ}

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.stop()
            self._cluster = None
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)


def step_processes(root: Path) -> list[int]:
    """First processes of the steps that a run below `root` started, wherever they hang."""
    mark = f"TMPDIR={root / 'tmp'}".encode()
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                variables = set((entry / "environ").read_bytes().split(b"\0"))
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                above = Path(f"/proc/{parent}/comm").read_text().strip()
            except OSError:
                continue
            if mark in variables and above == "slurmstepd" and int(entry.name) != os.getpid():
                pids.append(int(entry.name))
    return pids
