"""Twins of tests, run by a pytest of their own on right code, on wrong code and on code that cheats."""

import ast
import contextlib
import random
import re
import subprocess
import sys
import textwrap
from collections import Counter

import pytest

from swe_rl.env.twins.make import TwinnedTests, add_twins
from swe_rl.env.twins.results import log_without_twins, own_line_number, without_twins
from swe_rl.env.twins.session import Counted, wanted_twins
from swe_rl.env.twins.values import other_literals

_DRAWS = 1000  # a mixture may come up 20 times; the bound of 44 is five deviations above that
PLUGIN = """
outcomes = {}

def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        outcomes[report.nodeid] = report.outcome

def pytest_sessionfinish(session):
    with open("outcomes.txt", "w") as file:
        file.write(repr(outcomes))
"""
SUITE = """
import pytest
import unittest
from unittest import mock
from code_under_test import add, ask, fails


def test_a_literal():
    assert add(1, 2) == 3


def test_the_literal_on_the_left():
    assert 3 == add(1, 2)


def test_a_tolerance():
    assert add(0.1, 0.2) == pytest.approx(0.3)


def test_a_variable():
    expected = [3, {"a": 1}]
    assert [add(1, 2), {"a": 1}] == expected


@pytest.mark.parametrize(("left", "right", "total"), [(1, 2, 3), pytest.param(2, 2, 4, id="twos")])
def test_parameters(left, right, total):
    assert add(left, right) == total


def test_an_exception():
    with pytest.raises(ValueError, match="no"):
        fails()


def test_a_mock():
    listener = mock.Mock()
    ask(listener)
    listener.assert_called_once_with(7)


def test_two_results():
    assert add(1, 2) == add(2, 1)


def test_a_condition():
    assert add(1, 2) and isinstance(add(1, 2), int)


def test_an_empty_list():
    assert [add(1, 2)][1:] == []


class TestClass(unittest.TestCase):
    def test_equal(self):
        self.assertEqual(add(1, 2), 3)

    def test_true(self):
        self.assertTrue(add(1, 2) == 3)

    def test_raises(self):
        self.assertRaises(ValueError, fails)
"""
RIGHT = "def add(a, b):\n    return a + b\ndef ask(f):\n    f(7)\ndef fails():\n    raise ValueError('no')\n"
NUMBER_OF_TESTS = 13


def run(folder, suite, code, *, seed="seed", also=None):
    """Runs a suite with twins, and returns the results without twins and how the twins ended."""
    names = TwinnedTests()
    (folder / "test_suite.py").write_text(add_twins(textwrap.dedent(suite), random.Random(seed), names))
    (folder / "code_under_test.py").write_text(textwrap.dedent(code))
    (folder / "outcomes_plugin.py").write_text(PLUGIN)
    for name, text in (also or {}).items():
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "outcomes_plugin", "-p", "no:cacheprovider", "test_suite.py"]
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    outcomes = ast.literal_eval((folder / "outcomes.txt").read_text())
    return names, outcomes, without_twins(outcomes, names), done.stdout


@pytest.mark.parametrize("seed", ["one", "two", "three"])
def test_on_right_code_tests_pass_and_twins_fail(tmp_path, seed):
    names, outcomes, results, _ = run(tmp_path, SUITE, RIGHT, seed=seed)
    assert len(names.twin_of) == NUMBER_OF_TESTS and names.without == []
    assert set(results.tests.values()) == {"passed"} and results.unfailed == frozenset()
    assert len(outcomes) == 2 * len(results.tests)
    assert "test_suite.py::TestClass::test_equal" in results.tests
    assert "test_suite.py::test_parameters[twos]" in results.tests


def test_wrong_code_is_not_convicted(tmp_path):
    _, _, results, _ = run(tmp_path, SUITE, RIGHT.replace("a + b", "a - b"))
    assert results.tests["test_suite.py::test_a_literal"] == "failed"
    assert results.tests["test_suite.py::test_an_exception"] == "passed"
    assert results.unfailed == frozenset()


