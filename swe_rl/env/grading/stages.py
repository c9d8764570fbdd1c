"""Splits a row's script into two stages: the first prepares the tree, and the second runs the tests.

Invariants:
- The second stage begins in the shell that the first one left: its folder, variables, functions and options.
- Nothing that the first stage started is left when the second one begins: each stage is a command of the sandbox.
- What belongs to the second stage alone (twins, secrets of its log) is nowhere in the sandbox while the first one runs.
"""

import re
import shlex
import subprocess
from dataclasses import dataclass

from swe_rl.dataset.instance import Instance
from swe_rl.env.grading.log_check import START, commands_of_tests
from swe_rl.env.patch_files import touched_paths
from swe_rl.env.shell import calls_of
from swe_rl.env.twins.make import TwinnedTests
from swe_rl.sandbox.sandbox import Sandbox

_RUNS_TESTS = re.compile(
    r"(?:\w+=\S*\s+)*(?:\S*python[\d.]*\s+(?:-\S+\s+)*)?(?:-m\s+)?\S*(?:pytest|py\.test|unittest|runtests\.py|bin/test)\b"
)
# Such a command of pytest is alone: no other program's exit status takes part.
_LONE_PYTEST = re.compile(
    r"(?:\w+=\S*\s+)*(?:\S*python[\d.]*\s+(?:-\w+\s+)*-m\s+|\S*/)?(?:pytest|py\.test)(?:\s[^;&|<>`$()]*)?"
)
_NO_COMMAND = re.compile(r"[:#'\"].*|echo\b.*|set\b.*|")
_SAVE = """
{ swe_rl_options=$(set +o); set +xue; } 2>/dev/null
{ unset script; { declare -p; declare -f; shopt -p; umask -p; printf 'cd %%q\\n' "$PWD"; printf '%%s\\n' \
"$swe_rl_options"; } > %(state)s; } 2>/dev/null
echo %(reached)s
"""
_RESTORE = '[ -s %(state)s ] || exit 97\neval "$(cat %(state)s; rm -f %(state)s)" 2>/dev/null\n'
_LIST_S = 60.0
_MAX_FILES = 400  # at most so many test files are listed
# A match begins with a word or a quote: from every place inside of a long word it would look at the rest of that word.
_NAMED_TEST = re.compile(
    r"""(?:(?<![^\s'"])|(?=['"]))(?P<option>--deselect[ ])?(?P<quote>['"]?)(?P<head>[^\s'"]*::)(?P<name>\w+)"""
    r"(?P<rest>\[.*?\])?(?P=quote)(?=\s|$)"
)


@dataclass(frozen=True, slots=True)
class Stages:
    """Holds two scripts. `reached` is what the first one prints last, where it gets so far."""

    setup: str
    tests: str
    reached: str

    def came_to_an_end(self, output: str) -> bool:
        """Tells whether the output shows that the first stage reached its end."""
        return output.rstrip("\n").endswith(self.reached)

    def without_end(self, output: str) -> str:
        """Returns the output of the first stage without its last line."""
        return output.rstrip("\n").removesuffix(self.reached)


def stages_of(script: str, token: str) -> Stages | None:
    """Returns the two stages of a script, or None where nobody knows where the tests begin.

    `token` is drawn for each run.
    """
    lines = script.split("\n")
    first = _first_line_of_tests(lines)
    if not first:
        return None
    names = {"state": f"/tmp/.swe_rl_{token}", "reached": f"swe_rl_{token}_reached"}
    setup = "\n".join(lines[:first])
    return Stages(setup + _SAVE % names, _RESTORE % names + "\n".join(lines[first:]), names["reached"])


def runs_pytest_alone(script: str) -> bool:
    """Tells whether a script's second stage runs one command, and that is pytest."""
    lines = script.split("\n")
    first = _first_line_of_tests(lines)
    tests = commands_of_tests("\n".join(lines[first:])).split("\n")
    commands = [line for line in map(str.strip, tests) if not _NO_COMMAND.fullmatch(line)]
    return bool(first) and len(commands) == 1 and bool(_LONE_PYTEST.fullmatch(commands[0]))


def _first_line_of_tests(lines: list[str]) -> int:
    """Returns the index of the first line of the tests, or 0 where there is none."""
    marked = [index for index, line in enumerate(lines) if START in line]
    if marked:
        return marked[-1]
    running = [index for index, line in enumerate(lines) if _RUNS_TESTS.match(line)]
    return running[0] if running and _is_whole("\n".join(lines[: running[0]])) else 0


def _is_whole(script: str) -> bool:
    """Tells whether a script ends outside of any block, quotes or here-document."""
    try:
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and not done.stderr


async def files_of_tests(sandbox: Sandbox, instance: Instance, tests: str) -> list[str]:
    """Returns the Python files that hold an instance's tests: those that its ids name, or that its command names.

    Raises SandboxError.
    """
    ids = (*instance.fail_to_pass, *instance.pass_to_pass)
    paths = {test.partition("::")[0] for test in ids if "::" in test}
    paths |= {path for path in touched_paths(instance.test_patch) if path.endswith(".py")}
    if not paths:
        words = {word for call in calls_of(commands_of_tests(tests)) for word in call.words}
        paths = {word for word in words if re.search(r"[/.]", word) and not word.endswith("/python")}
        paths |= {"r2e_tests"}  # R2E-Gym's own script runs these
    names = " ".join(shlex.quote(f"./{path}") for path in sorted(paths) if not path.startswith(("/", "-")))
    if not names:
        return []
    command = f"find {names} -name '*.py' -type f 2>/dev/null | head -n {_MAX_FILES}"
    listed = await sandbox.exec(command, timeout_s=_LIST_S)
    return sorted(line.removeprefix("./") for line in listed.output.split("\n") if line.endswith(".py"))


def with_session_names(tests: str, names: TwinnedTests) -> str:
    """Returns the second stage with the names that its tests have in the session, and their twins beside them."""

    def renamed(match: re.Match[str]) -> str:
        own_name = match["name"]
        if own_name not in names.session_names:
            return match[0]
        quote = match["quote"]
        rest = match["rest"] or ""
        test_name = own_name if own_name in names.kept else names.session_names[own_name]
        # What is left out is one case. What is run is the whole function: a twin's cases have other names, and a
        # command that named cases of the test alone would show tested code which of its arguments is the test.
        case = rest if match["option"] else ""
        ids = sorted([f"{test_name}{case}", *names.companions[own_name]])
        return " ".join(f"{match['option'] or ''}{quote}{match['head']}{test_id}{quote}" for test_id in ids)

    return _NAMED_TEST.sub(renamed, tests)
