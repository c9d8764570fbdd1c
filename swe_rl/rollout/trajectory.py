"""One agent's attempt at one instance: its name, its order, and what became of it up to its reward."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from swe_rl.agent.protocol import Turn
from swe_rl.env.instance import Instance
from swe_rl.gateway.session import SessionSettings


class Status(StrEnum):
    """What became of a trajectory; conf/rollout maps each to reward, training, baseline and retries."""

    resolved = "resolved"
    unresolved = "unresolved"
    empty_patch = "empty_patch"
    step_limit = "step_limit"
    context_overflow = "context_overflow"
    agent_timeout = "agent_timeout"
    format_errors = "format_errors"
    agent_crashed = "agent_crashed"
    infra_error = "infra_error"
    grade_error = "grade_error"
    engine_error = "engine_error"


OUR_WORDS = frozenset({"error"})  # keys of a record that no agent wrote
EVALUATION = "eval-"  # in front of the split, in the names of an evaluation's trajectories


@dataclass(frozen=True, slots=True)
class TrajectoryId:
    """Written `{split}.{step}.{instance_id}.{sample}.{attempt}`: so are its session, its traces and its sandbox named.

    An evaluation after step k is of step k.
    """

    split: str
    step: int
    instance_id: str
    sample: int
    attempt: int

    @classmethod
    def parse(cls, name: str, splits: Collection[str] = ()) -> "TrajectoryId | None":
        """None for a session of somebody else's. `splits`: those of the run, as `v1.0` has dots and numbers, too."""
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


@dataclass(frozen=True, slots=True)
class Prefix:
    """What the trajectories of a group begin with: `turns` of the trajectory `source`, what it sampled in each, and the
    first tokens of its turn after them."""

    source: str
    turns: tuple[Turn, ...]
    sampled_ids: tuple[tuple[int, ...], ...]
    begun_ids: tuple[int, ...] = ()

    @property
    def sampled_tokens(self) -> int:
        return self.tokens_through(len(self.turns)) + len(self.begun_ids)

    def tokens_through(self, turns: int) -> int:
        return sum(len(ids) for ids in self.sampled_ids[:turns])


def _nobody_waits() -> None:
    """For a place that is kept to the end."""


@dataclass(frozen=True, slots=True)
class Order:
    """What to attempt, under which name and with which sampling. `acted` is called when the engines are done with it:
    what is left is its grading."""

    instance: Instance
    id: TrajectoryId
    settings: SessionSettings
    acted: Callable[[], None] = field(default=_nobody_waits, compare=False)
    prefix: Prefix | None = None

    @property
    def trajectory_id(self) -> str:
        return str(self.id)


@dataclass(slots=True)
class Trajectory:
    """As the run's files have it: `trajectory_id`, `group_id` and the five after them are those of a TrajectoryId."""

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
    superseded_replies: int = 0  # in no row: the agent asked anew and went on from another one
    superseded_tokens: int = 0
    prefix: str = ""  # the trajectory of which it repeats the beginning
    prefix_sampled_tokens: int = 0  # so many of what that one sampled; where it was dropped: so many can be repeated
    prefix_tokens: int = 0  # of the response: repeated, observations too, and sampled by nobody here
    prefix_dropped: str = ""  # why the beginning could not be repeated: this one began as any other
    advantage: float | None = None
    charged_reward: float | None = None  # less penalties; of algo.advantage=gae alone
    own_turn_rewards: list[float] = field(default_factory=list)  # by turn, from a reward of somebody's own
    turn_rewards: list[float] = field(default_factory=list)  # by turn, those included; none: turns bring nothing
    turn_advantages: list[float] = field(default_factory=list)  # by turn, to be added to `advantage`
    times_s: dict[str, float] = field(default_factory=dict)  # boot, agent, waited, grade, queue, prefill, decode, ...
    began_s: dict[str, float] = field(default_factory=dict)  # unix seconds: boot, agent, grade; and the end of all
    cheating: dict[str, int] = field(default_factory=dict)  # tricks that were tried, by kind
    findings: list[str] = field(default_factory=list)  # of the grading: forged output, tests that did not end, ...
    grade_log: str = ""  # its last lines, where the patch did not resolve the instance

    @property
    def beginning(self) -> tuple[str, int]:
        """Trajectories of a group are compared where this is the same."""
        return ("", 0) if self.prefix_dropped or not self.prefix else (self.prefix, self.prefix_sampled_tokens)

    @property
    def own_turns(self) -> list[Turn]:
        """Without those that it repeats."""
        return [turn for turn in self.turns if not turn.replayed]

    def to_record(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Trajectory":
        """What `to_record` wrote. Raises TypeError, ValueError or KeyError for anything else."""
        turns = [Turn(**turn) for turn in record["turns"]]
        return cls(**(dict(record) | {"status": Status(record["status"]), "turns": turns}))


def cheating_counts(trajectories: Iterable[Trajectory]) -> dict[str, int]:
    """Tricks that were tried, by kind in alphabetical order."""
    return dict(sorted(sum((Counter(trajectory.cheating) for trajectory in trajectories), Counter()).items()))
