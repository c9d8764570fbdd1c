"""Checkpoints: folders `step_000010/` that are complete or do not exist.

Invariants:
- Everything is written into `.step_000010.tmp-<pid>`, fsynced, then renamed: whatever the moment of a crash, `newest`
  gives a complete checkpoint if there ever was one.
- Older ones are pruned only after the new one is complete; a failed save leaves them as they were and no folder behind.
- What a killed process left behind (`.step_*`) is removed by the next save.
- `manifest.json` holds size and sha256 of each other file; `load` believes nothing that does not match it.
- JSON and safetensors only: reading a checkpoint never runs code.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swe_rl.errors import RunError, UserError
from swe_rl.host.kill_point import kill_point
from swe_rl.trainer.checkpoint.manifest import STATE_FILE, by_step, size_problem, step_of, sync_folder
from swe_rl.trainer.checkpoint.rng import capture_rng

MB = 1_000_000
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
STATE_KEYS = frozenset({"step", "weight_version", "counters", "rng", "data_order", "config", "config_hash"})


class CorruptCheckpointError(UserError):
    """A checkpoint is incomplete, damaged, or of another configuration; the message names the file and the way out."""


class CheckpointWriteError(RunError):
    """A checkpoint could not be written; older ones are intact."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a run needs to go on, beside the tensors; `rng` is for `restore_rng`."""

    folder: Path
    step: int
    weight_version: int
    rng: dict[str, Any]
    data_order: Any
    config: dict[str, Any]
    config_hash: str


def config_hash(config: Mapping[str, Any]) -> str:
    """sha256 of the configuration as canonical JSON; the caller leaves out what may change between two starts."""
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
    """What `state.json` holds; the random number generators' states are taken here unless they are given.

    `adapter`: what the stored weights are an adapter of (`Adapter.described`); None: they are the whole model.
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


def newest(folder: Path) -> Path | None:
    """The complete checkpoint of the highest step under `folder`, or None; sizes are checked, hashes are not."""
    return next((path for path in by_step(folder) if size_problem(path) is None), None)


def of_state(folder: Path, state: Mapping[str, Any]) -> Checkpoint:
    """`state` is what `state.json` holds."""
    return Checkpoint(
        folder=folder,
        step=state["step"],
        weight_version=state["weight_version"],
        rng=state["rng"],
        data_order=state["data_order"],
        config=state["config"],
        config_hash=state["config_hash"],
    )


def publish(aside: Path, target: Path) -> None:
    """Gives a whole folder its name."""
    # A folder of the same step is here only if the run was taken back to an earlier one; it gives way.
    former = target.with_name(f".{target.name}.old-{os.getpid()}") if target.exists() else None
    if former:
        os.rename(target, former)  # noqa: PTH104 - os.rename is the atomic step that tests interrupt by its name
    kill_point("checkpoint_aside")
    os.rename(aside, target)  # noqa: PTH104
    kill_point("checkpoint_named")
    sync_folder(target.parent)
    if former:
        shutil.rmtree(former, ignore_errors=True)


def prune(folder: Path, keep: int, latest: Path) -> None:
    """Discards all but the `keep` highest steps and `latest`; 0 keeps all."""
    whole = by_step(folder)
    for path in whole[keep:] if keep > 0 else []:
        if path != latest:
            _discard(path)


def _discard(folder: Path) -> None:
    """Renames first, so that a checkpoint is never half deleted under its own name."""
    aside = folder.with_name(f".{folder.name}.old-{os.getpid()}")
    os.rename(folder, aside)  # noqa: PTH104
    kill_point("checkpoint_discarded")
    shutil.rmtree(aside, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """What killed writers left in a folder of checkpoints, where nobody writes now."""
    for path in folder.glob(".step_*"):
        shutil.rmtree(path, ignore_errors=True)


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """Canonical JSON."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def check_state(folder: Path, state: Mapping[str, Any], expected_config_hash: str | None) -> None:
    """Raises CorruptCheckpointError where something is missing, or it is of another configuration."""
    missing = STATE_KEYS - set(state)
    if missing:
        raise corrupt(folder, f"{STATE_FILE} lacks {', '.join(sorted(missing))}")
    if expected_config_hash is not None and state["config_hash"] != expected_config_hash:
        raise CorruptCheckpointError(
            f"The checkpoint {folder} is of another configuration (config mismatch: {STATE_FILE} has hash "
            f"{state['config_hash'][:12]}, this run {expected_config_hash[:12]}). Resume with the configuration that "
            "wrote it, or start afresh with trainer.resume=none."
        )


def corrupt(folder: Path, problem: str) -> CorruptCheckpointError:
    """The error for half a sentence that says what is wrong; it names the checkpoint to go back to."""
    step = step_of(folder)
    others = by_step(folder.parent) if step is not None else []
    older = next((p for p in others if (step_of(p) or 0) < (step or 0) and size_problem(p) is None), None)
    way_out = f"Resume from the older checkpoint {older}" if older else "There is no older checkpoint: start afresh"
    return CorruptCheckpointError(f"The checkpoint {folder} cannot be used: {problem}. {way_out}.")


def write_error(target: Path, error: OSError, needed_bytes: int) -> CheckpointWriteError:
    """The error for what the system said; `needed_bytes` where the disk is full."""
    kept = newest(target.parent)
    rest = f"The newest complete checkpoint is {kept}." if kept else "There is no complete checkpoint yet."
    if error.errno not in NO_SPACE:
        return CheckpointWriteError(f"The checkpoint {target} could not be written: {error}. {rest}")
    return CheckpointWriteError(
        f"The disk is full: the checkpoint {target} needs {needed_bytes / MB:.1f} MB, {_free_mb(target.parent):.1f} MB "
        f"are free. Free some space, lower trainer.keep_checkpoints, or set paths.outputs to another disk. {rest}"
    )


def _free_mb(folder: Path) -> float:
    try:
        return shutil.disk_usage(folder).free / MB
    except OSError:
        return 0.0
