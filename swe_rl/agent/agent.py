"""This module has the agent interface and what an agent leaves behind."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from swe_rl.errors import RunError
from swe_rl.sandbox.sandbox import Sandbox, Waited, no_wait


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


class Summary(StrEnum):
    """Says what became of a summary that the model wrote of its own work (`rollout.compaction=summary`)."""

    accepted = "accepted"  # The attempt went on with it.
    empty = "empty"
    cut = "cut"  # A limit of its length cut it.
    too_long = "too_long"  # With it, the conversation would hardly be shorter.


@dataclass(frozen=True, slots=True)
class Task:
    """Says what an agent has to solve."""

    instance_id: str  # The name of the instance.
    prompt: str  # The agent's first user message: the issue, and what to do.


@dataclass(frozen=True, slots=True)
class Assignment:
    """Tells an agent what its attempt is. `timeout_s` is the agent's own budget. Waiting for a place or booting a
    sandbox is not in it, and neither is the time that its calls waited for the router and the engines: `waited` returns
    those seconds so far."""

    task: Task  # What is to be solved.
    base_url: str  # Completions come from this address, in each dialect (/v1).
    model: str  # Requests name this model.
    sandbox: Sandbox  # Commands run here. The change is made in its working folder.
    timeout_s: float
    waited: Waited = no_wait
    max_turns: int | None = None  # The attempt may have fewer turns than the agent's own limit; None: as many.

    def turns_of(self, own_limit: int) -> int:
        """Returns how many turns the attempt may have, of an agent with a limit of its own."""
        if self.max_turns is None:
            return own_limit
        return min(own_limit, self.max_turns)


@dataclass(slots=True)
class Turn:
    """Describes a completion and the command that it caused."""

    index: int  # Turns are counted from 0.
    message: str  # The model said this, verbatim.
    command: str | None  # The model asked for this; None after a format error.
    observation: str | None  # The model was answered this.
    exit_code: int | None = None  # The command's exit code; None if there was no command.
    format_error: bool = False  # Nothing of the message could be run.
    completion_s: float = 0.0  # Seconds that the completion took.
    command_s: float = 0.0  # Seconds that the command took.
    # The message had so many tokens when a limit of its length cut it; 0 if nothing cut it.
    cut_tokens: int = 0
    # The model was asked for a summary of its work, and this became of it: a word of `Summary`. Other turns have none.
    summary: str = ""
    sub_agent: int = 0  # The number of the sub-agent whose turn it is; 0: the agent itself.


@dataclass(slots=True)
class AgentResult:
    """Holds what an agent leaves behind."""

    exit: Exit  # How the attempt ended, seen from the agent.
    turns: list[Turn] = field(default_factory=list)  # All turns, the first one first.
    # The whole conversation begins with the system message. A program that keeps its own leaves the task alone.
    messages: list[dict[str, Any]] = field(default_factory=list)
    # Every request offered these tools, in OpenAI's shape: they are part of the prompt.
    tools: tuple[Mapping[str, Any], ...] = ()
    # The agent handed this in as its change. None means that the working tree has the change.
    patch: str | None = None


class Agent(Protocol):
    """Acts on a task. One object serves any number of trajectories at a time: what it remembers of one is in `run`."""

    name: str  # Files and figures of a run call the agent so.
    # True means that the agent runs inside of the sandbox and reaches the gateway through `sandbox.door_url`.
    needs_door: bool

    @abstractmethod
    async def run(self, work: Assignment) -> AgentResult:
        """Makes one attempt at `work.task` in `work.sandbox`, with completions from `work.base_url`, in
        `work.timeout_s`. Raises EngineError when the model cannot be reached after retries, SandboxError when the
        sandbox broke, AgentError for a fault of the agent program."""
        ...
