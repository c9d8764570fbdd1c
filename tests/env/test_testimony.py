"""Signed records: what is read of them, and what a witness in a real interpreter writes."""

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from swe_rl.env.grading import runner_process, witness
from swe_rl.env.grading.pinned import hides_another, is_runner, project, protected, watched
from swe_rl.env.grading.testimony import Witness, as_log, read
from swe_rl.env.instance import Instance

KEY = "ab" * 32
SEEN = Witness("/tmp/x", "/opt/env", True, ("pytest",), {"/opt/env/bin/pytest": "1 2"}, key=KEY, nonce="n")
INSTANCE = Instance("sympy__sympy-1", "sympy/sympy", "0" * 40, "", "", "", (), ())
MONITORED = pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="needs Python 3.12")


def signed(tmp_path, *records):
    path = tmp_path / "records"
    path.write_bytes(b"")
    channel = os.open(path, os.O_WRONLY | os.O_APPEND)
    tell = witness.make_tell(bytes.fromhex(KEY), channel)
    for record in records:
        tell(record)
    os.close(channel)
    return path.read_text()


READY = {"ready": "3.9.1"}
PASSED = {"kind": "sympy", "test": "test_a", "outcome": "passed"}
FAILED = {"kind": "sympy", "test": "test_b", "outcome": "failed"}
LAST = {"finished": ["unittest.case.TestCase.run"]}


def test_what_is_signed_is_read(tmp_path):
    heard = read(signed(tmp_path, READY, PASSED, FAILED, LAST), "", SEEN)
    assert heard.started and heard.finished and not heard.forged and heard.changed == {"unittest.case.TestCase.run"}
    assert as_log(heard, "parse_log_sympy").split("\n")[1:3] == ["test_a ok", "test_b F"]


def test_what_tested_code_put_into_a_record_is_text(tmp_path):
    strange = {"kind": "pytest", "test": "t.py::\ud800", "when": {"call": 1}, "outcome": "passed"}
    heard = read(signed(tmp_path, READY, strange, {"finished": []}), "", SEEN)
    assert "FAILED t.py::?" in as_log(heard, "")
    for odd in ("[" * 100_000, "1" * 5_000):
        mark = hashlib.blake2b(f"1 {odd}".encode(), key=bytes.fromhex(KEY)).hexdigest()
        assert read(f"{odd} {mark}\n", "", SEEN).forged


@pytest.mark.parametrize("broken", ["left out", "moved", "changed", "added", "another key", "cut"])
def test_what_was_tampered_with_is_not(tmp_path, broken):
    lines = signed(tmp_path, READY, PASSED, FAILED, LAST).splitlines()
    if broken == "left out":
        del lines[2]
    elif broken == "moved":
        lines[1], lines[2] = lines[2], lines[1]
    elif broken == "changed":
        lines[2] = lines[2].replace("failed", "passed")
    elif broken == "added":
        lines.append(lines[1])
    elif broken == "another key":
        lines = signed(tmp_path, READY, PASSED).replace("a", "b").splitlines()
    else:
        del lines[3]
    heard = read("\n".join(lines), "", SEEN)
    assert heard.forged or not heard.finished


def test_files_of_the_environment_that_changed(tmp_path):
    log = "swe_rl n wrote 1 2 /opt/env/bin/pytest\nswe_rl n wrote 3 4 /opt/env/lib/evil.pth\nswe_rl m wrote 5 6 /x\n"
    assert read("", log, SEEN).written == {"/opt/env/lib/evil.pth"}


def test_a_test_that_failed_once_has_failed(tmp_path):
    about = {"kind": "unittest", "test": "test_a (x.T)", "about": "Words."}
    records = [{**about, "outcome": outcome} for outcome in ("failed", "passed")]
    heard = read(signed(tmp_path, READY, *records, {"finished": []}), "", SEEN)
    assert "test_a (x.T) ... FAIL" in as_log(heard, "parse_log_django")
    phases = [("setup", "passed"), ("call", "passed"), ("teardown", "failed")]
    of_pytest = [{"kind": "pytest", "test": "t.py::a", "when": when, "outcome": outcome} for when, outcome in phases]
    heard = read(signed(tmp_path, READY, *of_pytest, {"finished": []}), "", SEEN)
    assert "FAILED t.py::a" in as_log(heard, "parse_log_pytest")


FAILS = "self.fail()"
KINDS = "import cProfile, functools, inspect, sys, trace; kind, p = lambda *a: None, cProfile.Profile(); "
AS_INSTALLED = f"kind.__code__ = kind.__code__.replace(co_filename={pytest.__file__!r}); "
INSTALLED = f"{AS_INSTALLED}exec(compile('sys.settrace(kind)', {pytest.__file__!r}, 'exec')); "
THREAD = "import threading; t = threading.Thread(target=sys.addaudithook, args=(kind,)); t.start(); t.join(); "
MONITORS = "m = sys.monitoring; m.use_tool_id(2, 'x'); m.register_callback(2, m.events.CALL, %s); self.fail()"


