"""Compares a resumed run's instances: which ones it had, what is other now, and whether it can go on.

Invariants:
- The run's folder has the list of ids of each state that is saved, under the list's hash. The list is written before a
  step is sampled with it, and never changed.
- What changed is said in one line that names ids, and is in `events.jsonl`; the line is said again at the run's end.
- A run none of whose instances are left is another run, and is refused.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from swe_rl.files.disk import read_file, write_bytes_atomic
from swe_rl.files.json_text import decode_json, encode_json
from swe_rl.logger.folder import RunFolder
from swe_rl.report.resolved import pairs_of
from swe_rl.rollout.order.sampler_state import (
    WAYS_OUT,
    InstancesDifference,
    OtherInstancesError,
    SamplerState,
    hash_of_ids,
    in_earlier_order,
    require_fit,
)

if TYPE_CHECKING:
    from swe_rl.rollout.order.sampler import InstanceSampler
    from swe_rl.run.session import RunSession


def keep_ids(folder: RunFolder, ids: Sequence[str]) -> None:
    """Keeps a list of ids in the run's folder. Raises DiskError."""
    path = folder.instances(hash_of_ids(ids))
    if not path.exists():
        write_bytes_atomic(path, encode_json(list(ids)) + b"\n")


def carried_over(sampler: "InstanceSampler", order: SamplerState, session: "RunSession") -> SamplerState:
    """Returns the saved `order` for the instances of `sampler`, whose `ids` then have the order of the earlier ones.

    Raises OtherInstancesError where it cannot be continued, DiskError.
    """
    name = order.get("instances")
    if name is None:
        require_fit(order, len(sampler.ids))
        session.warn(
            "warning: the state was saved by an older version, which did not keep the ids of the instances: whether "
            f"they are the same {len(sampler.ids)} cannot be said"
        )
        return order
    if name == hash_of_ids(sampler.ids):
        return order
    earlier = _kept_ids(session.folder, name)
    difference = InstancesDifference.between(earlier, sampler.ids)
    if not difference.kept:
        raise OtherInstancesError(
            f"The run was saved with {len(earlier)} instances, and none of them is among the {len(sampler.ids)} of "
            f"now: {difference}. {WAYS_OUT}"
        )
    order = sampler.carry_over(order, earlier)
    keep_ids(session.folder, sampler.ids)
    _report_difference(session, "training", difference)
    return order


def compared_held_out(ids: Sequence[str], session: "RunSession") -> list[str]:
    """Returns the held-out instances in the order of the run's latest evaluation. What is other since then is said."""
    evals = session.evals()
    earlier = list(pairs_of(evals[-1])) if evals else []
    if not earlier:
        return list(ids)
    difference = InstancesDifference.between(earlier, ids)
    if difference.removed or difference.added:
        _report_difference(session, "held-out", difference)
    return in_earlier_order(earlier, ids)


_RULES = {
    "training": "the rest of the present epoch keeps its order, and added ones come at its end",
    "held-out": "a gain counts the instances that both evaluations have",
}


def _report_difference(session: "RunSession", which: str, difference: InstancesDifference) -> None:
    """Says what changed. A change of the order alone changes no result: it is no warning."""
    same = not difference.removed and not difference.added
    session.events.write(
        "instances_changed",
        of=which,
        removed=difference.removed,
        added=difference.added,
        kept=difference.kept,
    )
    if same:
        session.progress.message(f"{which} instances: {difference}; the run keeps the order that it began with")
    else:
        session.warn(f"warning: {which} instances are not those of before: {difference}; {_RULES[which]}")


def _kept_ids(folder: RunFolder, name: str) -> list[str]:
    """Returns the list of this hash. Raises OtherInstancesError where the folder does not have it any more."""
    path = folder.instances(name)
    try:
        ids = [str(value) for value in decode_json(read_file(path))]
    except (OSError, ValueError, TypeError):
        ids = []
    if hash_of_ids(ids) != name:
        raise OtherInstancesError(
            f"The instances are not those that the run was saved with, and {path}, which has the ids of those, is "
            f"missing or damaged: what is other cannot be said, nor can the order be continued. {WAYS_OUT}"
        )
    return ids
