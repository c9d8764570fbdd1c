"""Plays one episode of an OpenEnv server, over a WebSocket of its own.

Invariants:
- An episode has its environment at the server for itself. It is closed on every way out, so that its place is free.
- What the server answers, or does not, is the server's: only a refused action is the model's doing. Everything else
  raises EpisodeError, from which no reward is made.
- A server that has no free place is asked again, until `place_timeout_s` is over.
"""

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp

from swe_rl.env.served import EpisodeError, RefusedActionError
from swe_rl.errors import one_line

_MOST_BYTES = 16_000_000
_CONNECT_S = 10.0
_CLOSE_S = 5.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
_SHOWN_CHARS = 1000


class _NoPlaceError(Exception):
    """The server plays as many episodes as it may."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Holds what a reset or a step gave. `reward` is what the server wrote, and may be anything."""

    observation: dict[str, Any]
    reward: Any
    done: bool


class Episode:
    """An episode at the server of `address`: `async with Episode(...) as episode`. It begins with `reset`."""

    def __init__(self, address: str, *, step_timeout_s: float, place_timeout_s: float) -> None:
        self._address = address
        self._step_timeout_s = step_timeout_s
        self._place_timeout_s = place_timeout_s
        self._http: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
        self._http = aiohttp.ClientSession(timeout=timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._hang_up()
        finally:
            if self._http is not None:
                await self._http.close()

    async def reset(self, arguments: dict[str, Any]) -> Observed:
        """Begins the episode, as soon as the server has a place for it. Raises EpisodeError."""
        ends_s = time.monotonic() + self._place_timeout_s
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                await self._connect()
                return await self._ask("reset", arguments)
            except RefusedActionError as error:
                raise EpisodeError(f"{self._address} refuses to begin an episode with {arguments}: {error}") from error
            except _NoPlaceError as error:
                await self._hang_up()
                if time.monotonic() + pause_s >= ends_s:
                    raise EpisodeError(
                        f"{self._address} had no place for an episode in {self._place_timeout_s:g} s ({error}). Start "
                        "it with more places (max_concurrent_envs), or lower sandbox.concurrency"
                    ) from error
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def step(self, action: dict[str, Any]) -> Observed:
        """Does one action. Raises RefusedActionError, EpisodeError."""
        try:
            return await self._ask("step", action)
        except _NoPlaceError as error:
            raise EpisodeError(f"{self._address} took the episode's place away: {error}") from error

    async def _connect(self) -> None:
        assert self._http is not None
        address = f"ws{self._address.removeprefix('http')}/ws"
        try:
            self._socket = await asyncio.wait_for(
                self._http.ws_connect(address, max_msg_size=_MOST_BYTES), self._step_timeout_s
            )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise EpisodeError(f"{self._address} takes no connection: {type(error).__name__}: {error}") from error

    async def _hang_up(self) -> None:
        socket = self._socket
        self._socket = None
        if socket is None or socket.closed:
            return
        try:
            await asyncio.wait_for(self._say_goodbye(socket), _CLOSE_S)
        except (aiohttp.ClientError, OSError, TimeoutError):
            # The connection goes with its client, and the server frees the place then.
            return

    async def _say_goodbye(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        await socket.send_str('{"type": "close"}')
        await socket.close()

    async def _ask(self, kind: str, data: dict[str, Any]) -> Observed:
        assert self._socket is not None
        try:
            async with asyncio.timeout(self._step_timeout_s):
                # A server without a free place says so and closes, maybe before it was asked: its word is read then.
                with contextlib.suppress(aiohttp.ClientError, ConnectionError):
                    await self._socket.send_str(json.dumps({"type": kind, "data": data}))
                message = await self._socket.receive()
        except TimeoutError as error:
            raise EpisodeError(f"{self._address} gave no answer to {kind} in {self._step_timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise EpisodeError(f"{self._address} broke off at {kind}: {type(error).__name__}: {error}") from error
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise EpisodeError(f"{self._address} ended the connection at {kind} ({message.type.name.lower()})")
        return self._read(kind, message.data)

    def _read(self, kind: str, text: str) -> Observed:
        try:
            answer = json.loads(text)
            data = answer["data"]
            if answer["type"] == "observation" and isinstance(data["observation"], dict):
                done = data.get("done")
                # A word such as "false" is true for Python, and would end the episode with what it has so far.
                if done is not None and not isinstance(done, bool):
                    raise TypeError(f"done is {done!r}")
                return Observed(data["observation"], data.get("reward"), bool(done))
            if answer["type"] == "error":
                raise self._error_of(kind, data)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            words = f"answered {kind} in another form than OpenEnv's: {text[:200]}"
            raise EpisodeError(f"{self._address} {words}") from error
        raise EpisodeError(f"{self._address} answered {kind} with something else: {text[:200]}")

    def _error_of(self, kind: str, data: dict[str, Any]) -> Exception:
        code = data.get("code")
        said = one_line(str(data.get("message", "")))[:_SHOWN_CHARS]
        if code == "CAPACITY_REACHED":
            return _NoPlaceError(said)
        if code == "VALIDATION_ERROR":
            return RefusedActionError(_describe_refusal(data.get("errors")) or said)
        return EpisodeError(f"{self._address}: its environment failed at {kind}: {code}: {said}")


def _describe_refusal(errors: Any) -> str:
    """Returns the fields that are wrong, and why."""
    if not isinstance(errors, list):
        return ""
    lines = []
    for error in errors[:5]:
        if isinstance(error, dict):
            where = error.get("loc")
            field = ".".join(map(str, where)) if isinstance(where, list) else ""
            lines.append(f"{field or 'the action'}: {one_line(str(error.get('msg', '')))[:200]}")
    return "; ".join(lines)
