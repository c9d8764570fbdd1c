"""This module brings the options of the job that `check` or `plan` answers for: the file of `job=rft` chooses an
algorithm, and `job=plan job.of=rft` has to choose the same one.

What `job.of` is may stand in any file, or on the command line, and so is known after a composition. If the file of that
job chooses options, the composition is made again, with these choices at the end of the list of the chosen job's file.
So they have the same place as where that job is started: experiments and the command line win over both.

Invariants:
- Hydra's own list decides what wins; no override is added.
- What was read of files is not changed: whoever reads next finds it as it was.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from copy import copy, deepcopy
from typing import TYPE_CHECKING, Any

from swe_rl.config.choices import JobName
from swe_rl.config.folders import conf_dir
from swe_rl.config.parts import ASKING
from swe_rl.config.yaml_text import read_yaml

if TYPE_CHECKING:
    from omegaconf import DictConfig

_JOB = "job"
_DEFAULTS = "defaults"
# Has the paths of two files below conf/: of the chosen job, and of the job that it answers for.
_ANSWERS: ContextVar[tuple[str, str] | None] = ContextVar("answers", default=None)


def answered_job(tree: "DictConfig") -> JobName | None:
    """Returns the job that `check` or `plan` answers for, if the file of that job chooses options; else None."""
    # What is wrong with these keys is said where all keys are read.
    with suppress(Exception):
        answered: JobName = tree.job.of
        if tree.job.name in ASKING and _DEFAULTS in read_yaml(conf_dir() / _JOB / f"{answered}.yaml"):
            return answered
    return None


def compose_as_answered(compose: Callable[[], "DictConfig"]) -> "DictConfig":
    """Returns what `compose` makes, with the options of the job that it answers for."""
    tree = compose()
    answered = answered_job(tree)
    if answered is None:
        return tree
    with _answering(f"{_JOB}/{tree.hydra.runtime.choices[_JOB]}", f"{_JOB}/{answered}"):
        return compose()


@contextmanager
def _answering(chosen: str, answered: str) -> Iterator[None]:
    token = _ANSWERS.set((chosen, answered))
    try:
        yield
    finally:
        _ANSWERS.reset(token)


def with_answered_options(repo: Any) -> Any:
    """Returns Hydra's repository of files, in which the list of the chosen job's file goes on with what the file of the
    job that it answers for chooses."""
    answers = _ANSWERS.get()
    if answers is None:
        return repo
    return _Repository(repo, *answers)


class _Repository:
    """Is asked as Hydra's own repository, which it asks in turn."""

    def __init__(self, repo: Any, chosen: str, answered: str) -> None:
        self._repo = repo
        self._chosen = chosen
        self._answered = answered

    def __getattr__(self, name: str) -> Any:
        return getattr(self._repo, name)

    def load_config(self, config_path: str) -> Any:
        file = self._repo.load_config(config_path=config_path)
        if file is None or config_path != self._chosen:
            return file
        entries = self._repo.load_config(config_path=self._answered).defaults_list
        longer = copy(file)
        longer.defaults_list = [*file.defaults_list, *(deepcopy(entry) for entry in entries if entry.is_override())]
        return longer
