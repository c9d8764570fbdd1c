"""This module has the sandboxes of a sandbox server (`server`), for machines that should not or cannot run them.

Invariants:
- What the server's sandboxes raise is raised here, with the same type; a server that cannot be reached is a
  SandboxError that names it.
- A start is asked for with an id of its own, so that asking again after a lost answer starts nothing twice.
- Waiting for a free place is in no command's timeout. A cancelled command ends on the server too.
- A server that was started anew lacks what it was sent, and is sent it again.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import SweRlError, UserError
from swe_rl.sandbox.base import BaseProvider, BaseSandbox, safe_name
from swe_rl.sandbox.remote import wire
from swe_rl.sandbox.remote.calls import RuntimeClient, ServerGoneError, parse_answer
from swe_rl.sandbox.remote.sent import SentFolders
from swe_rl.sandbox.sandbox import (
    Door,
    ExecResult,
    SandboxError,
    Snapshot,
    Toolchain,
    Waited,
    Workspace,
    no_wait,
)

_STARTS_IN_A_SILENCE = 4  # A server that makes or copies a sandbox says nothing for so many `sandbox.start_timeout_s`.
_FULL_PAUSE_S = 1.0  # A server without a free place is asked again after this pause.
# The run tells so often within a lease that it lives, so that a late word loses no sandboxes.
_RENEWALS_IN_A_LEASE = 4


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
            raise wire.error_of(parse_answer(body, self._client.url))
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
        self._sent = SentFolders(self._client)
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
        known = self._sent.known()
        try:
            return await self._ordered(await self._order_of(workspace, owner), owner, door)
        except wire.FolderGoneError:
            # The server was started anew since then.
            self._sent.forget(known)
        return await self._ordered(await self._order_of(workspace, owner), owner, door)

    async def _order_of(self, workspace: Workspace, owner: str) -> dict[str, Any]:
        """Returns the order of a sandbox, once the server has its folders. Raises SandboxError."""
        toolchain = workspace.toolchain
        return {
            "image": workspace.image,
            "workdir": workspace.workdir,
            "places": list(workspace.places),
            "workspace": await self._sent.send(workspace.path, owner) if workspace.path else None,
            "toolchain": await self._toolchain(toolchain, owner) if toolchain else None,
        }

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
        sent = await self._sent.send(toolchain.folder, owner)
        return wire.ToolchainOrder(sent, toolchain.seen_as, toolchain.variables).as_json()

    async def _start(self, order: dict[str, Any]) -> dict[str, Any]:
        while True:
            # A start may take as long as a pull; the server says nothing meanwhile.
            status, body = await self._client.ask(
                "POST", "/sandboxes", silence_s=self._config.start_timeout_s * _STARTS_IN_A_SILENCE, json=order
            )
            answer = parse_answer(body, self._client.url)
            if status == 201:
                return answer
            if status != wire.FULL_STATUS:
                raise wire.error_of(answer)
            await asyncio.sleep(_FULL_PAUSE_S)

    async def _take_back(self, name: str) -> None:
        with contextlib.suppress(SweRlError):
            await self._client.asked("DELETE", f"/sandboxes/{quote(name)}", again=False)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._config.lease_s / _RENEWALS_IN_A_LEASE)
            # What is wrong is told by the next command.
            with contextlib.suppress(SweRlError):
                await self._client.asked("POST", "/renew", again=False)

    def _closed_one(self, sandbox: RemoteSandbox) -> None:
        self._open.discard(sandbox)
        self._places.release()
