"""Saves and loads a trainer: every rank writes its own rows, in the background, into one folder.

Invariants:
- The rules of `folder` hold: a checkpoint is written aside, fsynced, hashed and renamed; older ones are pruned
  afterwards.
- A process that trains alone is the one rank of one.
- Nothing is copied as a whole: shards are written from the live tensors, some MB at a time. Until they are written
  nobody changes them: rollouts, weight updates and forward passes go on, the optimizer's next update waits.
- Nothing is collective while it is written; ranks meet through files, so all of them must see the same folder.
- Whoever waits, waits as long as the folder grows.
- Any number of ranks reads what any other number wrote.
- At most one is being written; the next `save` and `wait` first wait for it and raise what went wrong.
"""

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from swe_rl.config.known_models import MANIFEST_FILE, STATE_FILE
from swe_rl.trainer.checkpoint import folder as checkpoint
from swe_rl.trainer.checkpoint.folder import (
    INDEX_FILE,
    Checkpoint,
    CheckpointWriteError,
    files_of,
    manifest_content,
    read_json,
    size_problem,
    sync_folder,
    write_file,
    wrong_hash,
)
from swe_rl.trainer.checkpoint.stored import Piece, index_entries, joined_index, pieces_of, restore_trainer, shard_name
from swe_rl.trainer.checkpoint.tensor_file import safetensors_chunks, tensor_bytes
from swe_rl.trainer.policy import Trainer
from swe_rl.trainer.pulse import Beat, no_beat
from swe_rl.trainer.sharded.mesh import Mesh

# A rank looks this often for a file of another rank. One look is one `stat`, which a shared disk can bear.
_POLL_S = 0.05
# While it waits for its writer, a rank looks this often whether the folder grows, and gives a sign of life if so. Its
# driver waits much longer (`trainer.collective_timeout_s`) before it calls the rank lost.
_LOOK_S = 0.5


