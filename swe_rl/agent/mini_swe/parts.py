"""This module has what mini-swe-agent's loop asks for: a model, which is the gateway, and an environment, which is the
sandbox.

Invariants:
- Both are called from the loop's own thread; everything that waits is done in the event loop.
- The thread waits for one coroutine at a time; `stop` cancels it, and whatever the thread calls next is refused.
- Each loop has its own thread: loops neither wait for each other nor use up the event loop's shared executor.
- What the model said is always in the history, format errors too, which the library would drop: prompts only grow.
- `budget` holds completions and commands, as every agent's does; `turns` is the record that other agents leave.
"""

import asyncio
import base64
import binascii
import shlex
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar

from swe_rl.agent.client import ChatReply, ContextOverflow
from swe_rl.agent.conversation import Conversation
from swe_rl.agent.mini_swe.dialects import SUBMIT_MARKER, load_library
from swe_rl.env.patch_files import text_of
from swe_rl.sandbox.sandbox import ExecResult

T = TypeVar("T")
# A patch of more bytes is no change that anybody asked for, and is cut.
_MAX_SUBMISSION_BYTES = 2_000_000
_SENT = ("role", "content", "tool_calls", "tool_call_id", "reasoning_content")


class Stopped(Exception):
    """The event loop no longer wants the program's result."""


class ThreadBridge:
    """Lets a thread run coroutines in the event loop. It is made in the loop; `call` is for the thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._waiting_for: Future[Any] | None = None
        self._is_stopped = False

    async def run(self, program: Callable[[], T], *, name: str) -> T:
        """Returns the program's result or raises its exception. Cancelling this stops the program and waits until its
        thread is done."""
        executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        work = self._loop.run_in_executor(executor, program)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            self.stop()
            await asyncio.wait({work})
            if not work.cancelled():
                # Looking at the exception keeps asyncio from logging it as forgotten.
                work.exception()
            raise
        finally:
            executor.shutdown(wait=False)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs `coroutine` in the event loop and waits for it. Raises what it raises, or Stopped."""
        with self._lock:
            if self._is_stopped:
                coroutine.close()
                raise Stopped
            self._waiting_for = future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise Stopped from None

    def stop(self) -> None:
        with self._lock:
            self._is_stopped = True
            if self._waiting_for is not None:
                self._waiting_for.cancel()


@dataclass(frozen=True, slots=True)
class Shared:
    """Holds what model and environment of one attempt have in common. The messages are the library's, which keeps its
    own."""

    talk: Conversation
    bridge: ThreadBridge


class CommandDialect(Protocol):
    """Says how commands are written and answered: in the library's ways, or in those of agent=bash."""

    tools: Sequence[Mapping[str, Any]]
    env: Mapping[str, str]

    def actions(self, reply: ChatReply) -> list[dict[str, Any]]:
        """Returns the commands of a reply. Raises the library's FormatError with what the model is told."""
        ...

    def observations(self, actions: list[dict[str, Any]], outputs: list[dict[str, Any]]) -> list[dict[str, Any]]: ...

    def is_submitted(self, action: Mapping[str, Any], result: ExecResult | None) -> bool:
        """Tells whether the action ends the attempt. It is asked before the command runs (`result` is None) and
        after."""
        ...


