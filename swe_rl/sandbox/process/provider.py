"""This module makes sandboxes of local processes, whose commands are isolated by bubblewrap where that works.

Invariants:
- What was prepared is shared below an overlay (see `overlay`), or copied: the sandbox's writes reach no other.
- Each sandbox has a folder of its own below the provider's, which is removed on close, on `close` of the provider and
  at the end of this process; a lease lets a later run remove what a killed one left.
- At most `sandbox.concurrency` commands run at a time over all sandboxes.
- A door is the gateway's own address where commands share this machine's network, else a socket in the sandbox's own
  temporary folder, which goes away with it.
"""

import asyncio
import atexit
import contextlib
import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import UserError
from swe_rl.files.kill_point import kill_point
from swe_rl.sandbox.base import safe_name
from swe_rl.sandbox.door import Doorway, direct_url
from swe_rl.sandbox.lease import make_scratch
from swe_rl.sandbox.process.bubblewrap import HOME
from swe_rl.sandbox.process.control_group import ControlGroups, usable_parent
from swe_rl.sandbox.process.isolation import choose_launcher
from swe_rl.sandbox.process.launcher import SandboxFolder
from swe_rl.sandbox.process.overlay import Layer, Mounter, Stack, can_be_shared
from swe_rl.sandbox.process.sandbox import Bounded, ProcessSandbox
from swe_rl.sandbox.process.snapshots import DOOR_FOLDER, ProcessSnapshots
from swe_rl.sandbox.process.watcher import Watcher, bounds_of, say_bounds
from swe_rl.sandbox.process_tree import kill_marked
from swe_rl.sandbox.sandbox import Door, SandboxError, Snapshot, Workspace, close_all
from swe_rl.sandbox.working_copy import copy_tree, remove_or_say, remove_tree


