"""Knows the folders of checkpoints, `step_000010/`, which are complete or do not exist.

Invariants:
- Everything is written into `.step_000010.tmp-shards`, fsynced, then renamed: whatever the moment of a crash,
  `newest_checkpoint` gives a complete checkpoint if there ever was one.
- Older ones are pruned only after the new one is complete; a failed save leaves them as they were and no folder behind.
- What a killed process left behind (`.step_*`) is removed by the next save.
- `manifest.json` holds size and sha256 of each other file; `load` believes nothing that does not match it.
- Files are JSON and safetensors only: reading a checkpoint never runs code.
- After `restore_rng(capture_rng())` every generator goes on as if nothing had happened.
- Bytes go through `os.write` only, so a full disk is an OSError with its errno, never a half-written success.
- A file's content and its directory entry are both fsynced; it is hashed while it is written.
- A problem is returned as half a sentence that names the file, never raised: the caller knows the way out.
- `size_problem` reads the manifest only and is cheap; `wrong_hash` reads every byte.
"""

import base64
import errno
import hashlib
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from swe_rl.config.known_models import MANIFEST_FILE, STATE_FILE
from swe_rl.errors import RunError, UserError
from swe_rl.files.kill_point import kill_point
from swe_rl.trainer.pulse import Beat, no_beat, with_beats

Chunk = bytes | memoryview

FORMAT_VERSION = 1
# This file says which rows of which tensor are in which file.
INDEX_FILE = "shards.json"
# Version 0.4 wrote these two in its place where it trained alone.
MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
_READ_BYTES = 4 * 2**20
STEP_FOLDER = re.compile(r"step_(\d{6,})")


def write_file(path: Path, chunks: Iterable[Chunk]) -> tuple[int, str]:
    """Creates `path` (it must not exist) and returns its size in bytes and sha256. Raises OSError."""
    digest = hashlib.sha256()
    size = 0
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
    if match:
        return int(match.group(1))
    return None


def by_step(folder: Path) -> list[Path]:
    """Checkpoint folders under `folder`, whole or not, the highest step first."""
    if not folder.is_dir():
        return []
    steps = [(step, path) for path in folder.iterdir() if (step := step_of(path)) is not None]
    return [path for _, path in sorted(steps, reverse=True)]


def size_problem(folder: Path) -> str | None:
    """Returns what is wrong by the manifest and by the presence and sizes of the files, or None if all is well."""
    # Reading a named pipe in the manifest's place would never end.
    if not (folder / MANIFEST_FILE).is_file():
        return f"{MANIFEST_FILE} is missing"
    try:
        manifest = read_json(folder / MANIFEST_FILE)
    except (ValueError, OSError, RecursionError) as error:
        return f"{MANIFEST_FILE} cannot be read ({error})"
    if manifest.get("format_version") != FORMAT_VERSION:
        return f"its format version is {manifest.get('format_version')}, this program reads version {FORMAT_VERSION}"
    entries = manifest.get("files")
    if not isinstance(entries, dict):
        entries = {}
    if INDEX_FILE in entries:
        needed = {STATE_FILE, INDEX_FILE}
    else:
        needed = {MODEL_FILE, OPTIMIZER_FILE, STATE_FILE}
    if not needed <= entries.keys() or not all(_is_entry(name, entry) for name, entry in entries.items()):
        return f"{MANIFEST_FILE} does not list {', '.join(sorted(needed))}"
    return next((problem for name in sorted(entries) if (problem := _file_problem(folder / name, entries[name]))), None)


def files_of(folder: Path) -> list[str]:
    """The names that the manifest lists; call it after `size_problem`."""
    return sorted(read_json(folder / MANIFEST_FILE)["files"])


def wrong_hash(folder: Path, names: Sequence[str], beat: Beat = no_beat) -> str | None:
    """Returns half a sentence about the first of these files that was changed, or None."""
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
    if size == entry["size"]:
        return None
    return f"{path.name} has {size} bytes, not {entry['size']} (wrong size)"


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
        for chunk in with_beats(iter(lambda: file.read(_READ_BYTES), b""), beat):
            digest.update(chunk)
    return digest.hexdigest()


