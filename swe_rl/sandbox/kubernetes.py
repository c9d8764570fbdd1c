"""This module is `sandbox=kubernetes`: each sandbox is a pod, by the official client of Kubernetes.

Invariants:
- The cluster and the key are those of $KUBECONFIG, or of the service account that the run itself has in a cluster.
- Commands and files go through the API server's `exec`, so a pod needs no network and no server. A pod has no service
  account, and its network policy denies everything, which some network plugins of clusters do not enforce.
- A pod that hears nothing from its run for sandbox.lease_s ends by itself, and after `deadline_s` in any case. What is
  left of ended pods is removed by the next run that uses the namespace.
- The library is imported when the provider is made. Its calls block, so they run in threads of this module.
"""

import asyncio
import contextlib
import importlib
import math
import os
import re
import shlex
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import UserError, one_line
from swe_rl.sandbox.base import image_of, safe_name
from swe_rl.sandbox.sandbox import Door, OutsideError, SandboxError, Workspace
from swe_rl.sandbox.shell import MARGIN_S, ShellSandbox

_LABEL = "swe_rl.sandbox"  # Every pod of ours has it; its value is the pod's name.
_POLICY = "swe-rl-deny"
_CONTAINER = "sandbox"
_CALL_S = 30.0  # One request of the API server may take so long.
_LOOK_S = 0.3  # A pod that starts is looked at so often.
_CHUNK_BYTES = 256 * 1024
_TRIES = 5  # A request that a busy cluster refuses is made so often in all.
_PAUSE_S = 1.0  # The first pause between tries. Each further one is twice as long.
_BUSY = (429, 503)  # With these statuses nothing was done.
# The first process of a pod. It ends when the lease is over, and the pod with it. A sign of life is a signal, as a
# command could remove a file or make it old, and so end its pod. No signal from inside ends a first process.
_FIRST = (
    "beat=$SECONDS; trap 'beat=$SECONDS' USR1; mkdir -p {workdir}; "
    "while [ $((SECONDS - beat)) -le {seconds} ]; do sleep 1; done"
)
_BEAT = "kill -USR1 1"
# The script and its arguments come by the input, as those of a request are limited to some kilobytes. $1: their bytes.
_FROM_INPUT = 'eval "$(head -c "$1")"'
# The arguments are $1: a path, $2: the number of bytes. A websocket cannot end the input.
_TAKE = 'head -c "$2" > "$1" && [ "$(wc -c < "$1")" -eq "$2" ]'
_HOPELESS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError",
             "CreateContainerError", "RunContainerError")  # fmt: skip
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
        self._cluster = _Cluster(namespace, context)
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
            "name": _CONTAINER,
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
        labels = {_LABEL: name, "swe_rl.owner": safe_name(owner)[:60].strip("-_.") or "sandbox"}
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
        self, name: str, workdir: str, scratch: Path, config: SandboxConfig, cluster: "_Cluster", in_thread: _InThread
    ) -> None:
        super().__init__(name, workdir, scratch, config)
        self._cluster = cluster
        self._in_thread = in_thread
        self._lease_s = config.lease_s

    async def start(self, folder: Path | None, limit_s: float) -> None:
        """Waits until the pod runs, and unpacks `folder` in it as the working folder. Raises SandboxError."""
        await self._in_thread(self._cluster.wait_until_runs, self.sandbox_id, limit_s)
        self._keep_alive(self._lease_s)
        await self._own_all_processes()
        if folder is None:
            await self._script('mkdir -p -- "$1"', self.workdir)
        else:
            await self._unpack(folder)

    async def close(self) -> None:
        self._stop_signs()
        await self._in_thread(self._cluster.delete, self.sandbox_id)

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
        call = _Exec(self._cluster, self.sandbox_id, len(typed), typed + more, limit_s)
        try:
            status, output = await self._in_thread(call.run)
        finally:
            call.is_given_up.set()
        return status, output.decode("utf-8", "replace")


