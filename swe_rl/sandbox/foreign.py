"""This module holds sandboxes that somebody else wrote to what rollouts and grading rely on.

Invariants:
- A method that raises, returns what it must not, or takes too long makes a SandboxError that names the class. That is a
  failure of infrastructure, and never a reward. A UserError of `create` keeps its type.
- A command has its time, counted here as for any sandbox, and `_GRACE_S` to be ended. Reading, writing, starts and ends
  are bounded as well. What is cancelled gets `_CANCEL_S` to stop. Nothing can end code that blocks the event loop.
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
from swe_rl.extension.make import describe_failure, make_extension
from swe_rl.sandbox.base import BaseProvider, HeadTail, LocalSandbox
from swe_rl.sandbox.confined_path import MissingFileError
from swe_rl.sandbox.sandbox import (
    Door,
    ExecResult,
    SandboxError,
    Waited,
    Workspace,
    close_all,
    ends_within,
    no_wait,
)

_GRACE_S = 30.0  # A command gets so long beyond its time, to be ended and to say what it printed.
_CANCEL_S = 5.0  # A call that is cancelled gets so long to stop; then it is left to itself.
_FILE_S = 120.0  # To read or to write a file may take so long.
_CLOSE_S = 60.0  # To close a sandbox or the provider may take so long.
# A command whose waiting does not count is given a day, because its end is decided here.
_ANY_S = 86_400.0


class OwnSandbox(Protocol):
    """This is the sandbox of one trajectory or one grading. Calls come one after another, but for `close`."""

    sandbox_id: str  # Messages, and `is_there`, call the sandbox so.
    workdir: str  # Commands begin in this folder, as they see it.

    @abstractmethod
    async def exec(self, command: str, timeout_s: float, env: Mapping[str, str]) -> ExecResult:
        """Runs `bash -c command` in `workdir`, with `env` over an environment that has nothing of this process.

        It never raises for what the command did. When it returns, and when it is cancelled, everything that the command
        started is ended. After `timeout_s` seconds it returns `ExecResult(124, OUTPUT, timed_out=True)`.
        """
        ...

    @abstractmethod
    async def write_file(self, path: str, content: bytes) -> None:
        """Writes a file; `path` is relative to `workdir`, and missing folders are made.

        Raises SandboxError where a link leads out of `workdir`.
        """
        ...

    @abstractmethod
    async def read_file(self, path: str) -> bytes:
        """Returns a file's content; `path` is as for `write_file`. Raises FileNotFoundError where there is no file."""
        ...

    @abstractmethod
    async def close(self) -> None:
        """Ends all that runs and removes all files. It is called once."""
        ...


class Sandboxes(Protocol):
    """This makes the sandboxes in which commands run. Where they have a `door_url`, agents may be programs in them."""

    takes_folders: bool = True  # `create` takes a Workspace with a `path`, a folder of this machine, and copies it.
    takes_images: bool = False  # `create` takes a Workspace with an `image`.
    has_network: bool = False  # Commands reach a network, which sandbox.network=true has to allow.
    has_door: bool = False  # `create` takes a Door. Its sandboxes have a `door_url`: the model's address inside.
    # A run that is killed leaves no sandbox behind. Then the method `is_there(sandbox_id)` tells whether one is left.
    ends_when_killed: bool = False

    @abstractmethod
    async def create(self, workspace: Workspace, owner: str, door: Door | None) -> OwnSandbox:
        """Returns a sandbox with a fresh copy of `workspace`, within sandbox.start_timeout_s.

        `owner` names the trajectory or the grading. At most sandbox.concurrency sandboxes are open at once. Where this
        fails or is cancelled, it leaves nothing behind.
        """
        ...

    @abstractmethod
    async def close(self) -> None:
        """Ends the provider with the run, when all its sandboxes are closed already."""
        ...


class ForeignSandbox(LocalSandbox):
    """This holds one of somebody else's sandboxes to its times, and checks what its methods return."""

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
        if waited is no_wait:
            limit_s = timeout_s
        else:
            limit_s = _ANY_S
        patience_s = timeout_s + (_GRACE_S if waited is no_wait else 0.0)
        call = partial(self._made.exec, command, limit_s, dict(env))
        answer = await await_bounded(self._maker, "exec", call, patience_s, waited)
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
            done = await self._until_closed(await_bounded(self._maker, method, call, _FILE_S))
        if done is None:
            raise SandboxError(f"{self._maker}: its method {method} did not end within {_FILE_S:g} s")
        return done

    async def _close(self) -> None:
        await self._end_running()
        try:
            if await await_bounded(self._maker, "close", self._made.close, _CLOSE_S) is None:
                raise SandboxError(f"{self._maker}: its method close did not end within {_CLOSE_S:g} s")
        finally:
            self._gone(self)


