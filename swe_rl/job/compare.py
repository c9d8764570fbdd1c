"""`job=compare` shows two runs, two logs, or the arms of a multirun side by side, as a table, plot, CSV and JSON.

Invariants:
- Nothing that is compared is written to; the files go to a folder of their own, whole or not at all.
- `job.format=json` prints the record that `compare.json` holds, and nothing else, to standard output.
"""

import os
import re
import shutil
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from swe_rl.config.choices import CompareFigures, OutputFormat
from swe_rl.config.provenance import Origins
from swe_rl.config.schema import Config, JobConfig
from swe_rl.errors import SweRlError
from swe_rl.files.disk import write_json_atomic, write_text_atomic
from swe_rl.files.json_text import encode_json
from swe_rl.report.compare.arms import engines_of, make_arms, make_pair, with_baseline
from swe_rl.report.compare.compare import Arm, Comparison, compare_arms
from swe_rl.report.compare.learning import shows_learning
from swe_rl.report.compare.learning_svg import draw_learning
from swe_rl.report.compare.learning_text import learning_text
from swe_rl.report.compare.read import CompareError, is_run, measured_of, read_measured, runs_below
from swe_rl.report.compare.record import comparison_record, csv_text
from swe_rl.report.compare.text import comparison_text, wrap_lines
from swe_rl.report.compare.throughput_svg import draw_comparison
from swe_rl.submission.find import is_slurm_id, runs_of
from swe_rl.submission.record import NAME as SUBMISSION

# The files and their folder have this name.
NAME = "compare"
# A folder's name has at most this many characters.
_LONGEST = 120


def run(config: Config, folder: Path | None, origins: Origins | None = None) -> int:
    """Prints and writes a comparison. Raises CompareError, DiskError."""
    del folder, origins
    made = make_comparison(config.job, Path(config.paths.outputs))
    if config.job.output:
        output = Path(config.job.output)
    else:
        output = Path(config.paths.outputs) / NAME / _folder_name(made)
    written = write_comparison(made, output, config.job.figures)
    if config.job.format == OutputFormat.json:
        print(encode_json(_comparison_record(made), indent=True).decode())
    else:
        print(_text_of(made, config.job.figures))
        damaged = [f"- damaged: {words}" for words in made.damaged]
        print(wrap_lines([*damaged, *written, *_labels_note(config.job, made)], _terminal_columns()), flush=True)
    return 0


def after_multirun(folder: Path) -> str | None:
    """Returns what to print at the end of a sweep, its files in `compare/` there; None without anything to compare."""
    with suppress(SweRlError, OSError):
        made = _compare_multirun(folder, "its folder", JobConfig())
        if len(made.arms) > 1 and (made.has_steps() or made.has_evaluations()):
            return "\n".join([_text_of(made), *write_comparison(made, folder / NAME)])
    return None


def _text_of(made: Comparison, figures: CompareFigures = CompareFigures.auto) -> str:
    if shows_learning(made, figures):
        return learning_text(made, _terminal_columns())
    return comparison_text(made, _terminal_columns())


def _terminal_columns() -> int:
    """Returns the columns of COLUMNS or the terminal; in a file or a pipe the layout is the published comparison's."""
    return shutil.get_terminal_size((sys.maxsize, 0)).columns


def make_comparison(job: JobConfig, outputs: Path = Path("outputs")) -> Comparison:
    """Returns the comparison. Runs are looked for by their numbers in SLURM below `outputs`. Raises CompareError."""
    if job.runs and (job.baseline or job.candidate):
        raise CompareError(
            "job.runs compares the arms of a multirun, job.baseline and job.candidate two runs or logs: give one or "
            "the other. With job.runs the arms are chosen by job.baseline_label and job.candidate_label."
        )
    if job.trajectories_per_step < 1:
        raise CompareError(f"job.trajectories_per_step={job.trajectories_per_step} must be at least 1.")
    if job.runs:
        made = _compare_multirun(Path(job.runs), "job.runs", job)
    else:
        made = _compare_two(job, outputs)
    if not (made.has_steps() or made.has_evaluations()):
        where = ", ".join(run.source for arm in made.arms for run in arm.runs.values())
        raise CompareError(
            f"No step is complete in any of {where}: there is nothing to compare yet. A step is complete once its "
            "rollouts are over and their mean response length is written. No run has a finished evaluation either."
            + (f" Damaged: {'; '.join(made.damaged)}." if made.damaged else "")
        )
    return made


def _compare_two(job: JobConfig, outputs: Path) -> Comparison:
    if not (job.baseline and job.candidate):
        missing = " and ".join(f"job.{key}" for key in ("baseline", "candidate") if not getattr(job, key))
        raise CompareError(
            f"job=compare needs {missing}: a run's folder, its job's number in SLURM or a log of SkyRL's "
            "(slurm-<id>.err) on each side; or job.runs=DIR, the folder of a multirun (outputs/multirun/<name>/<time>)."
        )
    before = read_measured(_find_run(job.baseline, "job.baseline", outputs), "job.baseline", job.trajectories_per_step)
    after = read_measured(
        _find_run(job.candidate, "job.candidate", outputs), "job.candidate", job.trajectories_per_step
    )
    arms = make_pair((before, after), (job.baseline_label, job.candidate_label))
    return compare_arms(arms, engines=engines_of(arms))


