"""Which texts may be the issue of an instance, and what becomes of a file of them."""

import json

import pytest

from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.env.issues.book import IssueBook, issue_record
from swe_rl.env.issues.writing import clean_text, issue_messages, issue_problem
from swe_rl.files.disk import DiskError

PATCH = """diff --git a/pkg/clock.py b/pkg/clock.py
--- a/pkg/clock.py
+++ b/pkg/clock.py
@@ -1,2 +1,2 @@
 def minutes(text):
-    return int(text)
+    return int(text.partition(":")[0]) * 60 + int(text.partition(":")[2] or 0)
"""
TEST_PATCH = """diff --git a/checks/clock_cases.py b/checks/clock_cases.py
--- a/checks/clock_cases.py
+++ b/checks/clock_cases.py
@@ -1,1 +1,3 @@
 from pkg.clock import minutes
+def test_minutes_of_a_colon():
+    assert minutes("1:30") == 90
"""
GOOD = """minutes() refuses times with a colon

Calling `minutes("1:30")` raises ValueError. It should return the number of minutes since midnight, so 90 here. Plain
numbers of hours work."""


def instance(**columns):
    record = {
        "instance_id": "clock-1",
        "repo": "a/clock",
        "base_commit": "",
        "problem_statement": "",
        "patch": PATCH,
        "test_patch": TEST_PATCH,
        "FAIL_TO_PASS": ["checks/clock_cases.py::test_minutes_of_a_colon"],
        "PASS_TO_PASS": [],
    }
    return Instance.from_record(record | columns, "here")


def test_an_issue_that_tells_the_symptom_is_taken():
    assert issue_problem(GOOD, instance()) == ""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("It fails.", "fewer than 12 words"),
        (GOOD * 40, "more than 6000 characters"),
        (GOOD + f"\n```{PATCH.splitlines()[-1][1:]}\n```", "code of the fix"),
        (GOOD + '\nSo `assert minutes("1:30") == 90` has to hold.', "code of the tests"),
        (GOOD + "\nSee clock_cases.py.", "names clock_cases.py, which is of the tests"),
        (GOOD + "\nRun test_minutes_of_a_colon.", "names test_minutes_of_a_colon, which is of the tests"),
        (GOOD + "\nSee tests/test_times.py.", "names tests/test_times.py, which looks like a file of tests"),
        (GOOD + "\nSee src/app.spec.ts.", "names src/app.spec.ts, which looks like a file of tests"),
        (GOOD + "\nSee parse_test.go.", "names parse_test.go, which looks like a file of tests"),
    ],
)
def test_a_text_that_gives_something_away_is_refused(text, problem):
    assert problem in issue_problem(text, instance())


def test_a_file_whose_name_only_contains_the_word_is_no_file_of_tests():
    assert issue_problem(GOOD + "\nThe module contest.py and latest.js are imported.", instance()) == ""


def test_a_fence_around_the_whole_reply_is_no_part_of_the_issue():
    assert clean_text(f"```markdown\n{GOOD}\n```\n") == GOOD
    assert clean_text("```py\na\n```\ntext\n```py\nb\n```") == "```py\na\n```\ntext\n```py\nb\n```"


def test_the_question_has_the_change_the_tests_and_what_is_known():
    system, asked = issue_messages(instance(problem_statement="colon"))
    assert system["role"] == "system" and "never say how to repair" in system["content"]
    assert all(part in asked["content"] for part in (PATCH, TEST_PATCH, "test_minutes_of_a_colon", "\ncolon"))
    assert "the rest is left out" in issue_messages(instance(patch=PATCH + "x" * 30_000))[1]["content"]


def write_book(path, *records, end="\n"):
    path.write_text("\n".join(json.dumps(record) for record in records) + end)
    return IssueBook.read(path)


def test_a_written_text_is_for_this_row_alone(tmp_path):
    row = instance()
    book = write_book(tmp_path / "issues.jsonl", issue_record(row, GOOD, model="m"))
    assert book.with_texts([row])[0].problem_statement == GOOD and not book.needs_text(row)
    changed = instance(patch=PATCH + "\n")
    assert book.with_texts([changed]) == [changed] and book.needs_text(changed)
    own = instance(problem_statement="It fails.")
    assert book.with_texts([own]) == [own], "its own text is no empty one"
    poor = IssueBook(book.texts, min_words=3)
    assert poor.with_texts([own])[0].problem_statement == GOOD


def test_a_torn_last_line_is_no_text(tmp_path):
    records = [issue_record(instance(), GOOD, model="m"), issue_record(instance(instance_id="b"), GOOD, model="m")]
    assert len(write_book(tmp_path / "issues.jsonl", *records, end="").texts) == 1
    assert not IssueBook.read(tmp_path / "none.jsonl").texts


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "line 1: this is no JSON"),
        ("[1]", "line 1: this is no JSON object"),
        ('{"instance_id": "a", "of": "b"}', "line 1: column 'problem_statement' is missing"),
        ('{"instance_id": 3, "of": "b", "problem_statement": "c"}', "line 1: column 'instance_id' is missing"),
    ],
)
def test_a_line_of_another_form_is_named(tmp_path, line, problem):
    (tmp_path / "issues.jsonl").write_text(line + "\n")
    with pytest.raises(InstanceError, match=problem):
        IssueBook.read(tmp_path / "issues.jsonl")


def test_a_folder_is_no_file_of_issues(tmp_path):
    with pytest.raises(DiskError):
        IssueBook.read(tmp_path)
