"""Chooses the trajectories of the page: all where they fit, else a spread sample within a budget of bytes.

Invariants:
- The first and the last held-out evaluation come first, each within its share; then steps, spread over the run.
- Within a set every status (a step) or every instance (an evaluation) is met before any is met twice.
- The total never passes the budget, and each set knows how many it really had.
- Head and tail are kept of a long text, and what is left out is named in the text itself: a trajectory never takes more
  than its share, whatever the agent wrote.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swe_rl.files.json_text import encode_json
from swe_rl.files.lines import lines_of
from swe_rl.files.tables import as_mapping
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import iter_jsonl

BUDGET_BYTES = 4_000_000
# Each of the two evaluations has this share of the budget.
_EVAL_SHARE = 0.3
# Fewer steps are better than steps with nothing to read.
_MIN_STEP_BYTES = 64_000
_MIN_TRAJECTORY_BYTES = 16_000
_MAX_TRAJECTORY_BYTES = 60_000
_MAX_PER_SET = 1000
_FAILED_LINE = re.compile(r"E\s")
_PLACE = re.compile(r"\S+:\d+(?=: )")
_FILE = re.compile(r"(step|eval)_(\d+)\.jsonl")
Record = Mapping[str, Any]

_TEXT_LIMITS_CHARS = (8000, 3000, 1200, 400)
_WHOLE_CHARS = 100_000
_MAX_FAILED = 100
_MAX_PASSED = 8
_PATCH_FACTOR = 3
_KEPT = (
    "trajectory_id", "instance_id", "split", "step", "sample", "attempt", "status", "reward", "advantage",
    "trained", "in_baseline", "num_calls", "prompt_tokens", "sampled_tokens", "response_tokens", "prefix_breaks",
    "rejected_summaries",
)  # fmt: skip


@dataclass(slots=True)
class TrajectorySet:
    """One evaluation or one step; `total` is the number of trajectories on disk."""

    kind: str
    step: int
    total: int
    trajectories: list[dict[str, Any]] = field(default_factory=list)


def sample_trajectories(folder: RunFolder, budget_bytes: int = BUDGET_BYTES) -> list[TrajectorySet]:
    """Returns evaluations first, then steps in ascending order; sets of which nothing fits are left out."""
    files = files_of(folder)
    evals = sorted(files["eval"])
    steps = sorted(files["step"])
    left = budget_bytes
    sets: list[TrajectorySet] = []
    for step in dict.fromkeys(evals[:1] + evals[-1:]):
        taken, size = _sample_file(files["eval"][step], "eval", step, int(budget_bytes * _EVAL_SHARE), "instance_id")
        for trajectory in taken.trajectories:
            trajectory["grade_file"] = grade_file(folder, trajectory)
        sets.append(taken)
        left -= size
    allowance = max(_MIN_STEP_BYTES, left // max(1, len(steps)))
    for step in spread_steps(steps):
        if left < min(_MIN_STEP_BYTES, budget_bytes // 10):
            break
        taken, size = _sample_file(files["step"][step], "step", step, min(left, allowance), "status")
        sets.append(taken)
        left -= size
    return sorted((kept for kept in sets if kept.trajectories), key=lambda kept: (kept.kind != "eval", kept.step))


def grade_file(folder: RunFolder, trajectory: Record) -> str | None:
    """Returns the path of its grading's whole log, from the report's place; None where the run kept none."""
    instance_id = trajectory.get("instance_id")
    sample = trajectory.get("sample")
    if not isinstance(instance_id, str) or not isinstance(sample, int):
        return None
    path = folder.attempt_file(instance_id, sample, "grade.log")
    if path.is_file():
        return path.relative_to(folder.path).as_posix()
    return None


def spread_steps(steps: list[int]) -> list[int]:
    """Returns last, first, then always the middle of what is still untouched: any beginning covers the run evenly."""
    order = dict.fromkeys(steps[-1:] + steps[:1])
    gaps = [(0, len(steps) - 1)]
    while gaps:
        following = []
        for low, high in gaps:
            if high - low > 1:
                middle = (low + high) // 2
                order[steps[middle]] = None
                following += [(low, middle), (middle, high)]
        gaps = following
    return list(order)


def _sample_file(path: Path, kind: str, step: int, budget_bytes: int, variety: str) -> tuple[TrajectorySet, int]:
    """Reads the file twice, a line at a time: the first pass chooses, the second clips what was chosen."""
    kinds = [str(record.get(variety)) for record in iter_jsonl(path)]
    rank = {index: place for place, index in enumerate(_vary_kinds(kinds)[:_MAX_PER_SET])}
    share = min(_MAX_TRAJECTORY_BYTES, max(_MIN_TRAJECTORY_BYTES, budget_bytes // 4))
    clipped = {
        index: clipped_trajectory(record, share) for index, record in enumerate(iter_jsonl(path)) if index in rank
    }
    chosen: list[int] = []
    size = 0
    for index in sorted(clipped, key=lambda index: rank[index]):
        if size + clipped[index][1] <= budget_bytes:
            chosen.append(index)
            size += clipped[index][1]
    return TrajectorySet(kind, step, len(kinds), [clipped[index][0] for index in sorted(chosen)]), size


def _vary_kinds(kinds: list[str]) -> list[int]:
    """Returns indices so that the k-th of each kind comes before the k+1-th of any."""
    met: Counter[str] = Counter()
    ranks = []
    for index, kind in enumerate(kinds):
        ranks.append((met[kind], index))
        met[kind] += 1
    return [index for _, index in sorted(ranks)]


def files_of(folder: RunFolder) -> dict[str, dict[int, Path]]:
    by_kind: dict[str, dict[int, Path]] = {"step": {}, "eval": {}}
    paths: Iterable[Path] = folder.trajectories_folder.glob("*.jsonl")
    for path in paths:
        if match := _FILE.fullmatch(path.name):
            by_kind[match[1]][int(match[2])] = path
    return by_kind


def clipped_trajectory(record: Record, max_bytes: int) -> tuple[dict[str, Any], int]:
    """Returns the record for the page and its size in bytes; tries milder cuts first."""
    for limit_chars in _TEXT_LIMITS_CHARS:
        clipped = _clip_record(record, limit_chars, max_turns=10**6)
        if (size := len(encode_json(clipped))) <= max_bytes:
            return clipped, size
    for max_turns in (40, 16, 6, 2):
        clipped = _clip_record(record, _TEXT_LIMITS_CHARS[-1], max_turns)
        if (size := len(encode_json(clipped))) <= max_bytes:
            return clipped, size
    bare = _clip_record(record, 80, 0)
    return bare, len(encode_json(bare))


def whole_trajectory(record: Record) -> dict[str, Any]:
    """Returns the record for a page of its own, turns and all; texts are cut where a browser could not show them."""
    return _clip_record(record, _WHOLE_CHARS, max_turns=10**6)


_FAILURE_LINES = 12


def first_failure(log: Any) -> str | None:
    """Returns the first failing assertion of pytest's output: the line of the test, what was wrong with it, and where.

    None where the log has none. The log may be the end of a longer one.
    """
    lines = lines_of(str(log or ""), ends=False)
    places = [place for place, line in enumerate(lines) if _FAILED_LINE.match(line)]
    if not places:
        summary = next((line for line in lines if line.startswith(("FAILED ", "ERROR "))), None)
        return clip_text(summary, 300) or None
    first = places[0]
    said = [lines[first]]
    for line in lines[first + 1 : first + _FAILURE_LINES]:
        # What pytest says of a difference is indented, with or without an E before it.
        if line and not _FAILED_LINE.match(line) and not line.startswith("  "):
            if place := _PLACE.match(line):
                said.append(f"at {place[0]}")
            break
        if line:
            said.append(line)
    # The line of the test that failed begins with ">".
    above = next((line for line in reversed(lines[:first]) if line.startswith(">")), None)
    return clip_text("\n".join([above, *said] if above else said), 1500)


def clip_text(value: Any, limit_chars: int) -> str:
    text = "" if value is None else str(value)
    if len(text) <= limit_chars:
        return text
    head = limit_chars * 2 // 3
    tail = limit_chars // 3
    return f"{text[:head]}\n[... {len(text) - head - tail:,} characters left out ...]\n{text[-tail:]}"


def _clip_record(record: Record, limit_chars: int, max_turns: int) -> dict[str, Any]:
    turns = [turn for turn in _as_list(record.get("turns")) if isinstance(turn, Mapping)]
    head = (max_turns + 1) // 2
    if len(turns) <= max_turns:
        kept = turns
    else:
        kept = turns[:head] + turns[len(turns) - (max_turns - head) :]
    tests, num_tests, num_passed = _clip_tests(record.get("tests"), limit_chars)
    return {key: _clip_scalar(record.get(key)) for key in _KEPT} | {
        "turns": [_clip_turn(turn, limit_chars) for turn in kept],
        "num_turns": len(turns),
        "segments": [clip_text(as_mapping(each).get("role"), 40) for each in _as_list(record.get("segments"))[:100]],
        "patch": clip_text(record.get("patch"), limit_chars * _PATCH_FACTOR),
        "error": clip_text(record.get("error"), limit_chars) or None,
        "tests": tests,
        "num_tests": num_tests,
        "num_passed": num_passed,
        "cheating": {
            clip_text(key, 40): _clip_scalar(value)
            for key, value in list(as_mapping(record.get("cheating")).items())[:12]
        },
        "findings": [clip_text(name, 40) for name in _as_list(record.get("findings"))[:12]],
        "grade_log": clip_text(record.get("grade_log"), limit_chars) or None,
        "failure": first_failure(record.get("grade_log")),
        "times_s": {
            clip_text(key, 40): _clip_scalar(value)
            for key, value in list(as_mapping(record.get("times_s")).items())[:12]
        },
    }


def _clip_turn(turn: Record, limit_chars: int) -> dict[str, Any]:
    texts = {key: clip_text(turn.get(key), limit_chars) or None for key in ("message", "command", "observation")}
    rest = ("index", "exit_code", "format_error", "completion_s", "command_s", "summary", "sub_agent")
    return texts | {key: _clip_scalar(turn.get(key)) for key in rest}


def _clip_tests(value: Any, limit_chars: int) -> tuple[list[tuple[str, bool]], int, int]:
    """Returns failed tests first, then a few that passed; with it how many there were and how many passed."""
    names = [(clip_text(str(name), 200), bool(passed)) for name, passed in as_mapping(value).items()]
    failed, passed = ([result for result in names if result[1] is wanted] for wanted in (False, True))
    if limit_chars > 80:
        shown = failed[:_MAX_FAILED] + passed[:_MAX_PASSED]
    else:
        shown = []
    return shown, len(names), len(passed)


def _clip_scalar(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if value is None or isinstance(value, bool | int):
        return value
    return clip_text(value, 300)


def _as_list(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    return []