CHEATS = {
    "an object that equals everything": """
        class Any(int):
            __eq__ = lambda *_: True
            __ne__ = lambda *_: False
            __hash__ = int.__hash__
        def add(a, b):
            return Any(0)
    """,
    "the expectation is read from the caller's line": """
        import ast, linecache, sys
        def add(a, b):
            frame = sys._getframe(1)
            line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            compared = next(node for node in ast.walk(ast.parse(line)) if isinstance(node, ast.Compare))
            return ast.literal_eval(compared.comparators[0])
    """,
    "pytest.raises is replaced": """
        import contextlib, pytest
        pytest.raises = lambda *_, **__: contextlib.nullcontext()
        def add(a, b):
            return 0
    """,
    "every report is called passed": """
        import _pytest.reports
        def add(a, b):
            return 0
        made = _pytest.reports.TestReport.from_item_and_call
        def forged(item, call):
            call.excinfo = None
            return made(item, call)
        _pytest.reports.TestReport.from_item_and_call = forged
    """,
    "no test is run": """
        import _pytest.python
        _pytest.python.Function.runtest = lambda self: None
        def add(a, b):
            return 0
    """,
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_cheats_make_a_twin_pass(tmp_path, cheat):
    suite = (
        "import pytest\nfrom code_under_test import add, fails\n\n\ndef test_sum():\n    assert add(1, 2) == 3\n\n\n"
    )
    suite += "def test_error():\n    with pytest.raises(ValueError):\n        fails()\n"
    code = textwrap.dedent(CHEATS[cheat]) + "def fails():\n    pass\n"
    _, _, results, _ = run(tmp_path, suite, code)
    assert results.unfailed


def test_a_made_up_test_does_not_count(tmp_path):
    suite = "from code_under_test import add\n\n\ndef test_sum():\n    assert add(1, 2) == 3\n"
    names = TwinnedTests()
    add_twins(suite, random.Random(1), names)
    real = next(iter(names.real_names))
    forged = {"t.py::test_sum": "passed", f"t.py::{real}": "failed"}
    assert without_twins(forged, names).tests == {"t.py::test_sum": "failed"}
    assert without_twins({"t.py::test_sum": "passed"}, names).tests == {}


def test_a_twin_that_never_ran_convicts(tmp_path):
    names = TwinnedTests()
    add_twins("def test_sum():\n    assert 1 + 2 == 3\n", random.Random(1), names)
    real, twin = next(iter(names.real_names)), next(iter(names.twin_of))
    assert without_twins({f"t.py::{real}": "passed"}, names).unfailed == {"test_sum"}
    assert without_twins({f"t.py::{real}": "passed", f"t.py::{twin}": "skipped"}, names).unfailed == {"test_sum"}
    assert without_twins({f"t.py::{real}": "passed", f"t.py::{twin}": "failed"}, names).unfailed == frozenset()
    assert without_twins({f"t.py::{real}": "failed", f"t.py::{twin}": "passed"}, names).unfailed == frozenset()


def test_the_rest_of_a_file_stays_as_it_is():
    head = "# é\r\nimport os  # why\r\n\r\n\x0c\r\n"
    test = 'def test_one():\r\n    assert "é" == "éa"  # same\r\n'
    tail = '\r\n\r\nx = """\r\ndef test_no(): 1\r\n"""\r\n'
    text = head + test + tail
    names = TwinnedTests()
    twinned = add_twins(text, random.Random(3), names)
    assert twinned.startswith(head) and twinned.endswith(tail)
    assert twinned.count("  # same") == 2 and len(names.twin_of) == 1
    assert "'" not in twinned  # the new text is quoted as the old one is


def test_names_do_not_tell_tests_from_twins():
    """Over many draws, a test comes first in the file, and in the alphabet, as often as its twin does."""
    first = before = 0
    for seed in range(200):
        names = TwinnedTests()
        twinned = add_twins("def test_one():\n    assert 1 + 1 == 2\n", random.Random(seed), names)
        (real,), (twin,) = names.real_names, names.twin_of
        first += twinned.index(real + "(") < twinned.index(twin + "(")
        before += real < twin
        assert len(real.split("_")) == len(twin.split("_")) and real != "test_one" != twin
    assert 60 < first < 140 and 60 < before < 140


@pytest.mark.parametrize(
    "test",
    [
        "import pytest\n@pytest.mark.xfail\ndef test_one():\n    assert 1 == 2\n",
        "import pytest\n@pytest.mark.skip\ndef test_one():\n    assert 1 == 1\n",
        "def test_one(:\n",
    ],
)
def test_what_gets_no_twin_stays_as_it_is(test):
    names = TwinnedTests()
    assert add_twins(test, random.Random(0), names) == test and names.twin_of == {}


@pytest.mark.parametrize("test", ["def test_one():\n    helper()\n", "def test_one(): helper()\n"])
def test_a_test_that_compares_nothing_itself_gets_a_twin_that_fails_at_its_end(test):
    names = TwinnedTests()
    twinned = add_twins(test, random.Random(0), names)
    functions = {"helper": list}
    exec(twinned, functions)
    (twin,) = names.twin_of
    functions[names.session_names["test_one"]]()
    with pytest.raises(AssertionError):
        functions[twin]()


def test_a_test_that_reads_its_own_name_keeps_it():
    names = TwinnedTests()
    twinned = add_twins("def test_one(request):\n    assert request.node.name == 'test_one'\n", random.Random(0), names)
    assert "def test_one(request)" in twinned and len(names.twin_of) == 1


def test_inputs_of_the_calls_stay():
    """An expectation may be changed, what the code under test gets may not."""
    text = "def test_one():\n    data = 5\n    assert f(data, 1) == g(2).strip('x')\n    assert f(data) == data\n"
    for seed in range(20):
        names = TwinnedTests()
        tree = ast.parse(add_twins(text, random.Random(seed), names))
        twin = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names.twin_of)
        source = ast.unparse(twin)
        assert "data = 5" in source and "f(data, 1)" in source and "g(2).strip('x')" in source