class GatewayModel:
    """Serves as the library's Model."""

    def __init__(self, shared: Shared, dialect: CommandDialect) -> None:
        self.config = SimpleNamespace(model_name=shared.talk.work.model)
        self._shared = shared
        self._dialect = dialect
        self._exceptions = load_library().exceptions

    def query(self, messages: list[dict[str, Any]], **_: Any) -> dict[str, Any]:
        talk = self._shared.talk
        talk.messages = [{key: message[key] for key in _SENT if key in message} for message in messages]
        try:
            asked = self._shared.bridge.call(talk.ask())
        except ContextOverflow as error:
            raise _ending_error(self._exceptions.LimitsExceeded, "ContextWindowExceededError", str(error)) from error
        if asked is None:
            raise _ending_error(self._exceptions.TimeExceeded, "TimeExceeded")
        reply, turn = asked
        said = {**reply.message, "extra": {"cost": 0.0, "timestamp": time.time()}}
        try:
            actions = self._dialect.actions(reply)
        except self._exceptions.FormatError as error:
            turn.format_error = True
            turn.observation = str(error.messages[-1]["content"])
            raise self._exceptions.FormatError(said, *error.messages) from error
        turn.command = "\n".join(str(action["command"]) for action in actions)
        said["extra"]["actions"] = actions
        return said

    def format_message(self, **message: Any) -> dict[str, Any]:
        return message

    def format_observation_messages(
        self, message: dict[str, Any], outputs: list[dict[str, Any]], template_vars: dict[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        answers = self._dialect.observations(message["extra"]["actions"], outputs)
        self._shared.talk.turns[-1].observation = "\n".join(str(answer["content"]) for answer in answers)
        return answers

    def get_template_vars(self, **_: Any) -> dict[str, Any]:
        return {"model_name": self._shared.talk.work.model}

    def serialize(self) -> dict[str, Any]:
        return {}


class SandboxEnvironment:
    """Serves as the library's Environment."""

    def __init__(self, shared: Shared, dialect: CommandDialect) -> None:
        self.config = SimpleNamespace(cwd=shared.talk.work.sandbox.workdir)
        self._shared = shared
        self._dialect = dialect
        self._exceptions = load_library().exceptions

    def execute(self, action: dict[str, Any], cwd: str = "") -> dict[str, Any]:
        talk = self._shared.talk
        if self._dialect.is_submitted(action, None):
            raise _ending_error(self._exceptions.Submitted, "Submitted")
        command = str(action["command"])
        limit_s = min(talk.command_timeout_s, talk.budget.left_s)
        max_bytes = _MAX_SUBMISSION_BYTES if SUBMIT_MARKER in command else None
        result = self._shared.bridge.call(
            talk.execute(command, talk.turns[-1], env=self._dialect.env, max_output_bytes=max_bytes)
        )
        if result is None:
            raise _ending_error(self._exceptions.TimeExceeded, "TimeExceeded")
        if self._dialect.is_submitted(action, result):
            output = "" if result.truncated_bytes else self._whole_output(command, result)
            raise _ending_error(self._exceptions.Submitted, "Submitted", output.lstrip().partition("\n")[2])
        return _report_command(command, result, limit_s)

    def _whole_output(self, command: str, result: ExecResult) -> str:
        """Returns what the command printed, with surrogates for bytes that are no UTF-8, which `result` does not have.

        The command runs once more for them. If it then prints something else, there is no output, and the working tree
        has the change.
        """
        if "\ufffd" not in result.output:
            return result.output
        encoded = f"bash -c {shlex.quote(command)} 2>&1 | base64 -w0"
        talk = self._shared.talk
        options: dict[str, Any] = {"env": self._dialect.env, "max_output_bytes": 2 * _MAX_SUBMISSION_BYTES}
        again = self._shared.bridge.call(talk.execute(encoded, talk.turns[-1], **options))
        try:
            data = base64.b64decode("" if again is None else again.output, validate=True)
        except (binascii.Error, ValueError):
            return ""
        if data.decode("utf-8", "replace") == result.output:
            return text_of(data)
        return ""

    def get_template_vars(self, **_: Any) -> dict[str, Any]:
        return {"cwd": self._shared.talk.work.sandbox.workdir}

    def serialize(self) -> dict[str, Any]:
        return {}


def _report_command(command: str, result: ExecResult, limit_s: float) -> dict[str, Any]:
    """Reports a command as the library's own environments do. `result` rides along for dialects that format it
    themselves."""
    status = result.exit_code
    problem = ""
    if result.timed_out:
        status = -1
        problem = (
            f"An error occurred while executing the command: Command {command!r} timed out after {limit_s:g} seconds"
        )
    return {"output": result.output, "returncode": status, "exception_info": problem, "result": result}


def _ending_error(kind: type[Exception], exit_status: str, content: str = "") -> Exception:
    extra = {"exit_status": exit_status, "submission": content if exit_status == "Submitted" else ""}
    return kind({"role": "exit", "content": content or exit_status, "extra": extra})
