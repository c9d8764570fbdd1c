"""This module reads predictions files: patches that somebody else's agent made, as SWE-bench's harness reads them.

SWE-bench's own files are JSON lines or a JSON list of records with `instance_id`, `model_patch` and
`model_name_or_path`. mini-swe-agent's `preds.json` is an object of such records by instance id, and SWE-agent's
`all_preds.jsonl` has one record a line.

Invariants:
- The form is known by the content, never by the name of the file.
- Every instance has at most one patch; a file that gives two is refused, because nobody can say which one counts.
- What is wrong is said with the file and the place in it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swe_rl.config.schema import Config
from swe_rl.dataset.instance import Instance
from swe_rl.errors import UserError

# Messages name this option, because its value is the path of the file.
KEY = "agent.predictions"
# A file without a model's name, or with several, is shown under this one.
_SEVERAL_MODELS = "predictions"


class PredictionsError(UserError):
    """The file is missing, or it is no predictions file."""


@dataclass(frozen=True, slots=True)
class Predictions:
    """This record holds the patches by instance id, and the name of the model that made them."""

    patches: Mapping[str, str]
    model_name: str


def read_predictions(path: Path) -> Predictions:
    """Returns all patches of a file.

    Raises PredictionsError, which names the place in the file, where something is wrong with it.
    """
    return parse_predictions(_read_text(path), str(path))


def parse_predictions(text: str, path: str) -> Predictions:
    """Returns all patches of a file's text; `path` names the file in messages.

    Raises PredictionsError where a record is malformed, an instance has two patches, or there is no record at all.
    """
    patches: dict[str, str] = {}
    places: dict[str, str] = {}
    model_names: set[str] = set()
    for place, record in _iter_records(text, path):
        instance_id = _text_of(record, "instance_id", place)
        if instance_id in patches:
            raise PredictionsError(
                f"{place}: {instance_id} has a patch in {places[instance_id]} already. "
                f"{KEY} takes one patch for each instance: put the others into a file of their own."
            )
        patches[instance_id] = _text_of(record, "model_patch", place, may_be_null=True)
        places[instance_id] = place
        model_names.add(str(record.get("model_name_or_path") or _SEVERAL_MODELS))
    if not patches:
        raise PredictionsError(f"{KEY}={path} holds no prediction. Give a file with one JSON record for each instance.")
    return Predictions(patches, model_names.pop() if len(model_names) == 1 else _SEVERAL_MODELS)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError):
            reason = error.strerror
        else:
            reason = "it is not UTF-8 text"
        raise PredictionsError(f"{KEY}={path} cannot be read: {reason}. Give a predictions file.") from error


def _iter_records(text: str, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields each record with the words that name its place. Raises PredictionsError for what is no record."""
    whole = _parsed_whole(text)
    if isinstance(whole, dict) and "model_patch" not in whole:
        for name, record in whole.items():
            place = f"{path}, entry {name}"
            yield place, {"instance_id": name, **_require_object(record, place)}
    elif isinstance(whole, list):
        for number, record in enumerate(whole, start=1):
            place = f"{path}, record {number}"
            yield place, _require_object(record, place)
    else:
        # A line ends with a newline alone: a patch may hold any other character that Unicode counts as a line's end.
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                place = f"{path}, line {number}"
                yield place, _require_object(_parsed_line(line, place), place)


def _parsed_whole(text: str) -> Any:
    """Returns the text as one JSON value, or None where it is not one, because then it is JSON lines."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _parsed_line(line: str, place: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise PredictionsError(
            f"{place}: this is not JSON ({error}). {KEY} reads JSON lines, a JSON list of records, or an object of "
            "records by instance id, as SWE-bench, SWE-agent and mini-swe-agent write them."
        ) from error


def _require_object(record: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(record, dict):
        raise PredictionsError(
            f"{place}: a prediction is an object with instance_id and model_patch, not {type(record).__name__}"
        )
    return record


def _text_of(record: Mapping[str, Any], column: str, place: str, *, may_be_null: bool = False) -> str:
    """Returns a column's text. Raises PredictionsError where the column is missing or holds something else.

    SWE-agent writes null where an attempt left no patch, and that is an empty patch here.
    """
    value = record.get(column)
    if value is None and may_be_null and column in record:
        return ""
    if isinstance(value, str) and (value or may_be_null):
        return value
    columns = ", ".join(map(str, record)) or "none"
    raise PredictionsError(f"{place}: {column} has to be text. The record has these columns: {columns}")


def find_predicted(
    config: Config, predictions: Predictions, instances: Sequence[Instance]
) -> tuple[list[Instance], str]:
    """Returns the instances with a patch, and a warning of patches without an instance, which may be empty.

    Raises UserError where no instance has a patch.
    """
    split = config.env.eval_split
    patches = predictions.patches
    predicted = [instance for instance in instances if instance.instance_id in patches]
    if not predicted:
        raise UserError(
            f"agent.predictions={config.agent.predictions} has no patch for any of the {len(instances)} instances of "
            f"env.eval_split={split}: it has {_name_two(list(patches))}, the split has "
            f"{_name_two([instance.instance_id for instance in instances])}. Choose the data set that the patches were "
            "made for, with env, env.dataset and env.eval_split."
        )
    known = {instance.instance_id for instance in instances}
    unknown = [name for name in patches if name not in known]
    if not unknown:
        return predicted, ""
    return predicted, (
        f"agent.predictions: {len(unknown)} of {len(patches)} patches are for no instance of env.eval_split={split} "
        f"and are not graded: {_name_two(unknown)}"
    )


def _name_two(names: Sequence[str]) -> str:
    """Returns the first two ids as text, and says how many more there are."""
    shown = " and ".join(names[:2]) or "none"
    if len(names) <= 2:
        return shown
    return f"{', '.join(names[:2])} and {len(names) - 2} more"
