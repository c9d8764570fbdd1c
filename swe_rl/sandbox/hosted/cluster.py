"""This module has the connection to a cluster of Kubernetes, by the official client. Everything in it blocks.

Invariants:
- No request holds its thread for longer than its time, also where the cluster takes a connection and is silent.
- A request that a busy cluster refuses is made again, with growing pauses.
"""

import contextlib
import importlib
import json
import os
import re
import threading
import time
from collections.abc import Callable
from typing import Any

from swe_rl.errors import UserError, one_line
from swe_rl.sandbox.container.images import FINAL_PULL
from swe_rl.sandbox.sandbox import OutsideError, SandboxError

LABEL = "swe_rl.sandbox"  # Every pod of ours has it; its value is the pod's name.
_POLICY = "swe-rl-deny"
CONTAINER = "sandbox"
_CALL_S = 30.0  # One request of the API server may take so long.
_LOOK_S = 0.3  # A pod that starts is looked at so often.
_CHUNK_BYTES = 256 * 1024
_END_S = 3.0  # The cluster has so long to say why a pod ended.
NO_PROCESS = "Resource temporarily unavailable"  # A system says so where no further process may be made.
_TRIES = 5  # A request that a busy cluster refuses is made so often in all.
_PAUSE_S = 1.0  # The first pause between tries. Each further one is twice as long.
_BUSY = (429, 503)  # With these statuses nothing was done.
# The script and its arguments come by the input, as those of a request are limited to some kilobytes. $1: their bytes.
_FROM_INPUT = 'eval "$(head -c "$1")"'
_END_CHANNEL = 3  # A websocket of the cluster says here how its program ended.
_PULL_FAILED = "ErrImagePull"  # The cluster pulls again after a pause, in which the pod is in ImagePullBackOff.
_HOPELESS = ("InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError",
             "CreateContainerError", "RunContainerError")  # fmt: skip


class Cluster:
    """Holds the connection to one cluster. Every method blocks. Raises SandboxError where the cluster refuses."""

    def __init__(self, namespace: str, context: str | None) -> None:
        self.namespace = namespace
        try:
            self.client: Any = importlib.import_module("kubernetes.client")
            self.stream: Any = importlib.import_module("kubernetes.stream")
            loader: Any = importlib.import_module("kubernetes.config")
            _bound_handshakes()
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
        selector = {"matchExpressions": [{"key": LABEL, "operator": "Exists"}]}
        policy = {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": _POLICY},
            "spec": {"podSelector": selector, "policyTypes": ["Ingress", "Egress"]},
        }
        self._ask(networks.create_namespaced_network_policy, self.namespace, policy, fine=(409,))
        listed = self._ask(self._core.list_namespaced_pod, self.namespace, label_selector=LABEL)
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

    def read_end(self, name: str) -> Any:
        """Returns the status of a pod that has ended or is just ending, or None."""
        ends_s = time.monotonic() + _END_S
        while time.monotonic() < ends_s:
            status = self.read_status(name)
            if status is None or status.phase in ("Succeeded", "Failed"):
                return status
            # The connection of a command breaks before the cluster knows why.
            time.sleep(_LOOK_S)
        return None

    def wait_until_runs(self, name: str, limit_s: float, pull_tries: int) -> None:
        """Returns when the pod's container runs. Raises SandboxError for one that will not."""
        ends_s = time.monotonic() + limit_s
        failed_pulls = 0
        before = ""
        while True:
            status = self.read_status(name)
            if status is None or status.phase in ("Succeeded", "Failed"):
                raise OutsideError(f"{name}: the pod ended before it began ({_describe_end(status)})")
            states = [each.state for each in status.container_statuses or () if each.name == CONTAINER]
            if status.phase == "Running" and states and states[0].running is not None:
                return
            waiting = states[0].waiting if states else None
            reason = str(waiting.reason) if waiting is not None else ""
            if reason == _PULL_FAILED != before:
                failed_pulls += 1
            before = reason
            why = one_line(waiting.message) if waiting is not None else ""
            is_final = reason == _PULL_FAILED and FINAL_PULL.search(why)
            if reason in _HOPELESS or is_final or failed_pulls >= pull_tries:
                raise SandboxError(f"{name}: the pod cannot start: {reason}: {why}")
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


class Exec:
    """This is one script in a pod, by a websocket of its own. `run` blocks until `is_given_up` is set at the latest."""

    def __init__(self, cluster: Cluster, name: str, script_bytes: int, typed: bytes, limit_s: float) -> None:
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
            container=CONTAINER,
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
        status, reason = _read_end(socket.read_channel(_END_CHANNEL))
        if status is None:
            # The container or the connection ended, and not the script.
            raise SandboxError(f"{self._name}: the connection ended without a status of the script: {reason}")
        return status, bytes(streams[1] + streams[2] if status else streams[1])


def _bound_handshakes() -> None:
    """Gives each websocket of the client a time for its handshake, of which the client itself has none.

    A cluster that takes a connection and is silent would hold a thread for good.
    """
    module: Any = importlib.import_module("kubernetes.stream.ws_client")
    base: Any = importlib.import_module("websocket").WebSocket

    def connect(self: Any, url: str, **options: Any) -> None:
        base.connect(self, url, **{"timeout": _CALL_S, **options})

    module.WebSocket = type("BoundWebSocket", (base,), {"connect": connect})


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


def describe_exceeded(status: Any, memory_gb: float) -> str:
    """Returns which limit of its own ended a pod, or an empty text. An eviction names the limit in its message."""
    states = [each.state for each in status.container_statuses or () if each.name == CONTAINER]
    ended = states[0].terminated if states else None
    if ended is not None and ended.reason == "OOMKilled":
        return f"more than {memory_gb:g} GB of memory"
    message = str(status.message or "")
    if status.reason == "Evicted" and re.search(r"exceeds? the (total )?limit|usage exceeds", message, re.I):
        return f"more disk than it may ({one_line(message)})"
    return ""


def _describe_end(status: Any) -> str:
    if status is None:
        return "it is gone"
    return one_line(status.message or status.reason or status.phase)


def _read_end(said: bytes | str) -> tuple[int | None, str]:
    """Returns a script's status as the cluster says it, or None and why there is none."""
    try:
        end = json.loads(said)
        if end["status"] == "Success":
            return 0, ""
        causes = (end.get("details") or {}).get("causes") or ()
        codes = [int(each["message"]) for each in causes if each.get("reason") == "ExitCode"]
        if codes:
            return codes[0], ""
        return None, one_line(end.get("message"))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None, "nothing was said"
