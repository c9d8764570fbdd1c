"""Which instances a step works on, and others in place of those whose groups have nothing to compare.

Invariants:
- Every instance once an epoch, in an order that depends on the seed and the epoch only. With pass rates an epoch passes
  over some of them (rollout/pass_rates); a draw depends on the seed and its place in the order of all draws only.
- No instance twice in one step, also across two epochs: an instance that the end of an epoch gave moves to the end
  of the next one. Only a step of more than there are repeats.
- At most `max_resample_rounds` further rounds, each of as many instances as useful groups are missing; where all were
  asked, the step goes on with what there is. What was sampled stays in the step's record, useful or not.
- The state is plain data: a resumed run goes on with exactly the instances that an uninterrupted one would take.
- Where groups flow they begin in the order of those instances, one after another; which of them are begun and not
  trained is part of the state, so that none is lost or begun twice.
"""

import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NotRequired, TypedDict

from swe_rl.config.choices import DynamicSampling
from swe_rl.config.schema import AlgoConfig
from swe_rl.rollout.batch import degenerate_groups, valid_counts
from swe_rl.rollout.collect import Collected
from swe_rl.rollout.pass_rates import GroupResult, PassRates, PassRatesState
from swe_rl.rollout.prefixes import Prefixes, PrefixesState
from swe_rl.rollout.trajectory import Trajectory

Generate = Callable[[Sequence[int]], Awaitable[Collected]]


class FlowState(TypedDict):
    """Of `rollout.mode=stream`."""

    next: int  # the number of the group that begins next
    ready: list[int]  # instances that were taken from the epoch, for the groups from `next` on
    begun: list[tuple[int, int]]  # (number, instance) of groups that are begun and not trained
    chosen: NotRequired[list[int]]  # with pass rates: instances of the nominal step that the last group belongs to


class SamplerState(TypedDict):
    epoch: int
    taken: int  # of the current epoch
    deferred: list[int]  # to the end of the current epoch
    flow: NotRequired[FlowState]  # of a run whose groups flow
    pass_rates: NotRequired[PassRatesState]  # of rollout.instances=informative and rollout.prefix_replay
    prefixes: NotRequired[PrefixesState]  # of rollout.prefix_replay


class PromptSampler:
    """`rates`: what is known of the instances; it chooses among them where it is `chosen_by_rates`, else every one is
    taken. `prefixes`: what groups begin with."""

    def __init__(
        self,
        num_instances: int,
        seed: int,
        rates: PassRates | None = None,
        prefixes: Prefixes | None = None,
        *,
        chosen_by_rates: bool = True,
    ) -> None:
        if num_instances < 1:
            raise ValueError("a sampler needs at least one instance")
        self._num_instances = num_instances
        self._seed = seed
        self.rates, self.prefixes = rates, prefixes
        self.chooser = rates if chosen_by_rates else None
        self._state = SamplerState(epoch=0, taken=0, deferred=[])

    def take(self, count: int, already: Sequence[int] = ()) -> list[int]:
        """Indices of the next `count` instances; an epoch's rest is used up before the next one starts.

        `already` are those that the same step took before: this `take` goes on where that one stopped.
        """
        taken, goal = [*already], count + len(already)
        if self._state["taken"] == 0 and len(taken) < self._num_instances:
            self._state["deferred"] = sorted({*self._state["deferred"], *already})
        while len(taken) < goal:
            for index in self._order()[self._state["taken"] :]:
                if len(taken) == goal:
                    break
                if self._is_wanted(index, taken):
                    taken.append(index)
                self._state["taken"] += 1
            if self._state["taken"] == self._num_instances:
                deferred = sorted(taken) if 0 < len(taken) < min(goal, self._num_instances) else []
                self._state = SamplerState(epoch=self._state["epoch"] + 1, taken=0, deferred=deferred)
        return taken[len(already) :]

    def _is_wanted(self, index: int, taken: Sequence[int]) -> bool:
        if self.chooser is None:
            return True
        if index in taken and len(taken) < self._num_instances:
            self.chooser.pass_over(index)
            return False
        place = f"{self._seed}/{self._state['epoch']}/{self._state['taken']}"
        return self.chooser.admits(index, random.Random(place))

    def _order(self) -> list[int]:
        order = list(range(self._num_instances))
        random.Random(f"{self._seed}/{self._state['epoch']}").shuffle(order)
        return sorted(order, key=lambda index: index in self._state["deferred"])  # stable

    def state(self) -> SamplerState:
        state = SamplerState(
            epoch=self._state["epoch"], taken=self._state["taken"], deferred=list(self._state["deferred"])
        )
        if self.rates is not None:
            state["pass_rates"] = self.rates.state()
        if self.prefixes is not None:
            state["prefixes"] = self.prefixes.state()
        return state

    def restore(self, state: SamplerState) -> None:
        deferred = list(state.get("deferred", []))  # checkpoints of old have none
        self._state = SamplerState(epoch=state["epoch"], taken=state["taken"], deferred=deferred)
        if self.rates is not None:
            self.rates.restore(state.get("pass_rates") or PassRatesState(skipped=[]))
        if self.prefixes is not None:
            self.prefixes.restore(state.get("prefixes") or PrefixesState(sources=[]))

    def observe(
        self, groups: Sequence[tuple[int, Sequence[Trajectory]]], numbers: Sequence[int] = ()
    ) -> dict[str, float | int | None]:
        """Groups are trained, by their instances; how well they were foreseen, where pass rates are kept. `numbers`: of
        those that were noted before."""
        if self.rates is None:
            return {}
        results = [_result(index, trajectories) for index, trajectories in groups]
        foreseen = self.rates.observe(results, numbers)
        if self.prefixes is not None:
            for index, trajectories in groups:
                self.prefixes.observe(index, trajectories)
        return foreseen


