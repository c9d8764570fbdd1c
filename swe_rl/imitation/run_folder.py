"""This module reads the attempts of one of our runs, token by token as the engine sampled them.

Invariants:
- Nothing is written into the folder, and nothing in it is upgraded.
- Attempts of training are read. Those of evaluations are read only where the run has no others: a held-out split that
  was trained on measures nothing any more.
- What is no attempt of the policy (broken by infrastructure, replaced by another) is left out.
- An attempt that got no reward (it was masked as cheating) is worthless, whatever its status.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from swe_rl.algo.row import Row
from swe_rl.config.schema import ModelConfig
from swe_rl.errors import SweRlError
from swe_rl.facts.vocabulary import TOKENIZER_FILE, vocabulary_problem
from swe_rl.files.tables import as_mapping
from swe_rl.gateway.store.schema import read_traces
from swe_rl.imitation.record import KEY, DataError, SampledTokens
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import iter_jsonl
from swe_rl.model.load import locate_model
from swe_rl.rollout.rows import traced_rows
from swe_rl.rollout.trajectory import Trajectory, keep_attempts_of_policy
from swe_rl.trainer.ranks.rows_file import RowsFile


def is_run(path: Path) -> bool:
    """Tells whether a folder is that of a run."""
    folder = RunFolder(path)
    return folder.status_json.is_file() and folder.config_yaml.is_file()


def files_of_run(path: Path) -> list[Path]:
    """Returns the files that a run's attempts are read from. Raises DataError where it has none."""
    folder = RunFolder(path)
    steps = sorted(folder.trajectories_folder.glob("step_*.jsonl"))
    files = steps or sorted(folder.trajectories_folder.glob("eval_*.jsonl"))
    if not files:
        raise DataError(f"{KEY}: the run {path} has no attempts: there is nothing in {folder.trajectories_folder}.")
    return files


def require_same_tokens(entries: Sequence[str], model: Path, vocabulary_size: int) -> None:
    """Checks that the runs among `entries` sampled with the tokenizer of the folder `model`. Raises DataError."""
    for entry in entries:
        path = Path(entry).expanduser()
        if is_run(path):
            _require_same_tokens(path, model, vocabulary_size)


def _require_same_tokens(run: Path, model: Path, vocabulary_size: int) -> None:
    described = RunFolder(run).config().get("model")
    known = as_mapping(described)
    name = str(known.get("path"))
    theirs = Path(locate_model(ModelConfig(path=name)))
    problem = None
    if (theirs / TOKENIZER_FILE).is_file() and (model / TOKENIZER_FILE).is_file():
        problem = vocabulary_problem(_reader(model), _reader(theirs))
    elif isinstance(size := known.get("vocab_size"), int) and size < vocabulary_size:
        problem = f"has a vocabulary of {size}, the policy of {vocabulary_size}"
    if problem:
        raise DataError(
            f"{KEY}: the run {run} has the tokens of another model: model.path={name} {problem}. Give a run of this "
            "model, or the ATIF files that job=eval writes into trajs/ of its run, which are text."
        )


def _reader(folder: Path) -> Callable[[str], str | None]:
    """Returns a function that reads a file of a model's folder; None stands for a file that is not there."""
    return lambda name: (folder / name).read_text("utf-8") if (folder / name).is_file() else None


def read_run(path: Path) -> Iterator[SampledTokens]:
    """Yields the rows of each attempt of a run. Raises DataError where their tokens were not kept."""
    folder = RunFolder(path)
    found_tokens = False
    for file in files_of_run(path):
        kept = _kept_rows(folder, file)
        for where, trajectory in _policys_attempts(file):
            for row in _rows_of(folder, trajectory, kept, where):
                found_tokens = True
                yield _sampled(row, trajectory, where)
    if not found_tokens:
        raise DataError(
            f"{KEY}: the run {path} has attempts, but not their tokens. They are kept with gateway.keep_traces=all; "
            "agents that ask no model leave none."
        )


def _policys_attempts(file: Path) -> Iterator[tuple[str, Trajectory]]:
    """Yields the attempts of a step that say something about the policy, with their places."""
    places: dict[str, str] = {}
    attempts: list[Trajectory] = []
    for number, record in enumerate(iter_jsonl(file), start=1):
        where = f"{file}, line {number}"
        attempts.append(_read_trajectory(record, where))
        places[attempts[-1].trajectory_id] = where
    for attempt in keep_attempts_of_policy(attempts):
        yield places[attempt.trajectory_id], attempt


def _read_trajectory(record: Mapping[str, Any], where: str) -> Trajectory:
    try:
        return Trajectory.from_record(record)
    except (TypeError, ValueError, KeyError) as error:
        raise DataError(f"{KEY}: {where}: this is no attempt as a run writes it ({error}).") from error


def _kept_rows(folder: RunFolder, file: Path) -> dict[str, list[Row]] | None:
    """Returns the rows of a step where they were kept in place of traces (`gateway.keep_traces=rows`)."""
    path = folder.rows_folder / f"{file.stem}.bin"
    if not path.is_file():
        return None
    rows: dict[str, list[Row]] = {}
    try:
        for row in RowsFile(path).rows():
            rows.setdefault(row.trajectory_id, []).append(row)
    except SweRlError as error:
        raise DataError(f"{KEY}: {path} cannot be read: {error}") from error
    return rows


def _rows_of(
    folder: RunFolder, trajectory: Trajectory, kept: Mapping[str, Sequence[Row]] | None, where: str
) -> Sequence[Row]:
    if kept is not None:
        return kept.get(trajectory.trajectory_id, [])
    return _traced(folder, trajectory, where)


def _traced(folder: RunFolder, trajectory: Trajectory, where: str) -> Sequence[Row]:
    if not folder.traces_db.is_file():
        return []
    try:
        traces = read_traces(folder.traces_db, trajectory.trajectory_id, in_use=folder.is_locked())
        return traced_rows(trajectory, traces)
    except SweRlError as error:
        raise DataError(f"{KEY}: {where}: {error}") from error


def _sampled(row: Row, trajectory: Trajectory, where: str) -> SampledTokens:
    failed = np.zeros(len(row.token_ids), np.bool_)
    if row.turns is not None:
        wrong = np.array([bool(turn.exit_code) or turn.format_error for turn in trajectory.turns], np.bool_)
        failed[row.loss_mask] = wrong[row.turns]
    return SampledTokens(
        where=where,
        token_ids=row.token_ids,
        loss_mask=row.loss_mask,
        failed_mask=failed,
        instance_id=trajectory.instance_id,
        reward=trajectory.reward,
        tells_exits=row.turns is not None,
    )
