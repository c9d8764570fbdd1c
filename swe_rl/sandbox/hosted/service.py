"""This module has sandboxes of hosted services: what is asked of a service, and all that its sandboxes share.

Invariants:
- A service's module knows its SDK and nothing else. What a failure means, `Service.judge` says; what follows from
  that is decided here.
- A request that was refused because the service is busy is made again, with growing pauses, until its time is over. One
  that may have been carried out is made again only where that does no harm.
- Every sandbox has labels with its name and the process that asked for it. What a killed process of this host left is
  removed by the next run; elsewhere the service ends a sandbox that got no sign of life for sandbox.lease_s.
- A sandbox whose inside is silent, though the service lists it and another one of the same image answers, was broken by
  its own commands (they may be root's): that is the agent's doing, and no failure of infrastructure.
- The key comes from a variable of the environment, and is in no message.
"""

import asyncio
import contextlib
import os
import random
import uuid
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import UserError, one_line
from swe_rl.sandbox.base import image_of
from swe_rl.sandbox.hosted.labels import is_left, label_of_host, label_of_name, make_labels
from swe_rl.sandbox.sandbox import Door, OutsideError, SandboxError, Workspace
from swe_rl.sandbox.shell import MARGIN_S, ShellSandbox

_REQUEST_S = 60.0  # A request has so long in all, with its repetitions.
_FILE_S = 120.0
_SHARE_OF_START = 0.9  # The rest of sandbox.start_timeout_s is for what is done in the sandbox.
_SPARE_S = 5.0  # The service ends a script in time. A request has so long beyond that.
_FIRST_PAUSE_S = 0.5  # The first pause between tries. Each further one is twice as long, up to the longest.
_LONGEST_PAUSE_S = 16.0
# A command line has 128 KiB at most, some services take less. A longer script goes there as a file.
_MAX_LINE_BYTES = 32_000

Answer = TypeVar("Answer")


class Trouble(Enum):
    """Says what a failed request means."""

    busy = auto()  # The service did nothing, and will do it later.
    passing = auto()  # It may have been done. The service, or the way to it, has a fault that passes.
    denied = auto()  # The key is wrong, or may not do this.
    missing = auto()  # The service has no such image.
    gone = auto()  # There is no such sandbox any more.
    failed = auto()  # Anything else.


@dataclass(frozen=True, slots=True)
class Request:
    """Says what sandbox a service is asked for."""

    image: str
    labels: Mapping[str, str]
    lease_s: float
    config: SandboxConfig


@dataclass(frozen=True, slots=True)
class Ran:
    """This is what a script printed, and its exit status."""

    status: int
    stdout: str
    stderr: str


class Service(ABC):
    """This is a service by its SDK. A machine is whatever the SDK has for one sandbox.

    Every method raises what the SDK raises.
    """

    name: str  # The option of `sandbox`, which is also the extra with the SDK.

    @abstractmethod
    def judge(self, error: Exception) -> Trouble:
        """Returns what an error of the SDK means."""

    @abstractmethod
    async def start(self, request: Request) -> Any:
        """Returns a new machine, which runs."""

    @abstractmethod
    async def run(self, machine: Any, argv: tuple[str, ...], limit_s: float) -> Ran:
        """Runs a program in a machine."""

    @abstractmethod
    async def upload(self, machine: Any, path: str, content: bytes) -> None:
        """Writes a file in a machine."""

    @abstractmethod
    async def extend(self, machine: Any, lease_s: float) -> None:
        """Puts off the end of a machine, which comes `lease_s` seconds from now at the earliest."""

    @abstractmethod
    async def end(self, machine_id: str) -> None:
        """Ends a machine, and removes it."""

    @abstractmethod
    async def list_labels(self, wanted: Mapping[str, str]) -> dict[str, Mapping[str, str]]:
        """Returns the labels of all machines that have not ended and have the labels `wanted`, by their ids."""

    @abstractmethod
    def id_of(self, machine: Any) -> str:
        """Returns the id of a machine, for `end`."""

    async def close(self) -> None:
        """Ends the connections of the SDK."""


def read_key(service: str, variable: str) -> str:
    """Returns the key of a service from the environment. Raises UserError where there is none."""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise UserError(f"sandbox={service} needs a key of the service: set {variable} in the environment of the run")
    return key


