"""Chooses instances of several environments by weights: first the part that comes next, then its next instance.

Invariants:
- After any number of draws each part was drawn its share of them, to less than one draw, unless a step had all of its
  instances already. What was missed then is made up for.
- Which part comes next depends on the weights and the earlier draws only. A part's instances come in the order that a
  sampler of this part alone has with the same seed.
- Positions refer to the ids of all parts, one part after another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

from swe_rl.config.choices import InstanceChoice
from swe_rl.config.schema import Config
from swe_rl.errors import UserError
from swe_rl.facts.mix import is_mix, shares_of, step_shares, trained_shares
from swe_rl.rollout.order.sampler import InstanceSampler, PromptSampler
from swe_rl.rollout.order.sampler_state import (
    WAYS_OUT,
    OtherInstancesError,
    PartState,
    SamplerState,
    hash_of_ids,
    move_flow,
)
from swe_rl.rollout.pass_rates import PassRates
from swe_rl.rollout.trajectory import Trajectory


class PartDraws:
    """Says of which part the next group is. It is Tijdeman's rule for the assignment of chairmen (1980)."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._shares = shares_of(weights)
        # A part that is less than this behind its share has to wait.
        self._least = Fraction(1, max(1, 2 * len(self._shares) - 2))
        self.drawn = dict.fromkeys(self._shares, 0)

    def draw(self, available: Sequence[str]) -> str:
        """Returns one of the available parts, and counts it as drawn."""
        number = sum(self.drawn.values()) + 1
        behind = {name: self._shares[name] * number - self.drawn[name] for name in available}
        due = [name for name in available if behind[name] >= self._least]
        if due:
            # These have to come first, or they get too far behind.
            chosen = min(due, key=lambda name: (1 - self._least - behind[name]) / self._shares[name])
        else:
            chosen = max(available, key=lambda name: behind[name])
        self.drawn[chosen] += 1
        return chosen


@dataclass(slots=True)
class _PlacedPart:
    sampler: PromptSampler
    first: int  # The position of its first instance.

    @property
    def end(self) -> int:
        return self.first + len(self.sampler.ids)


class MixedSampler(InstanceSampler):
    """Chooses instances of the parts that `samplers` are of. Raises ValueError where a part has no weight above 0."""

    def __init__(self, samplers: Mapping[str, PromptSampler], weights: Mapping[str, float]) -> None:
        if not samplers or any(weights[name] <= 0 for name in samplers):
            raise ValueError("each part needs a weight above 0, and there must be one")
        self._draws = PartDraws({name: weights[name] for name in samplers})
        self._samplers = dict(samplers)
        self._parts: dict[str, _PlacedPart] = {}
        self.ids: list[str] = []
        self._place_parts()

    def _place_parts(self) -> None:
        """Puts the ids of the parts one after another."""
        self._parts = {}
        self.ids = []
        for name, sampler in self._samplers.items():
            self._parts[name] = _PlacedPart(sampler, len(self.ids))
            self.ids += sampler.ids

    @property
    def follows_rates(self) -> bool:
        return any(sampler.follows_rates for sampler in self._samplers.values())

    def take(self, count: int, already: Sequence[int] = ()) -> list[int]:
        """Returns indices of the next `count` instances. `already` are those that the same step took before."""
        taken = {name: self._own(name, already) for name in self._parts}
        left = {name: len(part.sampler.ids) - len(taken[name]) for name, part in self._parts.items()}
        names: list[str] = []
        for _ in range(count):
            # A step that has all instances repeats some.
            available = [name for name, number in left.items() if number > 0] or list(left)
            names.append(self._draws.draw(available))
            left[names[-1]] -= 1
        chosen: dict[str, list[int]] = {}
        for name, part in self._parts.items():
            if wanted := names.count(name):
                chosen[name] = [part.first + index for index in part.sampler.take(wanted, taken[name])]
        return [chosen[name].pop(0) for name in names]

    def _own(self, name: str, indices: Sequence[int]) -> list[int]:
        """Returns those of the positions that are of a part, as the part counts them."""
        part = self._parts[name]
        return [index - part.first for index in indices if part.first <= index < part.end]

    def _part_at(self, index: int) -> _PlacedPart:
        return next(part for part in self._parts.values() if part.first <= index < part.end)

    def note(self, number: int, index: int, trajectories: Sequence[Trajectory]) -> None:
        part = self._part_at(index)
        part.sampler.note(number, index - part.first, trajectories)

    def observe(
        self, groups: Sequence[tuple[int, Sequence[Trajectory]]], numbers: Sequence[int] = ()
    ) -> dict[str, float | int | None]:
        """Takes in that groups are trained. Returns how well they were foreseen, over all parts."""
        figures = []
        for part in self._parts.values():
            places = [place for place, (index, _) in enumerate(groups) if part.first <= index < part.end]
            members = [(groups[place][0] - part.first, groups[place][1]) for place in places]
            figures.append(part.sampler.observe(members, [numbers[place] for place in places] if numbers else ()))
        return _join_figures([figure for figure in figures if figure])

    def state(self) -> SamplerState:
        orders = {name: sampler.state() for name, sampler in self._samplers.items()}
        parts = {
            name: PartState(size=len(self._samplers[name].ids), drawn=self._draws.drawn[name], order=order)
            for name, order in orders.items()
        }
        epoch = min(order["epoch"] for order in orders.values())
        return SamplerState(epoch=epoch, taken=0, deferred=[], instances=hash_of_ids(self.ids), parts=parts)

    def restore(self, state: SamplerState) -> None:
        """Restores a state. Raises OtherInstancesError if it is of other instances or parts (see `carry_over`)."""
        parts = state.get("parts")
        if parts is None or list(parts) != list(self._parts) or state.get("instances") != hash_of_ids(self.ids):
            raise OtherInstancesError(
                f"The state is of another mix than that of {', '.join(self._parts)} with {len(self.ids)} instances. "
                f"{WAYS_OUT}"
            )
        for name, part in parts.items():
            self._samplers[name].restore(part["order"])
            self._draws.drawn[name] = part["drawn"]

    def carry_over(self, state: SamplerState, earlier: Sequence[str]) -> SamplerState:
        """Returns `state`, whose positions refer to the ids `earlier`, for the instances of now; for `restore`.

        In `ids` the instances of `earlier` come first in each part. Raises OtherInstancesError.
        """
        parts = state.get("parts")
        sizes = [part["size"] for part in (parts or {}).values()]
        if parts is None or sum(sizes) != len(earlier) or set(parts) != set(self._parts):
            raise OtherInstancesError(
                f"The run was saved with other parts than {', '.join(self._parts)}: "
                f"{', '.join(parts or ()) or 'none'}. {WAYS_OUT}"
            )
        firsts = dict(zip(parts, accumulate(sizes, initial=0), strict=False))
        moved: dict[str, PartState] = {}
        for name, sampler in self._samplers.items():
            part = parts[name]
            ids = earlier[firsts[name] : firsts[name] + part["size"]]
            order = sampler.carry_over(part["order"], ids)
            moved[name] = PartState(size=len(sampler.ids), drawn=part["drawn"], order=order)
        self._place_parts()
        result = SamplerState(epoch=state["epoch"], taken=0, deferred=[], instances=hash_of_ids(self.ids), parts=moved)
        if "flow" in state:
            position = {name: index for index, name in enumerate(self.ids)}
            to_present = {index: position[name] for index, name in enumerate(earlier) if name in position}
            result["flow"] = move_flow(state["flow"], to_present)
        return result


