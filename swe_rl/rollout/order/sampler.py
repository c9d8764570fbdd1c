"""Chooses the instances that a step works on, and others in place of those whose groups have nothing to compare.

Invariants:
- Every instance comes once an epoch, in an order that depends on the seed and the epoch only. With pass rates an epoch
  passes over some of them (rollout/pass_rates); a draw depends on the seed and its place in the order of all draws
  only.
- No instance comes twice in one step, also across two epochs: an instance that the end of an epoch gave moves to the
  end of the next one. Only a step of more than there are repeats.
- There are at most `max_resample_rounds` further rounds, each of as many instances as useful groups are missing; where
  all were asked, the step goes on with what there is. What was sampled stays in the step's record, useful or not.
- The state is plain data: a resumed run goes on with exactly the instances that an uninterrupted one would take. It
  names the list of instances that its numbers refer to, and is restored with that list only (rollout/sampler_state).
- Where groups flow they begin in the order of those instances, one after another; which of them are begun and not
  trained is part of the state, so that none is lost or begun twice.
"""

import random
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from swe_rl.config.choices import DynamicSampling
from swe_rl.config.schema import AlgoConfig
from swe_rl.rollout.collect import Collected
from swe_rl.rollout.counts import degenerate_groups, valid_counts
from swe_rl.rollout.order.sampler_state import (
    WAYS_OUT,
    FlowState,
    OtherInstancesError,
    SamplerState,
    hash_of_ids,
    in_earlier_order,
    move_positions,
    order_of,
    require_fit,
)
from swe_rl.rollout.pass_rates import GroupResult, PassRates, PassRatesState
from swe_rl.rollout.trajectory import Trajectory

Generate = Callable[[Sequence[int]], Awaitable[Collected]]


class InstanceSampler(Protocol):
    """Chooses which instance comes next. Instances are named by their positions in `ids`."""

    ids: list[str]

    @property
    @abstractmethod
    def follows_rates(self) -> bool:
        """Tells whether what is chosen depends on what is known of pass rates."""
        ...

    @abstractmethod
    def take(self, count: int, already: Sequence[int] = ()) -> list[int]: ...

    @abstractmethod
    def note(self, number: int, index: int, trajectories: Sequence[Trajectory]) -> None:
        """Notes a complete group, which is trained later. `number` is its place in the order of all groups."""
        ...

    @abstractmethod
    def observe(
        self, groups: Sequence[tuple[int, Sequence[Trajectory]]], numbers: Sequence[int] = ()
    ) -> dict[str, float | int | None]: ...

    @abstractmethod
    def state(self) -> SamplerState: ...

    @abstractmethod
    def restore(self, state: SamplerState) -> None: ...

    @abstractmethod
    def carry_over(self, state: SamplerState, earlier: Sequence[str]) -> SamplerState: ...


