"""This module is `sandbox=kubernetes`: each sandbox is a pod, by the official client of Kubernetes.

Invariants:
- The cluster and the key are those of $KUBECONFIG, or of the service account that the run itself has in a cluster.
- Commands and files go through the API server's `exec`, so a pod needs no network and no server. A pod has no service
  account, and its network policy denies everything, which some network plugins of clusters do not enforce.
- A pod that hears nothing from its run for sandbox.lease_s ends by itself, and after `deadline_s` in any case. What is
  left of ended pods is removed by the next run that uses the namespace.
- A pod that its own limits of memory, disk or processes ended used too much, which is its agent's doing. A node that
  lacks them is at fault itself.
- The library is imported when the provider is made. Its calls block, so they run in threads of this module.
"""

import asyncio
import contextlib
import math
import shlex
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import UserError
from swe_rl.sandbox.base import image_of, safe_name
from swe_rl.sandbox.hosted.cluster import CONTAINER, LABEL, NO_PROCESS, Cluster, Exec, describe_exceeded
from swe_rl.sandbox.sandbox import Door, SandboxError, Workspace
from swe_rl.sandbox.shell import MARGIN_S, ShellSandbox

# The first process of a pod. It ends when the lease is over, and the pod with it. A sign of life is a signal, as a
# command could remove a file or make it old, and so end its pod. No signal from inside ends a first process.
_FIRST = (
    "beat=$SECONDS; trap 'beat=$SECONDS' USR1; mkdir -p {workdir}; "
    "while [ $((SECONDS - beat)) -le {seconds} ]; do sleep 1; done"
)
_BEAT = "kill -USR1 1"
# The arguments are $1: a path, $2: the number of bytes. A websocket cannot end the input.
_TAKE = 'head -c "$2" > "$1" && [ "$(wc -c < "$1")" -eq "$2" ]'
_InThread = Callable[..., Awaitable[Any]]
_PULLS = {"missing": "IfNotPresent", "always": "Always", "never": "Never"}


class Kubernetes:
    """This makes pods in a namespace. `pod` is merged into the specification of each (a nodeSelector, tolerations).

    Raises UserError where the client is missing or finds no cluster, and for mounts.
    """

    takes_images = True
    # The network policy is a request to the cluster, which may ignore it.
    has_network = True
    ends_when_killed = True

    def __init__(
        self,
        config: SandboxConfig,
        scratch: Path,
        namespace: str = "default",
        context: str | None = None,
        deadline_s: int = 86_400,
        pod: dict[str, Any] | None = None,
    ) -> None:
        if config.mounts:
            raise UserError("sandbox.mounts: folders of this machine are in no pod; put the programs into the image")
        self._config = config
        self._scratch = scratch
        self._namespace = namespace
        self._deadline_s = int(deadline_s)
        self._pod = dict(pod or {})
        self._cluster = Cluster(namespace, context)
        # A call that waits for a command holds a thread. Signs of life and ends need some beside them.
        self._threads = ThreadPoolExecutor(2 * config.concurrency + 4, thread_name_prefix="swe_rl-kubernetes")
        self._prepared: asyncio.Future[None] | None = None

    async def create(self, workspace: Workspace, owner: str, door: Door | None) -> "Pod":
        """Returns a new sandbox. Raises UserError for a workspace without an image, and SandboxError."""
        image = image_of(workspace, self._config, owner)
        if self._prepared is None or (self._prepared.done() and self._prepared.exception() is not None):
            self._prepared = asyncio.ensure_future(self._in_thread(self._cluster.prepare))
        await asyncio.shield(self._prepared)
        name = f"swe-rl-{uuid.uuid4().hex[:16]}"
        pod = Pod(name, workspace.workdir, self._scratch, self._config, self._cluster, self._in_thread)
        described = self._describe(name, image, owner, workspace.workdir)
        making = asyncio.ensure_future(self._in_thread(self._cluster.create, described))
        try:
            await asyncio.shield(making)
            await pod.start(workspace.path, self._config.start_timeout_s)
        except BaseException:
            await asyncio.shield(_undo(making, pod))
            raise
        return pod

    async def is_there(self, sandbox_id: str) -> bool:
        """Tells whether a pod is there that has not ended."""
        status = await self._in_thread(self._cluster.read_status, sandbox_id)
        return status is not None and status.phase not in ("Succeeded", "Failed")

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, call: Callable[..., Any], *words: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *words)

    def _describe(self, name: str, image: str, owner: str, workdir: str) -> dict[str, Any]:
        """Returns the pod in the words of Kubernetes' API."""
        config = self._config
        amounts = {"cpu": f"{config.cpus:g}", "memory": str(int(config.memory_gb * 1024**3))}
        if config.disk_gb:
            amounts["ephemeral-storage"] = str(int(config.disk_gb * 1024**3))
        first = _FIRST.format(workdir=shlex.quote(workdir), seconds=math.ceil(config.lease_s))
        container = {
            "name": CONTAINER,
            "image": image,
            "imagePullPolicy": _PULLS[config.pull],
            "command": ["bash", "-c", first],
            "resources": {"limits": amounts, "requests": amounts},
            "securityContext": {"allowPrivilegeEscalation": False},
        }
        spec = {
            "containers": [container],
            "restartPolicy": "Never",
            "activeDeadlineSeconds": self._deadline_s,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "shareProcessNamespace": False,
        }
        labels = {LABEL: name, "swe_rl.owner": safe_name(owner)[:60].strip("-_.") or "sandbox"}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": labels},
            "spec": {**self._pod, **spec},
        }


