"""This module has the sandboxes of a sandbox server (`server`), for machines that should not or cannot run them.

Invariants:
- What the server's sandboxes raise is raised here, with the same type; a server that cannot be reached is a
  SandboxError that names it.
- A start is asked for with an id of its own, so that asking again after a lost answer starts nothing twice.
- Waiting for a free place is in no command's timeout. A cancelled command ends on the server too.
- The key comes from a variable of the environment, or from whoever makes the provider, and is in no message.
"""

import asyncio
import contextlib
import json
import os
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp

from swe_rl.config.environment import key_of
from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import SweRlError, UserError
from swe_rl.sandbox.archive import digest_of
from swe_rl.sandbox.base import BaseProvider, BaseSandbox, safe_name
from swe_rl.sandbox.container.files import pack_folder
from swe_rl.sandbox.remote import wire
from swe_rl.sandbox.sandbox import (
    Door,
    ExecResult,
    OutsideError,
    SandboxError,
    Snapshot,
    Toolchain,
    Waited,
    Workspace,
    no_wait,
)

_CONNECT_S = 20.0
# The server gives signs of life while a command runs, so one that misses several is taken for dead.
_SILENCE_S = 6 * wire.SIGN_OF_LIFE_S
_STARTS_IN_A_SILENCE = 4  # A server that makes or copies a sandbox says nothing for so many `sandbox.start_timeout_s`.
_FULL_PAUSE_S = 1.0  # A server without a free place is asked again after this pause.
_TRIES = 5  # A call that can be made again is made so often before the server counts as gone.
# The run tells so often within a lease that it lives, so that a late word loses no sandboxes.
_RENEWALS_IN_A_LEASE = 4


class ServerGoneError(OutsideError):
    """The server cannot be reached; another one, or the same one later, may do the same."""


