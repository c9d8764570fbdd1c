"""The agent interface and what an agent leaves behind."""

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from swe_rl.errors import RunError
from swe_rl.sandbox.protocol import Sandbox, Waited, no_wait


class AgentError(RunError):
    """The agent program itself failed; not a matter of what its model said."""


class UnknownEndError(AgentError):
    """A program ended with a status that agent.exit_codes does not know; what ended it may be known elsewhere."""

    def __init__(self, message: str, result: "AgentResult") -> None:
        super().__init__(message)
        self.result = result  # as an overflow of its context, should it be that


class Exit(StrEnum):
    """How an agent's attempt ended, seen from the agent."""

    SUBMITTED = "submitted"
    STEP_LIMIT = "step_limit"
    CONTEXT_OVERFLOW = "context_overflow"
    AGENT_TIMEOUT = "agent_timeout"
    FORMAT_ERRORS = "format_errors"
    AGENT_CRASHED = "agent_crashed"  # a signal ended the program; its sandbox lives


class ReplayMismatchError(Exception):
    """A turn of an earlier trajectory did not end as it did there. `turn`: its number, from 0 on."""

    def __init__(self, turn: int, why: str) -> None:
        super().__init__(f"turn {turn}: {why}")
        self.turn = turn


@dataclass(frozen=True, slots=True)
class Task:
    instance_id: str
    prompt: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """One attempt as its agent gets it. `timeout_s` is the agent's own budget; waiting for a place or booting a sandbox
    is not in it, and neither is what its calls `waited` for the router and the engines: seconds so far."""

    task: Task
    base_url: str
    model: str
    sandbox: Sandbox
    timeout_s: float
    waited: Waited = no_wait
    replay: "Replay | None" = None


@dataclass(slots=True)
class Turn:
    """One completion and the command it caused."""

    index: int
    message: str  # what the model said, verbatim
    command: str | None  # what it asked to be done; None after a format error
    observation: str | None  # what the agent was answered
    exit_code: int | None = None
    format_error: bool = False
    completion_s: float = 0.0
    command_s: float = 0.0
    replayed: bool = False  # said in an earlier trajectory, and done again


@dataclass(frozen=True, slots=True)
class Replay:
    """How an attempt begins: with `turns` of an earlier one of the same agent, of which it does the commands again.
    `stands` is called with the conversation once they ended as they did there, before the first request."""

    turns: Sequence[Turn]
    stands: Callable[[Sequence[Mapping[str, Any]]], Awaitable[None]]


@dataclass(slots=True)
class AgentResult:
    exit: Exit
    turns: list[Turn] = field(default_factory=list)
    # The whole conversation, system message first; of a program that keeps its own, the task alone.
    messages: list[dict[str, Any]] = field(default_factory=list)
    tools: tuple[Mapping[str, Any], ...] = ()  # that every request offered, in OpenAI's shape: part of the prompt
    patch: str | None = None  # what the agent handed in as its change; None: what the working tree holds


class Agent(Protocol):
    """Who acts. One object serves any number of trajectories at a time: what it remembers of one is in `run`."""

    name: str
    needs_door: bool  # it runs inside of the sandbox and reaches the gateway through `sandbox.door_url`

    @abstractmethod
    async def run(self, work: Assignment) -> AgentResult:
        """One attempt at `work.task` in `work.sandbox`, with completions from `work.base_url`, in `work.timeout_s`.

        Raises EngineError when the model cannot be reached after retries, SandboxError when the sandbox broke,
        AgentError for a fault of the agent program, ReplayMismatchError where `work.replay` cannot be done again (who
        cannot replay anything is never asked to)."""
        ...
