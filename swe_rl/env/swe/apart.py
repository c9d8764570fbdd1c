"""Training and evaluation kept apart, instance by instance.

Invariants:
- The same issue under another id (same repository, same base commit) counts as shared.
- Who evaluates on what is trained on says so, by the same env.split and env.eval_split of one data set.
"""

from collections.abc import Sequence

from swe_rl.config.schema import EnvConfig
from swe_rl.env.instance import Instance, InstanceError

_SHOWN = 3


def refuse_shared(
    one: tuple[str, Sequence[Instance]], other: tuple[str, Sequence[Instance]], config: EnvConfig
) -> None:
    """Two splits and their instances. Raises InstanceError naming the first instances that both have."""
    shared = shared_instances(one[1], other[1])
    if not shared:
        return
    shown = ", ".join(f"{first} = {second}" if first != second else first for first, second in shared[:_SHOWN])
    more = ", ..." if len(shared) > _SHOWN else ""
    where = f"env.dataset={config.dataset}"
    if config.eval_dataset not in (None, config.dataset):
        where += f", env.eval_dataset={config.eval_dataset}"
    raise InstanceError(
        f"{len(shared)} instances are in both {one[0]} and {other[0]} ({where}): {shown}{more}; a score on them says "
        "nothing. Take slices that do not meet ('env.split=\"train[100:]\"' 'env.eval_split=\"train[:100]\"'), or "
        f"leave them out with env.instances=FILE; to evaluate on what is trained on, env.eval_split={config.split}"
    )


def shared_instances(one: Sequence[Instance], other: Sequence[Instance]) -> list[tuple[str, str]]:
    """Pairs of ids that are one issue, in the order of `other`."""
    ids = {instance.instance_id for instance in one}
    bases = {(instance.repo.lower(), instance.base_commit): instance.instance_id for instance in one}
    found = []
    for instance in other:
        base = (instance.repo.lower(), instance.base_commit)
        if instance.instance_id in ids:
            found.append((instance.instance_id, instance.instance_id))
        elif base in bases and instance.base_commit:
            found.append((bases[base], instance.instance_id))
    return found