async def _undo(making: "asyncio.Future[None]", pod: "Pod") -> None:
    """Removes a pod that is not wanted. Its request may still be on the way, and would make it afterwards."""
    await asyncio.wait({making})
    # Why the pod is not wanted has to be said, and a cancellation may not be lost. Its lease ends what is left.
    with contextlib.suppress(SandboxError):
        await pod.close()


class Pod(ShellSandbox):
    """This is a sandbox in a pod of its own."""

    wait_s = 20.0  # Each call is a connection through the API server.

    def __init__(
        self, name: str, workdir: str, scratch: Path, config: SandboxConfig, cluster: "Cluster", in_thread: _InThread
    ) -> None:
        super().__init__(name, workdir, scratch, config)
        self._cluster = cluster
        self._in_thread = in_thread
        self._lease_s = config.lease_s
        self._pull_tries = max(1, config.pull_retries)
        self._memory_gb = config.memory_gb

    async def start(self, folder: Path | None, limit_s: float) -> None:
        """Waits until the pod runs, and unpacks `folder` in it as the working folder. Raises SandboxError."""
        await self._in_thread(self._cluster.wait_until_runs, self.sandbox_id, limit_s, self._pull_tries)
        self._keep_alive(self._lease_s)
        await self._own_all_processes()
        await self._make_workdir(folder)

    async def close(self) -> None:
        self._stop_signs()
        await self._in_thread(self._cluster.delete, self.sandbox_id)

    async def _find_exceeded(self, error: SandboxError) -> str:
        if NO_PROCESS in str(error):
            return "more processes than its pod may have"
        with contextlib.suppress(SandboxError):
            status = await self._in_thread(self._cluster.read_end, self.sandbox_id)
            if status is not None:
                return describe_exceeded(status, self._memory_gb)
        return ""

    async def _give_sign_of_life(self) -> None:
        await self._ran(_BEAT, (), MARGIN_S)

    async def _upload(self, file: Path) -> str:
        target = f"/tmp/swe_rl-{uuid.uuid4().hex}"
        content = await asyncio.to_thread(file.read_bytes)
        status, said = await self._call(_TAKE, (target, str(len(content))), 120.0, content)
        if status:
            raise SandboxError(f"{self.sandbox_id}: a file did not arrive: {said[-300:]}")
        return target

    async def _ran(self, script: str, words: tuple[str, ...], limit_s: float) -> tuple[int, str]:
        return await self._call(script, words, limit_s, b"")

    async def _call(self, script: str, words: tuple[str, ...], limit_s: float, more: bytes) -> tuple[int, str]:
        typed = f"set -- {shlex.join(words)}\n{script}".encode("utf-8", "replace")
        call = Exec(self._cluster, self.sandbox_id, len(typed), typed + more, limit_s)
        try:
            status, output = await self._in_thread(call.run)
        finally:
            call.is_given_up.set()
        return status, output.decode("utf-8", "replace")
