"""Makes the base tree of an instance from its origin: a git repository with exactly one commit.

Invariants:
- The tree has neither the fix nor the tests that belong to it; a patch that does not fit exactly is an error.
- `base_commit` names the one commit in it too, by a replacement reference, so that evaluation scripts that check files
  out of it work; the object of that name is not there, nor any other history.
- The commit is reproducible: the same distribution and the same patches give the same hash.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
from pathlib import Path

from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.env.source_build.origin import Origin
from swe_rl.env.source_build.program import BuildError, run_program
from swe_rl.env.source_build.requirements import runs_tox
from swe_rl.sandbox.lease import made_aside

_GIT_S = 300.0
_BUILT = ("*.egg-info", "__pycache__", "*.pyc")  # These files come from the packaging, not from the repository.
# Names and dates are fixed, and no configuration counts, so that the same tree has the same commit.
IDENTITY = {
    **{f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in (
        ("NAME", "base"), ("EMAIL", "base@localhost"), ("DATE", "2000-01-01T00:00:00+0000"),
    )},
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
}  # fmt: skip
_SYMPY_TEST = """#!/usr/bin/env python
import sys, os
sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from optparse import OptionParser
parser = OptionParser()
parser.add_option("-v", "--verbose", action="store_true", default=False)
parser.add_option("-C", "--no-cache", dest="cache", action="store_false", default=True)
parser.add_option("--no-subprocess", action="store_true", default=False)
options, names = parser.parse_args()
if not options.cache:
    os.environ["SYMPY_USE_CACHE"] = "no"
import sympy
passed = sympy.test(*names, verbose=options.verbose, subprocess=False)
sys.exit(0 if passed else 1)
"""
RECIPE = 3  # A change of how trees are made counts it up, so that all are made anew.
# A line of tox.ini runs pytest so.
_TOX_PYTEST = re.compile(r"^(\s+(?:.*\s)?pytest)(?=\s+[-{])", re.MULTILINE)
_MISSING = {"sympy": ("bin/test", _SYMPY_TEST)}  # Evaluation scripts run these files, and distributions leave them out.


def tree_digest(instance: Instance) -> str:
    """Returns a hash of everything but the origin that a tree is made of."""
    assert instance.source is not None
    parts = [RECIPE, instance.source.fix, instance.base_commit, instance.patch, instance.test_patch]
    parts.append(runs_tox(instance.eval_script))
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:10]


def make_tree(instance: Instance, origin: Origin, destination: Path) -> None:
    """Builds the tree aside, then renames it to `destination`. Raises InstanceError, BuildError."""
    with made_aside(destination) as tree:
        origin.unpack(tree)
        to_base(instance, tree)
        commit_tree(instance, tree)


def to_base(instance: Instance, tree: Path) -> None:
    """Takes the fix and its tests back where the distribution has them. Raises InstanceError."""
    assert instance.source is not None
    if instance.source.reverse:
        for name, patch in (("test_patch", instance.test_patch), ("patch", instance.patch)):
            if patch.strip():
                _apply_patch(instance, tree, name, patch, "--reverse")
    else:
        _apply_patch(instance, tree, "patch", instance.patch, "--check")
    # The file is the packaging's own. One that git is told to overlook would be in every patch taken from the tree.
    (tree / "PKG-INFO").unlink(missing_ok=True)
    missing = _MISSING.get(instance.source.sdist.rpartition("-")[0].lower())
    if missing and not (tree / missing[0]).exists():
        script = tree / missing[0]
        script.parent.mkdir(exist_ok=True)
        script.write_text(missing[1], encoding="utf-8")
        script.chmod(0o755)
    if runs_tox(instance.eval_script):
        let_tox_report(tree)


def let_tox_report(tree: Path) -> None:
    """Changes tox.ini so that pytest prints a line for each test: readers of the log need these lines."""
    path = tree / "tox.ini"
    if path.is_file():
        path.write_text(_TOX_PYTEST.sub(r"\1 -rA", path.read_text(encoding="utf-8")), encoding="utf-8")


def commit_tree(instance: Instance, tree: Path) -> None:
    """Makes the tree a repository whose one commit is found as the base commit as well. Raises BuildError."""
    git = ["git", "-c", "init.defaultBranch=main", "-c", "core.autocrlf=false", "-c", "gc.auto=0"]
    what = f"{instance.instance_id}: its tree cannot be committed"
    run_program(
        [*git, "init", "--quiet", "--template=", "."], what=what, timeout_s=_GIT_S, cwd=tree, environment=IDENTITY
    )
    exclude = tree / ".git" / "info" / "exclude"
    exclude.parent.mkdir(exist_ok=True)
    exclude.write_text("".join(f"{pattern}\n" for pattern in _BUILT), encoding="utf-8")
    for arguments in (
        ["add", "--all", "."],
        ["commit", "--quiet", "--no-gpg-sign", "-m", "base"],
        ["update-ref", f"refs/replace/{instance.base_commit}", "HEAD"],
        ["pack-refs", "--all"],
        # Evaluation scripts run `git show`, which prints every file of a first commit.
        ["config", "log.showRoot", "false"],
    ):
        run_program([*git, *arguments], what=what, timeout_s=_GIT_S, cwd=tree, environment=IDENTITY)
    shutil.rmtree(tree / ".git" / "logs", ignore_errors=True)


def _apply_patch(instance: Instance, tree: Path, name: str, patch: str, option: str) -> None:
    """Runs `git apply` with an option. Raises InstanceError where the patch does not fit."""
    with tempfile.NamedTemporaryFile("w", suffix=".patch", delete=False, encoding="utf-8") as file:
        file.write(patch)
    try:
        run_program(
            ["git", "apply", "--whitespace=nowarn", option, file.name],
            what=f"{instance.instance_id}: {name} does not fit {instance.source and instance.source.origin}",
            timeout_s=_GIT_S,
            cwd=tree,
            environment={**IDENTITY, "GIT_CEILING_DIRECTORIES": str(tree.parent)},
        )
    except BuildError as error:
        raise InstanceError(f"{error}; the row's column 'source' names another release or way (fix)") from error
    finally:
        os.unlink(file.name)  # noqa: PTH108 - NamedTemporaryFile gives text
