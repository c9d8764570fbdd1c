"""The run folders below a folder: which there are, a line of each for the table, and curves and options of several.

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

from swe_rl.logger.figures import figures, flat
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import read_evals, read_jsonl
from swe_rl.report.figures import eval_points
from swe_rl.report.page import last_of_each_step, state_of
from swe_rl.report.resolved import mapping
from swe_rl.view.files import ParsedFiles, ViewError, stamp_of

Record = Mapping[str, Any]
HELD_OUT = "held_out_resolved_rate"  # a column of its own among those of steps.jsonl
_DEEPEST = 4  # levels below the root: multirun/NAME/TIME/NUMBER
_MOST_RUNS = 2000
_NEVER_COMPARED = ("paths/", "hydra/")
_SHOWN_CHARS = 300  # of an option's value


class Runs:
    """The runs in `root`, which may be a run itself. Raises ViewError."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._files = ParsedFiles()
        self._known: dict[str, RunFolder] = {}
        self.left_out = False  # whether the last look found more runs than it shows

    def folders(self) -> dict[str, RunFolder]:
        """By name, as a look at the disk finds them now."""
        if is_run(self.root):
            return {self.root.name: RunFolder(self.root)}
        paths = list(islice(_below(self.root, _DEEPEST), _MOST_RUNS + 1))
        self.left_out = len(paths) > _MOST_RUNS
        paths = paths[:_MOST_RUNS]
        self._known = {path.relative_to(self.root).as_posix(): RunFolder(path) for path in paths}
        return self._known

    def folder(self, name: str) -> RunFolder:
        known = self._known.get(name) or self.folders().get(name)
        if known is None or not is_run(known.path):
            raise ViewError(f"There is no run {name!r} in {self.root}.")
        return known

    def rows(self) -> list[dict[str, Any]]:
        """A line a run, the newest first."""
        rows = []
        for name, folder in self.folders().items():
            with suppress(OSError):  # its files are a colleague's own
                rows.append(self._row(name, folder))
        return sorted(rows, key=lambda row: (row["started"] or 0.0, row["run"]), reverse=True)

    def _row(self, name: str, folder: RunFolder) -> dict[str, Any]:
        config, status = self.config(folder), folder.status()
        points = [point for point in self.points(folder) if point["rate"] is not None]
        job, trainer = mapping(config.get("job")), mapping(config.get("trainer"))
        trains = job.get("name") in ("train", "rollout")
        return {
            "run": name,
            "name": str(config.get("name") or ""),
            "job": str(job.get("name") or ""),
            "state": state_of(folder, status),
            "step": status.step if status else 0,
            "steps": trainer.get("steps") if trains and isinstance(trainer.get("steps"), int) else None,
            "before": points[0] if points else None,
            "after": points[-1] if len(points) > 1 else None,
            "started": status.started if status else None,
            "heartbeat": status.heartbeat if status else None,
        }

    def steps(self, folder: RunFolder) -> list[Record]:
        path = folder.steps_jsonl
        return self._files.get("steps", [path], lambda: last_of_each_step(read_jsonl(path)))

    def points(self, folder: RunFolder) -> list[dict[str, Any]]:
        paths = [folder.evals_jsonl, folder.events_jsonl]  # of folders before 0.5
        return self._files.get("evals", paths, lambda: eval_points(read_evals(folder)))

    def config(self, folder: RunFolder) -> Record:
        return self._files.get("config", [folder.config_yaml], folder.config)

    def columns(self, folder: RunFolder) -> dict[str, list[float | None]]:
        """Every number of `steps.jsonl` under its key, an entry a step; parts of a table are `key/part`."""
        return self._files.get("columns", [folder.steps_jsonl], lambda: _columns(self.steps(folder)))

    def curves(self, names: Sequence[str], columns: Sequence[str]) -> dict[str, Any]:
        """`names`: of runs. All columns that a run has, and the values of those that were asked for, with steps."""
        known: dict[str, None] = {}
        curves = []
        for name in names:
            folder = self.folder(name)
            own_columns, points = self.columns(folder), self.points(folder)
            known |= dict.fromkeys([*([HELD_OUT] if points else []), *own_columns])
            values = {key: own_columns[key] for key in columns if key in own_columns}
            curves.append({"run": name, "steps": own_columns.get("step", []), "values": values, "points": points})
        return {"columns": list(known), "curves": curves}

    def options(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """The options in which the runs differ: `key` and, a run each, `values` as text."""
        tables = [flat(self.config(self.folder(name))) for name in names]
        keys = dict.fromkeys(key for table in tables for key in table if not key.startswith(_NEVER_COMPARED))
        rows = [(key, [_shown(table, key) for table in tables]) for key in keys]
        return [{"key": key.replace("/", "."), "values": values} for key, values in rows if len({*values}) > 1]

    def stamp(self, name: str | None) -> str:
        """Another text when there is something new: of a run, or with None of any."""
        folders = self.folders() if name is None else {name: self.folder(name)}
        return str(hash(tuple(_news_of(key, folder) for key, folder in folders.items())))


def is_run(path: Path) -> bool:
    """One that has begun and may be entered: a folder with a config.yaml alone may be anybody's."""
    folder = RunFolder(path)
    return folder.has_any(folder.status_json, folder.steps_jsonl)


def _below(folder: Path, levels: int) -> Iterator[Path]:
    """Runs, the last names first, which are times; what cannot be read has none."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name, reverse=True)
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(".") or not entry.is_dir(follow_symlinks=False):
            continue
        path = Path(entry.path)
        if is_run(path):
            yield path
        elif levels > 1:
            yield from _below(path, levels - 1)


def _news_of(name: str, folder: RunFolder) -> tuple[object, ...]:
    """The heartbeat alone is no news."""
    status = folder.status()
    state = (status.status.value, status.step, folder.is_locked()) if status else None
    newest = None
    with suppress(OSError, ValueError):
        newest = max((entry.name, entry.stat().st_size) for entry in os.scandir(folder.trajectories_folder))
    return name, state, newest, *map(stamp_of, (folder.steps_jsonl, folder.evals_jsonl, folder.summary_json))


def _columns(steps: Sequence[Record]) -> dict[str, list[float | None]]:
    numbers = [figures(step) for step in steps]
    keys = dict.fromkeys(key for step in numbers for key in step)
    return {key: [step.get(key) for step in numbers] for key in keys}


def _shown(table: Record, key: str) -> str:
    if key not in table:
        return "–"
    text = str(table[key])
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]} …"
