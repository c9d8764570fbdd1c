"""This module lists all trajectories of a run, in a table of each step or evaluation, and finds the records behind it.

Invariants:
- Of a file a line's place and a few facts are kept, never its text; what a file has gained is read from there on. At
  most `_KEPT_ROWS` trajectories are kept, of the sets used last.
- A page of all steps stops after `_SCAN_BYTES`, and says where the next one goes on: no request reads a whole run.
- A set is named by its kind and step (`step_000012`), which is all that leads to a file.
- A torn or malformed line is left out.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

from swe_rl.files.disk import open_file
from swe_rl.files.json_text import decode_json, encode_json
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import parse_object
from swe_rl.report.sample import files_of, grade_file, whole_trajectory
from swe_rl.view.files import ViewError, is_inside, stamp_of

Record = Mapping[str, Any]
Row = dict[str, Any]
PAGE_ROWS = 100
_MOST_PAGE_ROWS = 1000  # A query that asks for more rows gets so many.
_SCAN_BYTES = 200_000_000  # To read so much takes about a second.
_KEPT_ROWS = 200_000  # So many rows stay in memory; the sets that were used last are kept.
# These facts of each record are kept in memory, and they are the columns of the table.
_FACTS = (
    "trajectory_id",
    "instance_id",
    "group_id",
    "sample",
    "attempt",
    "status",
    "reward",
    "advantage",
    "trained",
    "num_calls",
    "sampled_tokens",
    "response_tokens",
    "prefix_breaks",
    "superseded_tokens",
    "rejected_summaries",
)
SORTABLE = frozenset({*_FACTS, "num_turns", "agent_s"})
# These are the filters by reward, by their name in the address.
REWARDS: dict[str, Callable[[Any], bool]] = {
    "": lambda reward: True,
    "positive": lambda reward: isinstance(reward, int | float) and reward > 0,
    "zero": lambda reward: isinstance(reward, int | float) and reward <= 0,
    "none": lambda reward: reward is None,
}


@dataclass(frozen=True, slots=True)
class Query:
    """This says which trajectories are wanted.

    `text` is looked for in everything that a record says, and `instance` in its instance's name.
    """

    set_name: str = ""  # An empty name stands for all sets, the newest step first.
    instance: str = ""
    status: str = ""
    reward: str = ""
    text: str = ""
    sort: str = ""
    descending: bool = False
    offset: int = 0
    cursor: str = ""  # Here a page of all sets begins.
    rows: int = PAGE_ROWS


@dataclass(slots=True)
class _Set:
    """This holds what was read of one file; `places` has the offset and length in bytes of each row's line."""

    path: Path
    stamp: tuple[int, int, int] | None = None
    read_bytes: int = 0
    last: tuple[int, int] = (0, 0)  # These are the length in bytes and the hash of the last line that was read.
    rows: list[Row] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)

    def update(self) -> int:
        """Reads what the file has gained, or all of it where it was begun anew. Returns how many bytes it read."""
        stamp = stamp_of(self.path)
        if stamp == self.stamp:
            return 0
        self.stamp = stamp
        if stamp is None:
            self._forget()
            return 0
        with open_file(self.path) as file:
            if not self._goes_on(file):
                self._forget()
            before = self.read_bytes
            file.seek(before)
            for line in file:
                if not line.endswith(b"\n"):
                    # The writer of this line is not done; the next update reads it whole.
                    break
                self._add(line)
        return self.read_bytes - before

    def _goes_on(self, file: BinaryIO) -> bool:
        """Tells whether the file still has the last line that was read of it.

        A resumed run begins a step's file anew, often with the inode of the one that was removed.
        """
        length, known = self.last
        file.seek(self.read_bytes - length)
        if length:
            return hash(file.read(length)) == known
        return True

    def _forget(self) -> None:
        self.read_bytes = 0
        self.last = (0, 0)
        self.rows = []
        self.places = []

    def _add(self, line: bytes) -> None:
        place = (self.read_bytes, len(line))
        self.read_bytes += len(line)
        self.last = (len(line), hash(line))
        if (record := parse_object(line)) is not None:
            self.rows.append(_make_row(record))
            self.places.append(place)

    def lines(self, indices: list[int]) -> Iterator[bytes]:
        """Yields the lines of the rows with these indices."""
        if not indices:
            return
        with open_file(self.path) as file:
            for index in indices:
                start, length = self.places[index]
                file.seek(start)
                yield file.read(length)


