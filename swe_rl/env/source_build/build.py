"""Everything of one instance that is made of its source distribution: archive, tree, environment.

Invariants:
- Each part is made once below `cache` and found again; making it is blocking and may take minutes.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from swe_rl.env.instance import Instance, InstanceError
from swe_rl.env.source_build.environment import Environment, make_environment
from swe_rl.env.source_build.requirements import requirements_of
from swe_rl.env.source_build.sdist import fetch, split_name, unpack
from swe_rl.env.source_build.tree import RECIPE, make_tree


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