class ForeignProvider(BaseProvider[ForeignSandbox]):
    """This makes sandboxes by somebody else's class; `warn` hears of what goes wrong at the end of the run."""

    def __init__(self, made: Sandboxes, maker: Foreign, config: SandboxConfig, warn: Callable[[str], None]) -> None:
        super().__init__(config)
        self._made = made
        self._maker = maker
        self._warn = warn
        self._open: set[ForeignSandbox] = set()
        self._late: set[asyncio.Future[Any]] = set()
        self._starts = asyncio.Semaphore(config.start_concurrency)

    async def _prepare(self, workspace: Workspace, owner: str, door: Door | None) -> None:
        kind = "images"
        if workspace.image is None:
            kind = "folders"
        if not getattr(self._made, f"takes_{kind}", kind == "folders"):
            raise UserError(f"{owner}: {self._maker} starts no sandboxes from {kind} (its takes_{kind})")

    async def _make(self, workspace: Workspace, owner: str, door: Door | None) -> ForeignSandbox:
        limit_s = self._config.start_timeout_s
        async with self._starts:
            call = partial(self._made.create, workspace, owner, door)
            made = await await_bounded(self._maker, "create", call, limit_s, late=self._close_late)
        if made is None:
            raise SandboxError(f"{owner}: {self._maker}: its method create did not end within {limit_s:g} s")
        missing = [name for name in ("exec", "write_file", "read_file", "close", "workdir", "sandbox_id")
                   if not hasattr(made, name)]  # fmt: skip
        if missing:
            if "close" not in missing:
                # An error of `close` would hide the message about what is missing.
                with suppress(SandboxError):
                    await await_bounded(self._maker, "close", made.close, _CLOSE_S)
            raise SandboxError(f"{self._maker}: its method create must return what has {', '.join(missing)}")
        sandbox = ForeignSandbox(made, self._maker, self._config, self._left)
        self._open.add(sandbox)
        return sandbox

    def _close_late(self, made: "asyncio.Future[OwnSandbox]") -> None:
        """Closes a sandbox that was made when nobody waited for it any more."""
        if not made.cancelled() and made.exception() is None and hasattr(made.result(), "close"):
            closing = asyncio.ensure_future(await_bounded(self._maker, "close", made.result().close, _CLOSE_S))
            self._late.add(closing)
            closing.add_done_callback(self._late.discard)

    def _left(self, sandbox: ForeignSandbox) -> None:
        self._open.discard(sandbox)
        self._places.release()

    async def close(self) -> None:
        """Closes all sandboxes, then the provider. Its own `close` may fail with a warning, as the run has ended."""
        self._closed = True
        await close_all(list(self._open), self._warn)
        try:
            if await await_bounded(self._maker, "close", self._made.close, _CLOSE_S) is None:
                self._warn(f"{self._maker}: its method close did not end within {_CLOSE_S:g} s")
        except SandboxError as error:
            self._warn(str(error))


async def await_bounded(
    maker: Foreign,
    method: str,
    call: Callable[[], Coroutine[Any, Any, Any]],
    limit_s: float,
    waited: Waited = no_wait,
    late: "Callable[[asyncio.Future[Any]], None] | None" = None,
) -> Any:
    """Returns what the method returns, with `()` in the place of None, or None when its time is over.

    `late` hears of a call that did not stop when it was cancelled, once it ends. Raises SandboxError for all that goes
    wrong, but a UserError of the method as it is.
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
        if returned is None:
            return ()
        return returned
    except (SandboxError, UserError):
        raise
    except FileNotFoundError as error:
        if method == "read_file":
            raise MissingFileError(str(error)) from error
        raise SandboxError(describe_failure(maker, method, error)) from error
    except Exception as error:
        raise SandboxError(describe_failure(maker, method, error)) from error
    finally:
        if running is not None and not running.done():
            running.cancel()
            if late is not None:
                running.add_done_callback(late)
            await asyncio.wait({running}, timeout=_CANCEL_S)


def make_own(config: SandboxConfig, scratch: Path, warn: Callable[[str], None]) -> ForeignProvider:
    """Returns the provider around the class that the configuration names.

    Raises ExtensionError where the class cannot be used, and UserError for a name that nobody has.
    """
    given = {"config": config, "scratch": scratch, "warn": warn}
    made, maker = make_extension(ExtensionKind.sandbox, config, given, {})
    if maker is None:
        raise UserError("sandbox.kind=custom needs sandbox._target_=MODULE.CLASS, or an option of an installed package")
    return ForeignProvider(made, maker, config, warn)
