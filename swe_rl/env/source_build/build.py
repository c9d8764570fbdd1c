"""Everything of one instance that is made of its source distribution: archive, tree, environment, workspace.

Invariants:
- Each part is made once below `cache` and found again; making it is blocking and may take minutes.
- A process sandbox has the environment in the place of this process's Python: the official evaluation scripts run
  unmodified in it, for tree, environment and variables are those of an image.
- A workspace is made once in a process; to find it again on disk nothing is unpacked.
"""

import threading
from dataclasses import dataclass
from pathlib import Path

from swe_rl.env.instance import Instance
from swe_rl.env.source_build.environment import Environment, make_environment
from swe_rl.env.source_build.layout import CONDA, TESTBED, variables
from swe_rl.env.source_build.origin import Origin, origin_of
from swe_rl.env.source_build.tree import make_tree, tree_digest
from swe_rl.sandbox.protocol import Toolchain, Workspace

# Unlike what ships with this package, a tree may have thousands of modules: they are compiled once in a sandbox, not by
# each command. Its git does not see them.
_VARIABLES = {"PYTHONDONTWRITEBYTECODE": ""}


@dataclass(frozen=True, slots=True)
class Built:
    tree: Path  # to be seen as layout.TESTBED
    environment: Environment
    version: str


def build(instance: Instance, cache: Path) -> Built:
    """Raises InstanceError for an instance without a source, BuildError."""
    origin = origin_of(instance, cache / "sdists")
    tree = tree_folder(instance, origin, cache)
    if not tree.is_dir():
        make_tree(instance, origin, tree)
    return Built(tree, make_environment(cache / "environments", instance, origin), origin.version)


def tree_folder(instance: Instance, origin: Origin, cache: Path) -> Path:
    """Where its tree is, or will be."""
    return cache / "trees" / f"{instance.instance_id}-{origin.key}-{tree_digest(instance)}"


class SourceWorkspaces:
    """Workspaces of what is built below `cache`; of one instance at a time, of several beside each other."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._made: dict[Instance, Workspace] = {}
        self._locks: dict[Instance, threading.Lock] = {}
        self._lock = threading.Lock()

    def workspace(self, instance: Instance) -> Workspace:
        """Blocking: minutes where `job=prepare` made nothing. Raises InstanceError, BuildError."""
        with self._lock:
            lock = self._locks.setdefault(instance, threading.Lock())
        with lock:
            if instance not in self._made:
                self._made[instance] = self._make(instance)
            return self._made[instance]

    def _make(self, instance: Instance) -> Workspace:
        built = build(instance, self._cache)
        settings = dict(variables(built.version)) | _VARIABLES
        toolchain = Toolchain(built.environment.folder, CONDA, tuple(settings.items()))
        return Workspace(path=built.tree, workdir=TESTBED, toolchain=toolchain)
