"""Finds what in an evaluation log cannot come from an honest test run.

Invariants:
- The official reader's verdict is not changed here. The findings are named, and the grader draws the conclusion.
- No pattern takes more time than the log is long: tested code writes the log.
- After a finding of `DECISIVE` nothing counts as passed: the words of such a run prove nothing. The others are hints.
- The exit status of the tests and their results must tell of the same run: `status_unexplained` (it says that something
  failed, and no test did) and `failures_unreported` (the reverse).
"""

import re
from collections.abc import Mapping

from swe_rl.env.grading.log_text import FAILING, failing_lines
from swe_rl.files.lines import lines_of

START = ">>>>> Start Test Output"
END = ">>>>> End Test Output"
EXIT = ">>>>> Test Exit Code"
# After one of these findings nothing counts as passed.
DECISIVE = frozenset(
    {
        "marker_repeated",
        "marker_missing",
        "log_unreadable",
        "status_unexplained",
        "failures_unreported",
    }
)
PASSING = frozenset({"PASSED", "XFAIL"})
_SUMMARY = re.compile(r"^=+ short test summary info =+$", re.MULTILINE)
_LINE = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (\S[^\r\n]*)", re.MULTILINE)
# `set -x` writes this before the echo's own line.
_TRACED_ECHO = re.compile(r"\++ echo ")
_HARNESS_STATUS = re.compile(rf"^{EXIT}: (-?\d{{1,9}})$", re.MULTILINE)


def mark_script(script: str, nonce: str) -> str:
    """Returns `script` with a line of the grader's before the tests and two after them.

    A script without the harness's markers stays as it is.
    """
    # The harness's markers are known to everybody, so tested code may print them; the nonce it cannot know.
    lines = script.split("\n")
    starts = [index for index, line in enumerate(lines) if START in line]
    ends = [index for index, line in enumerate(lines) if (EXIT if EXIT in script else END) in line]
    if starts and ends:
        lines.insert(ends[-1] + 1, f"echo 'swe_rl {nonce} end'")
        if EXIT not in script:
            lines.insert(ends[-1] + 1, f"echo 'swe_rl {nonce} status '$swe_rl_status")
            lines.insert(ends[-1], "swe_rl_status=$?")
        lines.insert(starts[-1], f"echo 'swe_rl {nonce} begin'")
    return "\n".join(lines)


def status_of_tests(log: str, nonce: str, otherwise: int | None) -> int | None:
    """Returns the exit status of what ran between the markers of a script by `mark_script`, or else `otherwise`."""
    statuses = re.findall(rf"^swe_rl {re.escape(nonce)} status (\d+)$", log, re.MULTILINE)
    statuses = statuses or _HARNESS_STATUS.findall(log)  # the harness's own line says it
    return int(statuses[-1]) if statuses else otherwise


def check_status(status: int | None, log: str, statuses: Mapping[str, str]) -> list[str]:
    """Returns the names of contradictions between the tests' exit status and the tests that the log names."""
    passes = any(word in PASSING for word in statuses.values())
    if status is None or not passes:
        return []
    region = region_of(log)
    if status and not failing_lines(region) and FAILING.isdisjoint(statuses.values()):
        return ["status_unexplained"]
    # A name alone may be a line of the program's own log, which begins with the same word: ERROR.
    return ["failures_unreported"] if not status and failing_lines(region) else []


def commands_of_tests(script: str) -> str:
    """Returns what an evaluation script runs between its markers, or all of a script without markers."""
    return script.split(START, 1)[-1].split(END, 1)[0]


def region_of(log: str) -> str:
    """Returns what the tests printed: all of it after their beginning, also where they never came to their end."""
    return log.split(START, 1)[-1].split(END, 1)[0]


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


def check_markers(log: str, nonce: str) -> list[str]:
    """Returns the name of a finding unless the markers are as an honest run prints them.

    Each is there once and in order between the grader's own two lines, and none is outside of them.
    """
    text = "\n" + log.replace("\r\n", "\n")
    before, begin, rest = text.partition(f"\nswe_rl {nonce} begin\n")
    if not begin:  # the tests were not reached, or the script has no markers
        return ["marker_repeated"] if before.count(START) > 1 or before.count(END) > 1 else []
    inside, end, after = rest.partition(f"\nswe_rl {nonce} end\n")
    if any(marker in outside for marker in (START, END) for outside in (before, after)):
        return ["marker_repeated"]
    lines = [line for line in lines_of(inside, ends=False) if not _TRACED_ECHO.match(line)]
    starts = [index for index, line in enumerate(lines) if START in line]
    ends = [index for index, line in enumerate(lines) if END in line]
    exits = [index for index, line in enumerate(lines) if line.startswith(EXIT)]
    if max(len(starts), len(ends), len(exits)) > 1:
        return ["marker_repeated"]
    whole = bool(end and starts and ends) and starts < ends and (not exits or ends < exits)
    return [] if whole else ["marker_missing"]
