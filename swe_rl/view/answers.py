"""This module answers each address below /api/ with a plain record: it asks runs.py, trajectories.py and tokens.py.

Invariants:
- A query is what others send. Whatever is missing or wrong in it is a ViewError, and never a fault of the server.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from swe_rl.files.tables import as_mapping
from swe_rl.logger.folder import RunFolder
from swe_rl.report.page import run_payload
from swe_rl.report.run_name import name_run
from swe_rl.report.trace import trace_lines
from swe_rl.view.files import ViewError
from swe_rl.view.known_instances import known_fix
from swe_rl.view.runs import RunIndex
from swe_rl.view.tokens import prompt_of, token_page
from swe_rl.view.trajectories import Query, Trajectories

Asked = Mapping[str, Sequence[str]]  # This is a request's query: it has the values of each key.
Answer = Callable[[Asked], dict[str, Any]]
T = TypeVar("T")
_log = logging.getLogger(__name__)
_MOST_COMPARED = 24  # So many runs are compared at once. A request that names more gets the first ones.


class Answers:
    """This is the table of all answers by their name in the address; the runs are below `root`."""

    def __init__(self, root: Path) -> None:
        self._runs = RunIndex(root)
        self._trajectories = Trajectories()
        self.by_name: dict[str, Answer] = {
            "runs": self._all_runs,
            "stamp": self._stamp,
            "curves": lambda asked: self._runs.curves(_compared_runs(asked), asked.get("column", ())),
            "options": lambda asked: {"options": self._runs.options(_compared_runs(asked))},
            "run": self._run,
            "trajectories": self._page,
            "trajectory": self._trajectory,
            "group": lambda asked: {"trajectories": self._trajectories.group(*self._place(asked))},
            "tokens": self._tokens,
            "prompt": self._prompt,
        }

    def grade_log(self, asked: Asked) -> Path:
        """Returns the file with the log of a trajectory's grading. Raises ViewError where the run kept none."""
        return self._trajectories.grade_log(*self._place(asked))

    def trace(self, asked: Asked) -> tuple[str, Iterator[bytes]]:
        """Returns a file's name and the pieces of its content: the timeline of a step, or of all steps without one.

        Raises ViewError where the run has no timeline of the step.
        """
        folder = self._folder(asked)
        step = _optional_number(asked, "step") or None
        if step not in (None, *folder.program_steps()):
            raise ViewError(f"The run has no timeline of step {step}.")
        return f"trace{f'_step_{step}' if step else ''}.json", trace_lines(folder, step)

    def _all_runs(self, asked: Asked) -> dict[str, Any]:
        return {"root": str(self._runs.root), "runs": self._runs.rows(), "left_out": self._runs.left_out}

    def _stamp(self, asked: Asked) -> dict[str, Any]:
        """Returns what changes with each change of the files, and the name and the job of the run that is asked for."""
        run = _first_value(asked, "run") or None
        if run is None:
            return {"stamp": self._runs.stamp(None), "name": "", "job": ""}
        config = self._runs.config(self._runs.folder(run))
        job = str(as_mapping(config.get("job")).get("name") or "")
        return {"stamp": self._runs.stamp(run), "name": name_run(config), "job": job}

    def _run(self, asked: Asked) -> dict[str, Any]:
        """Returns the payload of the run's report, with the names of all its sets of trajectories."""
        folder = self._folder(asked)
        return run_payload(folder) | {"sets": self._trajectories.sets(folder)}

    def _page(self, asked: Asked) -> dict[str, Any]:
        query = Query(
            set_name=_first_value(asked, "set"),
            instance=_first_value(asked, "instance"),
            status=_first_value(asked, "status"),
            reward=_first_value(asked, "reward"),
            text=_first_value(asked, "text"),
            sort=_first_value(asked, "sort"),
            cursor=_first_value(asked, "cursor"),
            descending=_first_value(asked, "order") == "down",
            offset=_optional_number(asked, "offset"),
        )
        folder = self._folder(asked)
        return self._trajectories.page(folder, query) | {"sets": self._trajectories.sets(folder)}

    def _trajectory(self, asked: Asked) -> dict[str, Any]:
        """Returns a trajectory with the fix of its instance that is known, or None."""
        folder, set_name, trajectory_id = self._place(asked)
        shown = self._trajectories.trajectory(folder, set_name, trajectory_id)
        return shown | {"known_fix": known_fix(self._runs.config(folder), str(shown["instance_id"]))}

    def _tokens(self, asked: Asked) -> dict[str, Any]:
        folder, set_name, trajectory_id = self._place(asked)
        record = self._trajectories.record(folder, set_name, trajectory_id)
        config = self._runs.config(folder)
        place = _optional_number(asked, "row")
        start = _optional_number(asked, "start")
        return token_page(folder, config, record, place, start, _step_of(set_name))

    def _prompt(self, asked: Asked) -> dict[str, Any]:
        folder, set_name, trajectory_id = self._place(asked)
        record = self._trajectories.record(folder, set_name, trajectory_id)
        return prompt_of(folder, self._runs.config(folder), record, _step_of(set_name))

    def _folder(self, asked: Asked) -> RunFolder:
        return self._runs.folder(_required_text(asked, "run"))

    def _place(self, asked: Asked) -> tuple[RunFolder, str, str]:
        """Returns the run, the set and the id of the trajectory or group that a query names. Raises ViewError."""
        return self._folder(asked), _required_text(asked, "set"), _required_text(asked, "id")


def guard_answer(answer: Callable[[], T]) -> T:
    """Returns what `answer` returns. Raises ViewError where a file of the run is not as a run writes it.

    Such a file is no fault of the server, and the reader has to know of it.
    """
    try:
        return answer()
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        _log.info("a run is not as a run writes it", exc_info=error)
        message = f"This cannot be shown: a file of the run is not as a run writes it ({repr(error)[:300]})."
        raise ViewError(message, 422) from error


def _first_value(asked: Asked, key: str) -> str:
    return next(iter(asked.get(key, ())), "")


def _step_of(set_name: str) -> int:
    return int(set_name.partition("_")[2])


def _compared_runs(asked: Asked) -> Sequence[str]:
    return asked.get("run", ())[:_MOST_COMPARED]


def _required_text(asked: Asked, key: str) -> str:
    if not (value := _first_value(asked, key)):
        raise ViewError(f"The address lacks {key}=.", 400)
    return value


def _optional_number(asked: Asked, key: str) -> int:
    """Returns a number of the query, or 0 where it is not given. Raises ViewError for what is no number from 0 on."""
    value = _first_value(asked, key) or "0"
    if not value.isdecimal() or len(value) > 9:
        raise ViewError(f"{key}={value!r} in the address is no number.", 400)
    return int(value)
