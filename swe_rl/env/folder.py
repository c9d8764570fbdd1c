"""Makes the workspaces of instances that are a few files: the folder that an agent starts from, and patches to it.

Invariants:
- The folder is a git repository with one commit, whose hash follows from the files alone.
"""

import difflib
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from swe_rl.dataset.instance import Instance
from swe_rl.env.bugs.workspace import commit_tree, require_commit
from swe_rl.files.disk import disk_error
from swe_rl.files.lines import lines_of
from swe_rl.files.names import folder_name
from swe_rl.sandbox.lease import made_aside

Files = Mapping[str, str]  # It maps a path below the folder, with slashes, to the file's text.


def commit_of(files: Files) -> str:
    """Returns the `base_commit` of an instance that starts from these files. It runs git and blocks for about 30 ms."""
    with tempfile.TemporaryDirectory() as folder:
        return _write_repository(files, Path(folder))


def folder_of(files: Files, destination: Path) -> Path:
    """Returns `destination`, which is made first if it is not there.

    It is made under another name and then renamed, so nobody sees half of it. Blocks (git). Raises OSError.
    """
    if not destination.is_dir():
        destination.parent.mkdir(parents=True, exist_ok=True)
        with made_aside(destination) as aside:
            aside.mkdir()
            _write_repository(files, aside)
    return destination


class WorkspaceFolders:
    """Makes the folders that sandboxes start from, each once, also if several threads ask for it at the same time."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()

    def find(self, instance: Instance, make: Callable[[Path], None]) -> Path:
        """Returns the instance's folder. If it is missing, `make` makes it. Raises DiskError, and errors of `make`."""
        folder = self._root / folder_name(f"{instance.instance_id}-{instance.base_commit[:12]}")
        with self._lock:
            if not folder.is_dir():
                try:
                    folder.parent.mkdir(parents=True, exist_ok=True)
                    make(folder)
                except OSError as error:
                    raise disk_error(folder, error, key="paths.cache") from error
        return folder


def make_recorded(instance: Instance, files: Files, destination: Path) -> None:
    """Makes the folder of these files aside, then renames it.

    Raises InstanceError where git does not agree with the instance on the commit, OSError.
    """
    with made_aside(destination) as aside:
        aside.mkdir()
        require_commit(instance, _write_repository(files, aside), "run job=prepare again")


def patch_between(before: Files, after: Files) -> str:
    """Returns the patch that turns one set of files into the other, as `git apply` reads it."""
    return "".join(_one_patch(name, before.get(name), after.get(name)) for name in sorted({*before, *after}))


def _write_repository(files: Files, folder: Path) -> str:
    """Writes the files into a repository of one commit. Returns the commit's hash."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o644)
    return commit_tree(folder)


def _one_patch(name: str, before: str | None, after: str | None) -> str:
    if before == after:
        return ""
    head = f"diff --git a/{name} b/{name}\n"
    head += "new file mode 100644\n" if before is None else "deleted file mode 100644\n" if after is None else ""
    sides = ("/dev/null" if before is None else f"a/{name}", "/dev/null" if after is None else f"b/{name}")
    lines = difflib.unified_diff(lines_of(before or ""), lines_of(after or ""), *sides)
    ended = (line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return head + "".join(ended)
