"""A sweep whose sweeper decides as it goes (`hydra/sweeper=optuna`): trials, each with what came of the ones before.

Invariants:
- Nobody knows a trial before the sweeper names it, so each is checked right before it starts. One that is refused, or
  fails, is a failed trial under its number, and gives the sweeper no figure.
- `trials/N.json` in the sweep's folder says what became of trial N, whichever process ran it. The worst of them is the
  exit status, also where the sweeper was told to bear failures.
- Trials compose from the frozen conf/, as the jobs of every sweep.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swe_rl.cli.dispatch import FOLDERLESS, Ended, JobFailed, run_in_folder
from swe_rl.config.compose import Composed, given_overrides
from swe_rl.config.explain import ConfigError
from swe_rl.config.launcher import is_slurm
from swe_rl.config.parts import asked
from swe_rl.config.secrets import mask_text
from swe_rl.errors import RunError, SweRlError
from swe_rl.logger.disk import write_text_atomic
from swe_rl.logger.failure import report

if TYPE_CHECKING:
    from omegaconf import DictConfig

SWEEPERS = "hydra/sweeper"
BASIC = "basic"
_TRIALS = "trials"
_RESULTS = "optimization_results.yaml"  # Hydra's sweepers write it at their end


@dataclass(frozen=True, slots=True)
class Trial:
    """`overrides`: what the sweeper chose, secrets masked."""

    number: int
    overrides: tuple[str, ...]
    status: int
    objective: float | None


class SweeperError(RunError):
    """The sweeper itself failed, after its first trial."""


def refuse_unfit(fixed: Composed) -> None:
    """`fixed`: what all trials share; `check` and `plan` answer for theirs. Raises ConfigError."""
    said = f"{SWEEPERS}={fixed.choices.get(SWEEPERS)} chooses the next trials by what came of the last ones"
    job = asked(fixed.config).job
    if job.name in FOLDERLESS:
        raise ConfigError(f"{said}, and job={job.name} measures nothing: job=train, rollout or eval does.")
    if job.objective is None:
        raise ConfigError(f"{said}. Say which figure of summary.json counts: job.objective=resolved_rate_after.")
    if is_slurm(fixed.launcher_settings) or job.dry_run:
        raise ConfigError(
            f"{said}, and jobs that SLURM queues give nothing back. Run it inside one allocation: "
            "hydra/launcher=local_processes, or none."
        )
    if job.detach:
        raise ConfigError(f"{said}, so it has to wait for them. Leave job.detach out.")


def run_trials(fixed: Composed, folder: Path, through_hydra: Callable[[Callable[[Any], float | None]], None]) -> int:
    """Runs the sweeper to its end, in `folder`. Returns the exit status. Raises ConfigError, SweeperError."""
    stopped = 0
    try:
        through_hydra(Task(fixed.overrides))
    except JobFailed as failed:
        stopped = report(failed)
    except ConfigError as error:
        if type(error.__cause__) is not ValueError:  # of a trial's composition
            raise
        raise _stopped(error.__cause__, fixed, read_trials(folder)) from error
    except SweRlError:
        raise
    except Exception as error:
        failed_trial = _failed_trial(error)
        if failed_trial is None:
            raise _stopped(error, fixed, read_trials(folder)) from error
        stopped = report(failed_trial)
    trials = read_trials(folder)
    print("\n".join([*map(_line, trials), *_results(folder)]), flush=True)
    return max([stopped, *(trial.status for trial in trials)])


class Task:
    """What Hydra calls for each trial, here or in another process; only its figure and an exception come back.

    `fixed`: the overrides that are not the sweeper's choice.
    """

    def __init__(self, fixed: Sequence[str]) -> None:
        self._fixed = frozenset(map(_key, fixed))
        self._again = False  # what is only warned of was said by the first trial

    def __call__(self, tree: "DictConfig") -> float:
        from hydra.core.hydra_config import HydraConfig

        hydra: Any = HydraConfig.get()
        number = int(hydra.job.num)
        trial_overrides = [text for text in given_overrides(hydra.overrides.task) if _key(text) not in self._fixed]
        chosen = tuple(map(mask_text, trial_overrides))
        print(f"trial {number}: {' '.join(chosen)}", flush=True)
        ended = run_in_folder(tree, again=self._again)
        self._again = True
        trial = Trial(number, chosen, ended.status, ended.objective)
        write_text_atomic(_path(Path(hydra.sweep.dir), number), json.dumps(asdict(trial)) + "\n")
        if ended.objective is None:
            raise JobFailed(f"trial {number} ({' '.join(chosen)}) {_reason(ended)}", ended.status or 1)
        return ended.objective


def _key(override: str) -> str:
    """Sweepers write values in their own way."""
    return override.partition("=")[0]


def _reason(ended: Ended) -> str:
    refused = ended.status == ConfigError.exit_status
    return "was refused, see above" if refused else f"failed with exit status {ended.status}"


def _path(folder: Path, number: int) -> Path:
    return folder / _TRIALS / f"{number}.json"


def read_trials(folder: Path) -> list[Trial]:
    """By number. Raises OSError, ValueError for files that are not ours."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in (folder / _TRIALS).glob("*.json")]
    trials = [Trial(**{**record, "overrides": tuple(record["overrides"])}) for record in records]
    return sorted(trials, key=lambda trial: trial.number)


def _line(trial: Trial) -> str:
    came_of = "failed" if trial.objective is None else f"{trial.objective:.6g}"
    return f"trial {trial.number:<4}{came_of:<14}{' '.join(trial.overrides)}"


def _results(folder: Path) -> list[str]:
    path = folder / _RESULTS
    if not path.is_file():
        return []
    return [f"{path}:", *(f"  {line}" for line in path.read_text(encoding="utf-8").splitlines())]


def _failed_trial(error: BaseException | None) -> JobFailed | None:
    """Optuna's grid fails over telling its study that the last trial failed."""
    while error is not None and not isinstance(error, JobFailed):
        error = error.__cause__ or error.__context__
    return error


def _stopped(error: BaseException, fixed: Composed, trials: Sequence[Trial]) -> SweRlError:
    """A mistake in the sweeper's settings shows before the first trial; what it says later is no fault of the user."""
    text = f"{SWEEPERS}={fixed.choices.get(SWEEPERS)} stopped: {type(error).__name__}: {str(error).rstrip('.')}"
    if not trials:
        return ConfigError(f"{text}. No trial was started; are the settings below hydra.sweeper as it wants them?")
    if all(trial.objective is None for trial in trials):
        return SweeperError(f"{text}. No trial of {len(trials)} had a figure to go by; each said why above.")
    return SweeperError(f"{text}, after {len(trials)} trials, which are kept.")
