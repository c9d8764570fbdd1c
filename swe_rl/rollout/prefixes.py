"""Which groups begin with a prefix of an earlier trajectory of their instance, and how long that is.

Prefix replay, after "Rollout Pass-Rate Control" (arXiv:2605.05112): a group that would mostly fail begins with the
beginning of a trajectory that succeeded, one that would mostly succeed with that of one that failed.

Invariants:
- A group has a prefix where its instance's expected pass rate is below `SKEWED` or above 1 - `SKEWED`, and a plain
  trajectory of it is known that ended the other way. All of a group's trajectories have the same one.
- The length is a share of what that trajectory sampled. After each such group it moves towards the pass rate 1/2: in
  proportion to how far the group's was from it, longer where the prefix has too little effect.
- A share of 0 is a group that begins plain once: what it shows decides what comes next. So does what is known of an
  instance when it has faded.
- A beginning that could not be repeated is not asked for again beyond that place.
- Nothing is drawn and no clock is read: the choice follows from what was observed. The state is plain data.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from swe_rl.config.choices import INFRA_STATUSES
from swe_rl.rollout.pass_rates import PassRates
from swe_rl.rollout.trajectory import Status, Trajectory

SKEWED = 0.25  # an expected pass rate below it, or above 1 - SKEWED, brings little signal
FIRST_SHARE = 0.5
LEAST_SHARE = 0.125  # that a plain group leads back to
GAIN = 0.5  # of the share, for each unit of pass rate away from 1/2
# Failures to begin with, best first. The others say nothing of what was done, or end in no order.
_FAILED = (Status.unresolved, Status.step_limit, Status.empty_patch, Status.format_errors)


@dataclass(frozen=True, slots=True)
class Choice:
    """The first `tokens` that the trajectory `source` sampled."""

    source: str
    tokens: int


class SourceState(TypedDict):
    index: int  # of the instance
    solved: bool
    name: str  # of the trajectory
    tokens: int  # that can be repeated, of those that it sampled
    share: float


class PrefixesState(TypedDict):
    sources: list[SourceState]


class Prefixes:
    """`rates`: what is expected of the instances."""

    def __init__(self, rates: PassRates) -> None:
        self._rates = rates
        rates.steers = self.steers
        self._sources: dict[tuple[int, bool], SourceState] = {}  # by instance, and whether it solved it

    def choose(self, index: int) -> Choice | None:
        """For the next group of an instance; None: it begins plain."""
        source = self._wanted(index)
        if source is None or source["share"] <= 0.0:
            return None
        return Choice(source["name"], max(1, round(source["share"] * source["tokens"])))

    def steers(self, index: int) -> bool:
        """Whether its next group would begin with a prefix."""
        return self.choose(index) is not None

    def observe(self, index: int, group: Sequence[Trajectory]) -> None:
        """A group is trained."""
        valid = [trajectory for trajectory in group if trajectory.status not in INFRA_STATUSES]
        replayed = [trajectory for trajectory in valid if trajectory.beginning[0]]
        plain = [trajectory for trajectory in valid if not trajectory.beginning[0]]
        if replayed:
            self._steer(index, replayed)
        for trajectory in plain:
            if trajectory.prefix_dropped:
                self._shorten(index, trajectory)
        if plain and not replayed:
            for solved in (True, False):
                if (source := self._sources.get((index, solved))) is not None:
                    source["share"] = max(source["share"], LEAST_SHARE)
        self._note(index, plain)

    @property
    def sources(self) -> set[str]:
        """The trajectories whose beginnings may be asked for."""
        return sources_of(self.state())

    def _wanted(self, index: int) -> SourceState | None:
        expected = self._rates.mean(index)
        if SKEWED <= expected <= 1.0 - SKEWED:
            return None
        return self._sources.get((index, expected < SKEWED))

    def _steer(self, index: int, replayed: Sequence[Trajectory]) -> None:
        for solved in (True, False):
            source = self._sources.get((index, solved))
            if source is None or source["name"] != replayed[0].prefix:
                continue
            rate = sum(trajectory.status is Status.resolved for trajectory in replayed) / len(replayed)
            source["share"] = next_share(source["share"], rate, solved=solved)

    def _shorten(self, index: int, trajectory: Trajectory) -> None:
        for key, source in list(self._sources.items()):
            if key[0] == index and source["name"] == trajectory.prefix:
                source["tokens"] = min(source["tokens"], trajectory.prefix_sampled_tokens)
                if source["tokens"] < 1:
                    del self._sources[key]

    def _note(self, index: int, plain: Sequence[Trajectory]) -> None:
        """The newest that began plain, and ended in either way, is that of the policy that is nearest to the present
        one."""
        able = [trajectory for trajectory in plain if _may_be_repeated(trajectory)]
        solved = [trajectory for trajectory in able if trajectory.status is Status.resolved]
        failed = sorted(
            (trajectory for trajectory in able if trajectory.status in _FAILED),
            key=lambda trajectory: (_FAILED.index(trajectory.status), trajectory.sample),
        )
        for ended, of_solved in ((solved, True), (failed, False)):
            if ended:
                before = self._sources.get((index, of_solved))
                share = FIRST_SHARE if before is None else before["share"]
                self._sources[index, of_solved] = SourceState(
                    index=index,
                    solved=of_solved,
                    name=ended[0].trajectory_id,
                    tokens=ended[0].sampled_tokens,
                    share=share,
                )

    def state(self) -> PrefixesState:
        return PrefixesState(sources=[source.copy() for _, source in sorted(self._sources.items())])

    def restore(self, state: PrefixesState) -> None:
        self._sources = {(source["index"], source["solved"]): source.copy() for source in state["sources"]}


def next_share(share: float, rate: float, *, solved: bool) -> float:
    """After a group with a prefix of this share had this pass rate. `solved`: of a trajectory that succeeded, with
    which more of it helps; else more of it hinders."""
    missing = 0.5 - rate if solved else rate - 0.5
    return min(1.0, max(0.0, share + GAIN * missing))


def sources_of(state: PrefixesState) -> set[str]:
    return {source["name"] for source in state["sources"]}


def _may_be_repeated(trajectory: Trajectory) -> bool:
    """It has a turn before its last one, and each of its turns goes on from the one before."""
    whole = trajectory.num_calls == len(trajectory.turns) > 1 and not trajectory.prefix_breaks
    return whole and not trajectory.prefix and not trajectory.cheating


def replay_numbers(trajectories: Iterable[Trajectory]) -> dict[str, Any]:
    """A step's part of the record: how many began with a prefix, how they ended, and why others did not."""
    asked = [trajectory for trajectory in trajectories if trajectory.prefix]
    replayed = [trajectory for trajectory in asked if trajectory.beginning[0]]
    valid = [trajectory for trajectory in replayed if trajectory.status not in INFRA_STATUSES]
    dropped = [trajectory.prefix_dropped for trajectory in asked if trajectory.prefix_dropped]
    solved = sum(trajectory.status is Status.resolved for trajectory in valid)
    return {
        "replayed_groups": len({trajectory.group_id for trajectory in replayed}),
        "replayed_trajectories": len(replayed),
        "replayed_tokens": sum(trajectory.prefix_tokens for trajectory in replayed),
        "replayed_resolved_rate": solved / len(valid) if valid else None,
        "replays_dropped": {reason: dropped.count(reason) for reason in sorted(set(dropped))},
    }
