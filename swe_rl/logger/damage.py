"""What is wrong with the files of a run's folder, for whoever shows or compares many runs.

Invariants:
- A damaged run is named with its reason, and costs the other runs nothing.
- No file is opened that is not a regular one.
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path

from swe_rl.config.yaml_text import YamlError, parse_yaml
from swe_rl.files.disk import open_file, read_file
from swe_rl.files.json_text import decode_json
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import parse_object
from swe_rl.logger.progress_text import LARGEST_FLOAT

# What reading raises where a file holds what no run writes. Anything else is a fault of the reader.
READING_ERRORS = (
    OSError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
    YamlError,
)
_LARGEST_STEP = 10**12
_MOST_BYTES = 64_000_000  # of a file that is looked through
_REASON_CHARS = 200


def damage_of(folder: RunFolder) -> str:
    """The first file that is not as a run writes it, and why, in one sentence; empty where all are."""
    try:
        os.scandir(folder.path).close()
    except OSError as error:
        return f"its folder cannot be read ({error.strerror or error})"
    for path, problem_of in _file_checks(folder).items():
        if os.path.lexists(path) and (problem := _file_problem(path, problem_of)):
            return f"{path.name} {problem}"
    return ""


def reason_of(error: BaseException) -> str:
    """What a reader met, for a line of a table."""
    words = getattr(error, "strerror", None) or str(error)
    return f"a file of it is not as a run writes it ({type(error).__name__}: {words[:_REASON_CHARS]})"


def _file_checks(folder: RunFolder) -> dict[Path, Callable[[Path], str]]:
    steps = {folder.steps_jsonl: _lines_with_a_step, folder.evals_jsonl: _lines_with_a_step}
    objects = dict.fromkeys((folder.summary_json, folder.eval_json), _no_object)
    return {
        folder.config_yaml: _no_mapping,
        folder.status_json: lambda path: _no_object(path) or ("" if folder.status() else "is of another version"),
        **steps,
        folder.events_jsonl: _lines_problem,
        **objects,
    }


def _file_problem(path: Path, problem_of: Callable[[Path], str]) -> str:
    try:
        facts = path.stat()
        if not stat.S_ISREG(facts.st_mode):
            return "is no regular file"
        if facts.st_size <= _MOST_BYTES:
            return problem_of(path)
        return ""
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    except READING_ERRORS as error:
        return f"cannot be read ({type(error).__name__}: {str(error)[:_REASON_CHARS]})"


def _no_object(path: Path) -> str:
    try:
        if isinstance(decode_json(read_file(path)), dict):
            return ""
        return "holds no JSON object"
    except ValueError:
        return "is no JSON"


def _no_mapping(path: Path) -> str:
    if isinstance(parse_yaml(read_file(path).decode()), dict):
        return ""
    return "holds no table of keys"


def _lines_with_a_step(path: Path) -> str:
    return _lines_problem(path, has_step=True)


def _lines_problem(path: Path, *, has_step: bool = False) -> str:
    with open_file(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            record = parse_object(line)
            if record is None:
                if line.endswith(b"\n"):
                    return f"has a broken line {number}"
                return "ends in half a line"
            step = record.get("step")
            if has_step and not (type(step) is int and 0 <= step <= _LARGEST_STEP):
                return f"has no number of a step in line {number}"
            if not all(map(_is_plain, record.values())):
                return f"has a number in line {number} that is none, or too large"
    return ""


def _is_plain(value: object) -> bool:
    """Whether a value holds no NaN, no infinity, and no integer beyond what a float can be."""
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return not isinstance(value, int | float) or abs(value) <= LARGEST_FLOAT
