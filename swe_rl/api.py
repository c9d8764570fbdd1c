"""What code of your own may rely on: protocols, and what their methods are given and have to give.

A class of your own needs no base class; the protocols may be used as one, and then bring their defaults along.
`swe_rl.testing` runs a class of yours against all that is said here. How a run finds it: docs/extending.md.

Invariants:
- `API_VERSION` is MAJOR.MINOR: what is here stays until MAJOR changes, MINOR grows with what is added. What is not here
  may change with any version of swe_rl.
- Nothing of swe_rl imports this: each name lives in its room.
- torch is not imported.
"""

from swe_rl.agent.agent import Agent, AgentError, AgentResult, Assignment, Exit, Task, Turn
from swe_rl.agent.client import ChatClient, ChatReply, ContextOverflow
from swe_rl.agent.command import parse_command
from swe_rl.agent.conversation import Budget, Conversation
from swe_rl.agent.observation import format_observation
from swe_rl.algo.own_algorithm import Advantage, Loss, LossTokens, RewardGroup
from swe_rl.check.findings import Finding, Severity, error, warning
from swe_rl.check.foreign import Rule
from swe_rl.config.choices import SandboxKind
from swe_rl.config.schema import AgentConfig, AlgoConfig, Config, EnvConfig, RouterConfig, SandboxConfig
from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.engine.engine import EngineError
from swe_rl.env.env import Env, Grade, GradeError
from swe_rl.env.folder import commit_of, folder_of, patch_between
from swe_rl.env.grading.foreign import Grader
from swe_rl.env.grading.make import grade_by_tests
from swe_rl.errors import RunError, UserError
from swe_rl.logger.foreign import Logger
from swe_rl.rollout.reward import Attempt, Reward
from swe_rl.router.core import (
    EngineAdded,
    EngineDrained,
    EngineLoad,
    EngineLost,
    Event,
    GroupLeft,
    Place,
    ProgramReleased,
    RequestArrived,
    RequestFinished,
    StepTail,
    SyncBegan,
    SyncEnded,
    Tick,
)
from swe_rl.router.core import Policy as Router
from swe_rl.sandbox.door import direct_url
from swe_rl.sandbox.foreign import OwnSandbox, Sandboxes
from swe_rl.sandbox.sandbox import Door, ExecResult, Sandbox, SandboxError, SandboxProvider, Workspace

API_VERSION = "2.0"

__all__ = [
    "API_VERSION",
    "Advantage",
    "Agent",
    "AgentConfig",
    "AgentError",
    "AgentResult",
    "AlgoConfig",
    "Assignment",
    "Attempt",
    "Budget",
    "ChatClient",
    "ChatReply",
    "Config",
    "ContextOverflow",
    "Conversation",
    "Door",
    "EngineAdded",
    "EngineDrained",
    "EngineError",
    "EngineLoad",
    "EngineLost",
    "Env",
    "EnvConfig",
    "Event",
    "ExecResult",
    "Exit",
    "Finding",
    "Grade",
    "GradeError",
    "Grader",
    "GroupLeft",
    "Instance",
    "InstanceError",
    "Logger",
    "Loss",
    "LossTokens",
    "OwnSandbox",
    "Place",
    "ProgramReleased",
    "RequestArrived",
    "RequestFinished",
    "Reward",
    "RewardGroup",
    "Router",
    "RouterConfig",
    "Rule",
    "RunError",
    "Sandbox",
    "SandboxError",
    "SandboxKind",
    "SandboxConfig",
    "SandboxProvider",
    "Sandboxes",
    "Severity",
    "StepTail",
    "SyncBegan",
    "SyncEnded",
    "Task",
    "Tick",
    "Turn",
    "UserError",
    "Workspace",
    "commit_of",
    "direct_url",
    "error",
    "folder_of",
    "format_observation",
    "grade_by_tests",
    "parse_command",
    "patch_between",
    "warning",
]
