"""Defences beside the twins: with each off, known fixes are paid and nothing is not. Three catch something alone."""

import json

import pytest

from tests.red_team.defences import Game, defences, measure, play_with, rows_and_cases

pytest.importorskip("swebench", reason="needs the extra swebench")
pytestmark = pytest.mark.slow
CAUGHT = {
    "put back after the installation": "installation, log",
    "data that tests name": "golden data",
    "git's folder": "git's objects",
}


async def test_what_each_defence_catches_alone(tmp_path, sandboxes):
    cases = [case for case in rows_and_cases(tmp_path / "rows") if case.row.name in CAUGHT.values()]
    table = dict(await measure(cases, Game(sandboxes, tmp_path / "played.jsonl", at_once=2)))
    assert table == {**dict.fromkeys(defences(), 0), **dict.fromkeys(CAUGHT, 1), "none": 0, "all": 2}
    played = [json.loads(line) for line in (tmp_path / "played.jsonl").read_text().splitlines()]
    assert {line["result"] for line in played if line["trick"] == "gold"} == {"paid"}
    assert {line["result"] for line in played if line["trick"] == "no-op"} == {"not paid"}


@pytest.mark.long
@pytest.mark.parametrize("name", defences())
async def test_with_a_defence_off_the_fix_is_paid_and_nothing_is_not(tmp_path, sandboxes, name):
    cases = [case for case in rows_and_cases(tmp_path / "rows") if case.name in ("gold", "no-op")]
    results = await play_with(name, cases, Game(sandboxes, tmp_path / "played.jsonl", at_once=2))
    assert results == ["paid" if case.name == "gold" else "not paid" for case in cases]
