"""Sandboxes that somebody else wrote, held to what rollout and grading rely on.

Invariants:
- Whatever a method raises, returns that is none, or takes too long for is a SandboxError that names the class: a
  failure of infrastructure, never a reward. A UserError of `create` keeps its type.
- A command has its time, counted here as for any sandbox, and `_GRACE_S` to be ended; a file, an end and a start are
  bounded as well. What is cancelled gets `_CANCEL_S` to stop. Nothing can end code that blocks the event loop.
- Every sandbox that was made is closed with its provider, whatever became of it.
"""

import asyncio
import inspect
import posixpath
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from swe_rl.config.choices import ExtensionKind
from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import UserError
from swe_rl.extension.find import Foreign
from swe_rl.extension.make import failure, make
from swe_rl.sandbox.base import BaseProvider, HeadTail, LocalSandbox
from swe_rl.sandbox.confined_path import MissingFileError
from swe_rl.sandbox.protocol import (
    Door,
    ExecResult,
    SandboxError,
    Waited,
    Workspace,
    close_all,
    ends_within,
    no_wait,
)

_GRACE_S = 30.0  # beyond a command's time, to end it and to say what it printed
_CANCEL_S = 5.0
_FILE_S = 120.0
_CLOSE_S = 60.0
_ANY_S = 86_400.0  # for a command whose waiting does not count: its end is decided here


class OwnSandbox(Protocol):
    """Of one trajectory or one grading. Calls come one after another, but for `close`."""

    sandbox_id: str
    workdir: str  # where commands begin, as they see it

    @abstractmethod
    async def exec(self, command: str, timeout_s: float, env: Mapping[str, str]) -> ExecResult:
        """Runs `bash -c command` in `workdir`, with `env` over an environment that has nothing of this process.

        Never raises for what the command did. When it returns, and when it is cancelled, everything that the command
        started is ended. After `timeout_s` seconds: `ExecResult(124, OUTPUT, timed_out=True)`.
        """
        ...

    @abstractmethod
    async def write_file(self, path: str, content: bytes) -> None:
        """`path` is relative to `workdir`, and its folders are made. Through a link out of it: a SandboxError."""
        ...

    @abstractmethod
    async def read_file(self, path: str) -> bytes:
        """As `write_file`; FileNotFoundError where it is not there."""
        ...

    @abstractmethod
    async def close(self) -> None:
        """Ends all that runs and removes all files. Called once."""
        ...


class Sandboxes(Protocol):
    """Where commands run. A sandbox with a `door_url` besides (`has_door`) takes agents that are programs."""

    takes_folders: bool = True  # a Workspace with `path`: a folder of this machine, to be copied
    takes_images: bool = False  # a Workspace with `image`
    has_network: bool = False  # commands reach a network: has to be allowed by sandbox.network=true
    has_door: bool = False  # `create` takes a Door, and its sandboxes have a `door_url`: the model's address inside
    ends_when_killed: bool = False  # a run that is killed leaves no sandbox behind; then `is_there(sandbox_id)` says so

    @abstractmethod
    async def create(self, workspace: Workspace, owner: str, door: Door | None) -> OwnSandbox:
        """A fresh copy of `workspace`, within sandbox.start_timeout_s. `owner` names the trajectory or the grading.

        At most sandbox.concurrency are open at once. Where it fails or is cancelled it leaves nothing behind.
        """
        ...

    @abstractmethod
    async def close(self) -> None:
        """The end of the run: all its sandboxes are closed already."""
        ...