@pytest.mark.parametrize(
    ("program", "body", "changed"),
    [
        ("runtests.py", FAILS, ()),
        ("other.py", FAILS, ()),
        ("runtests.py", "p.runcall(self.fail)", ()),
        ("runtests.py", "p.enable(); self.fail()", ()),  # and is there when the result is told
        ("runtests.py", "trace.Trace(trace=False).runfunc(self.fail)", ()),
        ("runtests.py", "sys.settrace(None); sys.settrace(sys.gettrace()); self.fail()", ()),
        ("runtests.py", f"{INSTALLED}self.fail()", ()),
        ("runtests.py", f"{INSTALLED}sys.settrace(None); sys.settrace(kind); self.fail()", ()),  # which it puts back
        ("runtests.py", f"{AS_INSTALLED}sys.settrace(kind); self.fail()", ("sys.settrace",)),
        ("runtests.py", "sys.settrace(inspect.cleandoc); self.fail()", ("sys.settrace",)),
        ("runtests.py", "sys.setprofile(functools.singledispatch(kind)); self.fail()", ("sys.setprofile",)),
        ("runtests.py", f"{THREAD}self.fail()", ("sys.addaudithook",)),
        ("runtests.py", "sys.settrace(kind); sys.settrace(None); self.fail()", ("sys.settrace",)),
        ("runtests.py", "sys.setprofile(kind); self.fail()", ("sys.setprofile",)),
        (
            "runtests.py",
            "sys.setprofile(functools.partial(kind)); sys.setprofile(None); self.fail()",
            ("sys.setprofile",),
        ),
        ("runtests.py", "sys.setprofile(kind.__call__); self.fail()", ("sys.setprofile",)),
        ("runtests.py", "sys.addaudithook(kind); self.fail()", ("sys.addaudithook",)),
        pytest.param("runtests.py", MONITORS % "print", ("sys.monitoring.register_callback",), marks=MONITORED),
        pytest.param("runtests.py", MONITORS % "kind", ("sys.monitoring.register_callback",), marks=MONITORED),
    ],
)
def test_a_witness_takes_part_in_the_runner_alone(tmp_path, program, body, changed):
    """And what tells code of the tree of each call is noticed."""
    takes_part = program == "runtests.py"
    script = tmp_path / program
    script.write_text(
        f"import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        {KINDS}{body}\n"
        "unittest.main(argv=['x'])\n"
    )
    start, records = tmp_path / "start", tmp_path / "records"
    records.write_bytes(b"")
    settings = {"start": str(start), "records": str(records), "key": KEY, "programs": ["runtests.py"], "watched": []}
    text = (
        runner_process.with_imports(Path(witness.__file__))
        + f"\nstart(__import__('json').loads({json.dumps(settings)!r}))\n"
    )
    start.write_text(text)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "sitecustomize.py").write_text(f"exec(open({str(start)!r}).read(), {{'__name__': 'w'}})\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "lib")}
    subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, timeout=60)
    heard = read(records.read_text(), "", SEEN)
    assert heard.started == takes_part and heard.finished == takes_part and start.exists() != takes_part
    assert [record["outcome"] for record in heard.records] == (["failed"] if takes_part else [])
    assert heard.changed == set(changed)


def test_what_is_the_runners_own_and_what_hides_another():
    assert is_runner("bin/test", INSTANCE) and is_runner("sympy/testing/runtests.py", INSTANCE)
    assert not is_runner("sympy/core/add.py", INSTANCE)
    assert hides_another("json.py") and hides_another("tests/unittest/__init__.py") and hides_another("src/pytest.py")
    assert not hides_another("sympy/core/json.py") and not hides_another("jsonschema.py")
    assert ":(top,glob)sympy/testing/**" in protected(INSTANCE)


@pytest.mark.parametrize(
    ("repo", "path"),
    [
        ("sympy", "sympy/testing/runtests.py"),
        ("swesmith/sympy__sympy.0123abcd", "bin/test"),
        ("swesmith/Project__orange3.0123abcd", "Orange/testing/unit.py"),
        ("numpy", "numpy/testing/_private/utils.py"),
        ("pandas", "pandas/util/testing.py"),
        ("pandas-dev/pandas", "pandas/_testing/asserters.py"),
        ("aiohttp", "aiohttp/pytest_plugin.py"),
        ("pillow", "Tests/helper.py"),
        ("swesmith/tornadoweb__tornado.d5ac65c1", "tornado/testing.py"),
    ],
)
def test_a_repository_has_its_runner_under_each_data_sets_name(repo, path):
    instance = replace(INSTANCE, repo=repo)
    assert is_runner(path, instance) and not is_runner("setup.py", instance)
    assert project(replace(INSTANCE, repo="swesmith/un33k__python-slugify.872b3750")) == "python-slugify"
    assert watched(replace(INSTANCE, repo="swesmith/django__django.0123abcd")) == ("django.test",)


def test_the_file_of_a_test_that_counts_is_not_the_patchs():
    """Also where a row has no test patch; but a file that the gold patch changes is the task's business."""
    gold = "--- a/checks.py\n+++ b/checks.py\n@@ -1 +1 @@\n-a\n+b\n"
    ids = {"fail_to_pass": ("checks.py::test_a", "suite/all.py::T::test_b[x::y.z]"), "pass_to_pass": ("test_c (x.T)",)}
    specs = protected(replace(INSTANCE, patch=gold, **ids))
    assert {":(top,literal)suite/all.py", ":(top,glob)suite/all/**", ":(top,glob)test.py"} <= {*specs}
    assert ":(top,exclude,literal)checks.py" in specs and not any("test_c" in spec for spec in specs)


@pytest.mark.parametrize("name", ["pkg/other.py::pkg.other.f", "README.rst::README.rst", "::test", "tests::lexer::ok"])
def test_a_name_that_is_no_test_of_a_file_of_tests_pins_nothing(name):
    """A doctest's file is the code that is to be mended; other languages name modules."""
    assert protected(replace(INSTANCE, pass_to_pass=(name,))) == protected(replace(INSTANCE, pass_to_pass=()))
