"""This module makes sandboxes as containers of Docker or podman.

Invariants:
- At most `sandbox.concurrency` sandboxes are open, and `sandbox.start_concurrency` being started; a caller waits.
- A container ends when this process does, however it does: its first process reads from a connection of ours. A small
  process of its own, and the next provider on this host, remove what was created and never started.
- Whatever fails in `create`, no container and no folder stays behind.
"""

import asyncio
import contextlib
import itertools
import os
import re
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from swe_rl.config.choices import SandboxKind
from swe_rl.config.engine_address import engine_address
from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import UserError
from swe_rl.files.disk import write_json_atomic
from swe_rl.files.json_text import encode_json
from swe_rl.sandbox.base import BaseProvider, HeadTail, clear_away, image_of, safe_name
from swe_rl.sandbox.container import spec
from swe_rl.sandbox.container.engine import ContainerEngine, ImageMissingError, ProviderIdentity, labels_of
from swe_rl.sandbox.container.files import pack_folder
from swe_rl.sandbox.container.guard import STOP_SIGNAL, Guard, beat_all, guard_argv
from swe_rl.sandbox.container.images import Images
from swe_rl.sandbox.container.reaper import Reaper
from swe_rl.sandbox.container.sandbox import Archives, ContainerSandbox, SnapshotCalls
from swe_rl.sandbox.container.seccomp import make_profile
from swe_rl.sandbox.container.snapshots import ContainerSnapshots
from swe_rl.sandbox.door import Doorway, prepare_folder
from swe_rl.sandbox.lease import make_scratch
from swe_rl.sandbox.sandbox import Door, SandboxError, Snapshot, Workspace, close_all
from swe_rl.sandbox.warm_pool import WarmPool
from swe_rl.sandbox.working_copy import remove_or_say, remove_tree

_SPARE_THREADS = 8  # Archives and removals have so many threads beside the starts.
# An engine that cannot limit a container's disk refuses with one of these words.
_NO_DISK_LIMIT = re.compile(r"storage.?opt|quota", re.I)


@dataclass(frozen=True, slots=True)
class ContainerRecipe:
    """This is all that a container is made from. Sandboxes of one recipe are interchangeable until they are used."""

    image: str
    source: Path | None
    workdir: str
    with_door: bool


@dataclass(slots=True)
class Started:
    """This is a container that is up, with its guard."""

    name: str
    container_id: str
    recipe: ContainerRecipe
    guard: Guard
    door_folder: Path | None


