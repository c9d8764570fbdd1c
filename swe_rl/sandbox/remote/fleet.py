"""This module is one provider for the sandboxes of several sandbox servers that come and go.

Invariants:
- A start goes to the server with the largest share of free places; one that is gone meanwhile is asked for nothing
  until it is named again, and the start goes to another or waits for one.
- Waiting ends with a server, or with the error that says why there will be none.
- A server that is not named any more is left behind; its sandboxes break, as a machine's do when it dies.
"""

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import SweRlError
from swe_rl.sandbox.base import no_snapshots
from swe_rl.sandbox.remote.calls import ServerGoneError
from swe_rl.sandbox.remote.client import RemoteProvider, RemoteSandbox
from swe_rl.sandbox.sandbox import Door, SandboxError, Snapshot, Workspace


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """This is where a server is. `server` names one start of it: with another name the address is another server."""

    server: str
    url: str
    slots: int
    key: str | None = field(default=None, repr=False)


@dataclass(slots=True)
class _Server:
    address: ServerAddress
    provider: RemoteProvider
    starting: int = 0
    suspect: bool = False

    @property
    def load(self) -> float:
        return (self.starting + self.provider.open) / max(1, self.address.slots)


class RuntimeFleet:
    """This is a SandboxProvider; each server hears of this run every `renew_s` seconds."""

    def __init__(self, config: SandboxConfig, *, renew_s: float, pause_s: float = 0.5) -> None:
        self._config = replace(config, lease_s=4 * renew_s)
        self._pause_s = pause_s
        self._places = asyncio.Semaphore(config.concurrency)
        self._servers: dict[str, _Server] = {}
        self._changed = asyncio.Event()
        self._failure: SweRlError | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False

    def use(self, addresses: Iterable[ServerAddress]) -> None:
        """Uses these servers until the next call, and leaves all others."""
        named = {address.server: address for address in addresses}
        for name in self._servers.keys() - named.keys():
            self._leave(self._servers.pop(name))
        for name, address in named.items():
            if name in self._servers:
                self._servers[name].suspect = False
            elif not self._closed:
                self._servers[name] = _Server(address, self._provider(address))
        self._changed.set()

    def give_up(self, failure: SweRlError) -> None:
        """Says that there will be no server. Whoever waits for one, now or later, gets this error."""
        self._failure = failure
        self._changed.set()

    async def ready(self) -> None:
        """Returns once a server is there. Raises what `give_up` was told."""
        await self._best()

    async def create(self, workspace: Workspace, *, owner: str, door: Door | None = None) -> RemoteSandbox:
        """Returns a new sandbox on the least busy server. Raises SandboxError, UserError, or what `give_up` got."""
        while True:
            server = await self._best()
            server.starting += 1
            try:
                return await server.provider.create(workspace, owner=owner, door=door)
            except ServerGoneError:
                server.suspect = True
            except SandboxError:
                if server.address.server in self._servers:
                    # The server is still in use, so the error does not come from leaving it.
                    raise
            finally:
                server.starting -= 1

    async def fork(self, snapshot: Snapshot, *, owner: str, door: Door | None = None) -> RemoteSandbox:
        """Refuses: a snapshot is on one server, and the sandboxes of a fleet are where there is room."""
        raise no_snapshots(self)

    async def drop(self, snapshot: Snapshot) -> None:
        """Does nothing, as there are no forks."""

    async def close(self) -> None:
        self._closed = True
        self.use(())
        await asyncio.gather(*self._leaving, return_exceptions=True)

    async def _best(self) -> _Server:
        while True:
            self._check_open()
            usable = [server for server in self._servers.values() if not server.suspect]
            if usable:
                return min(usable, key=lambda candidate: candidate.load)
            if self._failure is not None:
                raise self._failure
            self._changed.clear()
            await self._changed.wait()

    def _provider(self, address: ServerAddress) -> RemoteProvider:
        config = replace(self._config, runtime_url=address.url)
        provider = RemoteProvider(config, pause_s=self._pause_s, key=address.key, places=self._places)
        provider.begin_renewing()
        return provider

    def _leave(self, server: _Server) -> None:
        task = asyncio.ensure_future(_close_quietly(server.provider))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxError("the sandbox provider is closed")


async def _close_quietly(provider: RemoteProvider) -> None:
    with contextlib.suppress(SweRlError):
        await provider.close()