class PromptSampler(InstanceSampler):
    """Chooses instances by what `rates` knows of them; without it every one is taken.

    `ids` are those of the instances, in the order of their positions; without them instances are named by their
    numbers.
    """

    def __init__(
        self,
        num_instances: int,
        seed: int,
        rates: PassRates | None = None,
        *,
        ids: Sequence[str] | None = None,
    ) -> None:
        if num_instances < 1:
            raise ValueError("a sampler needs at least one instance")
        self.ids = [str(number) for number in range(num_instances)] if ids is None else list(ids)
        if len(set(self.ids)) != num_instances:
            raise ValueError("each instance needs an id of its own")
        self._hash = hash_of_ids(self.ids)
        self._num_instances = num_instances
        self._seed = seed
        self.rates = rates
        self._state = SamplerState(epoch=0, taken=0, deferred=[])

    @property
    def follows_rates(self) -> bool:
        return self.rates is not None

    def take(self, count: int, already: Sequence[int] = ()) -> list[int]:
        """Returns indices of the next `count` instances; an epoch's rest is used up before the next one starts.

        `already` are those that the same step took before: this `take` goes on where that one stopped.
        """
        taken = [*already]
        goal = count + len(already)
        if self._state["taken"] == 0 and len(taken) < self._num_instances:
            self._state["deferred"] = sorted({*self._state["deferred"], *already})
        while len(taken) < goal:
            for index in order_of(self._state, self._num_instances, self._seed)[self._state["taken"] :]:
                if len(taken) == goal:
                    break
                if self._is_wanted(index, taken):
                    taken.append(index)
                self._state["taken"] += 1
            if self._state["taken"] >= self._num_instances:
                deferred = sorted(taken) if 0 < len(taken) < min(goal, self._num_instances) else []
                self._state = SamplerState(epoch=self._state["epoch"] + 1, taken=0, deferred=deferred)
        return taken[len(already) :]

    def _is_wanted(self, index: int, taken: Sequence[int]) -> bool:
        if self.rates is None:
            return True
        if index in taken and len(taken) < self._num_instances:
            self.rates.pass_over(index)
            return False
        place = f"{self._seed}/{self._state['epoch']}/{self._state['taken']}"
        return self.rates.admits(index, random.Random(place))

    def state(self) -> SamplerState:
        state = SamplerState(
            epoch=self._state["epoch"],
            taken=self._state["taken"],
            deferred=list(self._state["deferred"]),
            instances=self._hash,
        )
        if "order" in self._state:
            state["order"] = list(self._state["order"])
        if self.rates is not None:
            state["pass_rates"] = self.rates.state()
        return state

    def carry_over(self, state: SamplerState, earlier: Sequence[str]) -> SamplerState:
        """Returns `state`, whose positions refer to the list of ids `earlier`, for the instances of now; for `restore`.

        `ids` is rearranged: the instances of `earlier` come first. Raises OtherInstancesError.
        """
        self.ids = in_earlier_order(earlier, self.ids)
        self._hash = hash_of_ids(self.ids)
        return move_positions(state, earlier, self.ids, self._seed)

    def restore(self, state: SamplerState) -> None:
        """Restores a state. Raises OtherInstancesError if it is of another list of instances (see `carry_over`).

        A state of an older version, which names no list, is refused if it does not fit.
        """
        if state.get("instances", self._hash) != self._hash:
            raise OtherInstancesError(
                f"The state is of another list of instances than the {self._num_instances} of now. {WAYS_OUT}"
            )
        require_fit(state, self._num_instances)
        # Old checkpoints have none.
        deferred = list(state.get("deferred", []))
        self._state = SamplerState(epoch=state["epoch"], taken=state["taken"], deferred=deferred)
        if "order" in state:
            self._state["order"] = list(state["order"])
        if self.rates is not None:
            self.rates.restore(state.get("pass_rates") or PassRatesState(skipped=[]))

    def observe(
        self, groups: Sequence[tuple[int, Sequence[Trajectory]]], numbers: Sequence[int] = ()
    ) -> dict[str, float | int | None]:
        """Takes in that groups are trained, by their instances. Returns how well they were foreseen, with pass rates.

        `numbers` are those of groups that were noted before.
        """
        if self.rates is None:
            return {}
        results = [_group_result(index, trajectories) for index, trajectories in groups]
        return self.rates.observe(results, numbers)

    def note(self, number: int, index: int, trajectories: Sequence[Trajectory]) -> None:
        if self.rates is not None:
            self.rates.note(number, _group_result(index, trajectories))


@dataclass(frozen=True, slots=True)
class Begun:
    """A group by its place in the order of all groups, from 0 on; `index` is its instance."""

    number: int
    index: int


