import pytest

from swe_rl.files.json_text import encode_json
from swe_rl.logger.jsonl import read_jsonl
from swe_rl.view import trajectories
from swe_rl.view.files import ViewError
from swe_rl.view.trajectories import Query, Trajectories

STEP = "step_000002"


def ids(page):
    return [row["trajectory_id"] for row in page["rows"]]


def all_pages(look, folder, **filters):
    rows, cursor, pages = [], "", 0
    while cursor is not None:
        page = look.page(folder, Query(cursor=cursor, **filters))
        rows += [(row["set"], row["trajectory_id"]) for row in page["rows"]]
        cursor, pages = page["cursor"], pages + 1
    return rows, pages


def test_a_step_page_by_page(folder):
    look, written = Trajectories(), read_jsonl(folder.trajectories(2))
    pages = [look.page(folder, Query(STEP, offset=offset, rows=30)) for offset in (0, 30, 60)]
    assert sum((ids(page) for page in pages), []) == [record["trajectory_id"] for record in written]
    assert {page["total"] for page in pages} == {64} and sum(pages[0]["statuses"].values()) == 64
    assert pages[0]["rows"][0]["num_turns"] == len(written[0]["turns"])


def test_all_steps_come_once_each_newest_first(folder):
    rows, pages = all_pages(Trajectories(), folder, rows=50)
    names = ["step_000003", "eval_000003", STEP, "step_000001", "eval_000000"]
    written = [
        (name, record["trajectory_id"])
        for name in names
        for record in read_jsonl(folder.trajectories_folder / f"{name}.jsonl")
    ]
    assert rows == written and pages > 7


def test_a_page_of_all_steps_stops_where_it_has_read_enough(folder, monkeypatch):
    monkeypatch.setattr(trajectories, "_SCAN_BYTES", 1)
    rows, pages = all_pages(Trajectories(), folder, status="none of these")
    assert rows == [] and pages == 5


@pytest.mark.parametrize(
    ("filters", "holds"),
    [
        ({"status": "resolved"}, lambda record: record["status"] == "resolved"),
        ({"instance": "PACKAGE-01"}, lambda record: "package-01" in record["instance_id"]),
        ({"reward": "positive"}, lambda record: (record["reward"] or 0) > 0),
        ({"reward": "zero"}, lambda record: record["reward"] == 0),
        ({"reward": "none"}, lambda record: record["reward"] is None),
        ({"text": "THE CONTAINER WAS gone"}, lambda record: record["error"] is not None),
        ({"text": 'return "-".join'}, lambda record: bool(record["turns"])),
    ],
)
def test_filters(folder, filters, holds):
    wanted = [record["trajectory_id"] for record in read_jsonl(folder.trajectories(2)) if holds(record)]
    page = Trajectories().page(folder, Query(STEP, **filters, rows=1000))
    assert ids(page) == wanted and page["total"] == len(wanted) and wanted


@pytest.mark.parametrize("key", ["reward", "advantage", "num_turns", "instance_id"])
def test_sorted_nothing_first(folder, key):
    look = Trajectories()
    up = [row[key] for row in look.page(folder, Query(STEP, sort=key))["rows"]]
    known = [value for value in up if value is not None]
    assert known == sorted(known) and up[: len(up) - len(known)] == [None] * (len(up) - len(known))
    down = [row[key] for row in look.page(folder, Query(STEP, sort=key, descending=True))["rows"]]
    assert sorted(down, key=str) == sorted(up, key=str) and down[0] == known[-1]


def test_what_a_file_gains_is_read_and_nothing_twice(folder):
    look, path = Trajectories(), folder.trajectories(2)
    look.page(folder, Query(STEP))
    known = look._sets[path]
    size_bytes = path.stat().st_size
    more = dict(read_jsonl(path)[0], trajectory_id="train.2.late.0.0")
    with path.open("ab") as file:
        file.write(encode_json(more)[:100])
    assert known.update() == 0 and len(known.rows) == 64  # half a line: its writer is not done
    with path.open("ab") as file:
        file.write(encode_json(more)[100:] + b"\nnot json\n")
    assert known.update() == path.stat().st_size - size_bytes and len(known.rows) == 65
    assert look.record(folder, STEP, "train.2.late.0.0") == more


