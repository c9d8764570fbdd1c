"""One candidate proven for real, and why another is refused."""

import pytest

from swe_rl.env.bugs import generate as module
from swe_rl.env.bugs.generate import Candidate, build_instance, generate_instances, list_candidates, passed_tests
from swe_rl.env.bugs.workspace import prepare_workspace


@pytest.fixture(scope="module")
def proven():
    """The first candidate that can be proven, with its instance."""
    for candidate in list_candidates("train")[:10]:
        instance = build_instance(candidate, number=0, seed=0)
        if instance:
            return candidate, instance
    raise AssertionError("none of the first ten")


def test_a_candidate_is_proven(proven, tmp_path):
    candidate, one = proven
    assert one.repo == candidate.repo and one.fail_to_pass and one.pass_to_pass
    assert len(one.fail_to_pass) <= module.MAX_FAILING_TESTS
    assert f"--- a/{candidate.module}\n" in one.patch and candidate.module not in one.test_patch
    prepare_workspace(one, tmp_path / "tree")  # its commit is the recorded one
    text = "".join(path.read_text() for path in (tmp_path / "tree" / "tests").glob("*.py"))
    assert not [test for test in one.fail_to_pass if f"def {test.split('::')[1]}(" in text]
    assert all(f"def {test.split('::')[1]}(" in text for test in one.pass_to_pass)


@pytest.mark.slow
def test_the_same_candidate_gives_the_same_record(proven):
    candidate, one = proven
    assert build_instance(candidate, number=0, seed=0) == one


def test_tests_that_cannot_tell_the_bug_prove_nothing(proven, monkeypatch):
    monkeypatch.setattr(module, "_run_suite", lambda tree: {"tests/test_a.py::test_b": True})
    assert build_instance(proven[0], number=0, seed=0) is None
    monkeypatch.setattr(module, "_run_suite", lambda tree: {})
    assert build_instance(proven[0], number=0, seed=0) is None


def test_not_enough_instances(monkeypatch):
    monkeypatch.setattr(module, "build_instance", lambda candidate, number, seed: None)
    with pytest.raises(ValueError, match="only 0 of 3"):
        generate_instances("train", 3, 0)


def test_one_instance_a_function_and_families_in_turn(monkeypatch):
    built: list[Candidate] = []
    monkeypatch.setattr(module, "build_instance", lambda candidate, number, seed: built.append(candidate) or number)
    assert generate_instances("heldout", 16, 0) == list(range(16))
    assert len({(one.repo, one.module, one.site.function) for one in built}) == 16
    assert len({one.site.swap.family for one in built}) >= 10
    again, built[:] = list(built), []
    generate_instances("heldout", 16, 0)
    assert built == again


REPORT = """..F
=========================== short test summary info ============================
PASSED tests/test_a.py::test_one
PASSED tests/test_a.py::test_two
FAILED tests/test_a.py::test_three - assert 1 == 2
1 failed, 2 passed in 0.01s
"""


def test_a_finished_session_is_read_test_by_test():
    assert passed_tests(REPORT, 1) == {
        "tests/test_a.py::test_one": True,
        "tests/test_a.py::test_two": True,
        "tests/test_a.py::test_three": False,
    }


@pytest.mark.parametrize("exit_code", [2, 3, 4, 5, 124, 137, -9])
def test_a_session_that_did_not_end_passes_nothing(exit_code):
    assert passed_tests(REPORT, exit_code) == {}


def test_a_failure_in_a_session_that_claims_success_passes_nothing():
    assert passed_tests(REPORT, 0) == {}


def test_lines_before_the_summary_do_not_count():
    assert passed_tests("PASSED tests/test_a.py::test_one\n", 0) == {}
