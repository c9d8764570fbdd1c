"""One damaged run among others: it is named with its reason, and hides only itself."""

import json
import os
import re
import shutil

import pytest

from swe_rl.config.schema import JobConfig
from swe_rl.files.json_text import encode_json
from swe_rl.job.compare import make_comparison
from swe_rl.logger.damage import damage_of
from swe_rl.logger.folder import RunFolder
from swe_rl.report.compare.read import CompareError
from swe_rl.report.compare.record import comparison_record
from swe_rl.report.compare.text import comparison_text
from swe_rl.report.page import build_payload
from swe_rl.view.answers import Answers, guard_answer
from swe_rl.view.runs import RunIndex
from tests.report.conftest import build_run

NUMBER = re.compile(rb": ?-?[0-9.]+")
CONTENTS = {
    "half": lambda data: data[: 2 * len(data) // 3],
    "binary": lambda data: bytes(range(256)) * 9,
    "list": lambda data: b"[1, 2, 3]\n",
    "null": lambda data: b"null\n",
    "deep": lambda data: b"[" * 100_000 + b"\n",
    "deep_objects": lambda data: b'{"a":' * 100_000 + b"\n",
    "nan": lambda data: NUMBER.sub(b": NaN", data),
    "infinite": lambda data: NUMBER.sub(b": 1e999", data),
    "huge": lambda data: NUMBER.sub(b": 1" + b"0" * 400, data),
    "texts": lambda data: NUMBER.sub(b': "x"', data),
    "lists": lambda data: NUMBER.sub(b": [1]", data),
    "tables": lambda data: NUMBER.sub(b': {"a": 1}', data),
    "negative": lambda data: NUMBER.sub(b": -7", data),
    "version": lambda data: b'{"version": 99}\n',
    "other_text": lambda data: data.decode().encode("utf-16"),
}


def piped(path):
    path.unlink()
    os.mkfifo(path)


def foldered(path):
    path.unlink()
    path.mkdir()


def endless(path):
    path.unlink()
    path.symlink_to("/dev/zero")


def looped(path):
    path.unlink()
    path.symlink_to(path.name)


PLACES = {"pipe": piped, "folder": foldered, "endless": endless, "loop": looped}
FILES = ("config.yaml", "status.json", "steps.jsonl", "evals.jsonl", "summary.json")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return build_run(tmp_path_factory.mktemp("damaged") / "base", steps=2).path


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", [*CONTENTS, *PLACES])
def test_a_damaged_run_is_named_and_the_others_are_shown(tmp_path, base, name, kind):
    for run in ("good", "damaged"):
        shutil.copytree(base, tmp_path / run)
    path = tmp_path / "damaged" / name
    if kind in CONTENTS:
        path.write_bytes(CONTENTS[kind](path.read_bytes()))
    else:
        PLACES[kind](path)
    look = RunIndex(tmp_path)
    rows = {row["run"]: row for row in look.rows()}
    json.dumps([*rows.values()], allow_nan=False)
    assert rows["good"]["damaged"] == "" and rows["good"]["after"] is not None and "damaged" in rows
    if kind in PLACES or name in ("steps.jsonl", "evals.jsonl"):  # numbers of the others may be anything
        assert rows["damaged"]["damaged"].startswith(name)
    curves = look.curves(["good", "damaged"], ["loss"])["curves"]
    assert [curve["run"] for curve in curves] == ["good", "damaged"] and curves[0]["values"]["loss"]
    look.options(["good", "damaged"])
    assert look.stamp(None)
    made = make_comparison(JobConfig(runs=str(tmp_path)))
    assert comparison_text(made, 100) and encode_json(comparison_record(made))
    assert len(made.damaged) <= 1 and all(words.startswith(f"damaged: {name}") for words in made.damaged)
    guard_answer(lambda: encode_json(build_payload(RunFolder(tmp_path / "damaged"))))


def test_a_whole_run_has_no_damage_and_a_cut_line_is_one(base, tmp_path):
    assert damage_of(RunFolder(base)) == ""
    shutil.copytree(base, tmp_path / "run")
    with (tmp_path / "run" / "events.jsonl").open("a") as file:
        file.write('{"event": "ph')
    assert damage_of(RunFolder(tmp_path / "run")) == "events.jsonl ends in half a line"


def test_the_list_of_runs_does_not_depend_on_what_a_reader_meets(base, tmp_path, monkeypatch):
    """Whatever the next damage is: the row says it."""
    for run in ("good", "damaged"):
        shutil.copytree(base, tmp_path / run)
    real = RunIndex.points
    monkeypatch.setattr(RunIndex, "points", lambda self, run: 1 / 0 if run.name == "damaged" else real(self, run))
    answer = Answers(tmp_path).by_name["runs"]({})
    states = {row["run"]: (row["state"]["label"], row["damaged"]) for row in answer["runs"]}
    assert states["damaged"][0] == "damaged" and "ZeroDivisionError" in states["damaged"][1]
    assert states["good"] == ("done", "")
    assert len(Answers(tmp_path).by_name["curves"]({"run": ["good", "damaged"], "column": ["loss"]})["curves"]) == 2


def test_where_no_run_can_be_read_all_of_them_are_named(base, tmp_path):
    for run in ("0", "1"):
        shutil.copytree(base, tmp_path / run)
        foldered(tmp_path / run / "steps.jsonl")
        foldered(tmp_path / run / "evals.jsonl")
    with pytest.raises(CompareError, match=r"Damaged: 0: steps.jsonl is no regular file; 1: steps.jsonl is no regular"):
        make_comparison(JobConfig(runs=str(tmp_path)))
