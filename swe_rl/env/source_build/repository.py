"""Clones git repositories that rows name by an address once below the cache, and fetches commits that are missing.

Invariants:
- git is never told to ask for a password, and runs no hook of the repository's: a bare clone has no working tree.
- A clone is complete under its name, or not there.
"""

import hashlib
import re
import threading
from collections.abc import Sequence
from pathlib import Path

from swe_rl.dataset.instance import Source
from swe_rl.env.source_build.program import BuildError, run_program
from swe_rl.sandbox.lease import made_aside

_ADDRESS = re.compile(r"(?:https?|ssh|git|file)://\S+|[\w.-]+@[\w.-]+:\S+")
# A large repository may take many minutes to clone.
_CLONE_S = 1800.0
_GIT_S = 300.0
# With these settings git and ssh fail where they would ask for a password.
_QUIET = {"GIT_TERMINAL_PROMPT": "0", "GIT_SSH_COMMAND": "ssh -o BatchMode=yes"}
# One thread clones at a time, so that two never make the same clone.
_LOCK = threading.Lock()


def is_address(tree: str) -> bool:
    """Tells whether git fetches from it: https://HOST/NAME.git, ssh://..., git@HOST:NAME.git, file://..."""
    return bool(_ADDRESS.fullmatch(tree))


def clone_of(address: str, cache: Path) -> Path:
    """Returns the place where an address's clone is, or will be. The clone has the repository's name.

    `cache` is the folder of the source distributions beside it.
    """
    name = re.sub(r"[^\w.-]+", "_", re.split(r"[/:]", address.rstrip("/"))[-1].removesuffix(".git")) or "repository"
    digest = hashlib.sha256(address.encode()).hexdigest()[:10]
    return cache.parent / "repositories" / digest / f"{name}.git"


def is_absent(source: Source, cache: Path) -> bool:
    """Tells whether the source is an address of which there is no clone yet."""
    return is_address(source.tree) and not clone_of(source.tree, cache).is_dir()


def clone_at(address: str, commit: str, cache: Path) -> Path:
    """Returns the bare clone with `commit`, fetched where it is not there. Raises BuildError."""
    clone = clone_of(address, cache)
    with _LOCK:
        if not clone.is_dir():
            with made_aside(clone) as aside:
                _fetch_git(["git", "clone", "--quiet", "--bare", "--", address, aside], f"{address} cannot be cloned")
        if commit and not has_commit(clone, commit):
            command: list[str | Path] = ["git", "-C", clone, "fetch", "--quiet", "origin"]
            command += ["+refs/heads/*:refs/heads/*", commit]
            _fetch_git(command, f"{address}: commit {commit[:12]} cannot be fetched")
    return clone


def _fetch_git(command: Sequence[str | Path], what: str) -> None:
    """Runs a git command that may need the network. Raises BuildError."""
    run_program(command, what=what, timeout_s=_CLONE_S, environment=_QUIET)


def has_commit(repository: Path, commit: str) -> bool:
    try:
        git_output(repository, "cat-file", "-e", f"{commit}^{{commit}}")
    except BuildError:
        return False
    return True


def git_output(repository: Path, *arguments: str) -> str:
    """Returns what a git command prints. Raises BuildError."""
    command = ["git", "-c", f"safe.directory={repository}", "-C", str(repository), *arguments]
    return run_program(command, what=f"git in {repository}", timeout_s=_GIT_S)
