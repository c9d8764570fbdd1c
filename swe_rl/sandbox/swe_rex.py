"""This module is `sandbox=swe_rex`: it runs sandboxes as deployments of SWE-ReX, by that project's own library.

A deployment may be local, docker, modal, fargate, daytona or remote.

Invariants:
- Each sandbox has a deployment, which is stopped with it. A folder goes there as one archive. An image is the
  deployment's.
- Its server answers one request at a time, so a command runs beside it (`shell.py`), and the run's sign of life gets
  through.
- A container of docker that hears nothing from its run for sandbox.lease_s ends by itself, from its start on.
- The library is imported when the provider is made. No call of it that blocks its event loop runs on this one.
"""

import asyncio
import importlib
import math
import os
import shutil
import uuid
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import UserError
from swe_rl.sandbox.base import image_of
from swe_rl.sandbox.sandbox import Door, Workspace
from swe_rl.sandbox.shell import MARGIN_S, ShellSandbox

_CHECKS_IN_A_LEASE = 4  # Docker looks so often whether the lease is over.
_CONTAINERS = ("docker", "podman")  # These deployments take options of a container engine's command line.
_SHARED = ("local", "remote")  # Others have processes on the machine of such a deployment.
_OF_SERVER = 32  # SWE-ReX's own server needs so many processes and threads beside sandbox.max_processes.
_BEAT = "/tmp/swe_rl-beat"  # The time of this file is that of the run's last sign of life.
# Docker runs this in a container again and again, from its start on. The container's first process gets no signal from
# inside: it ends when all others have.
_LEASE = (
    "grep -qa swerex-remote /proc/1/cmdline || exit 0; [ -e {beat} ] || touch {beat}; "
    "[ $(($(date +%s) - $(stat -c %Y {beat}))) -le {seconds} ] || while :; do kill -KILL -1; sleep 0.2; done"
)


class SweRex:
    """This makes sandboxes by SWE-ReX. `options` are those of the deployment's own configuration."""

    takes_images = True
    has_network = True  # Each deployment has a server that is reached over one.

    def __init__(
        self, config: SandboxConfig, scratch: Path, deployment: str = "docker", options: dict[str, Any] | None = None
    ) -> None:
        self._config = config
        self._scratch = scratch
        self._options = dict(options or {})
        self._deployment = deployment
        self._local = deployment == "local"
        # Below this level the library prints the keys of its servers.
        os.environ.setdefault("SWE_REX_LOG_STREAM_LEVEL", "WARNING")
        try:
            self._kinds = importlib.import_module("swerex.deployment.config")
            importlib.import_module(f"swerex.deployment.{'local' if self._local else 'docker'}")
        except ModuleNotFoundError as error:
            raise UserError(f"sandbox=swe_rex needs {error.name}: pip install 'swe_rl[swe_rex]'") from error

    async def create(self, workspace: Workspace, owner: str, door: Door | None) -> "Deployed":
        """Returns a new sandbox. Raises UserError for an image or an option that the deployment does not take."""
        if self._local and workspace.image:
            raise UserError(f"{owner}: deployment=local has no images, and this is {workspace.image}; use docker")
        is_bare = self._local and workspace.toolchain is None
        if is_bare:
            image = None
        else:
            image = image_of(workspace, self._config, owner, self._local)
        name = f"swe_rex-{uuid.uuid4().hex[:12]}"
        if self._local:
            workdir = str(self._scratch / name)
        else:
            workdir = workspace.workdir
        deployment = self._made(image, name, owner)
        lease_s = 0.0
        if self._deployment == "docker":
            lease_s = self._config.lease_s
        made = Deployed(
            name,
            workdir,
            deployment,
            self._scratch,
            self._config,
            lease_s,
            local=self._local,
            owns_processes=self._deployment not in _SHARED,
        )
        try:
            await made.start(workspace.path)
        except BaseException:
            await asyncio.shield(made.close())
            raise
        return made

    def _made(self, image: str | None, sandbox_id: str, owner: str) -> Any:
        if self._deployment == "podman":
            name = "Docker"
        else:
            name = self._deployment.capitalize()
        of = getattr(self._kinds, f"{name}DeploymentConfig", None)
        if of is None:
            raise UserError(f"sandbox.params.deployment={self._deployment}: SWE-ReX has no such deployment")
        options = dict(self._options)
        if "image" in of.model_fields:
            options.setdefault("image", image)
        if self._deployment in _CONTAINERS:
            options.setdefault("container_runtime", self._deployment)
            options.setdefault("pull", str(self._config.pull))
            labels = ("--label", f"swe_rl.sandbox={sandbox_id}", "--label", f"swe_rl.owner={owner}")
            if self._deployment == "docker":
                watch = self._watch()
            else:
                watch = []
            options["docker_args"] = [*self._limits(), *watch, *labels, *options.get("docker_args", ())]
        try:
            return of(**options).get_deployment()
        except ValueError as error:
            raise UserError(f"sandbox.params.options of deployment={self._deployment}: {error}") from error

    def _limits(self) -> list[str]:
        """Returns the limits and mounts as words of the engine's command line. Raises UserError for `sandbox.host`."""
        config = self._config
        if config.host is not None:
            raise UserError(
                "sandbox.host is not read by sandbox=swe_rex: SWE-ReX starts containers by the command docker or "
                "podman. Set DOCKER_HOST or CONTAINER_HOST, which that command reads, and leave sandbox.host out"
            )
        words = ["--cpus", f"{config.cpus:g}", "--memory", f"{int(config.memory_gb * 1024**3)}"]
        words += ["--pids-limit", str(config.max_processes + _OF_SERVER)]
        for mount in config.mounts:
            words += ["--volume", mount if mount.endswith(":rw") else f"{mount}:ro"]
        return words

    def _watch(self) -> list[str]:
        seconds = math.ceil(self._config.lease_s)
        check = _LEASE.format(beat=_BEAT, seconds=seconds)
        return ["--health-cmd", check, "--health-interval", f"{math.ceil(seconds / _CHECKS_IN_A_LEASE)}s"]

    async def close(self) -> None: ...


