"""This module has the agent interface and what an agent leaves behind."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from swe_rl.errors import RunError
from swe_rl.sandbox.protocol import Sandbox, Waited, no_wait


class AgentError(RunError):
    """The agent program itself failed. What its model said is not the reason."""


class UnknownEndError(AgentError):
    """A program ended with a status that agent.exit_codes does not know. Others may know what ended it."""

    def __init__(self, message: str, result: "AgentResult") -> None:
        super().__init__(message)
        # The result is that of an overflow of the context, in case it was one.
        self.result = result


class Exit(StrEnum):
    """Says how an agent's attempt ended, seen from the agent."""

    SUBMITTED = "submitted"
    STEP_LIMIT = "step_limit"
    CONTEXT_OVERFLOW = "context_overflow"
    AGENT_TIMEOUT = "agent_timeout"
    FORMAT_ERRORS = "format_errors"
    AGENT_CRASHED = "agent_crashed"  # A signal ended the program; its sandbox lives.


@dataclass(frozen=True, slots=True)
class Task:
    instance_id: str
    prompt: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """Tells an agent what its attempt is. `timeout_s` is the agent's own budget. Waiting for a place or booting a
    sandbox is not in it, and neither is the time that its calls waited for the router and the engines: `waited` returns
    those seconds so far."""

    task: Task
    base_url: str
    model: str
    sandbox: Sandbox
    timeout_s: float
    waited: Waited = no_wait


@dataclass(slots=True)
class Turn:
    """Describes a completion and the command that it caused."""

    index: int
    message: str  # The model said this, verbatim.
    command: str | None  # The model asked for this; None after a format error.
    observation: str | None  # The model was answered this.
    exit_code: int | None = None
    format_error: bool = False
    completion_s: float = 0.0
    command_s: float = 0.0
    # The message had so many tokens when a limit of its length cut it; 0 if nothing cut it.
    cut_tokens: int = 0


@dataclass(slots=True)
class AgentResult:
    exit: Exit
    turns: list[Turn] = field(default_factory=list)
    # The whole conversation begins with the system message. A program that keeps its own leaves the task alone.
    messages: list[dict[str, Any]] = field(default_factory=list)
    # Every request offered these tools, in OpenAI's shape: they are part of the prompt.
    tools: tuple[Mapping[str, Any], ...] = ()
    # The agent handed this in as its change. None means that the working tree has the change.
    patch: str | None = None


class Agent(Protocol):
    """Acts on a task. One object serves any number of trajectories at a time: what it remembers of one is in `run`."""

    name: str
    # True means that the agent runs inside of the sandbox and reaches the gateway through `sandbox.door_url`.
    needs_door: bool

    @abstractmethod
    async def run(self, work: Assignment) -> AgentResult:
        """Makes one attempt at `work.task` in `work.sandbox`, with completions from `work.base_url`, in
        `work.timeout_s`. Raises EngineError when the model cannot be reached after retries, SandboxError when the
        sandbox broke, AgentError for a fault of the agent program."""
        ...
