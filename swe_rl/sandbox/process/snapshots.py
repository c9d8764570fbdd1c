"""This module keeps snapshots of process sandboxes: what was written is set aside as one more layer, or copied.

Invariants:
- A sandbox whose working copy is an overlay gives what it wrote so far to the snapshot, as a layer that nobody writes
  again, and goes on with an empty one above it. So a snapshot takes no longer for a large sandbox.
- Copied are the temporary folder, further folders, working copies without an overlay, and what was written where a
  layer would show something else: a file with several names is one file only as long as it is not below.
- What a snapshot's user wrote belongs to the user of the sandbox that shows it.
- A layer is there as long as a snapshot or a sandbox needs it, and no longer.
- Every call blocks and is for a thread. No command runs in the sandbox meanwhile.
"""

import itertools
import os
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from swe_rl.sandbox.exact_copy import copy_exactly, fill_exactly, has_hard_links, make_alike
from swe_rl.sandbox.process.launcher import SandboxFolder
from swe_rl.sandbox.process.overlay import Layer, Mounter, Stack
from swe_rl.sandbox.sandbox import SandboxError, Snapshot, Workspace
from swe_rl.sandbox.working_copy import remove_tree

# The socket of a sandbox's door is in this folder of its temporary folder, and in no snapshot.
DOOR_FOLDER = ".swe_rl"
_TMP = "tmp"
# With more layers each look at a file takes longer, so from then on what was written is copied.
_MOST_LAYERS = 24


@dataclass(frozen=True, slots=True)
class _Kept:
    """These are the files of a snapshot."""

    folder: Path
    uid: int | None
    workspace: Workspace  # Only sandboxes with the same programs and further folders can show them.
    stacks: tuple[Stack, ...]  # There are none where the working copy is a copy.
    copied: frozenset[str]  # What was written above these stacks is a copy in `folder`.


