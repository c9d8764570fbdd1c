"""This module moves files into and out of containers as tar archives, never as arguments.

Invariants:
- A path is resolved inside the container, by a command there; what leaves the workdir, also through a link, is refused.
- Only regular files come out, and none that is larger than `sandbox.max_file_mb`.
- A folder goes in as it is on disk: links stay links, and permissions and times are kept. The container's root owns it.
"""

import io
import posixpath
import secrets
import shlex
import tarfile
import time
from pathlib import Path

from swe_rl.sandbox.confined_path import MissingFileError
from swe_rl.sandbox.sandbox import SandboxError

# The scripts below end with these statuses.
_LEAVES = 90
_MISSING = 91
_NO_FILE = 92
_TOO_LARGE = 93

# The engines' archive calls read some names as patterns or garble them, so a file passes through a plain name at /.
# `realpath -m` resolves the links of a path whose end does not exist yet.
_READ = """root=$(realpath .); real=$(realpath -m -- {path})
case $real in "$root"/*) ;; *) exit 90;; esac
[ -e "$real" ] || exit 91
[ -f "$real" ] || exit 92
[ "$(stat -c %s -- "$real")" -le {max_bytes} ] || exit 93
ln -- "$real" {stage} 2>/dev/null || cp -- "$real" {stage}"""

# Where the file's name is a link, the link is replaced and not followed.
_WRITE = """trap 'rm -f -- {stage}' EXIT
root=$(realpath .); folder=$(realpath -m -- {folder})
case $folder/ in "$root"/*) ;; *) exit 90;; esac
mkdir -p -- "$folder" || exit 92
file=$folder/{name}
[ -d "$file" ] && [ ! -L "$file" ] && exit 92
[ -f "$file" ] && [ ! -L "$file" ] && chmod --reference="$file" -- {stage}
mv -fT -- {stage} "$file" """


def relative_parts(path: str, workdir: str) -> tuple[str, str]:
    """Returns a path's folder and name. Raises SandboxError for a path that cannot lie below the workdir."""
    clean = posixpath.normpath(path)
    if path.startswith("/"):
        raise SandboxError(f"the path {path!r} is absolute; use one relative to {workdir}")
    if "\0" in path:
        raise SandboxError(f"the path {path!r} has a NUL byte")
    folder, name = posixpath.split(path.rstrip("/"))
    if name in ("", ".", "..") or clean in (".", ".."):
        raise SandboxError(f"the path {path!r} leaves the sandbox's folder or names no file; use one below {workdir}")
    return folder or ".", name


def read_script(path: str, stage: str, max_bytes: int) -> str:
    """Returns the script that puts the file also at `stage`."""
    return _READ.format(path=shlex.quote(path), stage=stage, max_bytes=max_bytes)


def write_script(folder: str, name: str, stage: str) -> str:
    """Returns the script that moves the file at `stage` to its place, or removes it where that is impossible."""
    return _WRITE.format(folder=shlex.quote(folder), name=shlex.quote(name), stage=stage)


def drop_script(stage: str) -> str:
    """Returns the script that removes what is at `stage`."""
    return f"rm -f -- {stage}"


def stage_name() -> str:
    """Returns a new plain name for a file that passes in or out."""
    return f".swe_rl-{secrets.token_hex(8)}"


def error_of_status(status: int, path: str, workdir: str, max_bytes: int) -> SandboxError | None:
    """Returns the error that a script's exit status stands for, or None for success."""
    if status == 0:
        return None
    if status == _MISSING:
        return MissingFileError(f"there is no file {path!r} in the sandbox")
    words = {
        _LEAVES: f"the path {path!r} leaves the sandbox's folder; use one relative to {workdir}",
        _NO_FILE: f"{path!r} in the sandbox is not a regular file",
        _TOO_LARGE: f"{path!r} in the sandbox is larger than {max_bytes} bytes (sandbox.max_file_mb)",
    }
    return SandboxError(words.get(status, f"{path!r} in the sandbox cannot be used (status {status})"))


def pack_file(name: str, content: bytes) -> bytes:
    """Returns an archive with one file."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode, entry.mtime = len(content), 0o644, int(time.time())
        archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def unpack_file(archive: bytes, path: str) -> bytes:
    """Returns the content of the archive's only file. Raises SandboxError where there is none."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as opened:
            for entry in opened:
                reader = None
                if entry.isreg():
                    reader = opened.extractfile(entry)
                if reader is not None:
                    return reader.read()
    except tarfile.TarError as error:
        raise SandboxError(f"{path!r} came out of the sandbox as a broken archive: {error}") from error
    raise SandboxError(f"{path!r} in the sandbox is not a regular file")


def pack_folder(folder: Path, target: str) -> bytes:
    """Returns an archive of `folder` that makes the absolute path `target` when it is unpacked at /. Raises OSError.

    Sockets and pipes are left out.
    """
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in (folder, *sorted(folder.rglob("*"))):
            below = path.relative_to(folder).as_posix()
            entry = archive.gettarinfo(str(path), posixpath.normpath(f"{target}/{below}").lstrip("/"))
            if entry is None or not (entry.isreg() or entry.isdir() or entry.issym() or entry.islnk()):
                continue
            _normalise_entry(entry)
            if entry.isreg():
                with path.open("rb") as reader:
                    archive.addfile(entry, reader)
            else:
                archive.addfile(entry)
    return made.getvalue()


def _normalise_entry(entry: tarfile.TarInfo) -> None:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mode = entry.mode & 0o777 | (0o700 if entry.isdir() else 0o600)