def _find_run(given: str, key: str, outputs: Path) -> Path:
    """Returns a path as it is; for a SLURM job its run's folder, or its log here.

    Raises CompareError for none or several.
    """
    if not is_slurm_id(given):
        return Path(given)
    folders = runs_of(given, outputs)
    if len(folders) == 1:
        return folders[0]
    if folders:
        shown = ", ".join(str(path) for path in folders[:4])
        raise CompareError(
            f"{key}={given} is the number of {len(folders)} runs: {shown}. Name one of them, by its folder or as "
            f"{given}_0; job.runs=FOLDER compares the arms of a sweep."
        )
    log = Path(f"slurm-{given}.err")
    if log.is_file():
        return log
    raise CompareError(
        f"{key}={given}: no run below {outputs} was SLURM's job {given}, and there is no {log} here. Give the run's "
        "folder, or paths.outputs=FOLDER where the runs are."
    )


def _compare_multirun(folder: Path, key: str, job: JobConfig) -> Comparison:
    paths = runs_below(folder) if folder.is_dir() else []
    if not paths:
        raise CompareError(f"{key}={folder} {_no_multirun(folder)}")
    runs, damaged = measured_of(paths, key, job.trajectories_per_step)
    if not runs:
        raise CompareError(f"{key}={folder}: no run in it can be read. {'; '.join(damaged)}.")
    arms = make_arms(runs, str(runs[0].value("name") or folder.name))
    if job.baseline_label:
        arms = with_baseline(arms, _find_labelled(arms, "baseline_label", job.baseline_label))
    if job.candidate_label:
        arms = [arms[0], _find_labelled(arms[1:], "candidate_label", job.candidate_label)]
    return replace(compare_arms(arms, engines=engines_of(arms), source=str(folder)), damaged=tuple(damaged))


def _find_labelled(arms: list[Arm], key: str, label: str) -> Arm:
    for arm in arms:
        if label in (arm.label, arm.short):
            return arm
    names = ", ".join(repr(arm.label) for arm in arms) or "none"
    raise CompareError(f"job.{key}={label} is no arm that is left to choose in job.runs; these are: {names}.")


def _no_multirun(folder: Path) -> str:
    if not folder.is_dir():
        return "is not a folder. Give that of a multirun: outputs/multirun/<name>/<time>."
    if not os.access(folder, os.R_OK | os.X_OK):
        return "is a folder that you may not read. Ask its owner for the right, or copy it."
    if is_run(folder):
        return "is the folder of one run. Compare two with job.baseline and job.candidate."
    if (folder / SUBMISSION).is_file():
        return "has no run yet: none of its jobs has begun, or it is what a dry run wrote (job.dry_run=true)."
    inside = [path for path in sorted(folder.iterdir()) if path.is_dir() and runs_below(path)]
    hint = "Give that of a multirun: outputs/multirun/<name>/<time>."
    if inside:
        hint = f"Its newest is {inside[-1]}."
    return f"has no runs in its sub-folders. {hint}"


def _folder_name(made: Comparison) -> str:
    """Returns a name made of the labels; a multirun has its own name and time, which are unique."""
    if made.source:
        words = "_".join(Path(made.source).resolve().parts[-2:])
    else:
        words = "_vs_".join(arm.label for arm in made.arms)
    return re.sub(r"[^\w.=+-]+", "_", words).strip("._")[:_LONGEST] or NAME


def _comparison_record(made: Comparison) -> dict[str, Any]:
    return comparison_record(made) | ({"damaged": list(made.damaged)} if made.damaged else {})


def write_comparison(made: Comparison, folder: Path, figures: CompareFigures = CompareFigures.auto) -> list[str]:
    """Writes `compare.{csv,json,svg}`, for evaluations alone the JSON. Returns where, in lines. Raises DiskError."""
    write_json_atomic(folder / f"{NAME}.json", _comparison_record(made))
    if not made.has_steps():
        return [f"- file: `{folder / NAME}.json`"]
    if shows_learning(made, figures):
        picture = draw_learning(made)
    else:
        picture = draw_comparison(made)
    write_text_atomic(folder / f"{NAME}.csv", csv_text(made))
    write_text_atomic(folder / f"{NAME}.svg", picture)
    return [f"- files: `{folder / NAME}.{{csv,json,svg}}`"]


def _labels_note(job: JobConfig, made: Comparison) -> list[str]:
    """Returns a note where nobody labelled two logs: they have the published names, which may not be theirs."""
    logs = all(run.is_log for arm in made.arms for run in arm.runs.values())
    if not logs or (job.baseline_label and job.candidate_label):
        return []
    return ["- labels: the published comparison's; job.baseline_label and job.candidate_label set others"]