class RuntimeClient:
    """This makes the calls of a server.

    `pause_s` is the first pause before a call is made again; a `key` goes before the environment's.
    """

    def __init__(self, config: SandboxConfig, *, pause_s: float = 0.5, key: str | None = None) -> None:
        if not config.runtime_url:
            raise UserError("sandbox.kind=remote needs sandbox.runtime_url=http://HOST:PORT")
        self.url = config.runtime_url.rstrip("/")
        self._headers = {wire.RUN_HEADER: secrets.token_hex(8)}
        if key := key or key_of(os.environ, config.runtime_key_env):
            self._headers[wire.KEY_HEADER] = key
        self._pause_s = pause_s
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def ask(
        self, method: str, path: str, *, silence_s: float = _SILENCE_S, again: bool = True, **body: Any
    ) -> tuple[int, bytes]:
        """Returns the status and the body of an answer.

        Connections that fail are tried again, unless `again` is false. Raises ServerGoneError.
        """
        for attempt in range(_TRIES if again else 1):
            if attempt:
                await asyncio.sleep(self._pause_s * 2 ** (attempt - 1))
            if self._closed:
                raise ServerGoneError(f"the sandbox server at {self.url} was left ({method} {path})")
            try:
                async with self._call(method, path, silence_s, **body) as response:
                    return response.status, await response.read()
            except RuntimeError as error:
                # By this error aiohttp says that the session was closed under way.
                if not self._closed:
                    raise
                last: Exception = error
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                last = error
        words = str(last) or type(last).__name__
        raise ServerGoneError(f"the sandbox server at {self.url} does not answer ({method} {path}): {words}") from last

    async def asked(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """Returns the JSON answer of a call that succeeded.

        Raises what the server's sandbox raised, and SandboxError for an answer that is something else.
        """
        status, body = await self.ask(method, path, **options)
        answer = _parse_json(body, self.url)
        if status >= 400 or "error" in answer:
            raise wire.error_of(answer)
        return answer

    async def close(self) -> None:
        self._closed = True
        if self._session is not None:
            await self._session.close()

    @contextlib.asynccontextmanager
    async def _call(
        self, method: str, path: str, silence_s: float, **body: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(connector=connector, headers=self._headers)
        timeout = aiohttp.ClientTimeout(total=None, connect=_CONNECT_S, sock_read=silence_s)
        async with self._session.request(method, self.url + path, timeout=timeout, **body) as response:
            yield response


class RemoteSandbox(BaseSandbox):
    """This is a sandbox on the server."""

    def __init__(
        self,
        client: RuntimeClient,
        sandbox_id: str,
        workdir: str,
        config: SandboxConfig,
        door_url: str | None,
        forget: Callable[["RemoteSandbox"], None],
    ) -> None:
        super().__init__(sandbox_id, workdir, config, door_url=door_url)
        self._client = client
        self._forget = forget
        self._path = f"/sandboxes/{quote(sandbox_id)}"

    async def exec(
        self,
        command: str,
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        max_output_bytes: int | None = None,
        waited: Waited = no_wait,
    ) -> ExecResult:
        self._check_open()
        command_id = secrets.token_hex(8)
        order = {
            "command_id": command_id,
            "command": command.encode("utf-8", "replace").decode(),
            "timeout_s": timeout_s,
            "env": dict(env or {}),
            "max_output_bytes": max_output_bytes,
        }
        # A command is never asked for twice, because the first one may have run.
        asked = self._client.asked("POST", f"{self._path}/exec", again=False, json=order)
        if waited is no_wait:
            telling = None
        else:
            telling = asyncio.ensure_future(self._tell_waited(command_id, waited))
        try:
            return wire.result_from_json(await self._until_closed(asked))
        except asyncio.CancelledError:
            await asyncio.shield(self._stop_command(command_id))
            raise
        except (KeyError, ValueError, TypeError) as error:
            raise SandboxError(f"the sandbox server at {self._client.url} gave no result: {error!r}") from error
        finally:
            if telling is not None:
                telling.cancel()

    async def write_file(self, path: str, content: bytes) -> None:
        self._check_open()
        await self._client.asked("PUT", f"{self._path}/file", params={"path": path}, data=content)

    async def read_file(self, path: str) -> bytes:
        """Returns a file's content. Raises MissingFileError (a SandboxError and a FileNotFoundError) without a file."""
        self._check_open()
        status, body = await self._client.ask("GET", f"{self._path}/file", params={"path": path})
        if status != 200:
            raise wire.error_of(_parse_json(body, self._client.url))
        return body

    async def snapshot(self) -> Snapshot:
        """Returns a snapshot, which is on the server."""
        self._check_open()
        answer = await self._client.asked("POST", f"{self._path}/snapshot", again=False, silence_s=self._silence_s)
        return Snapshot(str(answer["snapshot_id"]))

    async def reset(self, snapshot: Snapshot) -> None:
        """Brings the files back as they were in a snapshot of the same server."""
        self._check_open()
        asked = {"snapshot_id": snapshot.snapshot_id}
        await self._client.asked("POST", f"{self._path}/reset", silence_s=self._silence_s, json=asked)

    @property
    def _silence_s(self) -> float:
        """Returns for how long the server may say nothing while it copies files or makes an image."""
        return self._config.start_timeout_s * _STARTS_IN_A_SILENCE

    async def _stop_command(self, command_id: str) -> None:
        """Stops a command, and returns once it is gone.

        A server that does not answer ends it as soon as it sees the connection closed.
        """
        with contextlib.suppress(SandboxError):
            await self._client.asked("DELETE", f"{self._path}/commands/{command_id}", again=False)

    async def _tell_waited(self, command_id: str, waited: Waited) -> None:
        """Tells the server how long the command has waited so far, until it is cancelled.

        The server always lacks the last second or two.
        """
        before_s = waited()
        path = f"{self._path}/commands/{command_id}/waited"
        told_s = before_s
        while True:
            await asyncio.sleep(wire.WAITED_EVERY_S)
            now_s = waited()
            if now_s > told_s:
                # The command's own answer tells what is wrong.
                with contextlib.suppress(SweRlError):
                    await self._client.asked("PUT", path, again=False, json={"waited_s": now_s - before_s})
                    told_s = now_s

    async def _close(self) -> None:
        for task in self._running:
            task.cancel()
        try:
            await self._client.asked("DELETE", self._path)
        finally:
            self._forget(self)


class RemoteProvider(BaseProvider[RemoteSandbox]):
    """This makes sandboxes on one server. Several providers may share their `places`.

    Raises UserError without an address.
    """

    def __init__(
        self,
        config: SandboxConfig,
        *,
        pause_s: float = 0.5,
        key: str | None = None,
        places: asyncio.Semaphore | None = None,
    ) -> None:
        super().__init__(config, places)
        self._client = RuntimeClient(config, pause_s=pause_s, key=key)
        self._sent: dict[Path, asyncio.Task[str]] = {}
        self._open: set[RemoteSandbox] = set()
        self._renewing: asyncio.Task[None] | None = None

    async def greet(self) -> None:
        """Raises UserError unless the server is well and takes the key. It is asked before anything depends on it."""
        try:
            status, body = await self._client.ask("GET", "/health", again=False)
            if status == 200:
                status, body = await self._client.ask("GET", "/sandboxes", again=False)
        except ServerGoneError as error:
            raise UserError(f"sandbox.runtime_url: {error}. Start the server there, or correct the address") from error
        if status == 401:
            variable = self._config.runtime_key_env
            raise UserError(f"The sandbox server at {self._client.url} wants another key: export {variable}=KEY")
        if status != 200:
            raise UserError(
                f"sandbox.runtime_url={self._client.url} is no sandbox server that is well: status {status}, "
                f"{body[:200]!r}"
            )

    async def _prepare(self, workspace: Workspace, owner: str, door: Door | None) -> None:
        self.begin_renewing()

    @property
    def open(self) -> int:
        """Returns how many sandboxes of this provider are open."""
        return len(self._open)

    def begin_renewing(self) -> None:
        """Tells the server now and then that this run lives; the first start of a sandbox does as well."""
        if self._renewing is None:
            self._renewing = asyncio.ensure_future(self._renew())

    async def close(self) -> None:
        self._closed = True
        renewing = self._renewing
        self._renewing = None
        if renewing is not None:
            renewing.cancel()
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._open)), return_exceptions=True)
        if renewing is not None:
            # Where the server is not told of the end, the leases run out.
            with contextlib.suppress(SweRlError):
                await self._client.asked("DELETE", "/run", again=False)
        await self._client.close()

    async def _make(self, workspace: Workspace, owner: str, door: Door | None) -> RemoteSandbox:
        order: dict[str, Any] = {
            "image": workspace.image,
            "workdir": workspace.workdir,
            "places": list(workspace.places),
            "workspace": await self._send(workspace.path, owner) if workspace.path else None,
            "toolchain": await self._toolchain(workspace.toolchain, owner) if workspace.toolchain else None,
        }
        return await self._ordered(order, owner, door)

    async def _make_fork(self, snapshot: Snapshot, owner: str, door: Door | None) -> RemoteSandbox:
        return await self._ordered({"snapshot": snapshot.snapshot_id}, owner, door)

    async def drop(self, snapshot: Snapshot) -> None:
        """Forgets a snapshot. Raises SandboxError where the server cannot be reached, which then forgets it itself."""
        await self._client.asked("DELETE", f"/snapshots/{quote(snapshot.snapshot_id)}")

    async def _ordered(self, order: dict[str, Any], owner: str, door: Door | None) -> RemoteSandbox:
        name = f"{safe_name(owner)}-{secrets.token_hex(6)}"
        order |= {"request_id": name, "owner": owner, "door": None}
        if door is not None:
            order["door"] = {"host": door.host, "port": door.port, "path": door.path}
        try:
            answer = await self._start(order)
        except BaseException:
            await asyncio.shield(self._take_back(name))
            raise
        sandbox = RemoteSandbox(
            self._client, name, str(answer["workdir"]), self._config, answer.get("door_url"), self._closed_one
        )
        self._open.add(sandbox)
        return sandbox

    async def _toolchain(self, toolchain: Toolchain, owner: str) -> dict[str, Any]:
        sent = await self._send(toolchain.folder, owner)
        return wire.ToolchainOrder(sent, toolchain.seen_as, toolchain.variables).as_json()

    async def _start(self, order: dict[str, Any]) -> dict[str, Any]:
        while True:
            # A start may take as long as a pull; the server says nothing meanwhile.
            status, body = await self._client.ask(
                "POST", "/sandboxes", silence_s=self._config.start_timeout_s * _STARTS_IN_A_SILENCE, json=order
            )
            answer = _parse_json(body, self._client.url)
            if status == 201:
                return answer
            if status != wire.FULL_STATUS:
                raise wire.error_of(answer)
            await asyncio.sleep(_FULL_PAUSE_S)

    async def _take_back(self, name: str) -> None:
        with contextlib.suppress(SweRlError):
            await self._client.asked("DELETE", f"/sandboxes/{quote(name)}", again=False)

    async def _send(self, path: Path, owner: str) -> str:
        """Sends the folder once, and returns its digest. Raises SandboxError."""
        if path not in self._sent:
            self._sent[path] = asyncio.ensure_future(self._send_now(path, owner))
        try:
            return await asyncio.shield(self._sent[path])
        except SandboxError:
            self._sent.pop(path, None)
            raise

    async def _send_now(self, path: Path, owner: str) -> str:
        try:
            archive = await asyncio.to_thread(pack_folder, path, ".")
        except OSError as error:
            raise SandboxError(f"{owner}: the workspace {path} cannot be read: {error}") from error
        digest = digest_of(archive)
        status, _ = await self._client.ask("GET", f"/workspaces/{digest}")
        if status == wire.GONE_STATUS:
            await self._client.asked("PUT", f"/workspaces/{digest}", data=archive)
        return digest

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._config.lease_s / _RENEWALS_IN_A_LEASE)
            # What is wrong is told by the next command.
            with contextlib.suppress(SweRlError):
                await self._client.asked("POST", "/renew", again=False)

    def _closed_one(self, sandbox: RemoteSandbox) -> None:
        self._open.discard(sandbox)
        self._places.release()


def _parse_json(body: bytes, url: str) -> dict[str, Any]:
    try:
        answer = json.loads(body)
        if isinstance(answer, dict):
            return answer
    except ValueError:
        pass
    raise SandboxError(f"the sandbox server at {url} answered something else: {body[:200]!r}")
