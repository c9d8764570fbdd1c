"""This module finds the run folders below a folder, with a line of each for the table, and compares several of them.

Invariants:
- Nothing is written. A run is named by its path below the root, and only a name that a look at the disk gave leads to
  a folder: no name leads out of the root. Links are not followed.
- `stamp` costs a few looks at the disk, and no parsing.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from swe_rl.config.choices import TRAININGS, JobName
from swe_rl.files.tables import as_mapping
from swe_rl.logger.damage import READING_ERRORS, damage_of, reason_of
from swe_rl.logger.figures import flatten_record, numeric_figures
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import read_evals, read_jsonl
from swe_rl.report.figures import eval_points
from swe_rl.report.page import last_of_each_step, state_of
from swe_rl.report.run_name import acting_model, algorithm_of, option_name
from swe_rl.view.files import ParsedFiles, ViewError, find_link_out, stamp_of

Record = Mapping[str, Any]
# This column comes from the evaluations. It is shown among those of steps.jsonl, which have other names.
HELD_OUT = "held_out_resolved_rate"
# Runs are looked for so many levels below the root, because a sweep's are at multirun/NAME/TIME/NUMBER.
_DEEPEST = 4
# A table shows no more runs than these; `left_out` says that there are more.
_MOST_RUNS = 2000
# The options below these keys are not compared.
_NEVER_COMPARED = ("paths/", "hydra/")
_SHOWN_CHARS = 300  # An option's value is cut after so many characters.


class RunIndex:
    """This class knows the runs in `root`, which may be a run itself. Its methods raise ViewError for unknown runs."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._files = ParsedFiles()
        self._known: dict[str, RunFolder] = {}
        self.left_out = False  # This says whether the last look found more runs than it shows.

    def folders(self) -> dict[str, RunFolder]:
        """Returns the runs by name, as a look at the disk finds them now."""
        if is_run(self.root):
            return {self.root.name: RunFolder(self.root)}
        paths = list(islice(_runs_below(self.root, _DEEPEST), _MOST_RUNS + 1))
        self.left_out = len(paths) > _MOST_RUNS
        paths = paths[:_MOST_RUNS]
        self._known = {path.relative_to(self.root).as_posix(): RunFolder(path) for path in paths}
        return self._known

    def folder(self, name: str) -> RunFolder:
        """Returns the run of a name. Raises ViewError where there is none, or where a link leads out of its folder."""
        known = self._find(name)
        if link := find_link_out(known):
            raise ViewError(f"The run {name!r} cannot be shown: {link}.", 403)
        return known

    def _find(self, name: str) -> RunFolder:
        known = self._known.get(name) or self.folders().get(name)
        if known is None or not is_run(known.path):
            raise ViewError(f"There is no run {name!r} in {self.root}.")
        return known

    def rows(self) -> list[dict[str, Any]]:
        """Returns a line for each run, the newest first. In a damaged run's line, `damaged` says what is wrong."""
        rows = [self._row_of(name, folder) for name, folder in self.folders().items()]
        return sorted(rows, key=lambda row: (row["started"] or 0.0, row["run"]), reverse=True)

    def _row_of(self, name: str, folder: RunFolder) -> dict[str, Any]:
        if link := find_link_out(folder):
            return _damaged_row(name, link)
        damaged = self.damaged(folder)
        try:
            return self._row(name, folder) | {"damaged": damaged}
        except READING_ERRORS as error:
            return _damaged_row(name, damaged or reason_of(error))

    def damaged(self, folder: RunFolder) -> str:
        """Returns what is wrong with the run's files, or an empty text where they can be read."""
        paths = [folder.config_yaml, folder.status_json, folder.steps_jsonl, folder.evals_jsonl, folder.events_jsonl]
        return self._files.get("damaged", [*paths, folder.summary_json, folder.eval_json], lambda: damage_of(folder))

    def _row(self, name: str, folder: RunFolder) -> dict[str, Any]:
        config = self.config(folder)
        status = folder.status()
        points = [point for point in self.points(folder) if point["rate"] is not None]
        job = as_mapping(config.get("job"))
        trainer = as_mapping(config.get("trainer"))
        trains = job.get("name") in (*TRAININGS, JobName.rollout)
        return {
            "run": name,
            "name": str(config.get("name") or ""),
            "job": str(job.get("name") or ""),
            "model": acting_model(config),
            "env": option_name(config, "env"),
            "algo": algorithm_of(config),
            "state": state_of(folder, status),
            "step": status.step if status else 0,
            "steps": trainer.get("steps") if trains and isinstance(trainer.get("steps"), int) else None,
            "before": points[0] if points else None,
            "after": points[-1] if len(points) > 1 else None,
            "started": status.started if status else None,
            "heartbeat": status.heartbeat if status else None,
        }

    def steps(self, folder: RunFolder) -> list[Record]:
        """Returns the records of `steps.jsonl`, the last one of each step."""
        path = folder.steps_jsonl
        return self._files.get("steps", [path], lambda: last_of_each_step(read_jsonl(path)))

    def points(self, folder: RunFolder) -> list[dict[str, Any]]:
        """Returns the evaluations of a run as points of a curve."""
        # Run folders of versions before 0.5 have their evaluations in events.jsonl.
        paths = [folder.evals_jsonl, folder.events_jsonl]
        return self._files.get("evals", paths, lambda: eval_points(read_evals(folder)))

    def config(self, folder: RunFolder) -> Record:
        """Returns the run's configuration as its config.yaml has it."""
        return self._files.get("config", [folder.config_yaml], folder.config)

    def columns(self, folder: RunFolder) -> dict[str, list[float | None]]:
        """Returns each number of `steps.jsonl` by its key, with an entry for each step.

        The key of a part of a table is `key/part`.
        """
        return self._files.get("columns", [folder.steps_jsonl], lambda: _figure_columns(self.steps(folder)))

    def curves(self, names: Sequence[str], columns: Sequence[str]) -> dict[str, Any]:
        """Returns the names of all columns of the runs `names`, and for each run the values of the given `columns`.

        Raises ViewError for a name that is no run's. A damaged run has no values.
        """
        known: dict[str, None] = {}
        curves = []
        for name in names:
            folder = self._find(name)
            try:
                if link := find_link_out(folder):
                    raise ViewError(link)
                own_columns = self.columns(folder)
                points = self.points(folder)
            except (ViewError, *READING_ERRORS):
                # The run is damaged, and its line in the table says what is wrong with it.
                own_columns = {}
                points = []
            known |= dict.fromkeys([*([HELD_OUT] if points else []), *own_columns])
            values = {key: own_columns[key] for key in columns if key in own_columns}
            curves.append({"run": name, "steps": own_columns.get("step", []), "values": values, "points": points})
        return {"columns": list(known), "curves": curves}

    def options(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Returns the options in which the runs differ, each with its `key` and the `values` of all runs as text."""
        folders = [self._find(name) for name in names]
        tables = [{} if find_link_out(folder) else flatten_record(self.config(folder)) for folder in folders]
        keys = dict.fromkeys(key for table in tables for key in table if not key.startswith(_NEVER_COMPARED))
        rows = [(key, [_shorten_value(table, key) for table in tables]) for key in keys]
        return [{"key": key.replace("/", "."), "values": values} for key, values in rows if len({*values}) > 1]

    def stamp(self, name: str | None) -> str:
        """Returns a text that changes when there is something new of a run, or, with None, of any run."""
        folders = self.folders() if name is None else {name: self._find(name)}
        return str(hash(tuple(_news_of(key, folder) for key, folder in folders.items())))


def is_run(path: Path) -> bool:
    """Tells whether a folder is a run that has begun, and that this process may enter.

    A config.yaml alone makes no run, because folders of other programs may have one.
    """
    folder = RunFolder(path)
    return folder.has_any(folder.status_json, folder.steps_jsonl)


def _damaged_row(name: str, reason: str) -> dict[str, Any]:
    """Returns the line of a run of which nothing else is known."""
    state = {"kind": "failed", "label": "damaged", "reason": reason}
    unknown = dict.fromkeys(("steps", "before", "after", "started", "heartbeat"))
    unsaid = dict.fromkeys(("name", "job", "model", "env", "algo"), "")
    return {"run": name, "state": state, "step": 0, **unsaid, **unknown, "damaged": reason}


def _runs_below(folder: Path, levels: int) -> Iterator[Path]:
    """Yields the runs below a folder, the last names first: names are times, so these are the newest runs.

    A folder that this process may not enter is yielded, too, because it may be a run.
    """
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name, reverse=True)
    except OSError:
        if levels < _DEEPEST:
            yield folder
        return
    for entry in entries:
        if entry.name.startswith(".") or not entry.is_dir(follow_symlinks=False):
            continue
        path = Path(entry.path)
        if is_run(path):
            yield path
        elif levels > 1:
            yield from _runs_below(path, levels - 1)


def _news_of(name: str, folder: RunFolder) -> tuple[object, ...]:
    """Returns what changes when there is something new in a run; a new heartbeat alone is no news."""
    status = folder.status()
    if status:
        state = (status.status.value, status.step, folder.is_locked())
    else:
        state = None
    newest = None
    with suppress(OSError, ValueError):
        newest = max((entry.name, entry.stat().st_size) for entry in os.scandir(folder.trajectories_folder))
    return name, state, newest, *map(stamp_of, (folder.steps_jsonl, folder.evals_jsonl, folder.summary_json))


def _figure_columns(steps: Sequence[Record]) -> dict[str, list[float | None]]:
    numbers = [numeric_figures(step) for step in steps]
    keys = dict.fromkeys(key for step in numbers for key in step)
    return {key: [step.get(key) for step in numbers] for key in keys}


def _shorten_value(table: Record, key: str) -> str:
    if key not in table:
        return "–"
    text = str(table[key])
    if len(text) <= _SHOWN_CHARS:
        return text
    return f"{text[:_SHOWN_CHARS]} …"
