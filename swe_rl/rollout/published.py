"""Makes of a run's attempts what is published as a data set: rows, ATIF, and the card of the data set.

Invariants:
- A row has the same columns, of the same types, for every attempt: keys that vary are lists of objects.
- Nothing of a machine is in a row: no times, no logs of the grading, no messages of errors. Secrets of the environment
  are replaced before anything is written.
- An attempt that infrastructure broke is left out, and one that another replaced: they say nothing about the policy.
- The folder has this run's attempts and nothing else: what an earlier writing left there goes.
- A run has one folder in a repository, under the name of its first push, wherever its own folder is by now. Two runs
  whose folders have one name, as the numbered ones of sweeps, have two.
- The card names the parts that its repository will have, those of other runs too: the hub loads no others.
- An attempt that `job=eval` wrote as ATIF is published with its prompt. Of others the files of a run have no prompt.
"""

import hashlib
import json
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from swe_rl.agent.agent import AgentResult, Exit
from swe_rl.agent.atif import atif_trajectory
from swe_rl.errors import UserError
from swe_rl.files.disk import disk_error, read_json, write_bytes_atomic, write_text_atomic
from swe_rl.files.json_text import encode_json
from swe_rl.files.redactor import Redactor
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import iter_jsonl
from swe_rl.report.card import hub_id, recorded_hub_names
from swe_rl.rollout.trajectory import Trajectory, keep_attempts_of_policy
from swe_rl.version import __version__

# The hub's name of a part of a data set, and the files of a run that are in it.
_PARTS = {"train": "step_*.jsonl", "evaluation": "eval_*.jsonl"}
_MARK = ".run.json"
_TURN = {
    "index": "int64",
    "message": "string",
    "command": "string",
    "observation": "string",
    "exit_code": "int64",
    "format_error": "bool",
}
_COUNTS = ("num_calls", "prompt_tokens", "sampled_tokens", "response_tokens")
_FEATURES: Mapping[str, Any] = {
    "trajectory_id": "string",
    "instance_id": "string",
    "split": "string",
    "step": "int64",
    "sample": "int64",
    "status": "string",
    "reward": "float64",
    **dict.fromkeys(_COUNTS, "int64"),
    "patch": "string",
    "tests": {"name": "string", "passed": "bool"},
    "cheating": {"kind": "string", "count": "int64"},
    "turns": _TURN,
}


@dataclass(frozen=True, slots=True)
class Published:
    """Says what was written into the folder of a data set: how many attempts each part has."""

    attempts: Mapping[str, int]
    left_out: int


def write_dataset(run: RunFolder, target: Path) -> Published:
    """Writes the attempts of a run into the folder `target`, which is new. Raises UserError where it has none, and
    DiskError.
    """
    aside = target.with_name(f".{target.name}.aside")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        published = _write_attempts(run, aside)
        write_card(run, aside, published)
        if target.exists():
            shutil.rmtree(target)
        aside.rename(target)
    except OSError as error:
        raise disk_error(target, error) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return published


def _write_attempts(run: RunFolder, target: Path) -> Published:
    name = run.path.resolve().name
    write_text_atomic(target / name / _mark_of(run), json.dumps({"run": name, "swe_rl": __version__}) + "\n")
    redactor = Redactor.from_environ()
    config = run.config()
    attempts: dict[str, int] = {}
    left_out = 0
    for part, pattern in _PARTS.items():
        num_read, kept = _read_attempts(run, pattern)
        left_out += num_read - len(kept)
        if not kept:
            continue
        attempts[part] = len(kept)
        rows = [_row_of(attempt) for attempt in kept]
        exchanged = [_atif_of(run, attempt, config) for attempt in kept]
        _write_lines(target / name / "trajectories" / f"{part}.jsonl", rows, redactor)
        _write_lines(target / name / "atif" / f"{part}.jsonl", exchanged, redactor)
    if not attempts:
        raise UserError(f"The run {run.path} has no attempt that can be published: {run.trajectories_folder} has none")
    return Published(attempts, left_out)


def write_card(run: RunFolder, target: Path, published: Published, repository: Iterable[str] = ()) -> None:
    """Writes the card of a data set, whose attempts get the name that the run has in a repository. `repository` has the
    files that are there before. Raises DiskError.
    """
    there = list(repository)
    name = name_in(there, run)
    [written] = [path for path in target.iterdir() if path.is_dir()]
    if written.name != name:
        written.rename(target / name)
    text = dataset_card(name, run.config(), published, parts_in(there), recorded_hub_names(run))
    write_text_atomic(target / "README.md", Redactor.from_environ().text(text))


def name_in(repository: Iterable[str], run: RunFolder) -> str:
    """Returns the name of a run's folder in a repository: that of its earlier push, else its own, unless that is
    another run's there."""
    own_name = run.path.resolve().name
    mark = _mark_of(run)
    marks = dict.fromkeys(file for file in repository if file.endswith(_MARK))
    for file in marks:
        name, _, inner = file.partition("/")
        if inner == mark:
            return name
    if any(file.startswith(f"{own_name}/") for file in marks):
        return f"{own_name}-{mark.removesuffix(_MARK)}"
    return own_name


def _mark_of(run: RunFolder) -> str:
    """Returns the name of the file that tells a run from all others, whatever its folder is called."""
    status = run.status()
    started = f"{status.started!r}/{status.job}/{status.config_hash}" if status else ""
    return f"{hashlib.blake2b(started.encode(), digest_size=5).hexdigest()}{_MARK}"


def parts_in(repository: Iterable[str]) -> dict[str, list[str]]:
    """Returns for each run of a repository the parts of its attempts that are there."""
    parts: dict[str, list[str]] = {}
    for file in sorted(repository):
        run, _, inner = file.partition("/")
        for part in _PARTS:
            if inner == f"trajectories/{part}.jsonl":
                parts.setdefault(run, []).append(part)
    return parts