def _parse_line(line: bytes, set_name: str) -> Record:
    try:
        record: Record = decode_json(line)
    except ValueError as error:
        raise ViewError(f"The file of {set_name} has just changed. Ask again.") from error
    return record


def _make_row(record: Record) -> Row:
    turns = record.get("turns")
    times_s = record.get("times_s")
    facts = {key: record.get(key) for key in _FACTS}
    agent_s = times_s.get("agent") if isinstance(times_s, Mapping) else None
    return facts | {"num_turns": len(turns) if isinstance(turns, list) else 0, "agent_s": agent_s}


class Trajectories:
    """This knows the trajectories of all runs that are looked at. Several threads may use it at once.

    Its methods raise ViewError for what the run does not have.
    """

    def __init__(self) -> None:
        self._sets: OrderedDict[Path, _Set] = OrderedDict()
        self._lock = Lock()

    def sets(self, folder: RunFolder) -> list[str]:
        """Returns the names of the sets on disk: first the evaluations, then the steps, each with the newest first."""
        files = files_of(folder)
        return [files[kind][step].stem for kind in ("eval", "step") for step in sorted(files[kind], reverse=True)]

    def page(self, folder: RunFolder, query: Query) -> dict[str, Any]:
        """Returns a page with `rows`.

        A page of one set has `total` and `statuses`, too. A page of all sets has the `cursor` of the next page, which
        is None at the end. Raises ViewError for an unknown filter or order.
        """
        if query.reward not in REWARDS or (query.sort and query.sort not in SORTABLE):
            raise ViewError("There is no such filter or order.", 400)
        with self._lock:
            if query.set_name:
                return self._set_page(folder, query)
            return self._page_of_all(folder, query)

    def record(self, folder: RunFolder, set_name: str, trajectory_id: str) -> Record:
        """Returns the last record of a trajectory. Raises ViewError where there is none."""
        with self._lock:
            known, _ = self._set(folder, set_name)
            indices = [i for i, row in enumerate(known.rows) if row["trajectory_id"] == trajectory_id]
            for line in known.lines(indices[-1:]):
                return _parse_line(line, set_name)
        raise ViewError(f"There is no trajectory {trajectory_id!r} in {set_name}.")

    def trajectory(self, folder: RunFolder, set_name: str, trajectory_id: str) -> dict[str, Any]:
        """Returns the whole trajectory in the shape that the report's viewer takes. Raises ViewError."""
        record = self.record(folder, set_name, trajectory_id)
        shown = whole_trajectory(record) | {"group_id": str(record.get("group_id")), "set": set_name}
        return shown | {"grade_file": None, "has_grade_file": grade_file(folder, record) is not None}

    def group(self, folder: RunFolder, set_name: str, group_id: str) -> list[dict[str, Any]]:
        """Returns a group's trajectories in order of samples, then attempts. Raises ViewError where there are none."""
        with self._lock:
            known, _ = self._set(folder, set_name)
            indices = [i for i, row in enumerate(known.rows) if row["group_id"] == group_id]
            records = [_parse_line(line, set_name) for line in known.lines(indices)]
        if not records:
            raise ViewError(f"There is no group {group_id!r} in {set_name}.")
        ordered = sorted(records, key=lambda record: [_sort_key(record.get(key)) for key in ("sample", "attempt")])
        return [whole_trajectory(record) | {"set": set_name} for record in ordered]

    def grade_log(self, folder: RunFolder, set_name: str, trajectory_id: str) -> Path:
        """Returns the file with the whole log of a trajectory's grading. Raises ViewError where the run kept none."""
        name = grade_file(folder, self.record(folder, set_name, trajectory_id))
        path = folder.path / name if name else None
        if path is None or not is_inside(path, folder.path):
            raise ViewError(f"The run kept no log of the grading of {trajectory_id!r}.")
        return path

    def _set(self, folder: RunFolder, name: str) -> tuple[_Set, int]:
        """Returns a set as it is on disk now, and how many bytes had to be read for that. Raises ViewError."""
        paths = (path for files in files_of(folder).values() for path in files.values())
        path = next((path for path in paths if path.stem == name), None)
        if path is None or not is_inside(path, folder.path):
            raise ViewError(f"The run has no trajectories {name!r}.")
        known = self._sets.setdefault(path, _Set(path))
        self._sets.move_to_end(path)
        read_bytes = known.update()
        while len(self._sets) > 1 and sum(len(kept.rows) for kept in self._sets.values()) > _KEPT_ROWS:
            self._sets.popitem(last=False)
        return known, read_bytes

    def _set_page(self, folder: RunFolder, query: Query) -> dict[str, Any]:
        known, _ = self._set(folder, query.set_name)
        matching, _ = _find_matching(known, query)
        statuses: dict[str, int] = {}
        for row in known.rows:
            statuses[str(row["status"])] = statuses.get(str(row["status"]), 0) + 1
        if query.sort:
            matching.sort(key=lambda index: _sort_key(known.rows[index][query.sort]), reverse=query.descending)
        shown = matching[query.offset : query.offset + min(query.rows, _MOST_PAGE_ROWS)]
        rows = [known.rows[index] | {"set": query.set_name} for index in shown]
        return {"rows": rows, "total": len(matching), "of": len(known.rows), "statuses": statuses, "cursor": None}

    def _page_of_all(self, folder: RunFolder, query: Query) -> dict[str, Any]:
        names = sorted(self.sets(folder), key=lambda name: (name.partition("_")[2], name), reverse=True)
        begin, _, skipped = query.cursor.partition(":")
        if begin in names:
            names = names[names.index(begin) :]
        skip = 0
        if skipped.isdecimal() and len(skipped) <= 9:
            skip = int(skipped)
        rows: list[Row] = []
        most = min(query.rows, _MOST_PAGE_ROWS)
        read_bytes = 0
        for name in names:
            if read_bytes >= _SCAN_BYTES:
                return {"rows": rows, "cursor": f"{name}:0"}
            known, gained_bytes = self._set(folder, name)
            matching, searched_bytes = _find_matching(known, query)
            read_bytes += gained_bytes + searched_bytes
            taken = matching[skip : skip + most - len(rows)]
            rows += [known.rows[index] | {"set": name} for index in taken]
            if skip + len(taken) < len(matching):
                return {"rows": rows, "cursor": f"{name}:{skip + len(taken)}"}
            skip = 0
        return {"rows": rows, "cursor": None}


def _find_matching(known: _Set, query: Query) -> tuple[list[int], int]:
    """Returns the indices of the rows that match a query, and how many bytes were searched for them."""
    instance = query.instance.lower()
    is_wanted = REWARDS[query.reward]
    indices = [
        index
        for index, row in enumerate(known.rows)
        if (not query.status or row["status"] == query.status)
        and instance in str(row["instance_id"]).lower()
        and is_wanted(row["reward"])
    ]
    if not query.text:
        return indices, 0
    needle = encode_json(query.text)[1:-1].lower()
    lines = list(zip(indices, known.lines(indices), strict=True))
    return [index for index, line in lines if needle in line.lower()], sum(len(line) for _, line in lines)


def _sort_key(value: Any) -> tuple[int, int | float, str]:
    """Returns a key for sorting that puts None first, then numbers, then texts."""
    if value is None:
        return 0, 0, ""
    if isinstance(value, int | float):
        return (1, value, "")
    return (2, 0, str(value))
