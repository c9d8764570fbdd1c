"""Pausing a server and aborting requests there.

Invariants:
- While paused here, `passed` holds new requests back; those already there freeze in the server.
- A server that refuses to pause leaves the gate open.
"""

import asyncio

from swe_rl.engine.http_client import HttpClient
from swe_rl.engine.http_features import Features
from swe_rl.engine.protocol import EngineError

_TIMEOUT_S = 120.0
_ABORT_PATHS = ("/abort_requests", "/inference/v1/abort_requests")


class Control:
    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._gate = asyncio.Event()
        self._gate.set()

    @property
    def paused(self) -> bool:
        return not self._gate.is_set()

    async def passed(self) -> None:
        """Returns when requests may be sent."""
        if self.paused:
            await self._gate.wait()

    def open_gate(self) -> None:
        """Whatever the server's state: what waits then finds out."""
        self._gate.set()

    async def pause(self, features: Features) -> None:
        """Returns once the server has frozen what runs there. Raises EngineError."""
        self._gate.clear()
        try:
            await self._post(features, "/pause?mode=keep")
        except BaseException:
            self._gate.set()
            raise

    async def resume(self, features: Features) -> None:
        """Raises EngineError; requests are sent again in any case."""
        try:
            await self._post(features, "/resume")
        finally:
            self._gate.set()

    async def abort(self, server_id: str) -> None:
        """Raises EngineError when the server does not offer it."""
        for path in _ABORT_PATHS:
            answer = await self._client.post(path, {"request_ids": [server_id]}, timeout_s=_TIMEOUT_S)
            if answer.ok:
                return
        raise EngineError(f"{self._client.url} cannot abort a request: {answer.status} {answer.reason()}")

    async def _post(self, features: Features, path: str) -> None:
        if not features.pause:
            raise EngineError(
                f"{self._client.url} cannot be paused: start the server with VLLM_SERVER_DEV_MODE=1 in its environment"
            )
        answer = await self._client.post(path, timeout_s=_TIMEOUT_S)
        if not answer.ok:
            raise EngineError(f"{self._client.url}{path} answered {answer.status}: {answer.reason()}")