class ProcessSnapshots:
    """These are the snapshots of one provider, below its folder."""

    def __init__(self, folder: Path, mounter: Mounter) -> None:
        self._folder = folder
        self._mounter = mounter
        self._counter = itertools.count(1)
        self._kept: dict[str, _Kept] = {}
        self._users: Counter[Path] = Counter()  # So many snapshots and sandboxes need a layer.
        self._lock = threading.Lock()

    def take(self, folder: SandboxFolder) -> tuple[Snapshot, SandboxFolder]:
        """Returns a snapshot of a sandbox's folder, and the folder as it is from now on. Raises OSError."""
        name = f"snapshot-{next(self._counter)}"
        kept = self._folder / name
        kept.mkdir(mode=0o700)
        try:
            _copy_besides(folder, kept)
            copied: frozenset[str] = frozenset()
            if folder.namespace is None:
                for part in _own_copies(folder):
                    copy_exactly(part, kept / part.name)
            else:
                folder, copied = self._set_aside(folder, kept)
        except BaseException:
            remove_tree(kept)
            raise
        workspace = Workspace(workdir=folder.workdir, toolchain=folder.toolchain, places=folder.places)
        entry = _Kept(kept, folder.uid, workspace, folder.stacks, copied)
        with self._lock:
            self._kept[name] = entry
        self._hold(folder.stacks)
        return Snapshot(name), folder

    def fork(self, snapshot: Snapshot, folder: SandboxFolder) -> SandboxFolder:
        """Makes the folder of a new sandbox with the files of a snapshot. Raises OSError, SandboxError."""
        kept = self._find(snapshot, folder)
        folder.root.mkdir(mode=0o700)
        folder.tmp.mkdir(mode=0o700)
        folder.tmp.chmod(0o1777)
        return self._fill(kept, folder)

    def reset(self, snapshot: Snapshot, folder: SandboxFolder) -> tuple[SandboxFolder, Path]:
        """Brings a sandbox's folder back to a snapshot. Raises OSError, SandboxError.

        Returns it as it is then, and a folder in it with what was there before, which is to be removed.
        """
        kept = self._find(snapshot, folder)
        if folder.namespace is not None:
            folder.namespace.close()
        for path in folder.tmp.iterdir():
            if path.name != DOOR_FOLDER:
                remove_tree(path)
        # What was written may be large. So it is only moved here, and the sandbox does not wait for its removal.
        aside = folder.root / f"stale-{next(self._counter)}"
        aside.mkdir(mode=0o700)
        stale = [place for place, _ in folder.place_folders]
        stale += _own_copies(folder) if folder.namespace is None else _written_parts(folder)
        for path in stale:
            path.replace(aside / path.name)
        filled = self._fill(kept, replace(folder, namespace=None, stacks=()))
        self.release(folder.stacks)
        return filled, aside

    def drop(self, snapshot: Snapshot) -> None:
        """Forgets a snapshot, and removes its copies, and the layers that nobody else needs. Raises OSError."""
        with self._lock:
            kept = self._kept.pop(snapshot.snapshot_id, None)
        if kept is None:
            return
        for path in kept.folder.iterdir():
            if path.name not in {stack.upper for stack in kept.stacks} or path.name in _upper_names(kept):
                remove_tree(path)
        self.release(kept.stacks)
        _remove_if_empty(kept.folder)

    def workspace_of(self, snapshot: Snapshot) -> Workspace:
        """Returns what a sandbox with the files of a snapshot is made like. Raises SandboxError."""
        with self._lock:
            kept = self._kept.get(snapshot.snapshot_id)
        if kept is None:
            raise SandboxError(f"there is no {snapshot.snapshot_id} any more: it was dropped")
        return kept.workspace

    def release(self, stacks: Sequence[Stack]) -> None:
        """Removes the layers that a sandbox or a snapshot needed and nobody needs any more. Raises OSError."""
        gone = []
        with self._lock:
            for layer in _own_layers(stacks):
                self._users[layer] -= 1
                if not self._users[layer]:
                    del self._users[layer]
                    gone.append(layer)
        for layer in gone:
            remove_tree(layer)
            _remove_if_empty(layer.parent)

    def _hold(self, stacks: Sequence[Stack]) -> None:
        with self._lock:
            self._users.update(_own_layers(stacks))

    def _find(self, snapshot: Snapshot, folder: SandboxFolder) -> _Kept:
        workspace = self.workspace_of(snapshot)
        if (workspace.toolchain, workspace.places) != (folder.toolchain, folder.places):
            raise SandboxError(f"{snapshot.snapshot_id} is of another workspace than {folder.root.name}")
        return self._kept[snapshot.snapshot_id]

    def _set_aside(self, folder: SandboxFolder, kept: Path) -> tuple[SandboxFolder, frozenset[str]]:
        """Gives what was written to a snapshot. Returns the sandbox's folder with an empty layer above it, and the
        names of the stacks whose upper folder was copied."""
        assert folder.namespace is not None
        copied = {stack.name for stack in folder.stacks if _has_to_be_copied(folder.root / stack.upper, stack)}
        for stack in folder.stacks:
            if stack.name in copied:
                copy_exactly(folder.root / stack.upper, kept / stack.upper)
        if len(copied) == len(folder.stacks):
            return folder, frozenset(copied)
        folder.namespace.close()
        stacks = []
        for stack in folder.stacks:
            remove_tree(folder.root / stack.spare)
            if stack.name in copied:
                stacks.append(stack)
                continue
            (folder.root / stack.upper).replace(kept / stack.upper)
            make_alike(kept / stack.upper, folder.root / stack.upper)
            stacks.append(Stack(stack.name, (Layer(kept / stack.upper, folder.uid), *stack.layers)))
        before = folder.stacks
        folder = replace(folder, namespace=self._mounter.mount(folder.root, stacks, folder.uid), stacks=tuple(stacks))
        self._hold(folder.stacks)
        self.release(before)
        return folder, frozenset(copied)

    def _fill(self, kept: _Kept, folder: SandboxFolder) -> SandboxFolder:
        """Fills a folder that has nothing but an empty temporary folder."""
        owners = None
        if kept.uid is not None and folder.uid is not None:
            owners = (kept.uid, folder.uid)
        fill_exactly(kept.folder / _TMP, folder.tmp, owners, but=())
        for place, _ in folder.place_folders:
            copy_exactly(kept.folder / place.name, place, owners)
        if not kept.stacks:
            for part in _own_copies(folder):
                copy_exactly(kept.folder / part.name, part, owners)
            return folder
        for stack in kept.stacks:
            if stack.name in kept.copied:
                copy_exactly(kept.folder / stack.upper, folder.root / stack.upper, owners)
            else:
                make_alike(stack.layers[0].folder, folder.root / stack.upper, owners)
        namespace = self._mounter.mount(folder.root, kept.stacks, folder.uid)
        self._hold(kept.stacks)
        return replace(folder, namespace=namespace, stacks=kept.stacks)


def _own_copies(folder: SandboxFolder) -> list[Path]:
    """Returns the folders that are copied where they are no overlays."""
    return [folder.work] if folder.toolchain is None else [folder.work, folder.programs]


def _written_parts(folder: SandboxFolder) -> list[Path]:
    return [folder.root / name for stack in folder.stacks for name in (stack.upper, stack.spare)]


def _upper_names(kept: _Kept) -> set[str]:
    """Returns the names of the copies of what was written, which are no layers."""
    return {stack.upper for stack in kept.stacks if stack.name in kept.copied}


def _copy_besides(folder: SandboxFolder, kept: Path) -> None:
    """Copies what is never an overlay."""
    (kept / _TMP).mkdir(mode=0o700)
    fill_exactly(folder.tmp, kept / _TMP, None, but=(DOOR_FOLDER,))
    for place, _ in folder.place_folders:
        copy_exactly(place, kept / place.name)


def _has_to_be_copied(upper: Path, stack: Stack) -> bool:
    return len(stack.layers) >= _MOST_LAYERS or has_hard_links(upper)


def _own_layers(stacks: Sequence[Stack]) -> list[Path]:
    """Returns the layers that sandboxes wrote. The lowest one is what was prepared, and nobody removes it here."""
    return [layer.folder for stack in stacks for layer in stack.layers[:-1]]


def _remove_if_empty(folder: Path) -> None:
    """Removes a snapshot's folder when its last part is gone."""
    if folder.is_dir() and not any(os.scandir(folder)):
        folder.rmdir()