def _write_all(descriptor: int, data: memoryview, write: Callable[[int, memoryview], int]) -> None:
    while len(data) > 0:
        data = data[write(descriptor, data) :]


def capture_rng(*, gpus: bool = True) -> dict[str, Any]:
    """Returns the states of Python's, NumPy's (the global one), torch's and, with GPUs, CUDA's generators.

    `gpus` False leaves CUDA's out: reading them takes memory on every GPU that this process sees.
    """
    version, internal, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(internal), gauss],
        "numpy": [str(name), [int(k) for k in keys], int(position), int(has_gauss), float(cached)],
        "torch": _encode_state(torch.get_rng_state()),
        "cuda": [_encode_state(state) for state in _cuda_states()] if gpus else [],
    }


def restore_rng(state: Mapping[str, Any]) -> None:
    """Sets them all; CUDA's only where the number of GPUs is the same."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(_decode_state(state["torch"]))
    cuda = [_decode_state(text) for text in state["cuda"]]
    if cuda and len(cuda) == len(_cuda_states()):
        torch.cuda.set_rng_state_all(cuda)


def _cuda_states() -> list[Tensor]:
    if torch.cuda.is_available():
        return torch.cuda.get_rng_state_all()
    return []


def _encode_state(state: Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def _decode_state(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


MB = 1_000_000
# These errors all mean that there is no room: a full disk, a full quota, or a file larger than the system takes.
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
STATE_KEYS = frozenset({"step", "weight_version", "counters", "rng", "data_order", "config", "config_hash"})


class CorruptCheckpointError(UserError):
    """A checkpoint is incomplete, damaged, or of another configuration; the message names the file and the way out."""


class CheckpointWriteError(RunError):
    """A checkpoint could not be written; older ones are intact."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded checkpoint: all that a run needs to go on, beside the tensors. `rng` is for `restore_rng`."""

    folder: Path
    step: int
    weight_version: int
    rng: dict[str, Any]
    data_order: Any
    config: dict[str, Any]
    config_hash: str


def config_hash(config: Mapping[str, Any]) -> str:
    """Returns the sha256 of the configuration as canonical JSON; the caller leaves out what may change between two
    starts.
    """
    return hashlib.sha256(json_bytes(config)).hexdigest()


