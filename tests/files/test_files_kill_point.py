"""Named moments at which a rehearsal kills a process."""

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from swe_rl.files.kill_point import POINTS, VARIABLE

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "swe_rl"
CALL = re.compile(r"\bkill_point\(\s*(.*?)\s*\)")


def calls():
    """(file below swe_rl, argument) of every call in the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        if name != "files/kill_point.py":
            for argument in CALL.findall(path.read_text(encoding="utf-8")):
                yield name, argument


def test_each_point_is_called_once_and_where_the_list_says():
    listed = Counter((one.file, f'"{one.name}"') for one in POINTS)
    assert Counter(calls()) == listed and max(listed.values()) == 1


def test_names_differ_and_say_what_is_written():
    assert len({one.name for one in POINTS}) == len(POINTS)
    assert all(one.before and one.after for one in POINTS)


def call_thrice(value):
    """Exit status and output of a process that comes to a point three times."""
    script = "from swe_rl.files.kill_point import kill_point\nfor n in (1, 2, 3):\n"
    script += " print(n, flush=True)\n kill_point('trained')\n kill_point('step_recorded')"
    environment = {name: text for name, text in os.environ.items() if name != VARIABLE}
    environment |= {"PYTHONPATH": str(ROOT)} | ({VARIABLE: value} if value is not None else {})
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.split(), done.stderr


@pytest.mark.parametrize(
    ("value", "status", "printed"),
    [
        (None, 0, ["1", "2", "3"]),
        ("", 0, ["1", "2", "3"]),
        ("trained", -signal.SIGKILL, ["1"]),
        ("step_recorded:2", -signal.SIGKILL, ["1", "2"]),
        ("trained:4", 0, ["1", "2", "3"]),
        ("summary_written", 0, ["1", "2", "3"]),
    ],
)
def test_the_variable_decides(value, status, printed):
    assert call_thrice(value)[:2] == (status, printed)


def test_what_names_no_point_is_refused():
    status, printed, said = call_thrice("step_recorder")
    assert status == 1 and printed == ["1"] and "names no point" in said