class ProcessProvider:
    """This makes ProcessSandboxes below `scratch`, as the protocol says.

    Raises UserError when the isolation that `config` asks for does not work here. `warn` hears when isolation=auto has
    to do without, and at the end of what cannot be removed.
    """

    def __init__(self, config: SandboxConfig, scratch: Path, *, warn: Callable[[str], None]) -> None:
        self._config = config
        self._warn = warn
        self._pid = os.getpid()
        self._folder = make_scratch(scratch, "process")
        kill_point("lease_written")
        atexit.register(self._remove)
        try:
            self._launcher = choose_launcher(config, self._folder, warn)
        except BaseException:
            self._remove()
            raise
        parent = usable_parent()
        self._groups = ControlGroups(parent, config) if isinstance(parent, Path) else None
        self._watcher = Watcher(bounds_of(config, by_kernel=self._groups is not None))
        say_bounds(config, self._launcher, parent if isinstance(parent, str) else "", warn)
        self._places = asyncio.Semaphore(config.concurrency)
        self._boots = asyncio.Semaphore(config.start_concurrency)
        self._mounter = Mounter()
        self._snapshots = ProcessSnapshots(self._folder, self._mounter)
        self._open: set[ProcessSandbox] = set()
        self._counter = itertools.count(1)
        self._closed = False

    @property
    def isolated(self) -> bool:
        """Tells whether commands are isolated."""
        return self._launcher.isolated

    async def create(self, workspace: Workspace, *, owner: str, door: Door | None = None) -> ProcessSandbox:
        """Returns a new sandbox. Raises UserError for an unusable workspace, SandboxError when it cannot be copied."""
        if self._closed:
            raise SandboxError("the sandbox provider is closed")
        if workspace.path is None:
            raise UserError(
                f"{owner}: sandbox.kind=process needs instances with a folder on this machine, and this one has the "
                f"image {workspace.image!r}; use sandbox.kind=docker or podman"
            )
        source = workspace.path
        root = self._new_root(owner)
        folder = self._launcher.folder(root, workspace)
        boot = partial(_make_folder, folder, source, self._mounter, shares=self._launcher.shares)
        try:
            return await self._make(folder, boot, door)
        except OSError as error:
            raise SandboxError(f"{owner}: the workspace {source} cannot be copied: {error}") from error

    async def fork(self, snapshot: Snapshot, *, owner: str, door: Door | None = None) -> ProcessSandbox:
        """Returns a new sandbox with the files of a snapshot. Raises SandboxError where that is impossible."""
        if self._closed:
            raise SandboxError("the sandbox provider is closed")
        workspace = self._snapshots.workspace_of(snapshot)
        folder = self._launcher.folder(self._new_root(owner), workspace)
        try:
            return await self._make(folder, partial(self._snapshots.fork, snapshot, folder), door)
        except OSError as error:
            raise SandboxError(f"{owner}: {snapshot.snapshot_id} cannot be forked: {error}") from error

    async def drop(self, snapshot: Snapshot) -> None:
        """Forgets a snapshot. Raises SandboxError where something of it cannot be removed."""
        try:
            await asyncio.to_thread(self._snapshots.drop, snapshot)
        except OSError as error:
            raise SandboxError(f"{snapshot.snapshot_id} cannot be removed: {error}") from error

    def _new_root(self, owner: str) -> Path:
        return self._folder / f"{safe_name(owner)}-{next(self._counter)}"

    async def _make(
        self, folder: SandboxFolder, boot: Callable[[], SandboxFolder], door: Door | None
    ) -> ProcessSandbox:
        """Returns the sandbox whose folder `boot` makes. Raises OSError, SandboxError, and leaves nothing then."""
        root = folder.root
        doorway = self._doorway(door, folder)
        making = asyncio.ensure_future(self._boot(boot))
        bounded: Bounded | None = None
        try:
            folder = await asyncio.shield(making)
            kill_point("sandbox_made")
            bounded = await self._bounded(root)
            if doorway is not None:
                await doorway.open()
        except BaseException:
            if bounded is not None and bounded.group is not None:
                bounded.group.remove()
            await asyncio.shield(asyncio.ensure_future(self._take_back(making, doorway, root)))
            raise
        url = None
        if doorway:
            url = doorway.url
        elif door:
            url = direct_url(door)
        sandbox = ProcessSandbox(
            folder,
            self._launcher,
            self._config,
            self._places,
            self._open.discard,
            bounded=bounded,
            snapshots=self._snapshots,
            door_url=url,
            doorway=doorway,
        )
        self._open.add(sandbox)
        return sandbox

    async def _boot(self, boot: Callable[[], SandboxFolder]) -> SandboxFolder:
        """Makes the folder of a sandbox, and returns it with its namespace. Raises OSError.

        Only a few are made at a time, because copies beside each other would make all of them late.
        """
        async with self._boots:
            return await asyncio.to_thread(boot)

    async def _take_back(self, making: "asyncio.Future[SandboxFolder]", doorway: Doorway | None, root: Path) -> None:
        """Removes what there is of a sandbox that could not be made."""
        await asyncio.wait([making])
        made = None
        if not making.cancelled() and making.exception() is None:
            made = making.result()
        if made is not None and made.namespace is not None:
            made.namespace.close()
        if doorway is not None:
            await doorway.close()
        # What cannot be removed is left to the provider's end, because what went wrong before is what counts.
        with contextlib.suppress(OSError):
            await asyncio.to_thread(remove_tree, root)
            if made is not None:
                await asyncio.to_thread(self._snapshots.release, made.stacks)

    async def _bounded(self, root: Path) -> Bounded:
        """Returns what bounds a new sandbox. Raises OSError where the kernel's group for it cannot be made."""
        watched = await asyncio.to_thread(self._watcher.folder, root)
        return Bounded(self._watcher, watched, self._groups.make(root.name) if self._groups else None)

    def _doorway(self, door: Door | None, folder: SandboxFolder) -> Doorway | None:
        """Returns a doorway, or None without a door, and where commands share this machine's network."""
        if door is None or self._config.network or not self._launcher.isolated:
            return None
        return Doorway(door, folder.tmp / DOOR_FOLDER, f"{HOME}/{DOOR_FOLDER}")

    async def close(self) -> None:
        self._closed = True
        await close_all(list(self._open), self._warn)
        await asyncio.to_thread(self._mounter.close)
        await asyncio.to_thread(self._remove)

    def _remove(self) -> None:
        """Removes the provider's folder, whatever is in it. It is also called at the end of the process."""
        if os.getpid() != self._pid:
            # A forked child ends, and the folder is its parent's.
            return
        atexit.unregister(self._remove)
        if self._folder.exists():
            kill_marked(f"{self._folder}{os.sep}")
            remove_or_say(self._folder, self._warn)


def _make_folder(folder: SandboxFolder, source: Path, mounter: Mounter, *, shares: bool) -> SandboxFolder:
    """Makes the folder of a sandbox, and returns it with its namespace where its parts are shared. Raises OSError.

    A workspace with programs of its own is big, so it is shared where that is possible. Others are copied at once.
    """
    folder.root.mkdir(mode=0o700)
    folder.tmp.mkdir(mode=0o700)
    for place, _ in folder.place_folders:
        place.mkdir(mode=0o755)
        if folder.uid is not None:
            os.chown(place, folder.uid, folder.uid)
    # This process owns it, so that a command cannot replace mount points below it.
    folder.tmp.chmod(0o1777)
    if folder.toolchain is None:
        copy_tree(source, folder.work, uid=folder.uid)
        return folder
    layers = [(source, folder.work), (folder.toolchain.folder, folder.programs)]
    if shares and all(can_be_shared(shared) for shared, _ in layers):
        stacks = tuple(Stack(new.name, (Layer(shared),)) for shared, new in layers)
        return replace(folder, namespace=mounter.mount(folder.root, stacks, folder.uid), stacks=stacks)
    for shared, new in layers:
        copy_tree(shared, new, uid=folder.uid)
    return folder