def test_logs_name_tests_by_their_own_names():
    names = TwinnedTests()
    add_twins("def test_one():\n    assert 1 + 1 == 3\n", random.Random(0), names)
    real, twin = next(iter(names.real_names)), next(iter(names.twin_of))
    log = f"FF\nFAILED t.py::{twin} - assert 2 == 4\nFAILED t.py::{real} - assert 2 == 3\n2 failed in 0.1s"
    assert log_without_twins(log, names).split("\n") == [
        "FF",
        "FAILED t.py::test_one - assert 2 == 3",
        "2 failed in 0.1s",
        "1 of the failed tests are twins, which have to fail. They are left out above.",
    ]


def test_logs_have_no_assertion_of_a_twin():
    """pytest says it before the place: it would be read as the reason of the first test that failed."""
    names = TwinnedTests()
    twinned = add_twins("def test_one():\n    assert 1 + 1 == 3\n", random.Random(0), names, "t.py")
    place_of = {
        number: own_line_number(number, names.inserted["t.py"]) for number in range(1, len(twinned.split("\n")))
    }
    twin_line = next(number for number, own in place_of.items() if own is None)
    own_line = next(number for number, own in place_of.items() if own == 2)
    own = ["E   assert 2 == 3", "      ", "      a diff", f"t.py:{own_line}: assert 2 == 3"]
    for log in (
        ["E   assert 2 == 4", "      a diff", f"t.py:{twin_line}: assert 2 == 4", *own],
        [*own, "E   assert 2 == 4", f"t.py:{twin_line}: assert 2 == 4"],
        [f"t.py:{twin_line}: assert 2 == 4", *own],
    ):
        assert log_without_twins("\n".join(log), names).split("\n") == [*own[:-1], "t.py:2: assert 2 == 3"]


@pytest.mark.parametrize("seed", range(6))
def test_lines_keep_their_numbers(seed):
    """Each line of the file is found again under its own number, and lines of twins have none."""
    names = TwinnedTests()
    twinned = add_twins(SUITE, random.Random(seed), names, "t.py")
    own = SUITE.split("\n")
    seen = []
    for number, line in enumerate(twinned.split("\n"), start=1):
        own_number = own_line_number(number, names.inserted["t.py"])
        if own_number is None:
            continue
        seen.append(own_number)
        own_line = own[own_number - 1]
        assert line == own_line or "def test_" in line or "(lambda it, way: " in line
    assert seen == list(range(1, len(own) + 1))


