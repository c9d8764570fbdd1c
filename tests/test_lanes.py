"""The lanes: every test is in one, .ci/run runs all but `gpu` and `long`, CONTRIBUTING.md names them."""

import re
import shlex
import subprocess
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

ROOT = Path(__file__).parent.parent
OPTIONS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
MARKS = [line.partition(":")[0] for line in OPTIONS["markers"]]
BY_NAME_ONLY = {"gpu", "long"}


def of_ci(script):
    done = subprocess.run(["bash", "-c", f"cd '{ROOT}' && source .ci/run && {script}"], capture_output=True, check=True)
    return done.stdout.decode().splitlines()


@pytest.fixture(scope="module")
def selections():
    """The name of each lane that a change is judged by, and what `-m` says for it."""
    words = shlex.split(OPTIONS["addopts"])
    found = {"tests": words[words.index("-m") + 1]}
    lines = of_ci('for name in "${LANES[@]}"; do echo "$name: $(lane_marks "$name")"; done')
    return found | dict(line.split(": ") for line in lines)


def marks_of(item):
    return frozenset(mark.name for mark in item.iter_markers()).intersection(MARKS)


@pytest.fixture(scope="module")
def lanes_of(selections):
    """The lanes that select a test with these marks: found once for all tests that have the same ones."""
    lanes = {name: Expression.compile(said) for name, said in selections.items()}
    return cache(lambda marks: [name for name, lane in lanes.items() if lane.evaluate(lambda mark, **_: mark in marks)])


def test_a_test_has_one_mark_of_a_lane_at_most(every_test):
    assert not [item.nodeid for item in every_test if len(marks_of(item) - {"long"}) > 1]


def test_every_test_is_in_one_lane(every_test, lanes_of):
    wrong = {}
    for item in every_test:
        marks = marks_of(item)
        if len(found := lanes_of(marks)) != (0 if marks & BY_NAME_ONLY else 1):
            wrong[item.nodeid] = found
    assert not wrong


def test_a_lane_imports_the_files_of_its_tests(every_test):
    """And no others, as far as a mark can be seen in a file's text."""
    for name in MARKS:
        [line] = of_ci(f"lane_files {name}; echo")
        marked = {str(item.path.relative_to(ROOT)) for item in every_test if name in marks_of(item)}
        assert marked <= set(line.split()) and len(line.split()) < 140, name


def test_no_lane_is_left_out(selections):
    assert selections.keys() - {"tests"} == set(MARKS) - BY_NAME_ONLY
    assert of_ci("lane_marks long; lane_marks gpu") == ["long", "gpu and not long"]


def test_one_test_of_readmes_command_trains_for_real(every_test, lanes_of):
    """Whoever asks for `command` runs `python -m swe_rl`."""
    runs = [item for item in every_test if "command" in item.fixturenames and "end_to_end" in item.path.parts]
    short = Counter(item.nodeid for item in runs if lanes_of(marks_of(item)) == ["tests"])
    expected = "tests/end_to_end/test_train.py::test_a_run_leaves_everything_behind"
    assert short == {expected: 1} or not runs  # where other files are run


def test_the_guide_names_every_lane():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", text, re.MULTILINE)
    assert [name for name, _ in rows] == ["tests", *MARKS]
    for name, command in rows[1:]:
        assert command == f"bash .ci/run {name}"