class ContainerProvider(BaseProvider[ContainerSandbox]):
    """This makes sandboxes as containers; `run` names the run in labels, and `warn` hears what is not enforced.

    Raises UserError when no engine answers.
    """

    def __init__(self, config: SandboxConfig, scratch: Path, *, warn: Callable[[str], None], run: str = "") -> None:
        super().__init__(config)
        self._warn = warn
        self._mounts = tuple(spec.parse_mount(text) for text in config.mounts)
        address = engine_address(config, os.environ)
        threads = config.start_concurrency + _SPARE_THREADS
        self._engine = ContainerEngine(address, threads=threads, timeout_s=config.start_timeout_s)
        self._identity = ProviderIdentity.mine(secrets.token_hex(6), run)
        self._folder = make_scratch(scratch, "containers")
        self._images = Images(self._engine, config)
        self._snapshots = ContainerSnapshots(self._engine, self._identity)
        self._pool: WarmPool[ContainerRecipe, Started] = WarmPool(
            lambda recipe: self._start(recipe, "warm"),
            self._discard,
            lambda started: not started.guard.ended,
            per_recipe=config.warm_pool,
            total=config.concurrency,
        )
        self._starts = asyncio.Semaphore(config.start_concurrency)
        self._open: dict[ContainerSandbox, Started] = {}
        self._counter = itertools.count(1)
        self._limits_disk = True
        self._seccomp: str | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._reaper: Reaper | None = None

    @property
    def engine(self) -> ContainerEngine:
        """Returns the engine on which the containers are."""
        return self._engine

    @property
    def warm(self) -> int:
        """Returns how many sandboxes are ready and belong to nobody yet."""
        return self._pool.ready

    async def close(self) -> None:
        self._closed = True
        if self._preparing is not None:
            await asyncio.wait([self._preparing])
        await self._pool.close()
        await close_all(list(self._open), self._warn)
        if self._beating is not None:
            self._beating.cancel()
        try:
            await self._snapshots.close()
        except SandboxError as error:
            self._warn(str(error))
        if self._reaper is not None:
            await asyncio.to_thread(self._reaper.dismiss)
        await self._engine.close()
        await asyncio.to_thread(remove_or_say, self._folder, self._warn)

    def _recipe(self, workspace: Workspace, owner: str, door: Door | None) -> ContainerRecipe:
        image = image_of(workspace, self._config, owner)
        if door is not None and not self._engine.address.startswith("unix:"):
            raise UserError(
                f"{owner}: a program in the sandbox is to reach the gateway through a socket of this machine, and the "
                f"engine is at {self._engine.address}: use an engine of this machine, or sandbox=remote"
            )
        return ContainerRecipe(image, workspace.path, workspace.workdir, door is not None)

    async def _prepare(self, workspace: Workspace, owner: str, door: Door | None) -> None:
        """Raises UserError for a workspace that does not fit.

        The first call removes leftovers of runs that are gone, and starts the heartbeat.
        """
        self._recipe(workspace, owner, door)
        if self._preparing is None:
            self._preparing = asyncio.ensure_future(self._prepare_once())
        await asyncio.shield(self._preparing)

    async def _prepare_once(self) -> None:
        await self._engine.remove_orphans(socket.gethostname())
        await self._snapshots.remove_orphans(socket.gethostname())
        self._seccomp = await self._seccomp_option()
        self._reaper = await asyncio.to_thread(Reaper, self._engine.address, self._identity, self._folder)
        self._beating = asyncio.ensure_future(beat_all(self._config.lease_s, self._guards))

    async def _seccomp_option(self) -> str | None:
        """Returns our filter as the engine wants it: docker takes the filter itself, podman a file of its host.

        It is None where the engine filters nothing, or cannot read our file and keeps its own filter. Raises
        SandboxError.
        """
        if not await self._engine.filters_calls():
            self._warn(f"the engine at {self._engine.address} filters no system calls: containers may make all of them")
            return None
        if self._config.kind is not SandboxKind.podman:
            return encode_json(make_profile()).decode()
        if not self._engine.address.startswith("unix:"):
            return None
        path = self._folder / "seccomp.json"
        await asyncio.to_thread(write_json_atomic, path, make_profile())
        return str(path)

    def _guards(self) -> list[Guard]:
        return [started.guard for started in (*self._open.values(), *self._pool.everyone())]

    async def _make(self, workspace: Workspace, owner: str, door: Door | None) -> ContainerSandbox:
        """Returns a new sandbox. Raises SandboxError, which is an ImageMissingError where nobody has the image."""
        recipe = self._recipe(workspace, owner, door)
        started = await self._taken(recipe, owner) or await self._start(recipe, owner)
        return await self._opened(started, door)

    async def _make_fork(self, snapshot: Snapshot, owner: str, door: Door | None) -> ContainerSandbox:
        kept = self._snapshots.image_of(snapshot)
        recipe = ContainerRecipe(kept.image, None, kept.workdir, door is not None)
        return await self._opened(await self._start(recipe, owner), door)

    async def drop(self, snapshot: Snapshot) -> None:
        """Forgets a snapshot. Its image goes with the last container of it."""
        await self._snapshots.drop(snapshot)

    async def _opened(self, started: Started, door: Door | None) -> ContainerSandbox:
        doorway = None
        try:
            if door is not None and started.door_folder is not None:
                doorway = Doorway(door, started.door_folder, spec.DOOR_FOLDER)
                await doorway.open()
        except BaseException:
            await asyncio.shield(self._discard(started))
            raise
        sandbox = ContainerSandbox(
            started.name,
            started.recipe.workdir,
            started.guard,
            self._archives(started),
            self._config,
            self._closed_one,
            SnapshotCalls(self._take_snapshot, self._reset_one),
            doorway,
        )
        self._open[sandbox] = started
        return sandbox

    def _archives(self, started: Started) -> Archives:
        return Archives(
            lambda folder, archive: self._engine.put_archive(started.container_id, folder, archive),
            lambda path: self._engine.get_archive(started.container_id, path),
        )

    async def _take_snapshot(self, sandbox: ContainerSandbox) -> Snapshot:
        started = self._open[sandbox]
        return await self._snapshots.take(started.container_id, started.recipe.workdir)

    async def _reset_one(self, sandbox: ContainerSandbox, snapshot: Snapshot) -> tuple[Guard, Archives]:
        """Starts a container from a snapshot in the place of a sandbox's container, which is removed.

        The new one sees the folder of the same door.
        """
        before = self._open[sandbox]
        kept = self._snapshots.image_of(snapshot)
        recipe = replace(before.recipe, image=kept.image, source=None)
        started = await self._start(recipe, before.name, door_folder=before.door_folder)
        if sandbox not in self._open:
            # The sandbox was closed meanwhile.
            await asyncio.shield(self._discard(replace(started, door_folder=None)))
            raise SandboxError(f"sandbox {sandbox.sandbox_id} is closed")
        self._open[sandbox] = started
        await asyncio.shield(self._discard(replace(before, door_folder=None)))
        return started.guard, self._archives(started)

    async def _taken(self, recipe: ContainerRecipe, owner: str) -> Started | None:
        """Returns a container that is ready already, under its new owner's name, or None where there is none."""
        started = self._pool.take(recipe)
        if started is not None:
            name = self._name(owner)
            try:
                await self._engine.rename(started.container_id, name)
            except SandboxError:
                await asyncio.shield(self._discard(started))
                return None
            except BaseException:
                await asyncio.shield(self._discard(started))
                raise
            started.name = name
        return started

    async def _start(self, recipe: ContainerRecipe, owner: str, door_folder: Path | None = None) -> Started:
        """Returns a new container that is up; `door_folder` is there already where it is given."""
        await self._images.ensure(recipe.image, owner)
        async with self._starts:
            name = self._name(owner)
            folder = door_folder
            if recipe.with_door and folder is None:
                folder = self._folder / name
            # The end of an `async with` would run in the caller's task, and a cancelled caller would leave a container.
            undo = contextlib.AsyncExitStack()
            try:
                if folder is not None and door_folder is None:
                    undo.push_async_callback(asyncio.to_thread, remove_tree, folder)
                    prepare_folder(folder)
                undo.push_async_callback(self._engine.remove, name)
                async with asyncio.timeout(self._config.start_timeout_s):
                    return await self._boot(recipe, owner, name, folder, undo)
            except TimeoutError as error:
                await asyncio.shield(undo.aclose())
                raise SandboxError(
                    f"{owner}: container {name} was not up after {self._config.start_timeout_s:g} s "
                    "(sandbox.start_timeout_s)"
                ) from error
            except OSError as error:
                await asyncio.shield(undo.aclose())
                raise SandboxError(f"{owner}: container {name} could not be made: {error}") from error
            except ImageMissingError:
                self._images.forget(recipe.image)
                await asyncio.shield(undo.aclose())
                raise
            except BaseException:
                await asyncio.shield(undo.aclose())
                raise

    async def _boot(
        self, recipe: ContainerRecipe, owner: str, name: str, folder: Path | None, undo: contextlib.AsyncExitStack
    ) -> Started:
        container_id = await self._create(recipe, owner, name, folder)
        stream = await self._engine.attach(container_id)
        undo.push_async_callback(stream.close)
        await self._engine.start(container_id, name)
        guard = Guard(stream, interrupt=lambda: self._engine.signal(container_id, STOP_SIGNAL))
        if recipe.source is not None:
            archive = await asyncio.to_thread(pack_folder, recipe.source, recipe.workdir)
            await self._engine.put_archive(container_id, "/", archive)
        await _greet_guard(guard, recipe, self._config.start_timeout_s)
        return Started(name, container_id, recipe, guard, folder)

    async def _create(self, recipe: ContainerRecipe, owner: str, name: str, folder: Path | None) -> str:
        starts_until_s = time.time() + 2 * self._config.start_timeout_s
        options: dict[str, Any] = {
            "environment": spec.sandbox_variables(self._config),
            "labels": labels_of(self._identity, owner, starts_until_s),
            "hostname": "sandbox",
            "host_options": spec.host_options(self._config, self._mounts, folder, self._seccomp),
        }
        argv = guard_argv(self._config.lease_s)
        if not self._limits_disk:
            options["host_options"].pop("storage_opt", None)
        try:
            return await self._engine.create(recipe.image, argv, name, **options)
        except SandboxError as error:
            if "storage_opt" not in options["host_options"] or not _NO_DISK_LIMIT.search(str(error)):
                raise
            if self._limits_disk:
                self._limits_disk = False
                self._warn(f"sandbox.disk_gb={self._config.disk_gb:g} is not enforced by this engine: {error}")
            return await self._create(recipe, owner, name, folder)

    async def _closed_one(self, sandbox: ContainerSandbox) -> None:
        started = self._open[sandbox]
        try:
            await self._discard(started)
        finally:
            del self._open[sandbox]
            self._places.release()

    async def _discard(self, started: Started) -> None:
        try:
            await self._engine.remove(started.container_id)
        finally:
            await started.guard.close()
        await self._snapshots.sweep()
        if started.door_folder is not None:
            await asyncio.to_thread(clear_away, started.door_folder, started.name)

    def _name(self, owner: str) -> str:
        return f"swe_rl-{self._identity.provider}-{next(self._counter)}-{safe_name(owner)}"


async def _greet_guard(guard: Guard, recipe: ContainerRecipe, timeout_s: float) -> None:
    """Returns once the guard answers: then the container is up and has bash. Raises SandboxError where it does not."""
    said = HeadTail(4096)
    status, _ = await guard.run(":", said, workdir=recipe.workdir, timeout_s=timeout_s, env={})
    if status != 0:
        raise SandboxError(f"image {recipe.image!r}: a first command ended with status {status}: {said.text()[-300:]}")
