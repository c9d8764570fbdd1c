"""Loads the instances of a data set's splits, chooses among them, and keeps training apart from evaluation.

Invariants:
- An instance is loaded, checked and chosen before anything is started; what cannot be used is refused by its name.
- What training and evaluation use never meets: the same issue under another id (same repository, same base commit)
  counts as shared.
- Who evaluates on what is trained on says so, by the same env.split and env.eval_split of one data set.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from swe_rl.config.schema import EnvConfig
from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.dataset.records import Elsewhere, narrow_instances, no_ids, select_instances
from swe_rl.env.swe.prepared import prepared_instances, prepared_split_rows
from swe_rl.env.swe.probe import kept_instances
from swe_rl.env.swe.read import Read

# An error shows so many shared instances.
_SHOWN = 3


class DatasetEnv:
    """Holds what environments over a data set share.

    `read` reads a split where `job=prepare` left nothing that fits.
    """

    def __init__(self, config: EnvConfig, cache: Path, read: Callable[[EnvConfig, str], Read]) -> None:
        self.name = config.name
        self._config = config
        self._cache = cache
        self._read = read
        self._loaded: dict[str, Sequence[Instance]] = {}
        self._left_out: dict[str, Mapping[str, str]] = {}
        self._split_rows: dict[str, int | None] = {}
        self._ids: dict[str, frozenset[str]] = {}

    def instances(self, split: str) -> Sequence[Instance]:
        """Returns the usable instances of a split. `env.keep` narrows the training split only. Raises InstanceError."""
        if split not in self._loaded:
            instances, self._left_out[split], rows = self._usable(split)
            self._check_apart(split, instances)
            self._loaded[split], self._split_rows[split] = instances, rows
        return self._loaded[split]

    def _check_apart(self, split: str, instances: Sequence[Instance]) -> None:
        """Raises InstanceError where a split that was loaded before has some of these instances."""
        for loaded in self._loaded.items():
            _refuse_shared(loaded, (split, instances), self._config)

    def split_instances(self, split: str) -> int | None:
        self.instances(split)
        return self._split_rows[split]

    def left_out(self, split: str) -> Mapping[str, str]:
        self.instances(split)
        return self._left_out[split]

    def _usable(self, split: str) -> tuple[Sequence[Instance], Mapping[str, str], int | None]:
        """Returns the usable instances of a split, the others with the reasons, and the split's rows.

        Only chosen instances are among them. Raises InstanceError.
        """
        instances, rows = self._chosen(split)
        return instances, {}, rows

    def _chosen(self, split: str) -> tuple[list[Instance], int | None]:
        """Returns the chosen instances of a split, and how many rows it has. Raises InstanceError."""
        instances, rows = self._load(split)
        self._ids[split] = frozenset(instance.instance_id for instance in instances)
        if split == self._config.split:
            return choose_instances(self._config, instances, lambda: self._ids_of(self._config.eval_split)), rows
        return choose_evaluated(self._config, instances, lambda: self._ids_of(self._config.split)), rows

    def _ids_of(self, split: str) -> frozenset[str]:
        """Returns the ids of all instances of another split, and none where it cannot be read."""
        try:
            if split not in self._ids:
                self._ids[split] = frozenset(instance.instance_id for instance in self._load(split)[0])
            return self._ids[split]
        except InstanceError:
            return frozenset()

    def prompt(self, instance: Instance) -> str:
        return instance.problem_statement.strip()

    def _load(self, split: str) -> tuple[list[Instance], int | None]:
        """Returns all usable instances of a split, and how many rows it has without its slice. Raises InstanceError."""
        prepared = prepared_instances(self._config, split, self._cache)
        if prepared is not None:
            return prepared, prepared_split_rows(self._config, split, self._cache)
        read = self._read(self._config, split)
        return read.instances, read.split_rows


def choose_instances(config: EnvConfig, instances: Sequence[Instance], elsewhere: Elsewhere = no_ids) -> list[Instance]:
    """Returns what `env.instances`, and a probe with `env.keep`, leave of the training split.

    `elsewhere` has the ids of other splits, which a list may name as well. Raises InstanceError.
    """
    left = list(instances)
    for listing in filter(None, (config.instances, config.instance_ids)):
        left = select_instances(left, listing, elsewhere)
    return kept_instances(left, config.probe, config.keep) if config.probe else left


def choose_evaluated(config: EnvConfig, instances: Sequence[Instance], elsewhere: Elsewhere = no_ids) -> list[Instance]:
    """Returns what `env.instances` leaves of a split that is only evaluated.

    `elsewhere` has the ids of the split that is trained on. Raises InstanceError.
    """
    left = list(instances)
    for listing in filter(None, (config.instances, config.instance_ids)):
        left = narrow_instances(left, listing, elsewhere)
    return left


def _refuse_shared(
    first: tuple[str, Sequence[Instance]], second: tuple[str, Sequence[Instance]], config: EnvConfig
) -> None:
    """Refuses two splits with an instance in common.

    Each split comes with its name. Raises InstanceError naming the first instances that both have.
    """
    shared = shared_instances(first[1], second[1])
    if not shared:
        return
    shown = ", ".join(f"{name} = {same}" if name != same else name for name, same in shared[:_SHOWN])
    more = ", ..." if len(shared) > _SHOWN else ""
    where = f"env.dataset={config.dataset}"
    if config.eval_dataset not in (None, config.dataset):
        where += f", env.eval_dataset={config.eval_dataset}"
    raise InstanceError(
        f"{len(shared)} instances are in both {first[0]} and {second[0]} ({where}): {shown}{more}; a score on them "
        "says nothing. Take slices that do not meet ('env.split=\"train[100:]\"' 'env.eval_split=\"train[:100]\"'), or "
        f"leave them out with env.instances=FILE; to evaluate on what is trained on, env.eval_split={config.split}"
    )


def shared_instances(first: Sequence[Instance], second: Sequence[Instance]) -> list[tuple[str, str]]:
    """Returns pairs of ids that are one issue, in the order of `second`."""
    ids = {instance.instance_id for instance in first}
    bases = {(instance.repo.lower(), instance.base_commit): instance.instance_id for instance in first}
    pairs = []
    for instance in second:
        base = (instance.repo.lower(), instance.base_commit)
        if instance.instance_id in ids:
            pairs.append((instance.instance_id, instance.instance_id))
        elif base in bases and instance.base_commit:
            pairs.append((bases[base], instance.instance_id))
    return pairs
