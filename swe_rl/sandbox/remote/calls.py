"""This module makes the HTTP calls of a sandbox server.

Invariants:
- A server that cannot be reached is a SandboxError that names it. Calls that can be made again are, a few times.
- The key comes from a variable of the environment, or from whoever makes the client, and is in no message.
"""

import asyncio
import contextlib
import json
import os
import secrets
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from swe_rl.config.environment import key_of
from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import UserError
from swe_rl.sandbox.remote import wire
from swe_rl.sandbox.sandbox import OutsideError, SandboxError

_CONNECT_S = 20.0
# The server gives signs of life while a command runs, so one that misses several is taken for dead.
_SILENCE_S = 6 * wire.SIGN_OF_LIFE_S
_TRIES = 5  # A call that can be made again is made so often before the server counts as gone.


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
        answer = parse_answer(body, self.url)
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


def parse_answer(body: bytes, url: str) -> dict[str, Any]:
    """Returns the JSON object of an answer. Raises SandboxError for anything else."""
    try:
        answer = json.loads(body)
        if isinstance(answer, dict):
            return answer
    except ValueError:
        pass
    raise SandboxError(f"the sandbox server at {url} answered something else: {body[:200]!r}")