class GroupOrder:
    """Orders groups one after another, `prompts` of them a nominal step. No instance is twice in one nominal step.

    With pass rates each is chosen when it begins, by what is known then.
    """

    def __init__(self, sampler: InstanceSampler, prompts: int) -> None:
        self._sampler = sampler
        self._prompts = prompts
        self._next = 0
        self._ready = list[int]()
        self._again: list[Begun] = []
        # These are of the present nominal step.
        self._chosen: list[int] = []
        # These are, by number, the instances of groups that an earlier start chose and completed.
        self._kept: dict[int, int] = {}

    def take(self) -> Begun:
        """Returns the next group: those that a resumed run had begun first, then new ones."""
        if self._again:
            return self._again.pop(0)
        if self._next % self._prompts == 0:
            self._chosen = []
        if not self._ready:
            self._ready = [self._choose()] if self._sampler.follows_rates else self._sampler.take(self._prompts)
        begun = Begun(self._next, self._ready.pop(0))
        self._chosen.append(begun.index)
        self._next += 1
        return begun

    def _choose(self) -> int:
        index = self._kept.pop(self._next, None)
        if index is None:
            step = self.step_of(self._next)
            later = [kept for number, kept in self._kept.items() if self.step_of(number) == step]
            index = self._sampler.take(1, [*self._chosen, *later])[0]
        return index

    def completed(self, begun: Begun, trajectories: Sequence[Trajectory]) -> None:
        """Makes a complete group count for what begins from now on."""
        self._sampler.note(begun.number, begun.index, trajectories)

    def trained(self, groups: Sequence[tuple[Begun, Sequence[Trajectory]]]) -> dict[str, float | int | None]:
        """Puts trained groups into the state. Returns how well they were foreseen, where pass rates are kept."""
        indexed = [(begun.index, trajectories) for begun, trajectories in groups]
        return self._sampler.observe(indexed, [begun.number for begun, _ in groups])

    def step_of(self, number: int) -> int:
        """Returns the step that a group has in the names of its trajectories; it may be trained in another one."""
        return number // self._prompts + 1

    def state(self, begun: Iterable[Begun]) -> SamplerState:
        """Returns the state. `begun` are those groups that are not trained."""
        waiting = {group.number: group.index for group in (*begun, *self._again)}
        flow = FlowState(
            next=self._next,
            ready=[*self._ready],
            begun=sorted(waiting.items()),
            chosen=[*self._chosen] if self._next % self._prompts else [],
        )
        return SamplerState(**self._sampler.state(), flow=flow)

    def keep(self, instances: Mapping[int, int]) -> None:
        """Keeps the instances of groups that an earlier start completed, by number.

        With pass rates those that the state does not know were chosen by what was known then, and stay.
        """
        self._kept = {number: index for number, index in instances.items() if number >= self._next}

    def restore(self, state: SamplerState, step: int) -> None:
        """Restores a state. `step` counts where it is of a run whose groups did not flow. Raises
        OtherInstancesError.
        """
        self._sampler.restore(state)
        flow = state.get("flow") or FlowState(next=step * self._prompts, ready=[], begun=[])
        self._next = flow["next"]
        self._ready = [*flow["ready"]]
        self._chosen = [*flow.get("chosen", [])]
        self._again = [Begun(number, index) for number, index in flow["begun"]]
        self._fill_up()

    def _fill_up(self) -> None:
        """Gives the place of instances of the present nominal step that are gone to the next ones.

        Otherwise the following `take` would be for two nominal steps, and one of them could have an instance twice.
        """
        missing = -self._next % self._prompts - len(self._ready)
        if missing > 0 and not self._sampler.follows_rates:
            self._ready += self._sampler.take(missing, [*self._chosen, *self._ready])


def _group_result(index: int, trajectories: Sequence[Trajectory]) -> GroupResult:
    """Returns the result of one instance's trajectories, by which its pass rate is estimated."""
    [(solved, attempts)] = valid_counts(trajectories).values() or [(0, 0)]
    return GroupResult(index, solved, attempts)


def observe_step(
    sampler: InstanceSampler, trajectories: Sequence[Trajectory], indices: Mapping[str, int]
) -> dict[str, float | int | None]:
    """Takes in a step's trajectories. Returns how well they were foreseen, where pass rates are kept.

    `indices` has the position of each instance by its id.
    """
    groups: dict[int, list[Trajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault(indices[trajectory.instance_id], []).append(trajectory)
    return sampler.observe(list(groups.items()))


async def sample_step(
    sampler: InstanceSampler, generate: Generate, algo: AlgoConfig, *, prompts: int, available: int
) -> Collected:
    """Returns `generate`'s trajectories of `prompts` of the `available` instances, which it is given by index.

    With `algo.dynamic_sampling=resample` groups of equal rewards are replaced, until `prompts` useful ones are there or
    the rounds are used up (DAPO, arXiv:2503.14476, section 3.2).
    """
    taken = sampler.take(prompts)
    collected = await generate(taken)
    for _ in range(algo.max_resample_rounds if algo.dynamic_sampling is DynamicSampling.resample else 0):
        useful = len(taken) - len(degenerate_groups(collected.trajectories))
        missing = min(prompts - useful, available - len(taken))
        if missing <= 0:
            break
        more = sampler.take(missing, taken)
        taken += more
        collected = _join_collected(collected, await generate(more))
    return collected


def _join_collected(collected: Collected, other: Collected) -> Collected:
    return Collected(
        [*collected.trajectories, *other.trajectories],
        [*collected.results, *other.results],
        [*collected.retried, *other.retried],
    )
