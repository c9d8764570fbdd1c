import json

from hypothesis import given
from hypothesis import strategies as st

from swe_rl.files.json_text import encode_json
from swe_rl.logger.folder import RunFolder
from swe_rl.report.page import write_report
from swe_rl.report.sample import clip_text, clipped_trajectory, first_failure, sample_trajectories, spread_steps


def write_file(path, count, chars=100, turns=3):
    text = "x" * chars
    with path.open("w") as file:
        for index in range(count):
            record = {
                "trajectory_id": f"t{index}",
                "instance_id": f"i{index % 10}",
                "sample": index // 10,
                "status": "resolved" if index == count - 1 else "unresolved",
                "turns": [
                    {"index": turn, "message": text, "command": "ls", "observation": text} for turn in range(turns)
                ],
                "patch": text,
            }
            file.write(json.dumps(record) + "\n")


LOG = """    def test_slug():
>       assert slug("A b") == "a-b"
E       AssertionError: assert 'a' == 'a-b'
E         - a-b

test_slug.py:4: AssertionError
    def test_other():
>       assert slug("") == ""
E       KeyError: 0
FAILED test_slug.py::test_slug - AssertionError
"""


def test_the_first_failing_assertion_is_found_in_the_tests_output():
    lines = LOG.splitlines()
    assert first_failure(LOG) == "\n".join([*lines[1:4], "at test_slug.py:4"])
    short = (
        "E   assert [1] == [2]\n      \n      At index 0 diff: 1 != 2\n/a/test_a.py:5: assert [1] == [2]\nE   assert 0"
    )
    assert first_failure(short).splitlines()[-2:] == ["      At index 0 diff: 1 != 2", "at /a/test_a.py:5"]
    assert first_failure("E   assert 1 == 2") == "E   assert 1 == 2", "the log may begin in the middle"
    assert first_failure(lines[-1]) == lines[-1]
    assert first_failure("3 passed\nEverything is well") is None
    assert first_failure(None) is None and first_failure({"a": 1}) is None
    assert len(first_failure("E   " + "x" * 10_000)) < 2000


def test_everything_is_taken_where_it_fits(tmp_path):
    folder = RunFolder(tmp_path).create()
    write_file(folder.eval_trajectories(0), 20)
    for step in (1, 2, 3):
        write_file(folder.trajectories(step), 64)
    sets = sample_trajectories(folder)
    assert [(one.kind, one.step, one.total, len(one.trajectories)) for one in sets] == [
        ("eval", 0, 20, 20),
        ("step", 1, 64, 64),
        ("step", 2, 64, 64),
        ("step", 3, 64, 64),
    ]


def test_large_run_stays_within_the_budget_and_covers_first_and_last(tmp_path):
    folder = RunFolder(tmp_path).create()
    for step in (0, 5, 10):
        write_file(folder.eval_trajectories(step), 40, chars=5000, turns=10)
    for step in range(1, 41):
        write_file(folder.trajectories(step), 16, chars=5000, turns=10)
    budget = 1_000_000
    sets = sample_trajectories(folder, budget)
    assert sum(len(encode_json(one.trajectories)) for one in sets) <= budget * 1.01
    evals = [one for one in sets if one.kind == "eval"]
    assert [one.step for one in evals] == [0, 10]
    assert all(one.total == 40 and 0 < len(one.trajectories) < 40 for one in evals)
    assert len({record["instance_id"] for record in evals[0].trajectories}) == min(10, len(evals[0].trajectories))
    steps = [one for one in sets if one.kind == "step"]
    assert {1, 40} <= {one.step for one in steps}
    for one in steps:  # a rare status is not lost
        assert "resolved" in {record["status"] for record in one.trajectories}


def test_page_of_a_large_run_stays_below_five_megabytes(tmp_path):
    folder = RunFolder(tmp_path).create()
    for step in range(0, 30, 10):
        write_file(folder.eval_trajectories(step), 60, chars=20_000, turns=8)
    for step in range(1, 31):
        write_file(folder.trajectories(step), 10, chars=20_000, turns=8)
    assert 1_000_000 < write_report(folder).stat().st_size < 5_000_000


@given(st.integers(0, 300))
def test_spread_is_an_order_of_all_steps_with_the_ends_first(count):
    steps = list(range(1, count + 1))
    order = spread_steps(steps)
    assert sorted(order) == steps
    if count > 1:
        assert order[:2] == [count, 1]


texts = st.text(st.characters(codec="utf-8"), max_size=400)
turns = st.lists(
    st.fixed_dictionaries({"message": texts, "observation": texts | st.none(), "index": st.integers(0, 99)}),
    max_size=60,
)


@given(turns, texts, st.dictionaries(texts, st.booleans(), max_size=50), st.integers(3, 200))
def test_a_clipped_trajectory_never_passes_its_limit(turns, patch, tests, repeat):
    record = {"turns": turns, "patch": patch * repeat, "tests": tests, "error": patch * repeat, "times_s": {patch: 1.0}}
    clipped, size = clipped_trajectory(record, 16_000)
    assert size == len(encode_json(clipped)) <= 16_000
    assert clipped["num_turns"] == len(turns) and clipped["num_tests"] == len(tests)


def test_clip_keeps_head_and_tail_and_says_what_went():
    text = clip_text("a" * 500 + "b" * 500, 300)
    assert text.startswith("a" * 200) and text.endswith("b" * 100) and "700 characters left out" in text
    assert clip_text("short", 300) == "short" and clip_text(None, 3) == "" and clip_text(12, 30) == "12"


def test_failed_tests_come_first():
    tests = {f"t{n}": n != 150 for n in range(200)}
    clipped, _ = clipped_trajectory({"tests": tests}, 60_000)
    assert clipped["tests"][0] == ("t150", False) and len(clipped["tests"]) == 9
    assert (clipped["num_tests"], clipped["num_passed"]) == (200, 199)


def test_the_log_of_a_grading_is_one_link_away_where_the_run_kept_it(tmp_path):
    folder = RunFolder(tmp_path).create()
    write_file(folder.eval_trajectories(0), 11)
    for sample in (0, 1):
        path = folder.attempt_file("i0", sample, "grade.log")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("the log")
    [taken] = sample_trajectories(folder)
    links = {(one["instance_id"], one["sample"]): one["grade_file"] for one in taken.trajectories}
    assert links[("i0", 0)] == "trajs/i0/i0.grade.log" and links[("i0", 1)] == "trajs/i0/i0.1.grade.log"
    assert sum(link is not None for link in links.values()) == 2


def test_segments_and_summaries_of_an_attempt_are_shown():
    record = {
        "segments": [{"role": "main", "tokens": 9}, {"role": "compacted", "tokens": 7}],
        "rejected_summaries": 1,
        "turns": [{"index": 0, "message": "done", "summary": "cut"}],
    }
    shown, _ = clipped_trajectory(record, 100_000)
    assert shown["segments"] == ["main", "compacted"] and shown["rejected_summaries"] == 1
    assert shown["turns"][0]["summary"] == "cut"