class _Cluster:
    """Holds the connection to one cluster. Every method blocks. Raises SandboxError where the cluster refuses."""

    def __init__(self, namespace: str, context: str | None) -> None:
        self.namespace = namespace
        try:
            self.client: Any = importlib.import_module("kubernetes.client")
            self.stream: Any = importlib.import_module("kubernetes.stream")
            loader: Any = importlib.import_module("kubernetes.config")
        except ModuleNotFoundError as error:
            raise UserError(f"sandbox=kubernetes needs {error.name}: pip install 'swe_rl[kubernetes]'") from error
        self.configuration = self.client.Configuration()
        named = os.environ.get("KUBECONFIG")
        try:
            if not named and not context and "KUBERNETES_SERVICE_HOST" in os.environ:
                loader.load_incluster_config(client_configuration=self.configuration)
            else:
                loader.load_kube_config(named, context=context, client_configuration=self.configuration)
        except (loader.ConfigException, OSError, TypeError) as error:
            raise UserError(
                f"sandbox=kubernetes finds no cluster ({one_line(error)}): set KUBECONFIG to the file that has it, "
                "and sandbox.params.context to its context"
            ) from error
        self._core = self.client.CoreV1Api(self.client.ApiClient(self.configuration))

    def prepare(self) -> None:
        """Makes the network policy, and removes what is left of pods of ours that have ended."""
        networks = self.client.NetworkingV1Api(self._core.api_client)
        selector = {"matchExpressions": [{"key": _LABEL, "operator": "Exists"}]}
        policy = {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": _POLICY},
            "spec": {"podSelector": selector, "policyTypes": ["Ingress", "Egress"]},
        }
        self._ask(networks.create_namespaced_network_policy, self.namespace, policy, fine=(409,))
        listed = self._ask(self._core.list_namespaced_pod, self.namespace, label_selector=_LABEL)
        for pod in listed.items:
            if pod.status.phase in ("Succeeded", "Failed"):
                self.delete(pod.metadata.name)

    def create(self, pod: dict[str, Any]) -> None:
        self._ask(self._core.create_namespaced_pod, self.namespace, pod)

    def delete(self, name: str) -> None:
        """Removes a pod at once. One that is gone is fine."""
        self._ask(self._core.delete_namespaced_pod, name, self.namespace, grace_period_seconds=0, fine=(404,))

    def read_status(self, name: str) -> Any:
        """Returns the status of a pod, or None where there is no such pod."""
        pod = self._ask(self._core.read_namespaced_pod, name, self.namespace, fine=(404,))
        if pod is None:
            return None
        return pod.status

    def wait_until_runs(self, name: str, limit_s: float) -> None:
        """Returns when the pod's container runs. Raises SandboxError for one that will not."""
        ends_s = time.monotonic() + limit_s
        while True:
            status = self.read_status(name)
            if status is None or status.phase in ("Succeeded", "Failed"):
                raise OutsideError(f"{name}: the pod ended before it began ({_describe_end(status)})")
            states = [each.state for each in status.container_statuses or () if each.name == _CONTAINER]
            if status.phase == "Running" and states and states[0].running is not None:
                return
            waiting = states[0].waiting if states else None
            if waiting is not None and waiting.reason in _HOPELESS:
                raise SandboxError(f"{name}: the pod cannot start: {waiting.reason}: {one_line(waiting.message)}")
            if time.monotonic() > ends_s:
                raise SandboxError(f"{name}: the pod does not run after {limit_s:g} s; it is {status.phase}")
            time.sleep(_LOOK_S)

    def retry(self, request: Callable[[], Any]) -> Any:
        """Returns what a request gives, which is made again while the cluster is busy. Raises what it raises."""
        for number in range(_TRIES - 1):
            try:
                return request()
            except Exception as error:
                if _status_of(error) not in _BUSY:
                    raise
            time.sleep(_PAUSE_S * 2**number)
        return request()

    def _ask(self, call: Callable[..., Any], *words: Any, fine: tuple[int, ...] = (), **named: Any) -> Any:
        """Returns what a request gives, or None for a status that is `fine`. Raises SandboxError."""
        try:
            return self.retry(lambda: call(*words, **named, _request_timeout=_CALL_S))
        except self.client.ApiException as error:
            if error.status in fine:
                return None
            raise SandboxError(f"the cluster refuses {call.__name__}: {error.status} {one_line(error)}") from error
        except Exception as error:
            # The client lets errors of its HTTP library through, which are of many types.
            words_of = f"{type(error).__name__}: {one_line(error)}"
            raise OutsideError(f"the cluster cannot be reached for {call.__name__}: {words_of}") from error


