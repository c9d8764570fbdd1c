"""An evaluation of its own on the page."""

from io import StringIO

import pytest
from rich.console import Console

from swe_rl.files.disk import write_json_atomic
from swe_rl.logger.folder import RunFolder
from swe_rl.report.figures import endpoint_line, make_tiles, print_scores, score_rows, score_tiles
from swe_rl.report.page import build_payload
from swe_rl.rollout.pass_at_k import score_table
from swe_rl.rollout.trajectory import Status, Trajectory


def trajectory(name, sample, status):
    return Trajectory(f"e.0.{name}.{sample}.0", name, name, "e", 0, sample, 0, status, 1.0, True, True)


@pytest.fixture
def scores():
    right, wrong = Status.resolved, Status.unresolved
    ends = {"a1": (right, right), "a2": (right, wrong), "b1": (wrong, wrong)}
    made = [trajectory(name, sample, status) for name, both in ends.items() for sample, status in enumerate(both)]
    return score_table(made, {"a1": "org/a", "a2": "org/a", "b1": "org/b"}, 2)


def test_tiles_are_pass_at_k_and_what_is_behind_it(scores):
    tiles = {one["label"]: one for one in score_tiles(scores)}
    assert list(tiles) == ["Resolved", "pass@1", "pass@2", "Instances solved once"]
    assert tiles["pass@1"]["value"] == "50.0 %" and tiles["pass@1"]["detail"].endswith("3 instances")
    assert tiles["Instances solved once"] == {
        "label": "Instances solved once",
        "value": "2 of 3",
        "detail": "6 attempts, 3 of them solved it",
    }


def test_instances_that_are_left_out_are_said_and_bracketed():
    ends = {"a": (Status.resolved, Status.resolved), "b": (Status.unresolved, Status.infra_error)}
    made = [trajectory(name, sample, status) for name, both in ends.items() for sample, status in enumerate(both)]
    scores = score_table(made, {}, 2)
    tiles = {one["label"]: one["detail"] for one in score_tiles(scores)}
    assert tiles["pass@2"].endswith("1 instance; 1 left out, 50.0 to 100.0 % with them")
    assert tiles["pass@1"].endswith("2 instances")
    console = Console(record=True, width=100, file=StringIO())
    print_scores(scores, console)
    assert "(1 instance; 1 left out, 50.0 to 100.0 % with them)" in console.export_text()


def test_repositories_then_the_whole(scores):
    found = score_rows(scores)
    assert found["ks"] == ["1", "2"]
    assert found["rows"][0] == ["org/a", 2, 2, 4, 0.75, 1.0]
    assert found["rows"][1] == ["org/b", 1, 0, 2, 0.0, 0.0]
    assert found["rows"][-1][:4] == ["all", 3, 2, 6]


@pytest.mark.parametrize("torn", [{}, {"all": 3}, {"all": {"pass_at": [1]}}, {"all": {}, "repositories": []}])
def test_a_file_of_another_shape_is_nothing(torn):
    assert score_tiles(torn) == [] and score_rows(torn)["rows"] == []


def test_a_run_of_steps_keeps_its_tiles(scores):
    assert [tile["label"] for tile in make_tiles([{"step": 1}], [], {}, None)] == ["Steps"]
    assert "Steps" not in [tile["label"] for tile in make_tiles([], [], {}, None, scores)]


def test_the_payload_has_what_the_folder_has(tmp_path, scores):
    folder = RunFolder(tmp_path)
    assert build_payload(folder)["scores"] == {"ks": [], "rows": []}
    write_json_atomic(folder.eval_json, scores)
    assert build_payload(folder)["scores"]["rows"][0][0] == "org/a"


def test_names_stay_whole_on_a_terminal_of_80_columns():
    names = [f"bugs/heldout/{name}" for name in ("almanac", "playlist")]
    made = [trajectory(name, sample, Status.resolved) for name in names for sample in range(4)]
    lines = printed(score_table(made, {name: name for name in names}, 4), width=80).splitlines()
    assert [line.split()[:2] for line in lines[2:4]] == [[name, "1"] for name in names]


def printed(scores, width=200):
    out = StringIO()
    print_scores(scores, Console(file=out, width=width))
    return out.getvalue()


def test_who_failed_and_who_was_left_out_is_named(scores):
    failing = {"b1": {"status": "unresolved", "last_words": "1 failed [x]"}}
    more = {"failing": failing, "left_out": {"c1": "no [sources]"}, "evaluated": "gold"}
    text = printed(scores | more)
    assert "  b1: unresolved: 1 failed [x]\n" in text
    assert "left out: 1\n  c1: no [sources]\n" in text
    text = printed(scores | more | {"evaluated": "Qwen/Qwen3-8B"})
    assert "not resolved: b1\n" in text and "1 failed" not in text
    assert "left out" not in printed(scores) and "not resolved" not in printed(scores)


def test_calls_without_a_reply_are_named_apart():
    spent = {"calls": 3, "prompt_tokens": 9, "cached_tokens": 1, "sampled_tokens": 2, "cost": 0.5}
    assert endpoint_line(spent) == "endpoint: 3 calls, 9 tokens read (1 cached), 2 sampled, cost 0.5"
    lost = {"lost_calls": 2, "lost_tokens": 40, "lost_cost": 0.25}
    assert endpoint_line(spent | lost).endswith("; 2 without a reply may have used 40 tokens more, cost 0.25")
    assert endpoint_line(None) == ""