class Deployed(ShellSandbox):
    """This is a sandbox in one deployment. `lease_s` is 0 where nothing there ends a deployment that its run left."""

    def __init__(
        self,
        sandbox_id: str,
        workdir: str,
        deployment: Any,
        scratch: Path,
        config: SandboxConfig,
        lease_s: float,
        *,
        local: bool,
        owns_processes: bool,
    ) -> None:
        super().__init__(sandbox_id, workdir, scratch, config)
        self._deployment = deployment
        self._local = local
        self._owns_processes = owns_processes
        self._lease_s = lease_s
        self._starting: asyncio.Future[None] | None = None

    async def start(self, folder: Path | None) -> None:
        """Starts the deployment, and unpacks `folder` there as the working folder. Raises SandboxError."""
        self._starting = asyncio.ensure_future(_run_aside(self._deployment.start()))
        await asyncio.shield(self._starting)
        if self._lease_s:
            self._keep_alive(self._lease_s)
        if self._owns_processes:
            await self._own_all_processes()
        if folder is not None:
            await self._unpack(folder)

    async def _give_sign_of_life(self) -> None:
        await self._ran('touch -- "$1"', (_BEAT,), MARGIN_S)

    async def close(self) -> None:
        self._stop_signs()
        await _run_aside(self._deployment.stop())
        # The start was given up before its end. What it starts from now on is stopped, too.
        if self._starting is not None and not self._starting.done():
            await asyncio.wait({self._starting})
            await _run_aside(self._deployment.stop())
        if self._local:
            for folder in filter(None, (self.workdir, self._place)):
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _upload(self, file: Path) -> str:
        from swerex.runtime.abstract import UploadRequest

        target = f"/tmp/swe_rl-{uuid.uuid4().hex}"
        await self._deployment.runtime.upload(UploadRequest(source_path=str(file), target_path=target))
        return target

    async def _ran(self, script: str, words: tuple[str, ...], limit_s: float) -> tuple[int, str]:
        from swerex.runtime.abstract import Command

        argv = ["bash", "-c", script, "swe_rl", *words]
        command = Command(command=argv, timeout=limit_s)
        call = self._deployment.runtime.execute(command)
        # A local deployment blocks the loop that it runs on.
        done = await (_run_aside(call) if self._local else call)
        status = int(done.exit_code or 0)
        return status, f"{done.stdout}{done.stderr}" if status else str(done.stdout)


async def _run_aside(call: Coroutine[Any, Any, Any]) -> Any:
    """Returns what `call` returns; it runs in a thread, on a loop of its own, because it blocks its loop."""
    return await asyncio.to_thread(asyncio.run, call)
