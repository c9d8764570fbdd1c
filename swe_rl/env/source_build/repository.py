"""Git repositories that rows name by an address: cloned once below the cache, and asked for a commit that is not there.

Invariants:
- git is never told to ask for a password, and runs no hook of the repository's: a bare clone has no working tree.
- A clone is complete under its name, or not there.
"""

import hashlib
import re
import threading
from collections.abc import Sequence
from pathlib import Path

from swe_rl.env.instance import Source
from swe_rl.env.source_build.program import BuildError, run
from swe_rl.sandbox.lease import made_aside

_ADDRESS = re.compile(r"(?:https?|ssh|git|file)://\S+|[\w.-]+@[\w.-]+:\S+")
_CLONE_S = 1800.0
_GIT_S = 300.0
_QUIET = {"GIT_TERMINAL_PROMPT": "0", "GIT_SSH_COMMAND": "ssh -o BatchMode=yes"}
_LOCK = threading.Lock()


def is_address(tree: str) -> bool:
    """True for what git fetches from: https://HOST/NAME.git, ssh://..., git@HOST:NAME.git, file://..."""
    return bool(_ADDRESS.fullmatch(tree))


def clone_of(address: str, cache: Path) -> Path:
    """Where its clone is, or will be; its name is the repository's. `cache`: of the source distributions beside it."""
    name = re.sub(r"[^\w.-]+", "_", re.split(r"[/:]", address.rstrip("/"))[-1].removesuffix(".git")) or "repository"
    digest = hashlib.sha256(address.encode()).hexdigest()[:10]
    return cache.parent / "repositories" / digest / f"{name}.git"


def is_absent(source: Source, cache: Path) -> bool:
    """True for an address of which there is no clone yet."""
    return is_address(source.tree) and not clone_of(source.tree, cache).is_dir()


def cloned(address: str, commit: str, cache: Path) -> Path:
    """The bare clone with `commit`, fetched where it is not there. Raises BuildError."""
    clone = clone_of(address, cache)
    with _LOCK:
        if not clone.is_dir():
            with made_aside(clone) as aside:
                _fetch(["git", "clone", "--quiet", "--bare", "--", address, aside], f"{address} cannot be cloned")
        if commit and not has_commit(clone, commit):
            command: list[str | Path] = ["git", "-C", clone, "fetch", "--quiet", "origin"]
            command += ["+refs/heads/*:refs/heads/*", commit]
            _fetch(command, f"{address}: commit {commit[:12]} cannot be fetched")
    return clone


def _fetch(command: Sequence[str | Path], what: str) -> None:
    """Raises BuildError."""
    run(command, what=what, timeout_s=_CLONE_S, environment=_QUIET)


def has_commit(repository: Path, commit: str) -> bool:
    try:
        git(repository, "cat-file", "-e", f"{commit}^{{commit}}")
    except BuildError:
        return False
    return True


def git(repository: Path, *arguments: str) -> str:
    """Raises BuildError."""
    command = ["git", "-c", f"safe.directory={repository}", "-C", str(repository), *arguments]
    return run(command, what=f"git in {repository}", timeout_s=_GIT_S)