def make_sampler(config: Config, ids_by_part: Mapping[str, Sequence[str]]) -> InstanceSampler:
    """Returns the order of a run's instances: those of each part of its mix, or all with an empty name."""
    env = config.env
    if not is_mix(env):
        return _order_of(config, ids_by_part[""], 1.0)
    shares = trained_shares(env)
    samplers = {name: _order_of(config, ids, float(shares[name])) for name, ids in ids_by_part.items()}
    return MixedSampler(samplers, {name: env.mix[name].weight for name in samplers})


def _order_of(config: Config, ids: Sequence[str], share: float) -> PromptSampler:
    """Returns the order of one environment's instances, which `share` of all groups are of."""
    rollout = config.rollout
    rates = None
    if rollout.instances is InstanceChoice.informative:
        rates = PassRates(len(ids), rollout.pass_rate_half_life_steps * rollout.prompts_per_step * share)
    return PromptSampler(len(ids), config.trainer.seed, rates, ids=ids)


def require_shares(config: Config, counts: Mapping[str, int]) -> None:
    """Raises UserError where a part of a mix has fewer instances, by `counts`, than its share of a step."""
    for name, wanted in step_shares(config).items():
        if counts.get(name, 0) < wanted:
            raise UserError(
                f"env.mix.{name} has {counts.get(name, 0)} instances to train on, and {wanted} of the "
                f"rollout.prompts_per_step={config.rollout.prompts_per_step} instances of a step are its share. Lower "
                f"env.mix.{name}.weight or rollout.prompts_per_step, or choose more instances."
            )


def _join_figures(figures: Sequence[Mapping[str, float | int | None]]) -> dict[str, float | int | None]:
    """Returns what parts foresaw as one: means over the groups of all of them, where pass rates are kept."""
    if not figures:
        return {}
    counts = [int(figure["foreseen_groups"] or 0) for figure in figures]
    total = sum(counts)
    joined: dict[str, float | int | None] = {"foreseen_groups": total}
    for key, power in (("pass_rate_expected", 1), ("pass_rate_seen", 1), ("pass_rate_error", 2)):
        added = sum(count * float(figure[key] or 0.0) ** power for figure, count in zip(figures, counts, strict=True))
        joined[key] = (added / total) ** (1 / power) if total else None
    return joined