class Checkpoints:
    """Saves and loads the part of one rank. All ranks call the same methods in the same order."""

    def __init__(self, mesh: Mesh, *, timeout_s: float = 1800.0, beat: Beat = no_beat) -> None:
        """Keeps the mesh. `timeout_s` is how long ranks wait for each other's files while none of them grows.

        `beat` is called while something is written or read.
        """
        self._mesh = mesh
        self._timeout_s = timeout_s
        self._beat = beat
        self._writing: threading.Thread | None = None
        self._aside = Path()
        self._error: BaseException | None = None

    def save(
        self, folder: Path, trainer: Trainer, *, step: int, keep: int = 2, background: bool = True, **rest: Any
    ) -> Path:
        """Begins `folder/step_NNNNNN`, which is there once `wait` returns. Raises CheckpointWriteError.

        Then prunes to the `keep` highest steps (0: keeps all). `background` False: it is there when this returns.
        `rest` is for `folder.state_content`.
        """
        self.wait()
        target = folder / f"step_{step:06d}"
        self._aside = aside = folder / f".{target.name}.tmp-shards"
        if self._mesh.rank == 0:
            with _write_errors(target):
                _make_folders(folder, aside)
        # This is the last collective of a checkpoint: until here nobody has a folder to write into.
        self._mesh.barrier()
        state = trainer.state_dict()
        pieces = pieces_of(trainer, state["tensors"], self._mesh)
        content = checkpoint.state_content(step=step, counters=state["counters"], adapter=state["adapter"], **rest)
        write = partial(self._write, target, pieces, content, keep)
        if background:
            self._writing = threading.Thread(target=self._keeping_errors, args=(write,), name="checkpoint")
            trainer.wait_before_updates(self.settle)
            self._writing.start()
        else:
            write()
        return target

    def wait(self) -> None:
        """Returns once nothing is being written on this rank. Raises CheckpointWriteError where it failed."""
        self.settle()
        error = self._error
        self._error = None
        if error is not None:
            raise error

    def settle(self) -> None:
        """Returns once nobody reads the trainer's tensors any more; what went wrong is for `wait` to raise."""
        if self._writing is None:
            return
        growth = Growth(self._aside)
        while self._writing.is_alive():
            self._writing.join(_LOOK_S)
            if growth.seen():
                self._beat()
        self._writing = None

    def load(self, folder: Path, trainer: Trainer, expected_config_hash: str | None = None) -> Checkpoint:
        """Puts this rank's rows into model and optimizer.

        Every byte is verified, by one rank each. Raises CorruptCheckpointError, on all ranks.
        """
        self.settle()
        problem = size_problem(folder) or self._shared_problem(folder)
        if problem:
            raise checkpoint.corrupt_error(folder, problem)
        state = read_json(folder / STATE_FILE)
        checkpoint.check_state(folder, state, expected_config_hash)
        restore_trainer(trainer, folder, state, self._beat)
        return checkpoint.of_state(folder, state)

    def _shared_problem(self, folder: Path) -> str | None:
        names = files_of(folder)
        problem = wrong_hash(folder, names[self._mesh.rank :: self._mesh.world], self._beat)
        anywhere = self._mesh.maximum(torch.tensor([float(problem is not None)], device=self._mesh.device))
        if not float(anywhere):
            return None
        return problem or "a file was changed after it was written (wrong sha256; another rank found it)"

    def _keeping_errors(self, write: Callable[[], None]) -> None:
        try:
            write()
        # The next `wait` raises it, on the caller's thread.
        except BaseException as error:
            self._error = error

    def _write(self, target: Path, pieces: dict[str, Piece], state: dict[str, Any], keep: int) -> None:
        tensors = {name: piece.values for name, piece in pieces.items()}
        # Whatever ends the writing, a folder that will never be whole must go: the other ranks wait for it otherwise.
        with _write_errors(target, tensor_bytes(tensors)):
            try:
                self._write_all(self._aside, target, pieces, state)
                # Two ranks would take the same folder away from each other.
                if self._mesh.rank == 0:
                    checkpoint.prune_checkpoints(target.parent, keep, target)
            except BaseException:
                # The missing folder tells the other ranks.
                shutil.rmtree(self._aside, ignore_errors=True)
                raise

    def _write_all(self, aside: Path, target: Path, pieces: dict[str, Piece], state: dict[str, Any]) -> None:
        rank = self._mesh.rank
        world = self._mesh.world
        name = shard_name(rank, world)
        size, digest = write_file(
            aside / name, safetensors_chunks({key: piece.values for key, piece in pieces.items()})
        )
        note: dict[str, Any] = {"size": size, "sha256": digest, "index": index_entries(pieces, name)}
        if rank > 0:
            _write_json_atomic(aside / f"{name}.json", note)
            self._await(target.exists, aside, f"{target}, which rank 0 renames")
            return
        notes = [note]
        for other in range(1, world):
            path = aside / f"{shard_name(other, world)}.json"
            self._await(path.is_file, aside, f"{path}, which rank {other} writes")
            notes.append(read_json(path))
            path.unlink()
        written = {shard_name(i, world): (note["size"], note["sha256"]) for i, note in enumerate(notes)}
        index = joined_index([note["index"] for note in notes])
        written[INDEX_FILE] = write_file(aside / INDEX_FILE, [checkpoint.json_bytes(index)])
        written[STATE_FILE] = write_file(aside / STATE_FILE, [checkpoint.json_bytes(state)])
        write_file(aside / MANIFEST_FILE, [checkpoint.json_bytes(manifest_content(written))])
        sync_folder(aside)
        checkpoint.publish_folder(aside, target)

    def _await(self, done: Callable[[], bool], aside: Path, what: str) -> None:
        """Returns once `done()` is true. Raises TimeoutError where another rank gave up, or nothing grows
        for too long.
        """
        growth = Growth(aside)
        until = time.monotonic() + self._timeout_s
        while not done():
            # `done` is asked once more: rank 0 may have renamed the folder between the two questions, which is no
            # failure.
            if not aside.is_dir() and not done():
                raise TimeoutError(f"another rank gave up before there was {what}")
            if growth.seen():
                until = time.monotonic() + self._timeout_s
            if time.monotonic() > until:
                raise TimeoutError(f"there is still no {what}, and nothing was written for {self._timeout_s:.0f} s")
            time.sleep(_POLL_S)


@contextmanager
def _write_errors(target: Path, needed_bytes: int = 0) -> Iterator[None]:
    """Raises CheckpointWriteError for what the system, or another rank's file, says."""
    try:
        yield
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and not isinstance(error, TimeoutError):
            raise checkpoint.write_error(target, error, needed_bytes) from error
        raise CheckpointWriteError(f"The checkpoint {target} could not be written: {error}.") from error


def _make_folders(folder: Path, aside: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint.remove_leftovers(folder)
    aside.mkdir()


def _write_json_atomic(path: Path, content: Mapping[str, Any]) -> None:
    aside = path.with_name(f".{path.name}")
    aside.write_text(json.dumps(content), encoding="utf-8")
    aside.rename(path)


class Growth:
    """Tells whether a folder's files have become more, or larger, since the last look."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._state = self._sizes()

    def seen(self) -> bool:
        before = self._state
        self._state = self._sizes()
        return self._state != before

    def _sizes(self) -> list[tuple[str, int]]:
        sizes = []
        # The folder gets its name just now, or another rank gave up.
        with suppress(OSError):
            for entry in os.scandir(self._folder):
                with suppress(OSError):
                    sizes.append((entry.name, entry.stat().st_size))
        return sorted(sizes)
