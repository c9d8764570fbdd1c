"""A split of KodCode, read and converted; rows that cannot be a task are left out and counted."""

from swe_rl.config.schema import EnvConfig
from swe_rl.env.instance import Instance, InstanceError
from swe_rl.env.kodcode.row import is_row, to_instance
from swe_rl.env.kodcode.tree import base_commit_of
from swe_rl.env.records import refuse_duplicates
from swe_rl.env.swe.dataset import load_rows
from swe_rl.env.swe.prepared import Identity, is_evaluated
from swe_rl.env.swe.read import Read, usable

_BROKEN = "a test file without a test that Python can read"


def read_split(config: EnvConfig, split: str) -> Read:
    """Raises InstanceError."""
    identity = Identity.of(config, split)
    key = "env.eval_dataset" if is_evaluated(config, split) else "env.dataset"
    loaded = load_rows(identity.dataset, split, revision=identity.wanted_revision, key=key)
    first = loaded.rows[0]
    if not is_row(first.record):
        raise InstanceError(
            f"{first.where}: KodCode's columns question, solution and test are needed; there are "
            f"{', '.join(list(first.record)[:8])}"
        )
    instances: list[Instance] = []
    broken: list[str] = []
    for row in loaded.rows:
        try:
            one = to_instance(row.record, row.where)
        except InstanceError as error:
            if "column 'test' " not in str(error):
                raise
            broken.append(str(row.record.get("question_id") or row.where))
            continue
        instances.append(one)
    refuse_duplicates(instances, f"{key}={identity.dataset}")
    kept, dropped = usable([base_commit_of(one) for one in instances], identity.max_tests)
    if broken:
        dropped = {_BROKEN: broken, **dropped}
    if not kept:
        raise InstanceError(f"{key}={identity.dataset}: {split} has no usable instance")
    return Read(kept, loaded.revision, len(loaded.rows), dropped, loaded.split_rows)