class _Exec:
    """This is one script in a pod, by a websocket of its own. `run` blocks until `is_given_up` is set at the latest."""

    def __init__(self, cluster: _Cluster, name: str, script_bytes: int, typed: bytes, limit_s: float) -> None:
        self.is_given_up = threading.Event()
        self._cluster = cluster
        self._name = name
        self._script_bytes = script_bytes
        self._typed = typed
        self._limit_s = limit_s

    def run(self) -> tuple[int, bytes]:
        """Returns the exit status and stdout, and stderr where it is not 0. Raises SandboxError."""
        try:
            socket = self._cluster.retry(self._open)
            # A frame that does not go on, or an input that nobody reads, may not hold the thread.
            socket.sock.settimeout(_CALL_S)
        except Exception as error:
            raise SandboxError(f"{self._name}: no command can be started: {_describe_refusal(error)}") from error
        try:
            return self._read(socket)
        except SandboxError:
            raise
        except Exception as error:
            raise SandboxError(f"{self._name}: the connection broke: {type(error).__name__}: {error}") from error
        finally:
            with contextlib.suppress(Exception):
                socket.close()

    def _open(self) -> Any:
        # A call of `stream` changes its client, so each has one.
        core = self._cluster.client.CoreV1Api(self._cluster.client.ApiClient(self._cluster.configuration))
        return self._cluster.stream.stream(
            core.connect_get_namespaced_pod_exec,
            self._name,
            self._cluster.namespace,
            container=_CONTAINER,
            command=["bash", "-c", _FROM_INPUT, "swe_rl", str(self._script_bytes)],
            stdin=True,
            stdout=True,
            stderr=True,
            tty=False,
            binary=True,
            _preload_content=False,
        )

    def _read(self, socket: Any) -> tuple[int, bytes]:
        for start in range(0, len(self._typed), _CHUNK_BYTES):
            socket.write_stdin(self._typed[start : start + _CHUNK_BYTES])
        ends_s = time.monotonic() + self._limit_s
        streams = {1: bytearray(), 2: bytearray()}
        while socket.is_open():
            if self.is_given_up.is_set() or time.monotonic() > ends_s:
                raise SandboxError(f"{self._name}: a call took longer than {self._limit_s:g} s")
            socket.update(timeout=0.5)
            for channel, got in streams.items():
                got += socket.read_channel(channel)
        for channel, got in streams.items():
            got += socket.read_channel(channel)
        try:
            status = int(socket.returncode)
        except (TypeError, KeyError, LookupError, ValueError) as error:
            # Without a status the container or the connection ended, and not the script.
            raise SandboxError(f"{self._name}: the connection ended without a status of the script") from error
        return status, bytes(streams[1] + streams[2] if status else streams[1])


def _status_of(error: BaseException) -> int:
    """Returns the status of a request, or 0. That of a refused websocket is in the words of its library alone."""
    refused = re.match(r"Handshake status (\d+)", _describe_refusal(error))
    return int(refused[1] if refused else getattr(error, "status", None) or 0)


def _describe_refusal(error: BaseException) -> str:
    """Returns why no websocket was opened. The client stumbles over its own error, and raises another one in turn."""
    reason = getattr(error, "reason", None)
    if reason is None and error.__context__ is not None:
        return _describe_refusal(error.__context__)
    return one_line(reason or error)


def _describe_end(status: Any) -> str:
    if status is None:
        return "it is gone"
    return one_line(status.message or status.reason or status.phase)
