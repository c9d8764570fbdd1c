"""Everything of one instance that is made of its source distribution: archive, tree, environment, workspace.

Invariants:
- Each part is made once below `cache` and found again; making it is blocking and may take minutes.
- A process sandbox has the environment in the place of this process's Python: the official evaluation scripts run
  unmodified in it, for tree, environment and variables are those of an image.
- A workspace is made once in a process, one at a time; found again on disk it costs an unpacking.
"""

import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from swe_rl.env.instance import Instance, InstanceError
from swe_rl.env.source_build.environment import Environment, make_environment
from swe_rl.env.source_build.layout import CONDA, TESTBED, variables
from swe_rl.env.source_build.requirements import requirements_of
from swe_rl.env.source_build.sdist import fetch, split_name, unpack
from swe_rl.env.source_build.tree import RECIPE, make_tree
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
    source = instance.source
    if source is None:
        raise InstanceError(
            f"{instance.instance_id} has neither a column 'source' nor a folder: it needs its container image "
            f"({instance.image or 'env.image_template names it'}) and sandbox=docker or podman"
        )
    name, version = split_name(source.sdist)
    archive = fetch(source.sdist, cache / "sdists")
    tree = cache / "trees" / f"{instance.instance_id}-{source.sdist}-{RECIPE}"
    if not tree.is_dir():
        make_tree(instance, archive, tree)
    (cache / "scratch").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache / "scratch") as folder:
        scratch = Path(folder) / "tree"
        unpack(archive, scratch)
        environment = make_environment(
            cache / "environments",
            sdist=source.sdist,
            python=source.python,
            archive=archive,
            tree=scratch,
            requirements=requirements_of(scratch, instance.eval_script, name),
        )
    return Built(tree, environment, version)


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