class ForeignSandbox(LocalSandbox):
    def __init__(
        self, made: OwnSandbox, maker: Foreign, config: SandboxConfig, gone: Callable[["ForeignSandbox"], None]
    ) -> None:
        door_url = getattr(made, "door_url", None)
        super().__init__(str(made.sandbox_id), str(made.workdir), config, door_url=door_url)
        self._made = made
        self._maker = maker
        self._gone = gone
        self._turn = asyncio.Lock()

    async def _run(
        self, command: str, output: HeadTail, timeout_s: float, env: Mapping[str, str], waited: Waited
    ) -> tuple[int | None, float]:
        async with self._turn:
            return await self._until_closed(self._one(command, output, timeout_s, env, waited))

    async def _one(
        self, command: str, output: HeadTail, timeout_s: float, env: Mapping[str, str], waited: Waited
    ) -> tuple[int | None, float]:
        began_s = time.monotonic()
        limit_s = timeout_s if waited is no_wait else _ANY_S
        patience_s = timeout_s + (_GRACE_S if waited is no_wait else 0.0)
        call = partial(self._made.exec, command, limit_s, dict(env))
        answer = await bounded(self._maker, "exec", call, patience_s, waited)
        took_s = time.monotonic() - began_s
        if answer is None and waited is no_wait:
            raise SandboxError(f"{self._maker}: its method exec did not end within {patience_s:g} s")
        if answer is None:
            return None, took_s
        if not isinstance(answer, ExecResult):
            raise SandboxError(f"{self._maker}: its method exec must return swe_rl.api.ExecResult, not {answer!r:.80}")
        output.feed(str(answer.output).encode("utf-8", "replace"))
        return (None if answer.timed_out else int(answer.exit_code)), took_s

    async def write_file(self, path: str, content: bytes) -> None:
        self._check_path(path)
        if len(content) > self._max_bytes:
            raise SandboxError(f"{path!r} has more than sandbox.max_file_mb={self._config.max_file_mb} MiB")
        await self._file("write_file", partial(self._made.write_file, path, content))

    async def read_file(self, path: str) -> bytes:
        self._check_path(path)
        content = await self._file("read_file", partial(self._made.read_file, path))
        if not isinstance(content, bytes):
            raise SandboxError(f"{self._maker}: its method read_file must return bytes, not {content!r:.80}")
        if len(content) > self._max_bytes:
            raise SandboxError(f"{path!r} has more than sandbox.max_file_mb={self._config.max_file_mb} MiB")
        return content

    def _check_path(self, path: str) -> None:
        self._check_open()
        if posixpath.isabs(path) or posixpath.normpath(path).split("/")[0] == ".." or "\0" in path:
            raise SandboxError(f"{path!r} is not below the sandbox's working folder")

    async def _file(self, method: str, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        async with self._turn:
            done = await self._until_closed(bounded(self._maker, method, call, _FILE_S))
        if done is None:
            raise SandboxError(f"{self._maker}: its method {method} did not end within {_FILE_S:g} s")
        return done

    async def _close(self) -> None:
        await self._end_running()
        try:
            if await bounded(self._maker, "close", self._made.close, _CLOSE_S) is None:
                raise SandboxError(f"{self._maker}: its method close did not end within {_CLOSE_S:g} s")
        finally:
            self._gone(self)


class ForeignProvider(BaseProvider[ForeignSandbox]):
    def __init__(self, made: Sandboxes, maker: Foreign, config: SandboxConfig, warn: Callable[[str], None]) -> None:
        super().__init__(config)
        self._made = made
        self._maker = maker
        self._warn = warn
        self._open: set[ForeignSandbox] = set()
        self._late: set[asyncio.Future[Any]] = set()
        self._starts = asyncio.Semaphore(config.start_concurrency)

    async def _prepare(self, workspace: Workspace, owner: str, door: Door | None) -> None:
        kind = "folders" if workspace.image is None else "images"
        if not getattr(self._made, f"takes_{kind}", kind == "folders"):
            raise UserError(f"{owner}: {self._maker} starts no sandboxes from {kind} (its takes_{kind})")

    async def _make(self, workspace: Workspace, owner: str, door: Door | None) -> ForeignSandbox:
        limit_s = self._config.start_timeout_s
        async with self._starts:
            call = partial(self._made.create, workspace, owner, door)
            made = await bounded(self._maker, "create", call, limit_s, late=self._close_late)
        if made is None:
            raise SandboxError(f"{owner}: {self._maker}: its method create did not end within {limit_s:g} s")
        missing = [name for name in ("exec", "write_file", "read_file", "close", "workdir", "sandbox_id")
                   if not hasattr(made, name)]  # fmt: skip
        if missing:
            if "close" not in missing:
                with suppress(SandboxError):  # what is missing is said, and comes first
                    await bounded(self._maker, "close", made.close, _CLOSE_S)
            raise SandboxError(f"{self._maker}: its method create must return what has {', '.join(missing)}")
        sandbox = ForeignSandbox(made, self._maker, self._config, self._left)
        self._open.add(sandbox)
        return sandbox

    def _close_late(self, made: "asyncio.Future[OwnSandbox]") -> None:
        """One that was made when nobody waited for it any more."""
        if not made.cancelled() and made.exception() is None and hasattr(made.result(), "close"):
            closing = asyncio.ensure_future(bounded(self._maker, "close", made.result().close, _CLOSE_S))
            self._late.add(closing)
            closing.add_done_callback(self._late.discard)

    def _left(self, sandbox: ForeignSandbox) -> None:
        self._open.discard(sandbox)
        self._places.release()

    async def close(self) -> None:
        """What its own `close` does wrong is a warning: the run has ended."""
        self._closed = True
        await close_all(list(self._open), self._warn)
        try:
            if await bounded(self._maker, "close", self._made.close, _CLOSE_S) is None:
                self._warn(f"{self._maker}: its method close did not end within {_CLOSE_S:g} s")
        except SandboxError as error:
            self._warn(str(error))


async def bounded(
    maker: Foreign,
    method: str,
    call: Callable[[], Coroutine[Any, Any, Any]],
    limit_s: float,
    waited: Waited = no_wait,
    late: "Callable[[asyncio.Future[Any]], None] | None" = None,
) -> Any:
    """What it returns, `()` in the place of None; None when its time is over. Raises SandboxError and UserError.

    `late` hears of what did not stop when it was cancelled, once it ends.
    """
    running: asyncio.Future[Any] | None = None
    try:
        coroutine = call()
        if not inspect.isawaitable(coroutine):
            raise TypeError("it must be `async def`")
        running = asyncio.ensure_future(coroutine)
        if not await ends_within(running, limit_s, waited):
            return None
        returned = running.result()
        return () if returned is None else returned
    except (SandboxError, UserError):
        raise
    except FileNotFoundError as error:
        if method == "read_file":
            raise MissingFileError(str(error)) from error
        raise SandboxError(failure(maker, method, error)) from error
    except Exception as error:
        raise SandboxError(failure(maker, method, error)) from error
    finally:
        if running is not None and not running.done():
            running.cancel()
            if late is not None:
                running.add_done_callback(late)
            await asyncio.wait({running}, timeout=_CANCEL_S)


def make_own(config: SandboxConfig, scratch: Path, warn: Callable[[str], None]) -> ForeignProvider:
    """Raises ExtensionError, and UserError for a name that nobody has."""
    given = {"config": config, "scratch": scratch, "warn": warn}
    made, maker = make(ExtensionKind.sandbox, config, given, {})
    if maker is None:
        raise UserError("sandbox.kind=custom needs sandbox._target_=MODULE.CLASS, or an option of an installed package")
    return ForeignProvider(made, maker, config, warn)
