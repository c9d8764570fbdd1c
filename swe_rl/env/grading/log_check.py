"""Reads the log of an evaluation script: its part about the tests, the status of these, and what they are said to be.

Invariants:
- The official reader's verdict is not changed here, but a test that any line calls failed has failed.
- No pattern takes more time than the log is long: tested code writes the log.
"""

import re

from swe_rl.env.grading.log_text import failing_lines

START = ">>>>> Start Test Output"
END = ">>>>> End Test Output"
EXIT = ">>>>> Test Exit Code"
PASSING = frozenset({"PASSED", "XFAIL"})
_SUMMARY = re.compile(r"^=+ short test summary info =+$", re.MULTILINE)
_LINE = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (\S[^\r\n]*)", re.MULTILINE)
_LAST_STATUS = 128  # a shell says so by a higher one that a signal ended a program
_HARNESS_STATUS = re.compile(rf"^{EXIT}: (-?\d{{1,9}})$", re.MULTILINE)


def with_status(script: str) -> str:
    """Returns a script that ends with the exit status of its tests, whatever follows them.

    Only an `exit` of the script's own may still say that they failed. A script without the harness's markers, or one
    that prints the status itself, stays as it is.
    """
    lines = script.split("\n")
    ends = [index for index, line in enumerate(lines) if END in line]
    if START in script and ends and EXIT not in script:
        lines.insert(ends[-1], "swe_rl_status=$?; trap 'exit $((swe_rl_status | $?))' EXIT")
        lines.append("exit $swe_rl_status")
    return "\n".join(lines)


def status_of_tests(script: str, log: str, exit_code: int | None) -> int | None:
    """Returns the exit status of a script's tests: what it prints itself, or else that with which it ended.

    Tested code may print such a line, too. So one line that says a failure is enough, and a script that a signal ended
    has failed.
    """
    is_ended_by_signal = exit_code is not None and exit_code > _LAST_STATUS
    said = [int(status) for status in _HARNESS_STATUS.findall(log)] if EXIT in script else []
    if not said or is_ended_by_signal:
        return exit_code
    return next(filter(None, said), 0)


def commands_of_tests(script: str) -> str:
    """Returns what an evaluation script runs between its markers, or all of a script without markers.

    The quotes of the markers are no part of it.
    """
    tests = re.sub(rf"\A.*?{START}['\"]?", "", script, count=1, flags=re.DOTALL)
    return re.sub(rf"['\"]?{END}.*", "", tests, count=1, flags=re.DOTALL)


def region_of(log: str) -> str:
    """Returns what the tests printed: all of it after their beginning, also where they never came to their end."""
    return log.split(START, 1)[-1].split(END, 1)[0]


def without_marks(output: str) -> str:
    """Returns what ran before the tests printed, in which nothing looks like the beginning or the end of the tests."""
    return output.replace(START, "Start Test Output").replace(END, "End Test Output")


def with_failures(log: str) -> str:
    """Returns `log` with each failure of its tests said once more at their end.

    Readers believe the last line of a test.
    """
    lines = failing_lines(region_of(log))
    start = log.find(START)
    end = log.find(END, start + 1)
    if not lines or start < 0 or end < 0:
        return "\n".join([log, *lines]) if lines else log
    place = log.rfind("\n", 0, end) + 1
    return "".join([log[:place], *(f"{line}\n" for line in lines), log[place:]])


def pytest_statuses(log: str) -> dict[str, str]:
    """Returns the status of each test id, from the last closing summary that pytest printed.

    An id that holds blanks is there as it is, and cut at the first one, as SWE-bench's rows have it.
    """
    headers = list(_SUMMARY.finditer(log))
    lines = _LINE.findall(log[headers[-1].end() :]) if headers else []
    ids = [(status, words if status == "PASSED" else words.split(" - ", 1)[0]) for status, words in lines]
    return {name: status for status, words in ids for name in (words.rstrip(), words.split(None, 1)[0])}
