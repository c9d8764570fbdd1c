"""This module runs a sweep whose sweeper decides as it goes (`hydra/sweeper=optuna`): trials, each with what came of
the ones before.

Invariants:
- Nobody knows a trial before the sweeper names it, so each is checked right before it starts. One that is refused, or
  fails, is a failed trial under its number, and gives the sweeper no figure.
- `trials/N.json` in the sweep's folder says what became of trial N, whichever process ran it. The worst of them is the
  exit status, also if the sweeper was told to bear failures.
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
from swe_rl.config.parts import asked_config
from swe_rl.config.secrets import mask_text
from swe_rl.errors import RunError, SweRlError
from swe_rl.files.disk import write_text_atomic
from swe_rl.files.lines import lines_of
from swe_rl.logger.failure import report_failure

if TYPE_CHECKING:
    from omegaconf import DictConfig

SWEEPERS = "hydra/sweeper"
BASIC = "basic"
_TRIALS = "trials"
# Hydra's sweepers write this file at their end.
_RESULTS = "optimization_results.yaml"


@dataclass(frozen=True, slots=True)
class Trial:
    """Records a trial and what came of it. `overrides` are what the sweeper chose, secrets masked."""

    number: int
    overrides: tuple[str, ...]
    status: int
    objective: float | None


class SweeperError(RunError):
    """The sweeper itself failed, after its first trial."""


def refuse_unfit(fixed: Composed) -> None:
    """Raises ConfigError for a job that gives a sweeper nothing. `fixed` is what all trials share; `check` and `plan`
    answer for theirs."""
    said = f"{SWEEPERS}={fixed.choices.get(SWEEPERS)} chooses the next trials by what came of the last ones"
    job = asked_config(fixed.config).job
    if job.name in FOLDERLESS:
        raise ConfigError(f"{said}, and job={job.name} measures nothing: job=train, rft, rollout or eval does.")
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
        through_hydra(TrialTask(fixed.overrides))
    except JobFailed as failed:
        stopped = report_failure(failed)
    except ConfigError as error:
        # The error is of a trial's composition.
        if type(error.__cause__) is not ValueError:
            raise
        raise _sweeper_error(error.__cause__, fixed, read_trials(folder)) from error
    except SweRlError:
        raise
    except Exception as error:
        failed_trial = _failed_trial(error)
        if failed_trial is None:
            raise _sweeper_error(error, fixed, read_trials(folder)) from error
        stopped = report_failure(failed_trial)
    trials = read_trials(folder)
    print("\n".join([*map(_trial_line, trials), *_result_lines(folder)]), flush=True)
    return max([stopped, *(trial.status for trial in trials)])


class TrialTask:
    """Runs a trial for Hydra, here or in another process; only its figure and an exception come back. `fixed` are the
    overrides that are not the sweeper's choice."""

    def __init__(self, fixed: Sequence[str]) -> None:
        self._fixed = frozenset(map(_override_key, fixed))
        # What is only warned of was said by the first trial.
        self._again = False

    def __call__(self, tree: "DictConfig") -> float:
        from hydra.core.hydra_config import HydraConfig

        hydra: Any = HydraConfig.get()
        number = int(hydra.job.num)
        trial_overrides = [
            text for text in given_overrides(hydra.overrides.task) if _override_key(text) not in self._fixed
        ]
        chosen = tuple(map(mask_text, trial_overrides))
        print(f"trial {number}: {' '.join(chosen)}", flush=True)
        ended = run_in_folder(tree, again=self._again)
        self._again = True
        trial = Trial(number, chosen, ended.status, ended.objective)
        write_text_atomic(_trial_path(Path(hydra.sweep.dir), number), json.dumps(asdict(trial)) + "\n")
        if ended.objective is None:
            raise JobFailed(f"trial {number} ({' '.join(chosen)}) {_failure_reason(ended)}", ended.status or 1)
        return ended.objective


def _override_key(override: str) -> str:
    """Returns an override's key. Sweepers write values in their own way, so only keys are compared."""
    return override.partition("=")[0]


def _failure_reason(ended: Ended) -> str:
    refused = ended.status == ConfigError.exit_status
    if refused:
        return "was refused, see above"
    return f"failed with exit status {ended.status}"


def _trial_path(folder: Path, number: int) -> Path:
    return folder / _TRIALS / f"{number}.json"


def read_trials(folder: Path) -> list[Trial]:
    """Returns the trials by number. Raises OSError, ValueError for files that are not ours."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in (folder / _TRIALS).glob("*.json")]
    trials = [Trial(**{**record, "overrides": tuple(record["overrides"])}) for record in records]
    return sorted(trials, key=lambda trial: trial.number)


def _trial_line(trial: Trial) -> str:
    came_of = "failed"
    if trial.objective is not None:
        came_of = f"{trial.objective:.6g}"
    return f"trial {trial.number:<4}{came_of:<14}{' '.join(trial.overrides)}"


def _result_lines(folder: Path) -> list[str]:
    path = folder / _RESULTS
    if not path.is_file():
        return []
    return [f"{path}:", *(f"  {line}" for line in lines_of(path.read_text(encoding="utf-8"), ends=False))]


def _failed_trial(error: BaseException | None) -> JobFailed | None:
    """Finds a failed trial behind an error: Optuna's grid fails over telling its study that the last trial failed."""
    while error is not None and not isinstance(error, JobFailed):
        error = error.__cause__ or error.__context__
    return error


def _sweeper_error(error: BaseException, fixed: Composed, trials: Sequence[Trial]) -> SweRlError:
    """Makes the error of a sweeper that stopped. A mistake in its settings shows before the first trial; what it says
    later is no fault of the user."""
    text = f"{SWEEPERS}={fixed.choices.get(SWEEPERS)} stopped: {type(error).__name__}: {str(error).rstrip('.')}"
    if not trials:
        return ConfigError(f"{text}. No trial was started; are the settings below hydra.sweeper as it wants them?")
    if all(trial.objective is None for trial in trials):
        return SweeperError(f"{text}. No trial of {len(trials)} had a figure to go by; each said why above.")
    return SweeperError(f"{text}, after {len(trials)} trials, which are kept.")
