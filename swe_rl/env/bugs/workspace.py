"""Makes the working tree of an embedded instance: a git repository with exactly one commit.

Invariants:
- The tree is the shipped package with the gold patch and the test patch taken back; neither can be found in it.
- The commit is reproducible: its hash is the instance's `base_commit`.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.sandbox.lease import made_aside

PACKAGES = Path(__file__).parent / "packages"
# The hash of a commit depends on names and dates, so they are fixed, and no configuration of this machine counts.
_IDENTITY = {
    "GIT_AUTHOR_NAME": "bugs",
    "GIT_AUTHOR_EMAIL": "bugs@localhost",
    "GIT_COMMITTER_NAME": "bugs",
    "GIT_COMMITTER_EMAIL": "bugs@localhost",
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00+0000",
    "GIT_COMMITTER_DATE": "2026-01-01T00:00:00+0000",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
}


def package_folder(repo: str) -> Path:
    """Returns the shipped package of a repository such as `bugs/train/shelf`.

    Raises InstanceError for a name that is not shipped.
    """
    folder = PACKAGES.joinpath(*repo.split("/")[1:])
    if not repo.startswith("bugs/") or ".." in repo or not folder.is_dir():
        raise InstanceError(f"repo {repo!r} is not one of the embedded packages in {PACKAGES}")
    return folder


def run_git(folder: Path, *arguments: str, stdin: str | None = None) -> str:
    """Returns what git prints, without the user's configuration. Raises InstanceError with git's own words."""
    environment: Mapping[str, str] = {"PATH": os.environ.get("PATH", ""), **_IDENTITY}
    done = subprocess.run(
        ["git", "-c", "init.defaultBranch=main", "-c", "core.autocrlf=false", "-C", str(folder), *arguments],
        input=stdin,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise InstanceError(f"git {arguments[0]} in {folder} failed: {done.stderr.strip()}")
    return done.stdout.strip()


def copy_package(repo: str, destination: Path) -> None:
    """Copies a shipped package.

    Raises OSError for the first file alone, where shutil would list all that a full disk did not take.
    """
    ignored = shutil.ignore_patterns("__pycache__", ".pytest_cache")
    try:
        shutil.copytree(package_folder(repo), destination, ignore=ignored)
    except shutil.Error as error:
        _, path, why = error.args[0][0]
        if (number := re.match(r"\[Errno (\d+)\]", str(why))) is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def commit_tree(folder: Path) -> str:
    """Makes `folder` a repository with one commit. Returns the commit's hash."""
    run_git(folder, "init", "--quiet")
    run_git(folder, "add", "--all")
    run_git(folder, "commit", "--quiet", "--no-gpg-sign", "-m", "Import")
    shutil.rmtree(folder / ".git" / "hooks", ignore_errors=True)
    return run_git(folder, "rev-parse", "HEAD")


def prepare_workspace(instance: Instance, destination: Path) -> None:
    """Builds the tree aside and renames it to `destination`.

    Raises InstanceError when the tree is not the recorded one.
    """
    with made_aside(destination) as aside:
        copy_package(instance.repo, aside)
        for patch in (instance.test_patch, instance.patch):
            run_git(aside, "apply", "--reverse", stdin=patch)
        way_out = "the packages and the instances are not of one version (python -m swe_rl job=prepare makes them anew)"
        require_commit(instance, commit_tree(aside), way_out)


def require_commit(instance: Instance, commit: str, way_out: str) -> None:
    """Raises InstanceError unless the tree that was made has the instance's commit."""
    if commit != instance.base_commit:
        raise InstanceError(
            f"{instance.instance_id}: the tree's commit is {commit}, the record says {instance.base_commit}; {way_out}"
        )
