"""What mini-swe-agent's loop asks for: a model, which is the gateway, and an environment, which is the sandbox.

Invariants:
- Called from the loop's own thread; everything that waits is done in the event loop.
- The thread waits for one coroutine at a time; `stop` cancels it, and whatever the thread calls next is refused.
- Each loop has its own thread: loops neither wait for each other nor use up the event loop's shared executor.
- What the model said is always in the history, format errors too, which the library would drop: prompts only grow.
- `budget` holds completions and commands, as every agent's does; `turns` is the record that other agents leave.
"""

import asyncio
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
from swe_rl.sandbox.protocol import ExecResult

T = TypeVar("T")
_MAX_SUBMISSION_BYTES = 2_000_000
_SENT = ("role", "content", "tool_calls", "tool_call_id", "reasoning_content")


class Stopped(Exception):
    """The event loop no longer wants the program's result."""


class ThreadBridge:
    """Made in the event loop; `call` is for the thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._waiting_for: Future[Any] | None = None
        self._is_stopped = False

    async def run(self, program: Callable[[], T], *, name: str) -> T:
        """The program's result or exception. Cancelling this stops the program and waits until its thread is done."""
        executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        work = self._loop.run_in_executor(executor, program)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            self.stop()
            await asyncio.wait({work})
            if not work.cancelled():
                work.exception()  # looked at: nobody else will
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
    """What model and environment of one attempt have in common. The messages are the library's, which keeps its own."""

    talk: Conversation
    bridge: ThreadBridge


class Dialect(Protocol):
    """How commands are written and answered: the library's ways, or those of agent=bash."""

    tools: Sequence[Mapping[str, Any]]
    env: Mapping[str, str]

    def actions(self, reply: ChatReply) -> list[dict[str, Any]]:
        """Raises the library's FormatError with what the model is told."""
        ...

    def observations(self, actions: list[dict[str, Any]], outputs: list[dict[str, Any]]) -> list[dict[str, Any]]: ...

    def is_submitted(self, action: Mapping[str, Any], result: ExecResult | None) -> bool:
        """Asked before the command runs (`result` None) and after."""
        ...


class GatewayModel:
    """The library's Model."""

    def __init__(self, shared: Shared, dialect: Dialect) -> None:
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
            raise _ended(self._exceptions.LimitsExceeded, "ContextWindowExceededError", str(error)) from error
        if asked is None:
            raise _ended(self._exceptions.TimeExceeded, "TimeExceeded")
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
    """The library's Environment."""

    def __init__(self, shared: Shared, dialect: Dialect) -> None:
        self.config = SimpleNamespace(cwd=shared.talk.work.sandbox.workdir)
        self._shared = shared
        self._dialect = dialect
        self._exceptions = load_library().exceptions

    def execute(self, action: dict[str, Any], cwd: str = "") -> dict[str, Any]:
        talk = self._shared.talk
        if self._dialect.is_submitted(action, None):
            raise _ended(self._exceptions.Submitted, "Submitted")
        command = str(action["command"])
        limit_s = min(talk.command_timeout_s, talk.budget.left_s)
        max_bytes = _MAX_SUBMISSION_BYTES if SUBMIT_MARKER in command else None
        result = self._shared.bridge.call(
            talk.execute(command, talk.turns[-1], env=self._dialect.env, max_output_bytes=max_bytes)
        )
        if result is None:
            raise _ended(self._exceptions.TimeExceeded, "TimeExceeded")
        if self._dialect.is_submitted(action, result):
            submission = "" if result.truncated_bytes else result.output.lstrip().partition("\n")[2]
            raise _ended(self._exceptions.Submitted, "Submitted", submission)
        return _output(command, result, limit_s)

    def get_template_vars(self, **_: Any) -> dict[str, Any]:
        return {"cwd": self._shared.talk.work.sandbox.workdir}

    def serialize(self) -> dict[str, Any]:
        return {}


def _output(command: str, result: ExecResult, limit_s: float) -> dict[str, Any]:
    """As the library's own environments report; `result` rides along for those who format it themselves."""
    reason = f"Command {command!r} timed out after {limit_s:g} seconds"
    return {
        "output": result.output,
        "returncode": -1 if result.timed_out else result.exit_code,
        "exception_info": f"An error occurred while executing the command: {reason}" if result.timed_out else "",
        "result": result,
    }


def _ended(kind: type[Exception], exit_status: str, content: str = "") -> Exception:
    extra = {"exit_status": exit_status, "submission": content if exit_status == "Submitted" else ""}
    return kind({"role": "exit", "content": content or exit_status, "extra": extra})
