"""Makes everything of one instance from its source: archive, tree, environment and workspace.

Invariants:
- Each part is made once below `cache` and found again; making it is blocking and may take minutes.
- A process sandbox has the environment in the place of this process's Python: the official evaluation scripts run
  unmodified in it, for tree, environment and variables are those of an image.
- A workspace is made once in a process; to find it again on disk nothing is unpacked.
"""

import threading
from dataclasses import dataclass
from pathlib import Path

from swe_rl.dataset.instance import Instance
from swe_rl.env.source_build.environment import Environment, make_environment
from swe_rl.env.source_build.layout import CONDA, TESTBED, command_variables
from swe_rl.env.source_build.origin import Origin, origin_of
from swe_rl.env.source_build.tree import make_tree, tree_digest
from swe_rl.files.names import folder_name
from swe_rl.sandbox.sandbox import Toolchain, Workspace

# Unlike what ships with this package, a tree may have thousands of modules. So they are compiled once in a sandbox, not
# by each command. The tree's git does not see the compiled files.
_VARIABLES = {"PYTHONDONTWRITEBYTECODE": ""}


@dataclass(frozen=True, slots=True)
class Built:
    tree: Path  # A sandbox has to see the tree as layout.TESTBED.
    environment: Environment
    version: str


def build_source(instance: Instance, cache: Path) -> Built:
    """Returns the instance's tree and environment, made where they are missing.

    Raises InstanceError for an instance without a source, BuildError.
    """
    origin = origin_of(instance, cache / "sdists")
    tree = tree_folder(instance, origin, cache)
    if not tree.is_dir():
        make_tree(instance, origin, tree)
    return Built(tree, make_environment(cache / "environments", instance, origin), origin.version)


def tree_folder(instance: Instance, origin: Origin, cache: Path) -> Path:
    """Returns the place where the instance's tree is, or will be."""
    return cache / "trees" / folder_name(f"{instance.instance_id}-{origin.key}-{tree_digest(instance)}")


class SourceWorkspaces:
    """Makes workspaces of what is built below `cache`.

    Threads that want the same instance wait for each other; those that want others do not.
    """

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._made: dict[Instance, Workspace] = {}
        self._locks: dict[Instance, threading.Lock] = {}
        self._lock = threading.Lock()

    def workspace(self, instance: Instance) -> Workspace:
        """Returns the instance's workspace. Raises InstanceError, BuildError.

        It blocks for minutes where `job=prepare` made nothing.
        """
        with self._lock:
            lock = self._locks.setdefault(instance, threading.Lock())
        with lock:
            if instance not in self._made:
                self._made[instance] = self._make(instance)
            return self._made[instance]

    def _make(self, instance: Instance) -> Workspace:
        built = build_source(instance, self._cache)
        settings = dict(command_variables(built.version)) | _VARIABLES
        toolchain = Toolchain(built.environment.folder, CONDA, tuple(settings.items()))
        return Workspace(path=built.tree, workdir=TESTBED, toolchain=toolchain)
