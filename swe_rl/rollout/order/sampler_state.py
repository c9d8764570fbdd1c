"""Keeps where a run is in the order of its instances, for a checkpoint, and adapts it to other instances.

Invariants:
- The numbers of a state are positions in a list of instance ids. The state names the list by its hash, so that numbers
  are never read with another list. The run's folder has the list itself.
- Instances are the same where their ids are. If only their order is another one, the run keeps the earlier order: a
  resumed run computes what it would have computed without the change.
- Removed instances drop out everywhere: of the epoch's rest, of groups that were begun, of pass rates.
- Added instances come at the end of the present epoch, in the order of the data.
- So in the present epoch, too, each instance that is there now is trained once. Later epochs are shuffled as always.
"""

import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NotRequired, Self, TypedDict

from swe_rl.errors import UserError
from swe_rl.rollout.pass_rates import PassRatesState

# A message names this many ids of each kind.
_NAMED = 8
_HASH_DIGITS = 16


class FlowState(TypedDict):
    """The state of `rollout.mode=stream`."""

    # This is the number of the group that begins next.
    next: int
    # These instances were taken from the epoch, for the groups from `next` on.
    ready: list[int]
    # These are (number, instance) of groups that are begun and not trained.
    begun: list[tuple[int, int]]
    # These instances of the nominal step that the last group belongs to are begun so far.
    chosen: NotRequired[list[int]]


class SamplerState(TypedDict):
    epoch: int
    # So many of the current epoch are taken.
    taken: int
    # These come at the end of the current epoch.
    deferred: list[int]
    # This is the hash of the list of ids that all positions refer to; older versions wrote none.
    instances: NotRequired[str]
    # This is the order of the current epoch, where the instances changed in the middle of it.
    order: NotRequired[list[int]]
    # A run whose groups flow has it.
    flow: NotRequired[FlowState]
    # rollout.instances=informative has it.
    pass_rates: NotRequired[PassRatesState]
    # A mix of environments has it, with the order of each part by name, in the order of the list of ids.
    parts: NotRequired[dict[str, "PartState"]]


class PartState(TypedDict):
    """The state of one part of a mix."""

    # The part has so many of the ids that the mix's state refers to.
    size: int
    # So many groups were of this part.
    drawn: int
    # Its positions refer to the part's own ids.
    order: SamplerState


class OtherInstancesError(UserError):
    """A state is of other instances than those of now, and cannot be continued exactly."""


WAYS_OUT = (
    "Put the data back as they were (env.dataset, env.instances, the proofs of this machine), or begin a new run with "
    "trainer.resume=none; it may begin with the weights of a checkpoint: model.path=CHECKPOINT."
)


def hash_of_ids(ids: Sequence[str]) -> str:
    """Returns a name for a list of ids: another order is another list."""
    return hashlib.sha256(json.dumps(list(ids)).encode()).hexdigest()[:_HASH_DIGITS]


@dataclass(frozen=True, slots=True)
class InstancesDifference:
    """The difference of a list of instances from what it was. `kept` is the number of those that are in both."""

    removed: tuple[str, ...]
    added: tuple[str, ...]
    kept: int

    @classmethod
    def between(cls, earlier: Sequence[str], present: Sequence[str]) -> Self:
        before = set(earlier)
        now = set(present)
        removed = tuple(name for name in earlier if name not in now)
        added = tuple(name for name in present if name not in before)
        return cls(removed, added, len(before & now))

    def __str__(self) -> str:
        parts = []
        if self.removed:
            parts.append(f"{len(self.removed)} removed ({_list_ids(self.removed)})")
        if self.added:
            parts.append(f"{len(self.added)} added ({_list_ids(self.added)})")
        return ", ".join(parts) or "the same ones in another order"


def _list_ids(ids: Sequence[str]) -> str:
    """Returns text for a message: the first ones, and how many more there are."""
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return ", ".join(ids[:_NAMED]) + more


def in_earlier_order(earlier: Sequence[str], present: Sequence[str]) -> list[str]:
    """Returns the ids of `present`: those of `earlier` first and in its order, then the others in their own."""
    now = set(present)
    before = set(earlier)
    return [name for name in earlier if name in now] + [name for name in present if name not in before]


def _epoch_order(size: int, seed: int, epoch: int) -> list[int]:
    """Returns the order of an epoch that nothing has changed."""
    order = list(range(size))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return order


