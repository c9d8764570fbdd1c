"""This module is `sandbox=e2b`: each sandbox is a virtual machine of E2B, by that service's own SDK.

Invariants:
- An image is a template of E2B, built beforehand. Its name is that of the image, with `-` for what no name may have.
- The CPUs, the memory and the disk are those of the template. The network is open only with sandbox.network=true.
- The service ends a sandbox sandbox.lease_s after its run's last sign of life.
- The SDK is imported when the provider is made.
"""

import importlib
import math
import re
import shlex
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import UserError
from swe_rl.sandbox.hosted.service import HostedSandboxes, Ran, Request, Service, Trouble, read_key

_NOT_IN_NAMES = re.compile(r"[^a-z0-9_-]+")
_START_S = 30.0  # A program has to begin within so long.


class E2B(HostedSandboxes):
    """This makes sandboxes of E2B. `domain` is that of an installation of one's own.

    Raises UserError where the SDK or the key is missing.
    """

    def __init__(
        self,
        config: SandboxConfig,
        scratch: Path,
        key_env: str = "E2B_API_KEY",
        domain: str | None = None,
        user: str = "root",
    ) -> None:
        key = read_key("e2b", key_env)
        super().__init__(config, scratch, E2BService(key, domain, user), key)


class E2BService(Service):
    """This is E2B's API: its own for sandboxes, and that of the daemon `envd` for what is in one."""

    name = "e2b"

    def __init__(self, key: str, domain: str | None, user: str) -> None:
        try:
            self._sdk: Any = importlib.import_module("e2b")
        except ModuleNotFoundError as error:
            raise UserError(f"sandbox=e2b needs {error.name}: pip install 'swe_rl[e2b]'") from error
        self._user = user
        # Requests are repeated by `Requests`, which knows when that does no harm. With `debug` nothing would be ended.
        self._access: dict[str, Any] = {"api_key": key, "domain": domain, "debug": False, "retries": 0}

    def judge(self, error: Exception) -> Trouble:
        sdk = self._sdk
        status = _http_status(error)
        if isinstance(error, sdk.AuthenticationException) or status in (401, 403):
            return Trouble.denied
        if isinstance(error, sdk.SandboxNotFoundException):
            return Trouble.gone
        if isinstance(error, sdk.RateLimitException) or status in (429, 503) or _is_busy(error):
            return Trouble.busy
        if status == 404:
            return Trouble.missing
        if status >= 500 or not isinstance(error, sdk.SandboxException) or _is_unreachable(error):
            return Trouble.passing
        return Trouble.failed

    async def start(self, request: Request) -> Any:
        return await self._sdk.AsyncSandbox.create(
            template=template_of(request.image),
            timeout=math.ceil(request.lease_s),
            metadata=dict(request.labels),
            allow_internet_access=request.config.network,
            request_timeout=request.config.start_timeout_s,
            **self._access,
        )

    async def run(self, machine: Any, argv: tuple[str, ...], limit_s: float) -> Ran:
        # The SDK starts a login shell, whose profile may print something first.
        mark = uuid.uuid4().hex
        line = f"echo {mark}; exec {shlex.join(argv)}"
        try:
            ran = await machine.commands.run(line, user=self._user, cwd="/", timeout=limit_s, request_timeout=_START_S)
        except self._sdk.CommandExitException as error:
            # A status other than 0 is no failure of the request.
            ran = error
        _, _, stdout = ran.stdout.partition(f"{mark}\n")
        return Ran(_status_of(ran), stdout, ran.stderr)

    async def upload(self, machine: Any, path: str, content: bytes) -> None:
        await machine.files.write(path, content, user=self._user)

    async def extend(self, machine: Any, lease_s: float) -> None:
        await machine.set_timeout(math.ceil(lease_s))

    async def end(self, machine_id: str) -> None:
        await self._sdk.AsyncSandbox.kill(machine_id, **self._access)

    async def list_labels(self, wanted: Mapping[str, str]) -> dict[str, Mapping[str, str]]:
        query = self._sdk.SandboxQuery(metadata=dict(wanted))
        pages = self._sdk.AsyncSandbox.list(query=query, **self._access)
        labels: dict[str, Mapping[str, str]] = {}
        while pages.has_next:
            labels.update({each.sandbox_id: each.metadata or {} for each in await pages.next_items()})
        return labels

    def id_of(self, machine: Any) -> str:
        return str(machine.sandbox_id)


def template_of(image: str) -> str:
    """Returns the name of the template that stands for an image: the same image always has the same one."""
    return _NOT_IN_NAMES.sub("-", image.lower()).strip("-")


def _status_of(ran: Any) -> int:
    """Returns an exit status as a shell counts it: the service has -1 for a process that a signal ended."""
    status = int(ran.exit_code)
    if status >= 0:
        return status
    return 137


def _http_status(error: Exception) -> int:
    """Returns the status of an answer, or 0. Some errors of the SDK have it in their words alone."""
    named = re.match(r"(\d{3}): ", str(error))
    return int(getattr(error, "status_code", None) or (named[1] if named else 0))


# Some errors are in newer versions of the SDK alone.
def _is_busy(error: Exception) -> bool:
    return type(error).__name__ == "ServiceBusyException"


def _is_unreachable(error: Exception) -> bool:
    return type(error).__name__ == "SandboxUnreachableException"
