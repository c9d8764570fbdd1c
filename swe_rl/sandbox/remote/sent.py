"""This module sends folders to a sandbox server, each once.

Invariants:
- A folder is packed and sent once, however many sandboxes need it at a time, and again only where the server lacks it.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from swe_rl.sandbox.archive import digest_of
from swe_rl.sandbox.container.files import pack_folder
from swe_rl.sandbox.remote import wire
from swe_rl.sandbox.remote.calls import RuntimeClient
from swe_rl.sandbox.sandbox import SandboxError


class SentFolders:
    """This knows the folders that one server was sent."""

    def __init__(self, client: RuntimeClient) -> None:
        self._client = client
        self._sent: dict[Path, asyncio.Task[str]] = {}

    async def send(self, path: Path, owner: str) -> str:
        """Sends the folder, unless the server was sent it, and returns its digest. Raises SandboxError."""
        if path not in self._sent:
            self._sent[path] = asyncio.ensure_future(self._send_now(path, owner))
        try:
            return await asyncio.shield(self._sent[path])
        except SandboxError:
            self._sent.pop(path, None)
            raise

    def known(self) -> Mapping[Path, "asyncio.Task[str]"]:
        """Returns what was sent so far, for `forget`."""
        return dict(self._sent)

    def forget(self, known: Mapping[Path, "asyncio.Task[str]"]) -> None:
        """Forgets what was sent before. What somebody sends again by now stays, so that it is sent once."""
        for path, sending in known.items():
            if self._sent.get(path) is sending:
                del self._sent[path]

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
