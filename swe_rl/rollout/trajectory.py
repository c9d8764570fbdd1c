"""One agent's attempt at one instance, from its start to its reward."""

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from swe_rl.agent.protocol import Turn


class Status(StrEnum):
    """What became of a trajectory; conf/rollout maps each to reward, training, baseline and retries."""

    resolved = "resolved"
    unresolved = "unresolved"
    empty_patch = "empty_patch"
    step_limit = "step_limit"
    context_overflow = "context_overflow"
    agent_timeout = "agent_timeout"
    format_errors = "format_errors"
    infra_error = "infra_error"
    grade_error = "grade_error"
    engine_error = "engine_error"


INFRA_STATUSES = frozenset({Status.infra_error, Status.grade_error, Status.engine_error})


@dataclass(slots=True)
class Trajectory:
    """`trajectory_id` is also the gateway's session: `{split}.{step}.{instance_id}.{sample}.{attempt}`."""

    trajectory_id: str
    instance_id: str
    group_id: str
    split: str
    step: int
    sample: int
    attempt: int
    status: Status
    reward: float | None
    trained: bool
    in_baseline: bool
    turns: list[Turn] = field(default_factory=list)
    patch: str = ""
    tests: dict[str, bool] = field(default_factory=dict)
    error: str | None = None
    num_calls: int = 0
    prompt_tokens: int = 0  # of the first call
    sampled_tokens: int = 0
    response_tokens: int = 0  # everything after the first prompt: sampled tokens and observations
    prefix_breaks: int = 0
    advantage: float | None = None
    times_s: dict[str, float] = field(default_factory=dict)  # boot, agent, grade, queue, prefill, decode, command
    began_s: dict[str, float] = field(default_factory=dict)  # unix seconds: boot, agent, grade; and the end of all

    def to_record(self) -> dict[str, Any]:
        return asdict(self)
