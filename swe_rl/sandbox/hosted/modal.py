"""This module is `sandbox=modal`: each sandbox is one of Modal, by that service's own SDK.

Invariants:
- The network is open only with sandbox.network=true. CPUs and memory are those of sandbox.cpus and sandbox.memory_gb.
- The service ends a sandbox that is idle for sandbox.lease_s, which each sign of life puts off, and after `deadline_s`
  in any case.
- The SDK is imported when the provider is made. Its files of keys are not read.
"""

import asyncio
import importlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import UserError
from swe_rl.sandbox.hosted.service import HostedSandboxes, Ran, Request, Service, Trouble, read_key
from swe_rl.sandbox.sandbox import SandboxError

_FIRST = ("bash", "-c", "while :; do sleep 60; done")  # A sandbox runs while its first process does.
_DENIED = ("AuthError", "PermissionDeniedError")
_BUSY = ("ResourceExhaustedError",)
_GONE = ("NotFoundError", "SandboxTerminatedError", "SandboxTimeoutError")
_MISSING = ("ImageBuildError", "RemoteError")  # The service cannot pull the image, or cannot build on it.
_PASSING = ("ConnectionError", "InternalError", "InternalFailure", "ServiceError")


class Modal(HostedSandboxes):
    """This makes sandboxes of Modal, in the app `app`. `python` is added to images that have none.

    Raises UserError where the SDK or a key is missing.
    """

    def __init__(
        self,
        config: SandboxConfig,
        scratch: Path,
        id_env: str = "MODAL_TOKEN_ID",
        secret_env: str = "MODAL_TOKEN_SECRET",
        app: str = "swe_rl",
        python: str | None = None,
        deadline_s: int = 86_400,
    ) -> None:
        keys = (read_key("modal", id_env), read_key("modal", secret_env))
        super().__init__(config, scratch, ModalService(keys, app, python, deadline_s), *keys)


class ModalService(Service):
    """This is Modal's API."""

    name = "modal"

    def __init__(self, keys: tuple[str, str], app: str, python: str | None, deadline_s: int) -> None:
        try:
            self._sdk: Any = importlib.import_module("modal")
        except ModuleNotFoundError as error:
            raise UserError(f"sandbox=modal needs {error.name}: pip install 'swe_rl[modal]'") from error
        self._keys = keys
        self._app_name = app
        self._python = python
        self._deadline_s = deadline_s
        self._client: Any = None
        self._app: Any = None
        self._connecting = asyncio.Lock()

    def judge(self, error: Exception) -> Trouble:
        kind = type(error).__name__
        kinds = ((_DENIED, Trouble.denied), (_BUSY, Trouble.busy), (_GONE, Trouble.gone), (_MISSING, Trouble.missing))
        for names, trouble in kinds:
            if kind in names:
                return trouble
        if kind in _PASSING or isinstance(error, OSError):
            return Trouble.passing
        return Trouble.failed

    async def start(self, request: Request) -> Any:
        config = request.config
        await self._connect()
        image = self._sdk.Image.from_registry(request.image, add_python=self._python).entrypoint([])
        memory_mb = math.ceil(config.memory_gb * 1024)
        return await self._sdk.Sandbox.create.aio(
            *_FIRST,
            app=self._app,
            client=self._client,
            image=image,
            tags=dict(request.labels),
            timeout=self._deadline_s,
            idle_timeout=math.ceil(request.lease_s),
            cpu=(config.cpus, config.cpus),
            memory=(memory_mb, memory_mb),
            block_network=not config.network,
        )

    async def run(self, machine: Any, argv: tuple[str, ...], limit_s: float) -> Ran:
        process = await machine.exec.aio(*argv, timeout=math.ceil(limit_s), text=False, workdir="/")
        stdout, stderr = await asyncio.gather(process.stdout.read.aio(), process.stderr.read.aio())
        status = await process.wait.aio()
        if status < 0:
            # The SDK says so of a command that was over its time.
            raise SandboxError(f"it did not end within {limit_s:g} s")
        return Ran(int(status), stdout.decode("utf-8", "replace"), stderr.decode("utf-8", "replace"))

    async def upload(self, machine: Any, path: str, content: bytes) -> None:
        await machine.filesystem.write_bytes.aio(content, path)

    async def extend(self, machine: Any, lease_s: float) -> None:
        # A command is a sign of life. Nothing else puts off the end of a sandbox.
        process = await machine.exec.aio("true", timeout=math.ceil(lease_s))
        await process.wait.aio()

    async def end(self, machine_id: str) -> None:
        await self._connect()
        machine = await self._sdk.Sandbox.from_id.aio(machine_id, client=self._client)
        await machine.terminate.aio()

    async def list_labels(self, wanted: Mapping[str, str]) -> dict[str, Mapping[str, str]]:
        await self._connect()
        machines = self._sdk.Sandbox.list.aio(app_id=self._app.app_id, tags=dict(wanted), client=self._client)
        return {machine.object_id: await machine.get_tags.aio() async for machine in machines}

    def id_of(self, machine: Any) -> str:
        return str(machine.object_id)

    async def _connect(self) -> None:
        async with self._connecting:
            if self._app is None:
                self._client = await self._sdk.Client.from_credentials.aio(*self._keys)
                self._app = await self._sdk.App.lookup.aio(self._app_name, client=self._client, create_if_missing=True)
