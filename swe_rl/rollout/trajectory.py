"""Describes one agent's attempt at one instance: its name, its order, and what became of it up to its reward."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from swe_rl.agent.agent import Turn
from swe_rl.config.choices import INFRA_STATUSES
from swe_rl.dataset.instance import Instance
from swe_rl.gateway.trace import SegmentRole
from swe_rl.rollout.segments import Segment

if TYPE_CHECKING:  # It is the type of a field alone.
    from swe_rl.gateway.session import SessionSettings


class Status(StrEnum):
    """The end of a trajectory; conf/rollout maps each status to reward, training, baseline and retries."""

    resolved = "resolved"
    unresolved = "unresolved"
    empty_patch = "empty_patch"
    step_limit = "step_limit"
    context_overflow = "context_overflow"
    agent_timeout = "agent_timeout"
    format_errors = "format_errors"
    agent_crashed = "agent_crashed"
    request_refused = "request_refused"
    infra_error = "infra_error"
    grade_error = "grade_error"
    engine_error = "engine_error"


# No agent wrote these keys of a record.
OUR_WORDS = frozenset({"error"})
# It stands in front of the split, in the names of an evaluation's trajectories.
EVALUATION = "eval-"
# Fields that release 0.5 wrote into each trajectory and each turn. Its files are read without them.
_FORMER = frozenset({"prefix", "prefix_sampled_tokens", "prefix_tokens", "prefix_dropped"})
_FORMER_OF_TURN = frozenset({"replayed"})


@dataclass(frozen=True, slots=True)
class TrajectoryId:
    """The name of a trajectory, written `{split}.{step}.{instance_id}.{sample}.{attempt}`.

    Its session, its traces and its sandbox have the same name. An evaluation after step k is of step k.
    """

    split: str
    step: int
    instance_id: str
    sample: int
    attempt: int

    @classmethod
    def parse(cls, name: str, splits: Collection[str] = ()) -> "TrajectoryId | None":
        """Returns the name; None for a session of somebody else's.

        `splits` are those of the run, as `v1.0` has dots and numbers, too.
        """
        known = "".join(f"{re.escape(split)}|" for split in sorted(splits, key=len, reverse=True))
        parts = re.fullmatch(rf"({known}.+?)\.([0-9]+)\.(.+)\.([0-9]+)\.([0-9]+)", name, re.DOTALL)
        return parts and cls(parts[1], int(parts[2]), parts[3], int(parts[4]), int(parts[5]))

    def __str__(self) -> str:
        return f"{self.group_id}.{self.sample}.{self.attempt}"

    @property
    def group_id(self) -> str:
        return f"{self.split}.{self.step}.{self.instance_id}"

    @property
    def is_evaluation(self) -> bool:
        return self.split.startswith(EVALUATION)


def _nobody_waits() -> None:
    """Does nothing: it is for a place that is kept to the end."""


@dataclass(frozen=True, slots=True)
class Order:
    """An order: what to attempt, under which name and with which sampling.

    `acted` is called when the engines are done with it: what is left is its grading.
    """

    instance: Instance
    id: TrajectoryId
    settings: "SessionSettings"
    acted: Callable[[], None] = field(default=_nobody_waits, compare=False)

    @property
    def trajectory_id(self) -> str:
        return str(self.id)


@dataclass(slots=True)
class Trajectory:
    """A trajectory as the run's files have it. `trajectory_id`, `group_id` and the next five are a TrajectoryId's."""

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
    # So many of the first calls were answered by replies that an attempt before this one had sampled.
    recalled_turns: int = 0
    # These are the tokens of the first call's prompt.
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    # This counts everything after the first prompt: sampled tokens and observations.
    response_tokens: int = 0
    # A limit of their length cut these.
    cut_replies: int = 0
    # Its last reply was cut, and nothing in it was run.
    ended_by_cut: bool = False
    prefix_breaks: int = 0
    segments: list[Segment] = field(default_factory=list)
    # These summaries are not trained: they were rejected, or the attempt ended before it went on with them.
    rejected_summaries: int = 0
    rejected_tokens: int = 0
    # These are calls, by what was mended in them.
    request_notes: dict[str, int] = field(default_factory=dict)
    # These are in no row: the agent asked anew and went on from another one.
    superseded_replies: int = 0
    superseded_tokens: int = 0
    advantage: float | None = None
    # This is less penalties; algo.advantage=gae alone has it.
    charged_reward: float | None = None
    # These are by turn, from a reward of somebody's own.
    own_turn_rewards: list[float] = field(default_factory=list)
    # These are by turn, those included; none: turns bring nothing.
    turn_rewards: list[float] = field(default_factory=list)
    # These are by turn, to be added to `advantage`.
    turn_advantages: list[float] = field(default_factory=list)
    # The keys are boot, agent, waited, grade, queue, prefill, decode, ...
    times_s: dict[str, float] = field(default_factory=dict)
    # These are unix seconds: boot, agent, grade; and the end of all.
    began_s: dict[str, float] = field(default_factory=dict)
    # These tricks were tried, by kind.
    cheating: dict[str, int] = field(default_factory=dict)
    # The grading found these: forged output, tests that did not end, ...
    findings: list[str] = field(default_factory=list)
    # These are its last lines, where the patch did not resolve the instance.
    grade_log: str = ""
    # The instance is of this part of a mix; it is empty where there is one environment.
    part: str = ""

    @property
    def compactions(self) -> int:
        """Returns how often the conversation was compacted and went on."""
        return sum(segment.role is SegmentRole.compacted for segment in self.segments)

    @property
    def sub_agents(self) -> int:
        """Returns how many sub-agents the attempt had."""
        return len({turn.sub_agent for turn in self.turns if turn.sub_agent})

    @property
    def untrained_sub_agent_tokens(self) -> int:
        """Returns the sampled tokens of sub-agents that are not trained."""
        return sum(segment.sampled_tokens for segment in self.segments if not segment.trained)

    def to_record(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Trajectory":
        """Returns what `to_record` wrote, also in release 0.5. Raises TypeError, ValueError or KeyError for anything
        else.
        """
        turns = [Turn(**_drop_keys(turn, _FORMER_OF_TURN)) for turn in record["turns"]]
        segments = [Segment.from_record(segment) for segment in record.get("segments", ())]
        read = {"status": Status(record["status"]), "turns": turns, "segments": segments}
        values = _drop_keys(record, _FORMER) | read
        return cls(**values)


def _drop_keys(record: Mapping[str, Any], keys: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in keys}


def keep_attempts_of_policy(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Returns the attempts that say something about the policy.

    Left out are those that infrastructure broke, and those that a later attempt replaced (`retries` of their outcome).
    """
    last: dict[tuple[str, int], int] = {}
    for made in trajectories:
        place = (made.group_id, made.sample)
        last[place] = max(made.attempt, last.get(place, 0))
    return [
        made
        for made in trajectories
        if made.status not in INFRA_STATUSES and made.attempt == last[made.group_id, made.sample]
    ]


def cheating_counts(trajectories: Iterable[Trajectory]) -> dict[str, int]:
    """Returns the tricks that were tried, by kind in alphabetical order."""
    return dict(sorted(sum((Counter(trajectory.cheating) for trajectory in trajectories), Counter()).items()))
