"""The agent interface and what an agent leaves behind."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from swe_rl.errors import RunError
from swe_rl.sandbox.protocol import Sandbox


class AgentError(RunError):
    """The agent program itself failed; not a matter of what its model said."""


class Exit(StrEnum):
    """How an agent's attempt ended, seen from the agent."""

    SUBMITTED = "submitted"
    STEP_LIMIT = "step_limit"
    CONTEXT_OVERFLOW = "context_overflow"
    AGENT_TIMEOUT = "agent_timeout"
    FORMAT_ERRORS = "format_errors"


@dataclass(frozen=True, slots=True)
class Task:
    instance_id: str
    prompt: str


@dataclass(slots=True)
class Turn:
    """One completion and the command it caused."""

    index: int
    message: str  # what the model said, verbatim
    command: str | None  # None after a format error
    observation: str | None  # what the agent was answered
    exit_code: int | None = None
    format_error: bool = False
    completion_s: float = 0.0
    command_s: float = 0.0


@dataclass(slots=True)
class AgentResult:
    exit: Exit
    turns: list[Turn] = field(default_factory=list)
    messages: list[dict[str, str]] = field(default_factory=list)  # the whole conversation, system message first


class Agent(Protocol):
    name: str

    async def run(self, task: Task, *, base_url: str, model: str, sandbox: Sandbox, timeout_s: float) -> AgentResult:
        """`timeout_s` is the agent's own budget; waiting for a place or booting a sandbox is not in it.

        Raises EngineError when the model cannot be reached after retries, SandboxError when the sandbox broke,
        AgentError for a fault of the agent program.
        """
        ...