@dataclass(frozen=True, slots=True)
class Begun:
    """A group by its place in the order of all groups, from 0 on; `index` is its instance."""

    number: int
    index: int


class GroupOrder:
    """Groups one after another, `prompts` of them a nominal step. No instance is twice in one nominal step.

    With pass rates each is chosen when it begins, by what is known then.
    """

    def __init__(self, sampler: PromptSampler, prompts: int) -> None:
        self._sampler, self._prompts = sampler, prompts
        self._next, self._ready = 0, list[int]()
        self._again: list[Begun] = []
        self._chosen: list[int] = []  # of the present nominal step
        self._kept: dict[int, int] = {}  # the instances of groups that an earlier start chose and completed, by number

    def take(self) -> Begun:
        """Those that a resumed run had begun first, then new ones."""
        if self._again:
            return self._again.pop(0)
        if not self._ready:
            self._ready = self._sampler.take(self._prompts) if self._sampler.chooser is None else [self._choose()]
        begun = Begun(self._next, self._ready.pop(0))
        self._next += 1
        return begun

    def _choose(self) -> int:
        self._chosen = self._chosen if self._next % self._prompts else []
        index = self._kept.pop(self._next, None)
        if index is None:
            step = self.step_of(self._next)
            later = [kept for number, kept in self._kept.items() if self.step_of(number) == step]
            index = self._sampler.take(1, [*self._chosen, *later])[0]
        self._chosen.append(index)
        return index

    def completed(self, begun: Begun, trajectories: Sequence[Trajectory]) -> None:
        """It counts for what begins from now on."""
        if self._sampler.rates is not None:
            self._sampler.rates.note(begun.number, _result(begun.index, trajectories))

    def trained(self, groups: Sequence[tuple[Begun, Sequence[Trajectory]]]) -> dict[str, float | int | None]:
        """They are in the state from now on; how well they were foreseen, where pass rates are kept."""
        indexed = [(begun.index, trajectories) for begun, trajectories in groups]
        return self._sampler.observe(indexed, [begun.number for begun, _ in groups])

    def step_of(self, number: int) -> int:
        """The step that a group has in the names of its trajectories; it may be trained in another one."""
        return number // self._prompts + 1

    def state(self, begun: Iterable[Begun]) -> SamplerState:
        """`begun`: those that are not trained."""
        waiting = {group.number: group.index for group in (*begun, *self._again)}
        flow = FlowState(next=self._next, ready=[*self._ready], begun=sorted(waiting.items()))
        if self._sampler.chooser is not None:
            flow["chosen"] = [*self._chosen]
        return SamplerState(**self._sampler.state(), flow=flow)

    def keep(self, instances: Mapping[int, int]) -> None:
        """Of groups that an earlier start completed, by number: with pass rates those that the state does not know were
        chosen by what was known then, and stay."""
        self._kept = {number: index for number, index in instances.items() if number >= self._next}

    def restore(self, state: SamplerState, step: int) -> None:
        """`step` counts where the state is of a run whose groups did not flow."""
        self._sampler.restore(state)
        flow = state.get("flow") or FlowState(next=step * self._prompts, ready=[], begun=[])
        self._next, self._ready = flow["next"], [*flow["ready"]]
        self._chosen = [*flow.get("chosen", [])]
        self._again = [Begun(number, index) for number, index in flow["begun"]]


def _result(index: int, trajectories: Sequence[Trajectory]) -> GroupResult:
    """Of one instance's trajectories: those that began with a prefix say nothing of its pass rate."""
    plain = [trajectory for trajectory in trajectories if not trajectory.beginning[0]]
    [(solved, attempts)] = valid_counts(plain).values() or [(0, 0)]
    return GroupResult(index, solved, attempts)


def observed(
    sampler: PromptSampler, trajectories: Sequence[Trajectory], indices: Mapping[str, int]
) -> dict[str, float | int | None]:
    """A step's trajectories are known; how well they were foreseen, where pass rates are kept. `indices`: by the
    instance's id."""
    groups: dict[int, list[Trajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault(indices[trajectory.instance_id], []).append(trajectory)
    return sampler.observe(list(groups.items()))


async def sampled(
    sampler: PromptSampler, generate: Generate, algo: AlgoConfig, *, prompts: int, available: int
) -> Collected:
    """`generate`'s trajectories of `prompts` of the `available` instances, which it is given by index.

    With `algo.dynamic_sampling=resample` groups of equal rewards are replaced, until `prompts` useful ones are there
    or the rounds are used up (DAPO, arXiv:2503.14476, section 3.2).
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
        collected = _joined(collected, await generate(more))
    return collected


def _joined(collected: Collected, other: Collected) -> Collected:
    return Collected(
        [*collected.trajectories, *other.trajectories],
        [*collected.results, *other.results],
        [*collected.retried, *other.retried],
    )
