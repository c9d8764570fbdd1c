"""Makes tasksets of the package `verifiers` usable (its module `v1`, which is all that version 0.4 has).

Invariants:
- A task here is one prompt, one reply and the task's own rewards. What needs more (tools, a container, a program or an
  environment of its own, a user who opens the conversation) is refused by name.
- The tasks are the split `train`. A taskset has no other one.
"""

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from swe_rl.dataset.instance import InstanceError
from swe_rl.errors import UserError, one_line

# More tasks are not read, as a taskset may go on for ever.
_MOST_TASKS = 1_000_000


class LoadedTaskset:
    """Holds the tasks of a taskset. Raises UserError for tasks that cannot be played here."""

    def __init__(self, package: str, taskset: Any) -> None:
        self.package = package
        # Version 0.3 has the first word only.
        if taskset.INFINITE or not getattr(taskset, "bounded", True):
            raise UserError(f"env.dataset={package} has tasks without end; use an environment whose tasks end.")
        kind = type(taskset).task_type()
        tools = [*type(taskset).toolsets(taskset.config), *kind.toolsets(taskset.config.task)]
        for words, is_needed in {"tools": bool(tools), "a container": kind.NEEDS_CONTAINER}.items():
            if is_needed:
                raise UserError(
                    f"env.dataset={package} has tasks that need {words}; of tasksets, only tasks of one reply are "
                    "played here."
                )
        self.tasks: list[Any] = list(islice(taskset, _MOST_TASKS))

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Returns the prompts of the tasks. Raises InstanceError for a split that a taskset does not have."""
        if split != "train":
            raise InstanceError(
                f"env.dataset={self.package} is a taskset and has no split {split}; use a part of the other one "
                "('env.split=\"train[:100]\"', 'env.eval_split=\"train[100:]\"')"
            )
        return [{"prompt": task.data.prompt_text} for task in self.tasks]

    def task(self, instance_id: str) -> Any:
        return self.tasks[int(instance_id.rpartition("-")[2])]


def load_taskset(package: str, arguments: Mapping[str, Any]) -> LoadedTaskset | None:
    """Returns the taskset that a package exports, with `arguments` as its configuration, or None if it exports none.
    Raises UserError."""
    v1 = importlib.import_module("verifiers.v1")
    try:
        module = v1.import_taskset(package)
    except Exception as error:
        # The older loader of environments looks elsewhere, too, and says what is wrong.
        if importlib.util.find_spec("verifiers.legacy") is not None:
            return None
        raise _not_loaded(package, error) from error
    exported = [getattr(module, name, None) for name in getattr(module, "__all__", ())]
    kinds = [kind for kind in exported if isinstance(kind, type)]
    if not any(issubclass(kind, v1.Taskset) for kind in kinds):
        return None
    for base in (v1.Env, v1.Harness):
        if any(issubclass(kind, base) for kind in kinds):
            raise UserError(
                f"env.dataset={package} brings its own {base.__name__}; of tasksets, only tasks of one reply are "
                "played here."
            )
    try:
        return LoadedTaskset(package, v1.load_taskset(v1.taskset_config_type(package)(id=package, **arguments)))
    except UserError:
        raise
    except Exception as error:
        raise _not_loaded(package, error) from error


def _not_loaded(package: str, error: Exception) -> UserError:
    return UserError(
        f"env.dataset={package} cannot be loaded: {type(error).__name__}: {one_line(error)}. It is the name of an "
        "installed package that exports a Taskset, which takes env.params.args; pip install it, or name its folder in "
        "job.code."
    )
