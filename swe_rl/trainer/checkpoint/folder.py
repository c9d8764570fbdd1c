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

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from swe_rl.errors import RunError, UserError
from swe_rl.host.kill_point import kill_point
from swe_rl.trainer.checkpoint.durable import Chunk, sync_folder, write_file
from swe_rl.trainer.checkpoint.manifest import (
    MANIFEST_FILE,
    MODEL_FILE,
    OPTIMIZER_FILE,
    STATE_FILE,
    by_step,
    hash_problem,
    is_sharded,
    manifest_content,
    read_json,
    size_problem,
    step_of,
)
from swe_rl.trainer.checkpoint.rng import capture_rng
from swe_rl.trainer.checkpoint.tensor_file import aliases, safetensors_chunks, tensor_bytes

MB = 1_000_000
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
STATE_KEYS = frozenset({"step", "weight_version", "tied", "counters", "rng", "data_order", "config", "config_hash"})


class CorruptCheckpointError(UserError):
    """A checkpoint is incomplete, damaged, or of another configuration; the message names the file and the way out."""


class CheckpointWriteError(RunError):
    """A checkpoint could not be written; older ones are intact."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a run needs to go on. `trainer` is for `Trainer.load_state_dict`, `rng` for `restore_rng`."""

    folder: Path
    step: int
    weight_version: int
    model: dict[str, Tensor]
    trainer: dict[str, Any]
    rng: dict[str, Any]
    data_order: Any
    config: dict[str, Any]
    config_hash: str


def config_hash(config: Mapping[str, Any]) -> str:
    """sha256 of the configuration as canonical JSON; the caller leaves out what may change between two starts."""
    return hashlib.sha256(json_bytes(config)).hexdigest()


def save(
    folder: Path,
    *,
    step: int,
    weight_version: int,
    model: Mapping[str, Tensor],
    trainer: Mapping[str, Any],
    data_order: Any,
    config: Mapping[str, Any],
    hash_of_config: str | None = None,
    keep: int = 2,
) -> Path:
    """Writes `folder/step_NNNNNN` and returns it, then prunes to the `keep` highest steps (0: keeps all).

    `model` is `Trainer.policy_weights()`, `trainer` is `Trainer.state_dict()`; `data_order` and `config` are JSON data.
    `hash_of_config` defaults to `config_hash(config)`. The random number generators' states are taken here.
    Raises CheckpointWriteError.
    """
    tied = aliases(model)
    weights = {name: tensor for name, tensor in model.items() if name not in tied}
    state = state_content(
        step=step,
        weight_version=weight_version,
        tied=tied,
        counters=trainer["counters"],
        data_order=data_order,
        config=config,
        hash_of_config=hash_of_config,
        adapter=trainer.get("adapter"),
    )
    target = folder / f"step_{step:06d}"
    aside = folder / f".{target.name}.tmp-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        _write_folder(aside, weights, trainer["tensors"], json_bytes(state))
        publish(aside, target)
        prune(folder, keep, target)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise write_error(target, error, tensor_bytes(weights) + tensor_bytes(trainer["tensors"])) from error
    return target


def state_content(
    *,
    step: int,
    weight_version: int,
    counters: Mapping[str, Any],
    data_order: Any,
    config: Mapping[str, Any],
    hash_of_config: str | None,
    tied: Mapping[str, str] | None = None,
    rng: Mapping[str, Any] | None = None,
    adapter: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What `state.json` holds; the random number generators' states are taken here unless they are given.

    `adapter`: what the stored weights are an adapter of (`Adapter.described`); None: they are the whole model.
    """
    return {
        "step": step,
        "weight_version": weight_version,
        "tied": dict(tied or {}),
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


def load(folder: Path, expected_config_hash: str | None = None) -> Checkpoint:
    """Reads one checkpoint and verifies every byte of it.

    Raises CorruptCheckpointError where a file is missing, has another size or sha256, the format version is unknown,
    or, with `expected_config_hash`, the checkpoint is of another configuration.
    """
    problem = size_problem(folder) or hash_problem(folder)
    if problem:
        raise corrupt(folder, problem)
    state = read_json(folder / STATE_FILE)
    check_state(folder, state, expected_config_hash)
    if is_sharded(folder):
        raise corrupt(folder, "many ranks wrote it, and its tensors are not whole: LocalTrainer.load reads it")
    try:
        model, optimizer = load_file(folder / MODEL_FILE), load_file(folder / OPTIMIZER_FILE)
    except SafetensorError as error:
        raise corrupt(folder, f"a tensor file cannot be read: {error}") from error
    return of_state(
        folder, state, {**model, **{name: model[first] for name, first in state["tied"].items()}}, optimizer
    )


def of_state(
    folder: Path, state: Mapping[str, Any], model: dict[str, Tensor], optimizer: dict[str, Tensor]
) -> Checkpoint:
    """`state` is what `state.json` holds."""
    return Checkpoint(
        folder=folder,
        step=state["step"],
        weight_version=state["weight_version"],
        model=model,
        trainer={"tensors": optimizer, "counters": state["counters"]},
        rng=state["rng"],
        data_order=state["data_order"],
        config=state["config"],
        config_hash=state["config_hash"],
    )


def _write_folder(aside: Path, weights: Mapping[str, Tensor], optimizer: Mapping[str, Tensor], state: bytes) -> None:
    aside.mkdir()
    contents: dict[str, Any] = {
        MODEL_FILE: safetensors_chunks(weights),
        OPTIMIZER_FILE: safetensors_chunks(optimizer),
        STATE_FILE: [state],
    }
    written = {name: write_file(aside / name, chunks) for name, chunks in contents.items()}
    manifest: list[Chunk] = [json_bytes(manifest_content(written))]
    write_file(aside / MANIFEST_FILE, manifest)
    sync_folder(aside)


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