def _read_attempts(run: RunFolder, pattern: str) -> tuple[int, list[Trajectory]]:
    """Returns how many attempts the run made, and those that say something about the policy. Raises UserError."""
    num_read = 0
    kept: list[Trajectory] = []
    for file in sorted(run.trajectories_folder.glob(pattern)):
        of_step = list(_read_file(file))
        num_read += len(of_step)
        kept += keep_attempts_of_policy(of_step)
    return num_read, kept


def _read_file(file: Path) -> Iterator[Trajectory]:
    for number, record in enumerate(iter_jsonl(file), start=1):
        try:
            yield Trajectory.from_record(record)
        except (TypeError, ValueError, KeyError) as error:
            raise UserError(f"{file}, line {number}: this is no attempt as a run writes it ({error})") from error


def _write_lines(path: Path, records: Sequence[Mapping[str, Any]], redactor: Redactor) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes_atomic(path, b"".join(redactor.data_json(encode_json(record)) + b"\n" for record in records))


def _row_of(attempt: Trajectory) -> dict[str, Any]:
    return {
        "trajectory_id": attempt.trajectory_id,
        "instance_id": attempt.instance_id,
        "split": attempt.split,
        "step": attempt.step,
        "sample": attempt.sample,
        "status": attempt.status.value,
        "reward": attempt.reward,
        **{name: getattr(attempt, name) for name in _COUNTS},
        "patch": attempt.patch,
        "tests": [{"name": name, "passed": passed} for name, passed in sorted(attempt.tests.items())],
        "cheating": [{"kind": kind, "count": count} for kind, count in sorted(attempt.cheating.items())],
        "turns": [{name: getattr(turn, name) for name in _TURN} for turn in attempt.turns],
    }


def _atif_of(run: RunFolder, attempt: Trajectory, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the file that an evaluation wrote of this attempt, or the same made of the attempt's turns."""
    file = run.attempt_file(attempt.instance_id, attempt.sample, "atif.json")
    try:
        written = read_json(file)
    except (OSError, ValueError):
        written = {}
    if written.get("session_id") == attempt.trajectory_id:
        return written
    return atif_trajectory(
        # How the agent ended is not part of ATIF.
        AgentResult(exit=Exit.SUBMITTED, turns=attempt.turns),
        trajectory_id=attempt.trajectory_id,
        agent=_configured(config, "agent"),
        model=_configured(config, "model"),
        sampled_tokens=attempt.sampled_tokens,
        outcome={
            "instance_id": attempt.instance_id,
            "status": attempt.status.value,
            "reward": attempt.reward,
        },
    )


def _feature_lines(features: Mapping[str, Any], indent: str) -> Iterator[str]:
    """Yields the types of columns as the hub's cards have them. A mapping stands for a list of objects."""
    for name, kind in features.items():
        yield f"{indent}- name: {name}"
        if isinstance(kind, str):
            yield f"{indent}  dtype: {kind}"
            continue
        yield f"{indent}  list:"
        yield from _feature_lines(kind, f"{indent}  ")


def _configured(config: Mapping[str, Any], group: str, key: str = "name") -> str:
    described = config.get(group)
    if not isinstance(described, Mapping):
        return "unknown"
    return str(described.get(key, "unknown"))


def dataset_card(
    name: str,
    config: Mapping[str, Any],
    published: Published,
    there: Mapping[str, Sequence[str]],
    on_hub: Collection[str],
) -> str:
    """Returns the text of the card, whose first lines the hub reads.

    `there` has the parts of all runs whose attempts the repository has already, `on_hub` what this run read from the
    hub.
    """
    others = [f"`{run}` ({', '.join(parts)})" for run, parts in there.items() if run != name]
    lines = ["---", "tags:", "- swe_rl", "- software-engineering", "- agent-trajectories"]
    lines += ["configs:", "- config_name: default", "  data_files:"]
    held = {*published.attempts, *chain.from_iterable(there.values())}
    for part in [part for part in _PARTS if part in held]:
        lines += [f"  - split: {part}", f'    path: "*/trajectories/{part}.jsonl"']
    # Without them the types of a column would be guessed from one part, in which all its lists may be empty.
    lines += ["dataset_info:", "- config_name: default", "  features:"]
    lines += list(_feature_lines(_FEATURES, "  "))
    agent = _configured(config, "agent")
    model = hub_id(_configured(config, "model", "path"), on_hub) or _configured(config, "model")
    env = hub_id(_configured(config, "env", "dataset"), on_hub) or _configured(config, "env")
    lines += [
        "---",
        "",
        f"# Attempts of {name}",
        "",
        f"These are attempts of the agent `{agent}` with the model `{model}` at tasks of `{env}`, sampled and graded "
        f"by swe_rl {__version__}.",
        "",
        "| part | attempts |",
        "|---|---|",
        *(f"| {part} | {count} |" for part, count in published.attempts.items()),
        "",
        *([f"The repository also has attempts of {', '.join(others)}.", ""] if others else []),
        f"{published.left_out} attempts that infrastructure broke, or that another replaced, are left out.",
        "`trajectories/` has one row for each attempt: its outcome, its patch, its tests and its turns.",
        "`atif/` has the same attempts in the Agent Trajectory Interchange Format. Attempts of a training have no "
        "prompt there.",
        "Whoever trains on attempts at a benchmark's tasks can no longer measure with this benchmark.",
        "The licences of the tasks and of their repositories hold for what is quoted of them.",
        "",
        f"<!-- {json.dumps({'run': name, 'swe_rl': __version__})} -->",
    ]
    return "\n".join([*lines, ""])
