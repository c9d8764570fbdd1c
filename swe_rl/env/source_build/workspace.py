"""What a process sandbox starts from: an instance's tree, with its environment in the place of this process's Python.

Invariants:
- The official evaluation scripts run unmodified in it: tree, environment and variables are those of an image.
- An instance is made once in a process, one at a time; found again on disk it costs an unpacking.
"""

import threading
from pathlib import Path

from swe_rl.env.instance import Instance
from swe_rl.env.source_build.build import build
from swe_rl.env.source_build.layout import CONDA, TESTBED, variables
from swe_rl.sandbox.protocol import Toolchain, Workspace

# Unlike what ships with this package, a tree may have thousands of modules: they are compiled once in a sandbox, not by
# each command. Its git does not see them.
_VARIABLES = {"PYTHONDONTWRITEBYTECODE": ""}


class SourceWorkspaces:
    """Workspaces of what is built below `cache`."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._made: dict[str, Workspace] = {}
        self._lock = threading.Lock()

    def workspace(self, instance: Instance) -> Workspace:
        """Blocking: minutes where `job=prepare` made nothing. Raises InstanceError, BuildError."""
        made = self._made.get(instance.instance_id)
        if made is None:
            with self._lock:
                made = self._made.get(instance.instance_id) or self._make(instance)
                self._made[instance.instance_id] = made
        return made

    def _make(self, instance: Instance) -> Workspace:
        built = build(instance, self._cache)
        settings = dict(variables(built.version)) | _VARIABLES
        toolchain = Toolchain(built.environment.folder, CONDA, tuple(settings.items()))
        return Workspace(path=built.tree, workdir=TESTBED, toolchain=toolchain)
