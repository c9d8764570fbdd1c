"""Candidates of the commits of a git repository."""

import os
import subprocess

import pytest

from swe_rl.check.findings import Host
from swe_rl.check.rules.mining import something_is_mined
from swe_rl.config.compose import compose
from swe_rl.env.mining.candidate import Reason
from swe_rl.env.mining.history import candidate_of_commit, newest_commits
from swe_rl.env.mining.release import MiningFilter
from swe_rl.env.source_build.repository import is_address

WANTED = MiningFilter((), "", 10, "3.11", "pytest -rA")


@pytest.fixture
def commit(tmp_path):
    """Commits files of a repository, and returns the candidate of the newest commit."""
    repository = tmp_path / "summer"
    repository.mkdir()

    def git(*arguments):
        names = {"GIT_AUTHOR_NAME": "a", "GIT_COMMITTER_NAME": "a", "EMAIL": "a@localhost"}
        subprocess.run(["git", *arguments], cwd=repository, check=True, capture_output=True, env=os.environ | names)

    git("init")

    def candidate(message, files, wanted=WANTED):
        for name, text in files.items():
            (repository / name).parent.mkdir(exist_ok=True)
            (repository / name).write_text(text)
        git("add", "--all")
        git("commit", "-m", message)
        commits = newest_commits(repository, 1)
        return candidate_of_commit(repository, str(repository), commits[0], wanted) if commits else None

    assert candidate("First", {"summer.py": "a = 1\n", "tests/test_a.py": "def test_a():\n    pass\n"}) is None
    return candidate


def test_a_commit_with_a_fix_and_a_test_is_a_candidate(commit):
    found = commit(
        "a is 2\n\nReported by Jane Doe", {"summer.py": "a = 2\n", "tests/test_a.py": "def test_b():\n    pass\n"}
    )
    assert found.instance.problem_statement == "a is 2"
    assert found.instance.repo == "local/summer" == found.project and found.instance.created_at.endswith("Z")
    assert "summer.py" in found.instance.patch and "test_b" in found.instance.test_patch


@pytest.mark.parametrize(
    ("message", "files", "reason"),
    [
        ("a is 2", {"summer.py": "a = 2\n"}, Reason.fix_alone),
        ("tests", {"tests/test_a.py": "def test_b():\n    pass\n"}, Reason.tests_alone),
        ("many", {"summer.py": "a = 2\n" * 20, "tests/test_a.py": "b = 1\n"}, Reason.too_large),
        (
            "Now\nthe_value_of_a = 1234567890",
            {"summer.py": "the_value_of_a = 1234567890\n", "tests/test_a.py": ""},
            Reason.leak,
        ),
    ],
)
def test_what_gives_no_candidate_says_why(commit, message, files, reason):
    found = commit(message, files)
    assert found.reason is reason and found.instance is None


@pytest.mark.parametrize(
    "name", ["https://h/a/b.git", "ssh://h/a", "git@h:a/b.git", "file:///a", "a/b", "../a", "/a/b", "a:b", "git://h/a"]
)
def test_the_rule_knows_the_addresses_that_the_job_clones(name):
    """A rule looks for a folder of this machine unless the name is an address."""
    config = compose(["job=mine", "env=mined", f'mine.repository="{name}"']).config
    found = something_is_mined(config, Host(file_exists=lambda _: False, exists=lambda _: False))
    assert is_address(name) is not any(finding.rule_id == "file" for finding in found)


def test_old_commits_are_left_out(commit):
    wanted = MiningFilter((), "2999-01-01", 10, "3.11", "pytest")
    found = commit("a is 2", {"summer.py": "a = 2\n", "tests/test_a.py": "b = 1\n"}, wanted)
    assert found.reason is Reason.too_old