@pytest.mark.parametrize("chars", [0, 10_000_000])
def test_a_file_that_was_begun_anew_is_read_anew(folder, chars):
    """A longer one, too, with the inode of the one before it: the file system gives freed ones to the next."""
    look, path = Trajectories(), folder.trajectories(2)
    look.page(folder, Query(STEP))
    record = dict(read_jsonl(path)[0], trajectory_id="train.2.other.0.0", patch="x" * chars)
    path.write_bytes(encode_json(record) + b"\n")
    assert ids(look.page(folder, Query(STEP))) == ["train.2.other.0.0"]


def test_a_line_that_changed_under_a_look_is_said(folder, traced):
    look = Trajectories()
    look.page(folder, Query(STEP))
    look._sets[folder.trajectories(2)].places[5] = (1, 100)
    with pytest.raises(ViewError, match="has just changed"):
        look.record(folder, STEP, traced["trajectory_id"])


def test_few_trajectories_are_kept(folder, monkeypatch):
    monkeypatch.setattr(trajectories, "_KEPT_ROWS", 100)
    look = Trajectories()
    rows, _ = all_pages(look, folder)
    assert len(rows) == 3 * 64 + 2 * 96
    assert sum(len(kept.rows) for kept in look._sets.values()) <= 100


def test_one_trajectory_whole(folder, traced):
    shown = Trajectories().trajectory(folder, STEP, traced["trajectory_id"])
    assert [turn["observation"] for turn in shown["turns"]] == [turn["observation"] for turn in traced["turns"]]
    assert shown["patch"] == traced["patch"] and shown["num_tests"] == len(traced["tests"])
    assert shown["group_id"] == traced["group_id"] and not shown["has_grade_file"]


def test_a_group_in_order_of_its_samples(folder, traced):
    group = Trajectories().group(folder, STEP, traced["group_id"])
    written = [record for record in read_jsonl(folder.trajectories(2)) if record["group_id"] == traced["group_id"]]
    assert [one["sample"] for one in group] == sorted(record["sample"] for record in written)


def test_the_log_of_a_grading(folder, tmp_path, traced):
    look, path = Trajectories(), folder.attempt_file(traced["instance_id"], traced["sample"], "grade.log")
    with pytest.raises(ViewError, match="no log"):
        look.grade_log(folder, STEP, traced["trajectory_id"])
    path.parent.mkdir(parents=True)
    path.write_text("FAILED test_slug")
    assert look.grade_log(folder, STEP, traced["trajectory_id"]) == path
    path.unlink()
    (tmp_path / "secret").write_text("secret")
    path.symlink_to(tmp_path / "secret")
    with pytest.raises(ViewError, match="no log"):
        look.grade_log(folder, STEP, traced["trajectory_id"])


@pytest.mark.parametrize(
    "name", ["step_000009", "step_", "../config", "step_000002/../x", "step_-1", "step_²", "eval", ""]
)
def test_names_that_are_no_sets(folder, name):
    look = Trajectories()
    for ask in (look.record, look.trajectory, look.group, look.grade_log):
        with pytest.raises(ViewError):
            ask(folder, name, "x")


def test_what_is_no_filter_is_refused(folder):
    for query in (Query(STEP, sort="turns"), Query(STEP, reward="much")):
        with pytest.raises(ViewError) as refused:
            Trajectories().page(folder, query)
        assert refused.value.status == 400


def test_a_linked_file_is_not_read(folder, tmp_path):
    (tmp_path / "secret").write_text('{"trajectory_id": "x"}\n')
    folder.trajectories(7).symlink_to(tmp_path / "secret")
    with pytest.raises(ViewError):
        Trajectories().page(folder, Query("step_000007"))
