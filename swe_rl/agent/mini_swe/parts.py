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
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar

from swe_rl.agent.budget import Budget
from swe_rl.agent.client import ChatClient, ChatReply, ContextOverflow
from swe_rl.agent.mini_swe.dialects import SUBMIT_MARKER, load_library
from swe_rl.agent.protocol import Assignment, Turn
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


@dataclass(slots=True)
class Shared:
    """What model and environment of one attempt have in common."""

    client: ChatClient
    work: Assignment
    bridge: ThreadBridge
    command_timeout_s: float
    budget: Budget = field(init=False)
    turns: list[Turn] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.budget = Budget(self.work.timeout_s, self.work.waited)


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

    def __init__(self, shared: Shared, dialect: Dialect, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = SimpleNamespace(model_name=shared.work.model)
        self._shared = shared
        self._dialect = dialect
        self._clock = clock
        self._exceptions = load_library().exceptions

    def query(self, messages: list[dict[str, Any]], **_: Any) -> dict[str, Any]:
        sent = [{key: message[key] for key in _SENT if key in message} for message in messages]
        started_s = self._clock()
        try:
            reply = self._shared.bridge.call(self._complete(sent))
        except ContextOverflow as error:
            raise _ended(self._exceptions.LimitsExceeded, "ContextWindowExceededError", str(error)) from error
        completion_s = self._clock() - started_s
        if reply is None:
            raise _ended(self._exceptions.TimeExceeded, "TimeExceeded")
        turn = Turn(len(self._shared.turns), reply.content, None, None, completion_s=completion_s)
        self._shared.turns.append(turn)
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
        self._shared.turns[-1].observation = "\n".join(str(answer["content"]) for answer in answers)
        return answers

    def get_template_vars(self, **_: Any) -> dict[str, Any]:
        return {"model_name": self._shared.work.model}

    def serialize(self) -> dict[str, Any]:
        return {}

    async def _complete(self, messages: list[dict[str, Any]]) -> ChatReply | None:
        """None when the budget ran out first."""
        shared = self._shared
        return await shared.budget.on(
            shared.client.complete(
                messages, base_url=shared.work.base_url, model=shared.work.model, tools=self._dialect.tools
            )
        )


class SandboxEnvironment:
    """The library's Environment."""

    def __init__(self, shared: Shared, dialect: Dialect) -> None:
        self.config = SimpleNamespace(cwd=shared.work.sandbox.workdir)
        self._shared = shared
        self._dialect = dialect
        self._exceptions = load_library().exceptions

    def execute(self, action: dict[str, Any], cwd: str = "") -> dict[str, Any]:
        shared = self._shared
        if self._dialect.is_submitted(action, None):
            raise _ended(self._exceptions.Submitted, "Submitted")
        if shared.budget.is_spent:
            raise _ended(self._exceptions.TimeExceeded, "TimeExceeded")
        command = str(action["command"])
        limit_s = min(shared.command_timeout_s, shared.budget.left_s)
        result = shared.bridge.call(
            shared.work.sandbox.exec(
                command,
                timeout_s=limit_s,
                env=self._dialect.env,
                max_output_bytes=_MAX_SUBMISSION_BYTES if SUBMIT_MARKER in command else None,
            )
        )
        shared.budget.spend(result.duration_s)
        shared.turns[-1].exit_code = result.exit_code
        shared.turns[-1].command_s += result.duration_s
        if self._dialect.is_submitted(action, result):
            submission = "" if result.truncated_bytes else result.output.lstrip().partition("\n")[2]
            raise _ended(self._exceptions.Submitted, "Submitted", submission)
        return _output(command, result, limit_s)

    def get_template_vars(self, **_: Any) -> dict[str, Any]:
        return {"cwd": self._shared.work.sandbox.workdir}

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