class Requests:
    """This makes the requests of one service. `keys` are in no message of its errors."""

    def __init__(self, service: Service, *keys: str) -> None:
        self.service = service
        self._keys = keys
        self._random = random.Random(0)

    async def ask(
        self,
        call: Callable[[], Awaitable[Answer]],
        what: str,
        *,
        limit_s: float = _REQUEST_S,
        repeats: bool = True,
        inside: bool = False,
        fine: tuple[Trouble, ...] = (),
    ) -> Answer | None:
        """Returns what a request gives, or None for a trouble that is `fine`.

        A request that may have been carried out is made again only if it `repeats` without harm. Raises UserError where
        the key is wrong, and SandboxError. That is an OutsideError where the service has a fault, unless
        the request goes to what runs `inside` of a sandbox, which its commands can break.
        """
        clock = asyncio.get_running_loop().time
        ends_s = clock() + limit_s
        pause_s = _FIRST_PAUSE_S
        before = ""
        while True:
            try:
                async with asyncio.timeout_at(ends_s):
                    return await call()
            except Exception as error:
                if clock() >= ends_s:
                    said = f"sandbox={self.service.name}: {what} took longer than {limit_s:g} s{before}"
                    raise (SandboxError(said) if inside else OutsideError(said)) from None
                trouble = self.service.judge(error)
                if trouble in fine:
                    return None
                again = trouble is Trouble.busy or (trouble is Trouble.passing and repeats)
                wait_s = pause_s * (0.5 + self._random.random())
                if not again or clock() + wait_s > ends_s:
                    raise self._describe(error, trouble, what, inside) from None
                before = f"; before, it failed: {self._words_of(error)}"
            await asyncio.sleep(wait_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _describe(self, error: Exception, trouble: Trouble, what: str, inside: bool) -> Exception:
        """Returns the error of ours. That of the SDK is not kept with it: it may hold the key."""
        said = f"sandbox={self.service.name}: {what} failed: {self._words_of(error)}"
        if trouble is Trouble.denied:
            return UserError(f"{said}. The service does not accept the key, or the key may not do this")
        if trouble is Trouble.missing:
            return SandboxError(f"{said}. The service has no such image for this key")
        if trouble in (Trouble.busy, Trouble.passing) and not inside:
            return OutsideError(said)
        return SandboxError(said)

    def _words_of(self, error: Exception) -> str:
        words = f"{type(error).__name__}: {one_line(error)}"
        for key in self._keys:
            words = words.replace(key, "***")
        return words[:500]


class HostedSandbox(ShellSandbox):
    """This is a sandbox of a service."""

    wait_s = 20.0  # Each call goes through the service.

    def __init__(
        self,
        name: str,
        workdir: str,
        scratch: Path,
        config: SandboxConfig,
        requests: Requests,
        machine: Any,
        serves: Callable[[str], Awaitable[bool]],
    ) -> None:
        """`serves` tells whether the service lists the sandbox of a name, and starts others that answer."""
        super().__init__(name, workdir, scratch, config)
        self._serves = serves
        self._requests = requests
        self._service = requests.service
        self._machine = machine
        self._lease_s = config.lease_s

    async def start(self, folder: Path | None) -> None:
        """Makes the working folder, with what is in `folder`. Raises SandboxError."""
        self._keep_alive(self._lease_s)
        await self._own_all_processes()
        await self._make_workdir(folder)

    async def close(self) -> None:
        self._stop_signs()
        machine_id = self._service.id_of(self._machine)
        await self._requests.ask(lambda: self._service.end(machine_id), "its end", fine=(Trouble.gone,))

    async def _find_exceeded(self, error: SandboxError) -> str:
        try:
            if isinstance(error, OutsideError) or not await self._serves(self.sandbox_id):
                return ""
        except (SandboxError, UserError):
            return ""
        try:
            # It may have been silent for a while only.
            await self._ran("true", (), MARGIN_S)
        except SandboxError:
            return "a command that ended what serves it"
        return ""

    async def _give_sign_of_life(self) -> None:
        await self._requests.ask(
            lambda: self._service.extend(self._machine, self._lease_s), "a sign of life", limit_s=MARGIN_S
        )

    async def _upload(self, file: Path) -> str:
        return await self._upload_bytes(await asyncio.to_thread(file.read_bytes))

    async def _upload_bytes(self, content: bytes) -> str:
        target = f"/tmp/swe_rl-{uuid.uuid4().hex}"
        upload = self._service.upload
        await self._requests.ask(
            lambda: upload(self._machine, target, content), "writing a file", limit_s=_FILE_S, inside=True
        )
        return target

    async def _ran(self, script: str, words: tuple[str, ...], limit_s: float) -> tuple[int, str]:
        argv = ("bash", "-c", script, "swe_rl", *words)
        # A quote takes five bytes of a line that a shell reads.
        size_bytes = sum(len(word.encode("utf-8", "replace")) + 5 * word.count("'") for word in argv)
        if size_bytes > _MAX_LINE_BYTES:
            argv = await self._as_file(script, words)
        ran = await self._requests.ask(
            lambda: self._service.run(self._machine, argv, limit_s),
            "a script",
            limit_s=limit_s + _SPARE_S,
            inside=True,
        )
        assert ran is not None
        return ran.status, ran.stdout + ran.stderr if ran.status else ran.stdout

    async def _as_file(self, script: str, words: tuple[str, ...]) -> tuple[str, ...]:
        """Returns a short line that runs a script with long arguments, which come as a file of NUL-ended texts.

        The file stays, as the line may have to run twice.
        """
        content = "\0".join((script, *words)) + "\0"
        file = await self._upload_bytes(content.encode("utf-8", "replace"))
        reads = 'mapfile -d "" -t given < "$1"; set -- "${given[@]:1}"; eval "${given[0]}"'
        return ("bash", "-c", reads, "swe_rl", file)


class HostedSandboxes:
    """This makes the sandboxes of one service, as `swe_rl.api.Sandboxes` says. Raises UserError for mounts."""

    takes_images = True
    has_network = False
    ends_when_killed = True

    def __init__(self, config: SandboxConfig, scratch: Path, service: Service, *keys: str) -> None:
        if config.mounts:
            raise UserError(
                f"sandbox.mounts: folders of this machine are in no sandbox of {service.name}; put the programs into "
                "the image"
            )
        self._config = config
        self._scratch = scratch
        self._service = service
        self._requests = Requests(service, *keys)
        # Instances say it where the configuration does; the class says what the service can do.
        self.has_network = config.network
        self._cleaning: asyncio.Future[None] | None = None

    async def create(self, workspace: Workspace, owner: str, door: Door | None) -> HostedSandbox:
        """Returns a new sandbox. Raises UserError for a workspace without an image, and SandboxError."""
        image = image_of(workspace, self._config, owner)
        await self._remove_left_once()
        name = f"swe-rl-{uuid.uuid4().hex[:16]}"
        request = Request(image, make_labels(name, owner), self._config.lease_s, self._config)
        # The request goes on where its caller is cancelled: its machine is known, and can be ended, only by its answer.
        starting = asyncio.ensure_future(self._start(request))
        try:
            machine = await asyncio.shield(starting)
            sandbox = HostedSandbox(
                name,
                workspace.workdir,
                self._scratch,
                self._config,
                self._requests,
                machine,
                partial(self._serves, replace(workspace, path=None), owner),
            )
            await sandbox.start(workspace.path)
        except BaseException:
            await asyncio.shield(self._undo(starting, name))
            raise
        return sandbox

    async def is_there(self, sandbox_id: str) -> bool:
        """Tells whether a sandbox is there that has not ended."""
        return bool(await self._ids_named(sandbox_id))

    async def _serves(self, workspace: Workspace, owner: str, sandbox_id: str) -> bool:
        """Tells whether a sandbox is there, and whether a new one like it answers. Raises SandboxError, UserError."""
        if not await self.is_there(sandbox_id):
            return False
        another = await self.create(workspace, owner, None)
        await another.close()
        return True

    async def close(self) -> None:
        await self._service.close()

    async def _start(self, request: Request) -> Any:
        what = f"starting {request.image}"
        limit_s = _SHARE_OF_START * self._config.start_timeout_s
        return await self._requests.ask(lambda: self._service.start(request), what, limit_s=limit_s, repeats=False)

    async def _undo(self, starting: "asyncio.Future[Any]", name: str) -> None:
        """Ends what was started for a sandbox that nobody wants, whether or not the answer came."""
        await asyncio.wait({starting})
        # Why the sandbox is not wanted has to be said, and a cancellation may not be lost. The lease ends what is left.
        with contextlib.suppress(SandboxError, UserError):
            if not starting.cancelled() and starting.exception() is None:
                await self._end(self._service.id_of(starting.result()))
            else:
                for machine_id in await self._ids_named(name):
                    await self._end(machine_id)

    async def _end(self, machine_id: str) -> None:
        await self._requests.ask(lambda: self._service.end(machine_id), "its end", fine=(Trouble.gone,))

    async def _list(self, wanted: Mapping[str, str]) -> dict[str, Mapping[str, str]]:
        return await self._requests.ask(lambda: self._service.list_labels(wanted), "a list of sandboxes") or {}

    async def _ids_named(self, name: str) -> list[str]:
        return list(await self._list(label_of_name(name)))

    async def _remove_left_once(self) -> None:
        """Removes what killed processes of this host left, once for this provider. Raises what the list raises."""
        if self._cleaning is None or (self._cleaning.done() and self._cleaning.exception() is not None):
            self._cleaning = asyncio.ensure_future(self._remove_left())
        await asyncio.shield(self._cleaning)

    async def _remove_left(self) -> None:
        for machine_id, labels in (await self._list(label_of_host())).items():
            if is_left(labels):
                await self._end(machine_id)