def order_of(state: SamplerState, size: int, seed: int) -> list[int]:
    """Returns the order of the current epoch, deferred instances last."""
    order = state["order"] if "order" in state else _epoch_order(size, seed, state["epoch"])
    deferred = set(state["deferred"])
    # The sort is stable, so nothing else moves.
    return sorted(order, key=lambda index: index in deferred)


def move_positions(state: SamplerState, earlier: Sequence[str], present: Sequence[str], seed: int) -> SamplerState:
    """Returns a state whose positions refer to `earlier` as one whose positions refer to `present`.

    Raises OtherInstancesError if the state does not fit `earlier`.
    """
    require_fit(state, len(earlier))
    if list(earlier) == list(present):
        return state
    position = {name: index for index, name in enumerate(present)}
    to_present = {index: position[name] for index, name in enumerate(earlier) if name in position}

    def still_there(indices: Iterable[int]) -> list[int]:
        return [to_present[index] for index in indices if index in to_present]

    flow = state.get("flow")
    in_nominal_step = still_there([*flow.get("chosen", []), *flow["ready"]]) if flow is not None else []
    order = order_of(state, len(earlier), seed)
    trained = still_there(order[: state["taken"]])
    known = set(to_present.values())
    rest = still_there(order[state["taken"] :]) + [index for index in range(len(present)) if index not in known]
    # The sort is stable; no instance comes twice in one nominal step.
    rest.sort(key=lambda index: index in in_nominal_step)
    result = SamplerState(
        epoch=state["epoch"],
        taken=len(trained),
        # `order` has them at its end.
        deferred=[],
        instances=hash_of_ids(present),
        order=[*trained, *rest],
    )
    if flow is not None:
        result["flow"] = move_flow(flow, to_present)
    if "pass_rates" in state:
        result["pass_rates"] = _moved_rates(state["pass_rates"], to_present)
    return result


def move_flow(flow: FlowState, to_present: Mapping[int, int]) -> FlowState:
    """Returns the state of groups that flow, with new positions. Groups whose instance is gone are dropped."""
    return FlowState(
        next=flow["next"],
        ready=[to_present[index] for index in flow["ready"] if index in to_present],
        begun=[(number, to_present[index]) for number, index in flow["begun"] if index in to_present],
        chosen=[to_present[index] for index in flow.get("chosen", []) if index in to_present],
    )


def _moved_rates(rates: PassRatesState, to_present: dict[int, int]) -> PassRatesState:
    """Returns the rates with new positions. What all instances share stays as it is."""
    result = PassRatesState(
        skipped=[(to_present[index], times) for index, times in rates["skipped"] if index in to_present]
    )
    if "mean" in rates:
        result["mean"] = rates["mean"]
    if "deviations" in rates:
        result["deviations"] = _moved_rows(rates["deviations"], to_present)
    if "counts" in rates:
        result["counts"] = _moved_rows(rates["counts"], to_present)
    return result


def _moved_rows(rows: Iterable[tuple[int, float, float]], to_present: dict[int, int]) -> list[tuple[int, float, float]]:
    return [(to_present[index], first, second) for index, first, second in rows if index in to_present]


def require_fit(state: SamplerState, size: int) -> None:
    """Raises OtherInstancesError if a state has positions that a list of `size` instances does not have."""
    fits = 0 <= state["taken"] <= size and all(0 <= index < size for index in _all_positions(state))
    if fits and "order" in state:
        fits = sorted(state["order"]) == list(range(size))
    if not fits:
        raise OtherInstancesError(
            f"The run was saved with other instances than the {size} of now: it had taken {state['taken']} of its "
            f"epoch {state['epoch']}, and the saved order does not fit {size} instances. {WAYS_OUT}"
        )


def _all_positions(state: SamplerState) -> Iterator[int]:
    # Old checkpoints have none.
    yield from state.get("deferred", [])
    if "flow" in state:
        yield from state["flow"]["ready"]
        yield from (index for _, index in state["flow"]["begun"])
        yield from state["flow"].get("chosen", [])
    if "pass_rates" in state:
        rates = state["pass_rates"]
        yield from (index for index, _ in rates["skipped"])
        yield from (row[0] for row in rates.get("deviations", []))
        yield from (row[0] for row in rates.get("counts", []))
