"""Reads a run's folder or a log of SkyRL's, as what was measured in it.

Invariants:
- It only reads; a run that is still going, or died, gives the steps that it completed.
- A step without a finite `avg_response_length` is incomplete; of two lines of one step the last counts. Where a run
  that was resumed did not spend a step's time itself (`rollout.mode=stream`), the step has no rate and no times.
- In a log steps count from 1, as `Started: 'step'` opens them; what comes before the first belongs to none. The last
  match of a step wins; a number that is not finite, or no number, leaves what was there. Only numbers leave a log.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swe_rl.errors import UserError
from swe_rl.files.disk import read_json
from swe_rl.logger.damage import READING_ERRORS, damage_of, reason_of
from swe_rl.logger.figures import finite_number
from swe_rl.logger.folder import RunFolder, RunState
from swe_rl.logger.jsonl import iter_jsonl, read_evals
from swe_rl.logger.summary import rates_of
from swe_rl.report.compare.compare import MeasuredPart, MeasuredRun, StepRate
from swe_rl.report.compare.held_out import evaluations_by_step, held_out
from swe_rl.report.resolved import evals_by_part


class CompareError(UserError):
    """What was given is nothing that can be compared."""


def read_measured(path: Path, key: str, trajectories_per_step: int) -> MeasuredRun:
    """Returns what was measured. `key` is the configuration's, for the errors. Raises CompareError.

    `trajectories_per_step` is for logs.
    """
    if path.is_dir():
        if is_run(path):
            try:
                return _read_run(RunFolder(path))
            except READING_ERRORS as error:
                why = damage_of(RunFolder(path)) or reason_of(error)
                raise CompareError(f"{key}={path} cannot be compared: {why}.") from error
        raise CompareError(f"{key}={path} is not the folder of a run: it has no steps.jsonl. {_suggest_path(path)}")
    if not path.exists():
        raise CompareError(f"{key}={path} does not exist. Give a run's folder, or a log of SkyRL's (slurm-<id>.err).")
    return _read_skyrl_log(path, key, trajectories_per_step)


def measured_of(paths: Sequence[Path], key: str, trajectories_per_step: int) -> tuple[list[MeasuredRun], list[str]]:
    """What can be read of the runs of one folder, and the damaged ones by name with the reason.

    Of a damaged run that can still be read in part, that part counts.
    """
    runs: list[MeasuredRun] = []
    damaged: list[str] = []
    for path in paths:
        reason = damage_of(RunFolder(path))
        try:
            runs.append(read_measured(path, key, trajectories_per_step))
        except CompareError as error:
            reason = reason or str(error)
        if reason:
            damaged.append(f"{path.name}: {reason}")
    return runs, damaged


def is_run(path: Path) -> bool:
    folder = RunFolder(path)
    return folder.has_any(folder.steps_jsonl, folder.status_json, folder.config_yaml)


def runs_below(folder: Path) -> list[Path]:
    """Returns a multirun's runs: its sub-folders, by their numbers; what cannot be read has none."""
    try:
        runs = [path for path in folder.iterdir() if path.is_dir() and is_run(path)]
    except OSError:
        return []
    return sorted(runs, key=lambda path: (not path.name.isdecimal(), path.name.zfill(9)))


def _suggest_path(path: Path) -> str:
    if runs_below(path):
        return f"It is that of a multirun: compare its arms with job.runs={path}."
    if logs := sorted(path.glob("slurm-*.err")):
        return f"It has logs: give one of them, for instance {logs[0]}."
    return "Give a run's folder (outputs/<name>/<time>), or a log of SkyRL's (slurm-<id>.err)."


def _read_run(folder: RunFolder) -> MeasuredRun:
    records: dict[int, Mapping[str, Any]] = {}
    for record in iter_jsonl(folder.steps_jsonl):
        if type(record.get("step")) is int:
            records[record["step"]] = record
    tokens_per_s = rates_of([*records.values()], "tokens_per_s")
    measured_steps = zip(records.items(), tokens_per_s, strict=True)
    rates = {step: rate for (step, record), mean in measured_steps if (rate := _step_rate(record, mean)) is not None}
    status = folder.status()
    # The summary is else that of an earlier start, or of as much as there was before the run failed.
    is_over = status is None or status.status is RunState.done
    evals = read_evals(folder)
    return MeasuredRun(
        source=str(folder.path),
        steps=rates,
        incomplete=len(records) - len(rates),
        num_trajectories=_only_value(records[step].get("num_trajectories") for step in rates),
        wall_s=finite_number(read_json(folder.summary_json).get("wall_s")) if is_over else None,
        held_out=held_out(evals),
        evaluations=evaluations_by_step(evals),
        parts={
            name: MeasuredPart(held_out(events), evaluations_by_step(events))
            for name, events in evals_by_part(evals).items()
        },
        status=status.status.value if status else None,
        overrides=_by_key(folder.overrides()),
        values=folder.config(),
    )


