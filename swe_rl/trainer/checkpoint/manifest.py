"""The files of a checkpoint's folder: on the disk when a call returns, and whole or not by their sizes and hashes.

Invariants:
- Bytes go through `os.write` only, so a full disk is an OSError with its errno, never a half-written success.
- A file's content and its directory entry are both fsynced; it is hashed while it is written.
- A problem is returned as half a sentence that names the file, never raised: the caller knows the way out.
- `size_problem` reads the manifest only and is cheap; `hash_problem` reads every byte.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from swe_rl.host.kill_point import kill_point
from swe_rl.trainer.pulse import Beat, beating, no_beat

Chunk = bytes | memoryview

FORMAT_VERSION = 1
STATE_FILE, MANIFEST_FILE = "state.json", "manifest.json"
INDEX_FILE = "shards.json"  # which rows of which tensor are in which file
MODEL_FILE, OPTIMIZER_FILE = "model.safetensors", "optimizer.safetensors"  # in place of it where 0.4 wrote alone
_READ_BYTES = 4 * 2**20
STEP_FOLDER = re.compile(r"step_(\d{6,})")


def write_file(path: Path, chunks: Iterable[Chunk]) -> tuple[int, str]:
    """Creates `path` (it must not exist) and returns its size in bytes and sha256. Raises OSError."""
    digest, size = hashlib.sha256(), 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        for chunk in chunks:
            digest.update(chunk)
            _write_all(descriptor, memoryview(chunk), os.write)
            size += len(chunk)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    kill_point("checkpoint_files")
    return size, digest.hexdigest()


def sync_folder(path: Path) -> None:
    """Makes creations and renames in a folder last."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def manifest_content(sizes_and_hashes: Mapping[str, tuple[int, str]]) -> dict[str, Any]:
    files = {name: {"size": size, "sha256": digest} for name, (size, digest) in sizes_and_hashes.items()}
    return {"format_version": FORMAT_VERSION, "files": files}


def step_of(folder: Path) -> int | None:
    """The step in a checkpoint folder's name, or None where it is not one."""
    match = STEP_FOLDER.fullmatch(folder.name)
    return int(match.group(1)) if match else None


def by_step(folder: Path) -> list[Path]:
    """Checkpoint folders under `folder`, whole or not, the highest step first."""
    if not folder.is_dir():
        return []
    found = [(step, path) for path in folder.iterdir() if (step := step_of(path)) is not None]
    return [path for _, path in sorted(found, reverse=True)]


def size_problem(folder: Path) -> str | None:
    """What the manifest, the presence and the sizes of the files tell; None if all is well."""
    try:
        manifest = read_json(folder / MANIFEST_FILE)
    except FileNotFoundError:
        return f"{MANIFEST_FILE} is missing"
    except (ValueError, OSError) as error:
        return f"{MANIFEST_FILE} cannot be read ({error})"
    if manifest.get("format_version") != FORMAT_VERSION:
        return f"its format version is {manifest.get('format_version')}, this program reads version {FORMAT_VERSION}"
    entries = manifest.get("files")
    entries = entries if isinstance(entries, dict) else {}
    needed = {STATE_FILE, INDEX_FILE} if INDEX_FILE in entries else {MODEL_FILE, OPTIMIZER_FILE, STATE_FILE}
    if not needed <= entries.keys() or not all(_is_entry(name, entry) for name, entry in entries.items()):
        return f"{MANIFEST_FILE} does not list {', '.join(sorted(needed))}"
    return next((found for name in sorted(entries) if (found := _file_problem(folder / name, entries[name]))), None)


def files_of(folder: Path) -> list[str]:
    """The names that the manifest lists; call it after `size_problem`."""
    return sorted(read_json(folder / MANIFEST_FILE)["files"])


def wrong_hash(folder: Path, names: Sequence[str], beat: Beat = no_beat) -> str | None:
    """The first of these files that was changed."""
    entries = read_json(folder / MANIFEST_FILE)["files"]
    wrong = (name for name in names if file_sha256(folder / name, beat) != entries[name]["sha256"])
    return next((f"{name} was changed after it was written (wrong sha256)" for name in wrong), None)


def read_json(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    return content


def _file_problem(path: Path, entry: dict[str, Any]) -> str | None:
    if not path.is_file():
        return f"{path.name} is missing"
    size = path.stat().st_size
    return None if size == entry["size"] else f"{path.name} has {size} bytes, not {entry['size']} (wrong size)"


def _is_entry(name: str, entry: object) -> bool:
    return (
        name == Path(name).name
        and isinstance(entry, dict)
        and isinstance(entry.get("size"), int)
        and isinstance(entry.get("sha256"), str)
    )


def file_sha256(path: Path, beat: Beat = no_beat) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in beating(iter(lambda: file.read(_READ_BYTES), b""), beat):
            digest.update(chunk)
    return digest.hexdigest()


def _write_all(descriptor: int, data: memoryview, write: Callable[[int, memoryview], int]) -> None:
    while len(data) > 0:
        data = data[write(descriptor, data) :]
