"""What each address below /api/ answers, as plain records: from a request's query to what runs.py, trajectories.py and
tokens.py know.

Invariants:
- A query is what others send: whatever is missing or wrong in it is a ViewError, never a fault.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from swe_rl.logger.folder import RunFolder
from swe_rl.report.page import run_payload
from swe_rl.report.timeline import programs_of
from swe_rl.report.trace import trace_lines
from swe_rl.view.files import ViewError
from swe_rl.view.runs import Runs
from swe_rl.view.tokens import prompt_of, token_page
from swe_rl.view.trajectories import Query, Trajectories

Asked = Mapping[str, Sequence[str]]  # a query: the values of each key
Answer = Callable[[Asked], dict[str, Any]]
T = TypeVar("T")
_log = logging.getLogger(__name__)
_MOST_COMPARED = 24  # runs whose curves are asked for at once


class Answers:
    def __init__(self, root: Path) -> None:
        self._runs, self._trajectories = Runs(root), Trajectories()
        self.by_name: dict[str, Answer] = {
            "runs": self._all_runs,
            "stamp": lambda asked: {"stamp": self._runs.stamp(_given(asked, "run") or None)},
            "curves": lambda asked: self._runs.curves(_compared(asked), asked.get("column", ())),
            "options": lambda asked: {"options": self._runs.options(_compared(asked))},
            "run": self._run,
            "trajectories": self._page,
            "trajectory": lambda asked: self._trajectories.trajectory(*self._place(asked)),
            "group": lambda asked: {"trajectories": self._trajectories.group(*self._place(asked))},
            "programs": lambda asked: programs_of(self._folder(asked)),
            "tokens": self._tokens,
            "prompt": self._prompt,
        }

    def grade_log(self, asked: Asked) -> Path:
        return self._trajectories.grade_log(*self._place(asked))

    def trace(self, asked: Asked) -> tuple[str, Iterator[bytes]]:
        """A file's name, and what is in it: the timeline of a step, or without one of all steps."""
        folder, step = self._folder(asked), _number(asked, "step") or None
        if step not in (None, *folder.program_steps()):
            raise ViewError(f"The run has no timeline of step {step}.")
        return f"trace{f'_step_{step}' if step else ''}.json", trace_lines(folder, step)

    def _all_runs(self, asked: Asked) -> dict[str, Any]:
        return {"root": str(self._runs.root), "runs": self._runs.rows(), "left_out": self._runs.left_out}

    def _run(self, asked: Asked) -> dict[str, Any]:
        """The report's payload, with all its sets."""
        folder = self._folder(asked)
        return run_payload(folder) | {"sets": self._trajectories.sets(folder)}

    def _page(self, asked: Asked) -> dict[str, Any]:
        query = Query(
            set_name=_given(asked, "set"),
            instance=_given(asked, "instance"),
            status=_given(asked, "status"),
            reward=_given(asked, "reward"),
            text=_given(asked, "text"),
            sort=_given(asked, "sort"),
            cursor=_given(asked, "cursor"),
            descending=_given(asked, "order") == "down",
            offset=_number(asked, "offset"),
        )
        folder = self._folder(asked)
        return self._trajectories.page(folder, query) | {"sets": self._trajectories.sets(folder)}

    def _tokens(self, asked: Asked) -> dict[str, Any]:
        folder, set_name, trajectory_id = self._place(asked)
        record = self._trajectories.record(folder, set_name, trajectory_id)
        config, place, start = self._runs.config(folder), _number(asked, "row"), _number(asked, "start")
        return token_page(folder, config, record, place, start, _step_of(set_name))

    def _prompt(self, asked: Asked) -> dict[str, Any]:
        folder, set_name, trajectory_id = self._place(asked)
        record = self._trajectories.record(folder, set_name, trajectory_id)
        return prompt_of(folder, self._runs.config(folder), record, _step_of(set_name))

    def _folder(self, asked: Asked) -> RunFolder:
        return self._runs.folder(_text(asked, "run"))

    def _place(self, asked: Asked) -> tuple[RunFolder, str, str]:
        """A trajectory's, or a group's: its run, set and id."""
        return self._folder(asked), _text(asked, "set"), _text(asked, "id")


def answered(answer: Callable[[], T]) -> T:
    """What a file holds that no run writes is the reader's to know, and no fault. Raises ViewError."""
    try:
        return answer()
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        _log.info("a run is not as a run writes it", exc_info=error)
        message = f"This cannot be shown: a file of the run is not as a run writes it ({repr(error)[:300]})."
        raise ViewError(message, 422) from error


def _given(asked: Asked, key: str) -> str:
    return next(iter(asked.get(key, ())), "")


def _step_of(set_name: str) -> int:
    return int(set_name.partition("_")[2])


def _compared(asked: Asked) -> Sequence[str]:
    return asked.get("run", ())[:_MOST_COMPARED]


def _text(asked: Asked, key: str) -> str:
    if not (value := _given(asked, key)):
        raise ViewError(f"The address lacks {key}=.", 400)
    return value


def _number(asked: Asked, key: str) -> int:
    """At least 0."""
    value = _given(asked, key) or "0"
    if not value.isdecimal() or len(value) > 9:
        raise ViewError(f"{key}={value!r} in the address is no number.", 400)
    return int(value)