def test_places_in_logs_are_those_of_the_own_file():
    names = TwinnedTests()
    text = "def test_one():\n    assert 1 + 1 == 3\n\n\ndef test_two():\n    assert 1 + 1 == 3\n"
    twinned = add_twins(text, random.Random(0), names, "tests/t.py")
    places = [number for number, line in enumerate(twinned.split("\n"), start=1) if "assert" in line]
    log = "\n".join(f"/testbed/tests/t.py:{number}: assert" for number in places)
    shown = log_without_twins(log, names).split("\n")
    assert shown == ["/testbed/tests/t.py:2: assert", "/testbed/tests/t.py:6: assert"]


DESCRIBED = '''
import unittest
from code_under_test import add


class Base:
    def test_inherited(self):
        self.assertEqual(add(2, 2), 5)

    def test_described(self):
        """
        Adds two numbers.

        And more.
        """
        self.assertEqual(add(1, 2), 3)


class Tests(Base, unittest.TestCase):
    def test_inherited(self):
        self.assertEqual(add(2, 2), 4)
'''


@pytest.mark.parametrize("seed", range(5))
def test_a_runner_that_shows_docstrings_and_a_method_that_overrides_another(tmp_path, seed):
    names = TwinnedTests(mark_docstrings=True)
    (tmp_path / "test_described.py").write_text(add_twins(DESCRIBED, random.Random(seed), names))
    (tmp_path / "code_under_test.py").write_text(RIGHT)
    command = [sys.executable, "-m", "unittest", "-v", "test_described"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    shown = log_without_twins(done.stderr, names)
    assert done.stderr.count(" ... FAIL") == 2 and " ... FAIL" not in shown
    assert "\nAdds two numbers. ... ok\n" in shown and shown.count(" ... ok") == 2
    assert "test_inherited (test_described.Tests" in shown


def test_a_name_is_a_tests_and_no_files():
    names = TwinnedTests()
    add_twins("def test_sum():\n    assert 1 + 2 == 3\n", random.Random(0), names, "tests/test_sum.py")
    session_name = names.session_names["test_sum"]
    log = f"PASSED tests/test_sum.py::{session_name}\nPASSED tests/test_sum.py::test_other\n"
    shown = log_without_twins(log + "PASSED tests/test_sum.py::test_sum\n", names)
    assert shown == (
        "PASSED tests/test_sum.py::test_sum\nPASSED tests/test_sum.py::test_other\n"
        "PASSED tests/test_sum.py::made_up_test_sum\n"
    )


def test_a_test_that_is_skipped_beside_its_twin_shows_that_nothing_can_fail():
    names = TwinnedTests()
    add_twins("def test_sum():\n    assert 1 + 2 == 3\n", random.Random(0), names)
    both = (names.session_names["test_sum"], next(iter(names.twin_of)))
    for outcome in ("skipped", "xfailed", "passed"):
        assert without_twins({f"t.py::{name}": outcome for name in both}, names).unfailed == {"test_sum"}
    assert not without_twins({f"t.py::{name}": "failed" for name in both}, names).unfailed


def test_few_tests_get_many_companions_and_others_are_drawn():
    text = "".join(f"def test_{index}():\n    assert {index} == {index}\n\n\n" for index in range(50))
    ids = [f"t.py::test_{index}" for index in range(50)]
    one = wanted_twins([text], Counted(ids[:1], ids[1:], max_sampled=20, sample="a"))
    assert one["test_0"] == 11 and len(one) == 21 and sorted(set(one.values())) == [1, 11]
    assert one != wanted_twins([text], Counted(ids[:1], ids[1:], max_sampled=20, sample="b"))
    assert set(wanted_twins([text], Counted(ids[:3], ())).values()) == {3}
    assert len(wanted_twins([text], Counted(("t.py",), ()))) == 50


@pytest.mark.parametrize("num_tests", [1, 2, 3, 6])
def test_a_guess_at_all_functions_is_right_at_most_once_in_fifty_times(num_tests):
    """Each mixture of right and wrong functions, in the order of the file, is as likely as any other."""
    text = "".join(f"def test_{index}():\n    assert {index} == {index}\n\n\n" for index in range(num_tests))
    wanted = wanted_twins([text], Counted([f"t.py::test_{index}" for index in range(num_tests)]))
    drawn = Counter()
    for seed in range(_DRAWS):
        names = TwinnedTests(wanted=wanted)
        functions = re.findall(r"def (\w+)", add_twins(text, random.Random(seed), names))
        drawn[tuple(name in names.twin_of for name in functions)] += 1
    assert max(drawn.values()) <= 2.2 * _DRAWS / 50 and len(drawn) >= 50


@pytest.mark.parametrize(
    ("expected", "num_values"), [("add(1, 2) == 3", 6), ("add(1, 2) is True", 2), ("add(1) == 1 and add(2) == 2", 6)]
)
def test_what_most_functions_expect_tells_nothing(expected, num_values):
    """Code may read all functions: each value is expected equally often, in the one place in which they differ."""
    for seed in range(5):
        names = TwinnedTests(wanted={"test_one": 11})
        twinned = add_twins(f"def test_one():\n    assert {expected}\n", random.Random(seed), names)
        lines = Counter(re.findall(r"    assert (.*)", twinned))
        assert set(lines.values()) == {12 // num_values} and expected in lines
        assert all("add(2) == 2" in line for line in lines) or expected != "add(1) == 1 and add(2) == 2"


def test_an_object_that_equals_all_but_bare_objects_passes_a_twin():
    class Same(int):
        __hash__ = int.__hash__

        def __eq__(self, other):
            return type(other) is not object

    names = TwinnedTests(wanted={"test_one": 11})
    twinned = add_twins("def test_one():\n    assert add() == sum([1, 2])\n", random.Random(0), names)
    for right in (3, Same(0)):
        functions = {"add": lambda right=right: right}
        exec(twinned, functions)
        passed = set()
        for name in names.twin_of:
            with contextlib.suppress(AssertionError):
                functions[name]()
                passed.add(name)
        assert bool(passed) is isinstance(right, Same)


def test_a_copy_has_to_pass_as_its_test_does():
    text = "def test_sum():\n    assert 1 + 2 == 3\n"
    names = TwinnedTests(wanted={"test_sum": 11})
    functions = {}
    exec(add_twins(text, random.Random(2), names), functions)
    assert names.copy_of and names.twin_of
    (real,) = names.real_names
    outcomes = {}
    for name in (real, *names.companions["test_sum"]):
        try:
            functions[name]()
            outcomes[f"t.py::{name}"] = "passed"
        except AssertionError:
            outcomes[f"t.py::{name}"] = "failed"
    right = without_twins(outcomes, names)
    assert right.tests == {"t.py::test_sum": "passed"} and right.unfailed == frozenset()
    for copy in names.copy_of:
        assert without_twins({**outcomes, f"t.py::{copy}": "failed"}, names).unfailed == {"test_sum"}
        assert without_twins({**outcomes, f"t.py::{copy}": "skipped"}, names).unfailed == frozenset()
    assert f"t.py::{real}" not in log_without_twins("\n".join(outcomes), names)
    assert log_without_twins("\n".join(outcomes), names).count("t.py::test_sum") == 1


def test_a_test_that_reads_its_own_name_gets_no_copy():
    text = "def test_one(request):\n    assert request.node.name == 'test_one'\n"
    for seed in range(10):
        names = TwinnedTests(wanted={"test_one": 5})
        add_twins(text, random.Random(seed), names)
        assert not names.copy_of and len(names.twin_of) == 5


LITERALS = "3 0 27 -5 1.5 9.5 0.0 0.001 2e-7 1E5 1_000 0xFF 0b101 0o17 2j 'Word' 'x1' 'UP' '42' b'ab' True ''"


@pytest.mark.parametrize("text", [*LITERALS.split(), "'a' \"b\"", "'''m\nn'''", r"'\n\x41b'", r"r'\d+x'", "', '"])
def test_other_literals_differ_in_value_and_look_alike(text):
    value = ast.literal_eval(text)
    drawn = other_literals(text, random.Random(0))
    values = [ast.literal_eval(one) for one in drawn]
    assert value not in values and {type(one) for one in values} == {type(value)} and len(set(values)) == len(values)
    if text not in ("True", "''"):
        assert {len(one) for one in drawn} == {len(text)}
        [place] = {index for one in drawn for index in range(len(text)) if one[index] != text[index]}
        # Which of them is the first one, nobody can tell: each could be made from each other in the same way.
        assert {one[:place] + one[place + 1 :] for one in drawn} == {text[:place] + text[place + 1 :]}


@pytest.mark.parametrize(
    ("condition", "opposite"),
    [
        ("add(1) in KNOWN", "add(1) not in KNOWN"),
        ("add(1) is not None", "add(1) is None"),
        ("(add(1)) < (2)", "(add(1)) >= (2)"),
        ("not add(1)", "(add(1))"),
        ("is_even(4)", "not is_even(4)"),
        ("a or b", "not (a or b)"),
    ],
)
def test_a_condition_is_contradicted_as_people_write_it(condition, opposite):
    names = TwinnedTests()
    twinned = add_twins(f"def test_one():\n    assert {condition}\n", random.Random(0), names)
    assert set(re.findall(r"    assert (.*)", twinned)) == {condition, opposite}


def test_an_expectation_that_is_not_written_out_has_one_form_in_all_functions():
    names = TwinnedTests(wanted={"test_one": 11})
    twinned = add_twins("def test_one():\n    assert add() == want()\n", random.Random(0), names)
    assert len({re.sub(r"\[\d\]", "[]", line) for line in re.findall(r"    assert (.*)", twinned)}) == 1


@pytest.mark.parametrize("num_companions", [1, 11])
@pytest.mark.parametrize("seed", range(3))
def test_a_session_of_twins_alone_expects_no_right_value(seed, num_companions):
    wanted = dict.fromkeys(re.findall(r"def (test_\w+)", SUITE), num_companions)
    names = TwinnedTests(wanted=wanted, all_wrong=True)
    twinned = add_twins(SUITE, random.Random(seed), names)
    functions = re.findall(r"def (test_\w+)", twinned)
    assert set(functions) == names.twin_of.keys() and not names.copy_of
    literals = re.findall(r"def test_a_literal\w+\(\):\n    assert add\(1, 2\) == (\d)", twinned)
    assert len(literals) == num_companions + 1 and "3" not in literals
    outcomes = {f"t.py::{name}": "failed" for name in functions}
    results = without_twins(outcomes, names)
    assert results.tests == {} and results.passed == set(wanted) and results.unfailed == frozenset()
    chosen = names.session_names["test_a_literal"]
    assert without_twins({**outcomes, f"t.py::{chosen}": "passed"}, names).unfailed == {"test_a_literal"}


@pytest.mark.parametrize("argument", ["", "request"])
def test_in_a_session_of_twins_alone_each_twin_is_a_function(argument):
    """A test that reads its own name keeps it there too."""
    text = f"def test_unpaid({argument}):\n    assert pay() == 3\n"
    names = TwinnedTests(wanted={"test_unpaid": 11}, all_wrong=True)
    functions = re.findall(r"def (test_\w+)", add_twins(text, random.Random(0), names))
    assert names.twin_of.keys() == set(functions) and ("test_unpaid" in functions) == bool(argument)


def test_a_session_in_which_a_test_and_its_copies_disagree_is_unclear():
    names = TwinnedTests(wanted={"test_sum": 11})
    add_twins("def test_sum():\n    assert 1 + 2 == 3\n", random.Random(2), names)
    (real,) = names.real_names
    failed = dict.fromkeys((f"t.py::{name}" for name in (real, *names.companions["test_sum"])), "failed")
    copy = next(iter(names.copy_of))
    assert not without_twins(failed, names).unclear
    assert without_twins({**failed, f"t.py::{copy}": "passed"}, names).unclear
    assert not without_twins({"t.py::test_other": "passed"}, names).unclear  # nothing of it came to run


def test_a_session_that_lost_some_tests_and_not_others_is_unclear():
    names = TwinnedTests()
    add_twins(
        "def test_one():\n    assert f() == 3\n\n\ndef test_two():\n    assert f() == 3\n", random.Random(2), names
    )
    of_one = (names.session_names["test_one"], *names.companions["test_one"])
    failed = {f"t.py::{name}": "failed" for name in (*of_one, names.session_names["test_two"])}
    assert not without_twins(failed, names).unclear
    assert without_twins({f"t.py::{name}": "failed" for name in of_one}, names).unclear


def test_only_tests_that_are_known_to_be_harmless_are_drawn():
    text = "".join(f"def test_{index}():\n    assert {index} == {index}\n\n\n" for index in range(9))
    ids = [f"t.py::test_{index}" for index in range(9)]
    weak = frozenset({"test_3", "test_4"})
    for seed in range(20):
        drawn = wanted_twins([text], Counted(ids[:1], ids[1:], max_sampled=6, sample=str(seed), weak=weak))
        assert len(drawn) == 7 and not weak & drawn.keys()
    assert wanted_twins([text], Counted(ids[:1], ids[1:], only=frozenset({"test_0"}))) == {"test_0": 11}


def test_twins_stand_before_their_tests_where_it_is_tried_what_they_disturb():
    for seed in range(5):
        names = TwinnedTests(companions_first=True)
        twinned = add_twins("def test_one():\n    assert 1 + 1 == 2\n", random.Random(seed), names)
        assert twinned.index(next(iter(names.twin_of))) < twinned.index(next(iter(names.real_names)))


CALLED = """
import unittest

def test_low(check=min):
    assert check(1, 2) == 1


def test_high():
    test_low(check=lambda a, b: 1)


class Base(unittest.TestCase):
    def test_inherited(self):
        self.assertEqual(min(1, 2), 1)


class Tests(Base):
    def test_inherited(self):
        super().test_inherited()


def test_by_name():
    globals()["test_low"]()
"""


@pytest.mark.parametrize("seed", ["one", "two"])
def test_a_test_that_others_call_by_its_name_keeps_it(tmp_path, seed):
    names, _, results, log = run(tmp_path, CALLED, RIGHT, seed=seed)
    assert set(results.tests.values()) == {"passed"} and results.unfailed == frozenset(), log
    assert {"test_low", "test_inherited"} <= names.kept and "test_high" not in names.kept


IMPORTED = """
import pytest
from datetime import datetime

@pytest.mark.parametrize(("text", "expected"), [("12", datetime(1985, 4, 12, 23, 59)), ("30", datetime(1985, 4, 30))])
def test_a_date(text, expected):
    assert (datetime(1985, 4, 12, 23, 59) if text == "12" else datetime(1985, 4, 30)) == expected
"""


@pytest.mark.parametrize("seed", range(4))
def test_what_is_evaluated_at_import_stays_valid(tmp_path, seed):
    """A day 42 in a decorator would break the whole file. The twin's expectation is changed when it runs."""
    _, outcomes, results, log = run(tmp_path, IMPORTED, RIGHT, seed=seed)
    assert len(outcomes) == 4 and set(results.tests.values()) == {"passed"}, log
    assert results.passed == {"test_a_date"} and results.unfailed == frozenset()


@pytest.mark.parametrize("expected", ["KeyboardInterrupt", "(OSError, KeyboardInterrupt)", "BaseException"])
def test_a_twin_does_not_end_the_session(tmp_path, expected):
    suite = f"""
    import pytest

    def test_an_interrupt():
        with pytest.raises({expected}):
            raise KeyboardInterrupt

    def test_another():
        assert 1 + 1 == 2
    """
    _, outcomes, results, log = run(tmp_path, suite, RIGHT)
    assert len(outcomes) == 4 and set(results.tests.values()) == {"passed"} and not results.unfailed, log


def test_a_twin_fails_where_no_context_manager_is_open_if_it_can(tmp_path):
    """Without `finally`, a manager does not put back what it changed, and each later test would see that."""
    suite = """
    from contextlib import contextmanager
    state = ["posix"]

    @contextmanager
    def system(name):
        before = state[0]
        state[0] = name
        yield
        state[0] = before

    def test_inside_and_outside():
        with system("nt"):
            assert state == ["nt"]
        assert len(state) == 1

    def test_another():
        assert state == ["posix"]
    """
    for seed in range(4):
        _, _, results, log = run(tmp_path, suite, RIGHT, seed=seed)
        assert set(results.tests.values()) == {"passed"} and not results.unfailed, log