def state_content(
    *,
    step: int,
    weight_version: int,
    counters: Mapping[str, Any],
    data_order: Any,
    config: Mapping[str, Any],
    hash_of_config: str | None = None,
    rng: Mapping[str, Any] | None = None,
    adapter: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns what `state.json` holds; the random number generators' states are taken here unless they are given.

    `adapter` says what the stored weights are an adapter of (`Adapter.described`); None says that they are the whole
    model.
    """
    return {
        "step": step,
        "weight_version": weight_version,
        "adapter": dict(adapter) if adapter else None,
        "counters": dict(counters),
        "rng": capture_rng() if rng is None else dict(rng),
        "data_order": data_order,
        "config": config,
        "config_hash": hash_of_config or config_hash(config),
    }


def newest_checkpoint(folder: Path) -> Path | None:
    """Returns the complete checkpoint of the highest step under `folder`, or None; it checks sizes, not hashes."""
    return next((path for path in by_step(folder) if size_problem(path) is None), None)


def skipped_for(chosen: Path) -> dict[Path, str]:
    """The checkpoints of higher steps beside `chosen`, and what is wrong with each; empty for one that is whole."""
    later = (path for path in by_step(chosen.parent) if (step_of(path) or 0) > (step_of(chosen) or 0))
    return {path: size_problem(path) or "" for path in later}


def of_state(folder: Path, state: Mapping[str, Any]) -> Checkpoint:
    """Returns the checkpoint whose `state.json` holds `state`."""
    return Checkpoint(
        folder=folder,
        step=state["step"],
        weight_version=state["weight_version"],
        rng=state["rng"],
        data_order=state["data_order"],
        config=state["config"],
        config_hash=state["config_hash"],
    )


def publish_folder(aside: Path, target: Path) -> None:
    """Gives a whole folder its name."""
    # A folder of the same step is here only if the run was taken back to an earlier one; it gives way.
    former = None
    if target.exists():
        former = target.with_name(f".{target.name}.old-{os.getpid()}")
    if former:
        os.rename(target, former)  # noqa: PTH104 - os.rename is the atomic step that tests interrupt by its name
    kill_point("checkpoint_aside")
    os.rename(aside, target)  # noqa: PTH104
    kill_point("checkpoint_named")
    sync_folder(target.parent)
    if former:
        shutil.rmtree(former, ignore_errors=True)


def prune_checkpoints(folder: Path, keep: int, latest: Path) -> None:
    """Discards all but the `keep` highest steps and `latest`; 0 keeps all."""
    whole = by_step(folder)
    for path in whole[keep:] if keep > 0 else []:
        if path != latest:
            _discard_folder(path)


def _discard_folder(folder: Path) -> None:
    """Renames the folder before it deletes it, so that a checkpoint is never half deleted under its own name."""
    aside = folder.with_name(f".{folder.name}.old-{os.getpid()}")
    os.rename(folder, aside)  # noqa: PTH104
    kill_point("checkpoint_discarded")
    shutil.rmtree(aside, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Removes what killed writers left in a folder of checkpoints, where nobody writes now."""
    for path in folder.glob(".step_*"):
        shutil.rmtree(path, ignore_errors=True)


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """Returns canonical JSON: the same content always gives the same bytes."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def check_state(folder: Path, state: Mapping[str, Any], expected_config_hash: str | None) -> None:
    """Raises CorruptCheckpointError where something is missing, or it is of another configuration."""
    missing = STATE_KEYS - set(state)
    if missing:
        raise corrupt_error(folder, f"{STATE_FILE} lacks {', '.join(sorted(missing))}")
    if expected_config_hash is not None and state["config_hash"] != expected_config_hash:
        raise CorruptCheckpointError(
            f"The checkpoint {folder} is of another configuration (config mismatch: {STATE_FILE} has hash "
            f"{state['config_hash'][:12]}, this run {expected_config_hash[:12]}). Resume with the configuration that "
            "wrote it, or start afresh with trainer.resume=none."
        )


def corrupt_error(folder: Path, problem: str) -> CorruptCheckpointError:
    """Returns the error for half a sentence that says what is wrong; it names the checkpoint to go back to."""
    step = step_of(folder)
    if step is not None:
        others = by_step(folder.parent)
    else:
        others = []
    older = next((p for p in others if (step_of(p) or 0) < (step or 0) and size_problem(p) is None), None)
    way_out = "There is no older checkpoint: start afresh"
    if older:
        way_out = f"Resume from the older checkpoint {older}"
    return CorruptCheckpointError(f"The checkpoint {folder} cannot be used: {problem}. {way_out}.")


def write_error(target: Path, error: OSError, needed_bytes: int) -> CheckpointWriteError:
    """Returns the error for what the system said. `needed_bytes` is in the message where the disk is full."""
    kept = newest_checkpoint(target.parent)
    rest = "There is no complete checkpoint yet."
    if kept:
        rest = f"The newest complete checkpoint is {kept}."
    if error.errno not in NO_SPACE:
        return CheckpointWriteError(f"The checkpoint {target} could not be written: {error}. {rest}")
    return CheckpointWriteError(
        f"The disk is full: the checkpoint {target} needs {needed_bytes / MB:.1f} MB, {_free_mb(target.parent):.1f} MB "
        f"are free. {rest} Free some space or lower trainer.keep_checkpoints, then go on with trainer.resume=auto."
    )


def _free_mb(folder: Path) -> float:
    try:
        return shutil.disk_usage(folder).free / MB
    except OSError:
        return 0.0
