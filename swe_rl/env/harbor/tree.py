"""Makes what a sandbox of a task starts from, and the archives that go into it.

Invariants:
- A folder stands for an image only where the Dockerfile says FROM, WORKDIR and COPY below WORKDIR, and nothing else.
"""

import base64
import io
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from swe_rl.dataset.instance import InstanceError
from swe_rl.env.harbor.task import HarborTask
from swe_rl.sandbox.lease import made_aside

# The gold script of a task begins so, which tells it apart from other patches.
SCRIPT = "#!/bin/bash\n"


def pack_folder(folder: Path, changed: Mapping[str, bytes] = MappingProxyType({})) -> bytes:
    """Returns a tar archive of a folder's files. Raises OSError.

    `changed` has other contents by the paths of files. The archive leaves out owners, times and the umask of this
    machine.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted(folder.rglob("*")):
            name = str(path.relative_to(folder))
            if name in changed:
                entry = _plain_entry(archive.gettarinfo(path, name))
                entry.size = len(changed[name])
                archive.addfile(entry, io.BytesIO(changed[name]))
            else:
                archive.add(path, name, recursive=False, filter=_plain_entry)
    return buffer.getvalue()


def _plain_entry(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    entry.mode = 0o755 if entry.mode & 0o100 else 0o644
    return entry


def gold_script(task: HarborTask) -> str:
    """Returns a script that unpacks solution/ and runs it, and an empty text where there is no solution.

    It has the place of a gold patch.
    """
    if not (task.folder / "solution" / "solve.sh").is_file():
        return ""
    archive = base64.encodebytes(pack_folder(task.folder / "solution")).decode()
    return (
        f"{SCRIPT}set -e\nmkdir -p /solution\nbase64 -d <<'END_OF_SOLUTION' | tar -xf - -C /solution\n"
        f"{archive}END_OF_SOLUTION\nexec bash /solution/solve.sh\n"
    )


def check_folder(task: HarborTask) -> None:
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


def make_folder(task: HarborTask, destination: Path) -> None:
    """Makes the folder that stands for the task's image: aside, then renamed. Raises InstanceError, OSError."""
    context = (task.folder / "environment").resolve()
    with made_aside(destination) as aside:
        aside.mkdir()
        for source, target in task.copies:
            for path in _source_files(context, source, task):
                _copy_into(
                    path, aside / PurePosixPath(target).relative_to(task.workdir), is_folder=target.endswith("/")
                )


def _source_files(context: Path, source: str, task: HarborTask) -> list[Path]:
    """Returns the files that a COPY means. Raises InstanceError where there are none in environment/."""
    pattern = source.strip("/").removeprefix("./")
    paths = [context] if pattern in ("", ".") else sorted(context.glob(pattern))
    if not paths or any(not path.resolve().is_relative_to(context) for path in paths):
        raise InstanceError(f"{task.folder}: environment/Dockerfile copies {source}, which is not in environment/")
    return paths


def _copy_into(source: Path, target: Path, *, is_folder: bool) -> None:
    """Copies as COPY does.

    Of a folder it takes the content. A file goes into a target that ends in a slash or is a folder.
    """
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