def _step_rate(record: Mapping[str, Any], tokens_per_s: float | None) -> StepRate | None:
    names = ("reward_mean", "avg_response_length", "loss", *(() if tokens_per_s is None else ("generate_s", "step_s")))
    rate = StepRate(tokens_per_s, **{name: finite_number(record.get(name)) for name in names})
    if tokens_per_s is None and rate.avg_response_length is None:
        return None
    return rate


def _read_skyrl_log(path: Path, key: str, trajectories_per_step: int) -> MeasuredRun:
    try:
        steps = read_log(path)
    except OSError as error:
        raise CompareError(f"{key}={path} cannot be read: {error.strerror or error}.") from error
    if not steps:
        raise CompareError(
            f"{key}={path} is no log of SkyRL's trainer, or its first step has not begun: no line has Started: 'step'. "
            "The synchronous trainer writes these, to its error stream (slurm-<id>.err, not .out)."
        )
    rates = {
        number: StepRate(rate, step.reward_mean, step.avg_response_length, step.generate_s, step.step_s)
        for number, step in enumerate(steps, 1)
        if (rate := step.tokens_per_s(trajectories_per_step)) is not None
    }
    return MeasuredRun(
        source=str(path),
        steps=rates,
        is_log=True,
        job=job_id(path) or path.stem,
        incomplete=len(steps) - len(rates),
        num_trajectories=trajectories_per_step,
    )


def _by_key(overrides: Sequence[str]) -> dict[str, str]:
    """Returns overrides without Hydra's `+` and quotes; what a sweep file added is not in it, its parameters are."""
    split = (override.partition("=") for override in overrides)
    return {name.lstrip("+~"): value.strip("'\"") for name, _, value in split}


def _only_value(values: Iterable[Any]) -> int | None:
    distinct = set(values)
    only = distinct.pop() if len(distinct) == 1 else None
    if type(only) is int:
        return only
    return None


_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_NUMBER = r"(-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
_STARTED = "Started: 'step'"
_FINISHED = re.compile(rf"Finished: '(generate|step)', time cost: {_NUMBER}s")
_AVERAGES = re.compile(rf"avg_final_rewards: {_NUMBER}, avg_response_length: {_NUMBER}(?![\d.])")
_JOB = re.compile(r"slurm-(\d+(?:_\d+)?)\.(?:err|out)")


@dataclass(slots=True)
class LogStep:
    """A step as a log has it; None for what it does not (yet) say."""

    generate_s: float | None = None
    step_s: float | None = None
    reward_mean: float | None = None
    avg_response_length: float | None = None

    def tokens_per_s(self, trajectories_per_step: int) -> float | None:
        """Returns trajectories times mean response tokens over the seconds of generation; None for an incomplete step.

        It is the published measure of the program-aware router (ThunderAgent's DP=4 comparison). Responses hold the
        tools' output as well, and generation the start of containers and the grading.
        """
        if self.avg_response_length is None or self.generate_s is None or self.generate_s <= 0:
            return None
        return trajectories_per_step * self.avg_response_length / self.generate_s


def read_log(path: Path) -> list[LogStep]:
    """Returns the steps of a file that may still grow; bytes that are no text are passed over. Raises OSError."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        return list(parse_log(lines))


def parse_log(lines: Iterable[str]) -> Iterator[LogStep]:
    """Yields the steps in their order, each once it is over."""
    step: LogStep | None = None
    for line in lines:
        text = _ANSI.sub("", line) if "\x1b" in line else line
        if _STARTED in text:
            if step is not None:
                yield step
            step = LogStep()
        if step is not None:
            _add_line(step, text)
    if step is not None:
        yield step


def _add_line(step: LogStep, text: str) -> None:
    for name, cost_s in _FINISHED.findall(text):
        if name == "generate":
            step.generate_s = float(cost_s)
        else:
            step.step_s = float(cost_s)
    if averages := _AVERAGES.search(text):
        step.reward_mean = float(averages[1])
        step.avg_response_length = float(averages[2])


def job_id(path: Path) -> str | None:
    """Returns the job that SLURM named the file after: `slurm-25609.err` is of 25609."""
    match = _JOB.fullmatch(path.name)
    if match:
        return match[1]
    return None
