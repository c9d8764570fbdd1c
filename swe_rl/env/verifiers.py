"""Makes environments of the package `verifiers` usable (`env=verifiers`); its own `load_environment` loads them.

Invariants:
- The package and its environments are imported when the first instances are read. They set handlers of signals: ours
  are put back.
- An environment is loaded once in a process. `agent=verifiers` plays its rollouts and scores them; `grade` reads that
  score. No sandbox is used for either.
- `verifiers` makes a 0 of a reward function that raises. Here it is a fault, which `collect_faults` hands out.
- `env.split` and `env.eval_split` are `train` and `eval`: its data set, and its evaluation data set. One never stands
  in for the other.
"""

import functools
import importlib
import importlib.util
import inspect
import json
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from swe_rl.config.schema import EnvConfig
from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.env.played import PlayedEnv
from swe_rl.env.verifiers_tasksets import LoadedTaskset, load_taskset
from swe_rl.errors import UserError, one_line

# A context variable keeps the faults of rollouts apart that are scored at the same time.
_FAULTS: ContextVar[list[str] | None] = ContextVar("faults", default=None)
# An environment is loaded once in a process, also if several threads ask for it.
_LOADING = threading.RLock()
_LOADED: dict[str, "LoadedEnvironment | LoadedTaskset"] = {}


class LoadedEnvironment:
    """Holds an environment of the package, and the rows of its two data sets.

    `environment` is a `verifiers.Environment`.
    """

    def __init__(self, package: str, environment: Any) -> None:
        self.package = package
        self.environment = environment
        self.members: tuple[Any, ...] = tuple(getattr(environment, "envs", ())) or (environment,)
        self._own_turns = [getattr(member, "max_turns", None) for member in self.members]
        for member in self.members:
            _watch_rubric(member.rubric)

    def rows(self, split: str) -> Any:
        """Returns a data set of Hugging Face's. Raises InstanceError where the environment has none of the kind."""
        name = {"train": "dataset", "eval": "eval_dataset"}[split]
        rows = self.environment.build_dataset() if split == "train" else self.environment.build_eval_dataset()
        if rows is None:
            raise InstanceError(
                f"env.dataset={self.package} has no {name}, which the split {split} is; use the other one "
                f"(env.split=eval, or env.eval_split=train), or no evaluations (trainer.eval_every_steps=0)"
            )
        return rows

    def row(self, instance_id: str) -> dict[str, Any]:
        _, split, number = instance_id.rsplit("-", 2)
        return dict(self.rows(split)[int(number)])

    def limit_turns(self, most: int) -> None:
        """Limits the turns of one rollout. An environment that ends earlier still does."""
        for member, turns in zip(self.members, self._own_turns, strict=True):
            if turns is not None:
                member.max_turns = min(turns, most) if turns > 0 else most

    def is_own_limit(self, turns: int) -> bool:
        """Tells whether the environment itself would have ended after so many turns."""
        return turns in self._own_turns


def load_package(package: str, arguments: Mapping[str, Any]) -> LoadedEnvironment | LoadedTaskset:
    """Returns the environment or the taskset of a package, which is loaded at most once.

    Raises UserError for what cannot be loaded.
    """
    key = json.dumps([package, arguments], sort_keys=True, default=str)
    with _LOADING:
        if key not in _LOADED:
            _LOADED[key] = _load_uncached(package, arguments)
        return _LOADED[key]


def import_library() -> Any:
    """Returns the module that has `load_environment`. Raises UserError where no installed version has one."""
    try:
        module = importlib.import_module("verifiers")
        return module if hasattr(module, "load_environment") else importlib.import_module("verifiers.legacy")
    except ImportError as error:
        raise UserError(
            f"verifiers is needed, for an environment that exports no Taskset in a version below 0.4, with "
            f"load_environment and SingleTurnEnv ({one_line(error)}): pip install 'swe_rl[verifiers]' 'verifiers<0.4'"
        ) from error


def _load_uncached(package: str, arguments: Mapping[str, Any]) -> LoadedEnvironment | LoadedTaskset:
    if importlib.util.find_spec("verifiers") is not None:
        with _our_signals():
            taskset = load_taskset(package, arguments)
        if taskset is not None:
            return taskset
    vf = import_library()
    try:
        with _our_signals():
            environment = vf.load_environment(package, **arguments)
    except Exception as error:
        cause = error.__cause__ or error
        raise UserError(
            f"env.dataset={package} cannot be loaded: {type(cause).__name__}: {one_line(cause)}. It is the name of an "
            "installed package with a function load_environment, which takes env.params.args; pip install it, or name "
            "its folder in job.code."
        ) from error
    if environment.requires_group_rollouts:
        raise UserError(
            f"env.dataset={package} has rewards that compare the rollouts of a group, and each of ours is scored by "
            "itself; use an environment without them."
        )
    return LoadedEnvironment(package, environment)


@contextmanager
def _our_signals() -> Iterator[None]:
    """Puts our handlers of signals back at the end.

    Each of the package's environments would end the process by itself on SIGINT and SIGTERM.
    """
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)


@contextmanager
def collect_faults() -> Iterator[list[str]]:
    """Yields a list that gets what reward functions raise meanwhile."""
    raised: list[str] = []
    token = _FAULTS.set(raised)
    try:
        yield raised
    finally:
        _FAULTS.reset(token)


def _watch_rubric(rubric: Any) -> None:
    """Makes the functions that have a weight report what they raise.

    A function without a weight only measures; it may fail, and is no reward.
    """
    for inner in getattr(rubric, "rubrics", ()):
        _watch_rubric(inner)
    weights = getattr(rubric, "weights", ())
    for index, (function, weight) in enumerate(zip(list(rubric.funcs), weights, strict=False)):
        if weight:
            rubric.funcs[index] = _watch_function(function)


def _watch_function(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def watched(*arguments: Any, **named: Any) -> Any:
        try:
            value = function(*arguments, **named)
            return await value if inspect.isawaitable(value) else value
        except Exception as error:
            raised = _FAULTS.get()
            if raised is not None:
                name = getattr(function, "__name__", repr(function))
                raised.append(f"{name} raised {type(error).__name__}: {one_line(error)}")
            raise

    return watched


class VerifiersEnv(PlayedEnv):
    """Offers the rows of a verifiers environment as instances.

    `args` is what the environment's `load_environment` takes. `env.dataset` is the name of its package.
    """

    name = "verifiers"
    files = {"README": "The sandbox of a verifiers environment. Nothing uses it.\n"}
    played = "a rollout"

    def __init__(self, config: EnvConfig, cache: Path, args: dict[str, Any] | None = None) -> None:
        super().__init__(config, cache)
        self._arguments = args or {}

    def split_instances(self, split: str) -> int | None:
        return len(self._rows(split.partition("[")[0]))

    def _make_instances(self, split: str, chosen: slice) -> list[Instance]:
        rows = self._rows(split)
        name = f"{self._config.dataset.replace('/', '_')}-{split}"
        repo = f"verifiers/{self._config.dataset}"
        return [
            self._instance(f"{name}-{index}", repo, _last_question(rows[index].get("prompt")))
            for index in range(len(rows))[chosen]
        ]

    def _rows(self, split: str) -> Any:
        return load_package(self._config.dataset, self._arguments).rows(split)


def _last_question(prompt: Any) -> str:
    """Returns what the user says last."""
    if isinstance(prompt, str):
        return prompt
    said = [message.get("content") for message in prompt or () if message.get("role") == "user"]
    return str(said[-1]) if said else ""
