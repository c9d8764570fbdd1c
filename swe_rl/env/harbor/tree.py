"""What a sandbox of a task starts from, and the archives that go into it.

Invariants:
- A folder stands for an image only where the Dockerfile says FROM, WORKDIR and COPY below WORKDIR, and nothing else.
"""

import base64
import io
import shutil
import tarfile
from pathlib import Path, PurePosixPath

from swe_rl.env.harbor.task import Task
from swe_rl.env.instance import InstanceError
from swe_rl.sandbox.lease import made_aside

SCRIPT = "#!/bin/bash\n"


def packed(folder: Path) -> bytes:
    """A tar archive of a folder's files, without owners, times and umask of this machine. Raises OSError."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted(folder.rglob("*")):
            archive.add(path, str(path.relative_to(folder)), recursive=False, filter=_plain)
    return buffer.getvalue()


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    entry.mode = 0o755 if entry.mode & 0o100 else 0o644
    return entry


def gold_script(task: Task) -> str:
    """A script that unpacks solution/ and runs it: what a gold patch is elsewhere. Empty where there is none."""
    if not (task.folder / "solution" / "solve.sh").is_file():
        return ""
    archive = base64.encodebytes(packed(task.folder / "solution")).decode()
    return (
        f"{SCRIPT}set -e\nmkdir -p /solution\nbase64 -d <<'END_OF_SOLUTION' | tar -xf - -C /solution\n"
        f"{archive}END_OF_SOLUTION\nexec bash /solution/solve.sh\n"
    )


def check_folder(task: Task) -> None:
    """Raises InstanceError where no folder can stand for the task's image."""
    outside = [target for _, target in task.copies if not _is_below(target, task.workdir)]
    asks = task.needs_build or (f"COPY to {outside[0]}" if outside else "")
    if not asks and (task.folder / "environment" / "Dockerfile").is_file():
        return
    what = f"environment/Dockerfile says {asks!r}" if asks else "it names an image and has no Dockerfile"
    raise InstanceError(
        f"{task.folder}: {what}, which needs a container; with sandbox=process a Dockerfile may say FROM, WORKDIR and "
        "COPY below WORKDIR only. Use sandbox=docker or podman with an image in task.toml, or leave the folder out"
    )


def make_folder(task: Task, destination: Path) -> None:
    """Built aside, then renamed. Raises InstanceError, OSError."""
    context = (task.folder / "environment").resolve()
    with made_aside(destination) as aside:
        aside.mkdir()
        for source, target in task.copies:
            for path in _sources(context, source, task):
                _copy(path, aside / PurePosixPath(target).relative_to(task.workdir), is_folder=target.endswith("/"))


def _sources(context: Path, source: str, task: Task) -> list[Path]:
    pattern = source.strip("/").removeprefix("./")
    paths = [context] if pattern in ("", ".") else sorted(context.glob(pattern))
    if not paths or any(not path.resolve().is_relative_to(context) for path in paths):
        raise InstanceError(f"{task.folder}: environment/Dockerfile copies {source}, which is not in environment/")
    return paths


def _copy(source: Path, target: Path, *, is_folder: bool) -> None:
    """As COPY does it: of a folder its content, a file into a folder that ends in a slash or is there."""
    if source.is_dir():
        ignored = shutil.ignore_patterns("Dockerfile", ".dockerignore")
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, ignore=ignored)
        return
    path = target / source.name if is_folder or target.is_dir() else target
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, path)


def _is_below(target: str, workdir: str) -> bool:
    path = PurePosixPath(target)
    return ".." not in path.parts and path.is_relative_to(workdir)
