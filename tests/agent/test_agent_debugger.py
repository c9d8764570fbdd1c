"""The debugger that runs in the sandbox: its session, with a server that lives and with one that does not."""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.agent.inside.debuggee import body_line, moved_line

INSIDE = Path(__file__).parents[2] / "swe_rl" / "agent" / "inside"
PROGRAM = '''\
import sys
import time


def add(a, b):
    """Adds."""
    total = a - b
    return total


def spin():
    while True:
        time.sleep(0.01)


print(add(1, 2))
if "spin" in sys.argv:
    spin()
'''
OLD_PYTHON = shutil.which("python3.6")


class Debugger:
    """Calls the debugger as the agent does, each command a process of its own."""

    def __init__(self, folder: Path, python: str) -> None:
        self._home, self.repository, self._python = folder / "home", folder / "repository", python
        self._home.mkdir()
        self.repository.mkdir()
        for name in ("debugger.py", "debuggee.py"):
            shutil.copy(INSIDE / name, self._home)
        (self.repository / "calc.py").write_text(PROGRAM)

    def __call__(self, command: str, entrypoint: str = "", limit_s: float = 20.0) -> str:
        default = f"{shlex.quote(sys.executable)} -m pdb calc.py"
        order = {"command": command, "entrypoint": entrypoint, "default": default, "limit_s": limit_s}
        done = subprocess.run(
            [self._python, str(self._home / "debugger.py"), json.dumps(order)],
            cwd=self.repository, capture_output=True, text=True, timeout=100,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    def servers(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    line = (entry / "cmdline").read_bytes().decode()
                except OSError:
                    continue
                if str(self._home / "debugger.py") in line:
                    found.append(int(entry.name))
        return found

    def end_servers(self) -> None:
        """As a sandbox does between two commands: the server and what it debugs."""
        for pid in self.servers():
            with contextlib.suppress(OSError):  # it may end by itself meanwhile
                children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                for one in [*map(int, children), pid]:
                    os.kill(one, signal.SIGKILL)
        ends_s = time.monotonic() + 10
        while self.servers() and time.monotonic() < ends_s:
            time.sleep(0.01)


@pytest.fixture(params=["python", "python3.6"])
def debug(tmp_path: Path, request: pytest.FixtureRequest):
    python = sys.executable if request.param == "python" else OLD_PYTHON
    if not python or subprocess.run([python, "--version"], capture_output=True).returncode:
        pytest.skip(f"there is no {request.param}")
    debugger = Debugger(tmp_path, python)
    yield debugger
    debugger.end_servers()


@pytest.mark.parametrize("servers_live", [True, False])
def test_a_session_goes_on_from_command_to_command(debug: Debugger, servers_live: bool):
    told = []
    for command in ("b add, a == 1", "c", "p a, b", "n", "p total"):
        told.append(debug(command))
        if not servers_live:
            debug.end_servers()
    assert "Debugging:" in told[0] and "Breakpoint 1 at" in told[0]
    assert "calc.py(7)add()" in told[1]
    assert told[2].startswith("(1, 2)\n") and told[4].startswith("-1\n")
    assert told[4].endswith("Breakpoints: calc.py:7 if a == 1")
    assert len(debug.servers()) == (1 if servers_live else 0)


def test_breakpoints_move_with_an_edit_and_are_set_again(debug: Debugger):
    debug("b calc.py:8")
    debug("disable 1")
    debug("b calc.py:7")
    debug("c")
    (debug.repository / "calc.py").write_text("# new\n# lines\n" + PROGRAM.replace("a - b", "a + b"))
    told = debug("c")
    assert "the source has changed: started again" in told and "calc.py(9)add()" in told
    assert told.endswith("Breakpoints: calc.py:10 (disabled), calc.py:9")
    assert debug("!print(a + b, end='')").startswith("3")


def test_a_program_that_hangs_is_shown_and_killed_and_starts_again(debug: Debugger):
    entrypoint = f"{shlex.quote(sys.executable)} -m pdb calc.py spin"
    debug("b calc.py:17", entrypoint)
    told = debug("c")
    assert "calc.py(17)" in told
    told = debug("c", limit_s=1.0)
    assert "no prompt within 1s: the program was killed" in told and "interrupted" in told
    told = debug("c")
    assert f"Debugging: {entrypoint}" in told and "calc.py(17)" in told


def test_a_program_that_ends_or_never_came_to_a_prompt(debug: Debugger):
    assert "ended with status 3" in debug("!import os; os._exit(3)")
    assert "calc.py(1)<module>()" in debug("w")
    told = debug("c", "echo no debugger here")
    assert "no debugger here" in told and "it has to run under pdb" in told
    assert "Debugging:" in debug("c") and "no debugger" not in debug("w")
    assert "did not come to a pdb prompt" in debug("c", "sleep 30", limit_s=0.5)


def test_pytest_lets_the_debugger_through(debug: Debugger):
    (debug.repository / "test_calc.py").write_text(
        "def test_add():\n    from calc import add\n    assert add(1, 2) == 3\n"
    )
    entrypoint = f"PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 {shlex.quote(sys.executable)} -m pdb -m pytest -q test_calc.py"
    debug("b calc.py:7", entrypoint)
    assert "calc.py(7)add()" in debug("c")
    assert "test_add()" in debug("w")


def test_a_command_that_is_no_text_of_this_world(debug: Debugger):
    assert "é" in debug("p 'é\\u20ac'")
    assert "SyntaxError" in debug("p 'é")
    assert len(debug("p 'x' * 500000")) < 220_000


def test_a_function_stops_in_its_body(tmp_path: Path):
    path = tmp_path / "a.py"
    path.write_text(PROGRAM)
    assert [body_line(str(path), line) for line in (4, 5, 6, 7, 11, 99)] == [4, 7, 6, 7, 12, 99]
    path.write_text("def f(:\n")
    assert body_line(str(path), 1) == 1 == body_line(str(tmp_path / "none.py"), 1)


@given(st.lists(st.integers(0, 50), min_size=1, unique=True), st.data())
def test_a_line_that_stays_is_found_again(numbers: list[int], data: st.DataObject):
    """The lines are unlike each other, so it is clear where each has gone."""
    before = [f"line {number}" for number in numbers]
    at = data.draw(st.integers(0, len(before) - 1))
    first = data.draw(st.integers(0, at))
    new = data.draw(st.lists(st.just("new"), max_size=5))
    now = new + before[first:]
    assert now[moved_line(before, now, at + 1) - 1] == before[at]


@given(st.lists(st.text("ab", max_size=2)), st.lists(st.text("ab", max_size=2)), st.integers(1, 30))
def test_a_line_is_always_in_the_file(before: list[str], now: list[str], line: int):
    assert 1 <= moved_line(before, now, line) <= max(1, len(now))
