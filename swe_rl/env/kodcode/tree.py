"""The repository that a function is written in: one file, one commit, made without git until it is needed.

Invariants:
- The commit's hash follows from the files alone, so that it is known for every row without a repository.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from swe_rl.env.bugs.workspace import commit_tree
from swe_rl.env.instance import Instance, InstanceError
from swe_rl.env.kodcode.row import tree_of
from swe_rl.sandbox.lease import made_aside

_WHO = b"bugs <bugs@localhost> 1767225600 +0000"  # as `commit_tree` signs


def base_commit_of(instance: Instance) -> Instance:
    return replace(instance, base_commit=commit_hash(tree_of(instance)))


def commit_hash(files: Mapping[str, str]) -> str:
    """Of the only commit that `commit_tree` makes of these files (Git Internals, "Git Objects")."""
    entries = b""
    for name in sorted(files):
        entries += b"100644 " + name.encode() + b"\0" + bytes.fromhex(_object("blob", files[name].encode()))
    tree = _object("tree", entries)
    return _object("commit", b"tree %s\nauthor %s\ncommitter %s\n\nImport\n" % (tree.encode(), _WHO, _WHO))


def make_tree(instance: Instance, destination: Path) -> None:
    """Built aside, then renamed. Raises InstanceError when git does not agree on the commit, OSError."""
    with made_aside(destination) as aside:
        aside.mkdir()
        for name, text in tree_of(instance).items():
            (aside / name).write_text(text, encoding="utf-8")
            (aside / name).chmod(0o644)
        commit = commit_tree(aside)
        if commit != instance.base_commit:
            raise InstanceError(
                f"{instance.instance_id}: the tree's commit is {commit}, the record says {instance.base_commit}; "
                "run job=prepare again"
            )


def _object(kind: str, content: bytes) -> str:
    return hashlib.sha1(b"%s %d\0" % (kind.encode(), len(content)) + content, usedforsecurity=False).hexdigest()
