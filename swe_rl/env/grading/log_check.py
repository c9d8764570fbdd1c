"""What in an evaluation log cannot come from an honest test run.

Invariants:
- Pure; the official reader's verdict is not changed here, the findings are named and the grader draws the conclusion.
- No pattern takes more time than the log is long: tested code writes the log.
- After a finding of `DECISIVE` nothing counts as passed: the words of such a run prove nothing. The others are hints.
"""

import re
from collections.abc import Mapping

START, END, EXIT = ">>>>> Start Test Output", ">>>>> End Test Output", ">>>>> Test Exit Code"
DECISIVE = frozenset(
    {
        *("marker_repeated", "marker_missing", "status_contradicted", "no_closing_line"),
        *("witness_missing", "results_forged", "results_unsigned", "runner_changed", "environment_changed"),
        *("ended_early", "log_unreadable"),
    }
)
PASSING = frozenset({"PASSED", "XFAIL"})
_PYTEST_END = re.compile(
    r"^=* ?\d+ (?:passed|failed|errors?|skipped|xfailed|xpassed|deselected|warnings?)\b.* in [\d.:]+",
    re.MULTILINE,
)
_ENDS = {
    "parse_log_django": re.compile(r"^Ran \d+ tests? in [\d.]+s", re.MULTILINE),
    "parse_log_sympy": re.compile(r"^[^\w\n]{0,300}tests finished: .*, in [\d.]+ seconds", re.MULTILINE),
}
_PYTEST = re.compile(
    r"^(?:\++ )?(?:\S{0,300}python\S{0,300} -m |\S{0,300}/)?pytest\b|short test summary info|test session starts",
    re.MULTILINE,
)
_SUMMARY = re.compile(r"^=+ short test summary info =+$", re.MULTILINE)
_LINE = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (\S+)", re.MULTILINE)
_PYTEST_LINE = re.compile(r"^(PASSED|FAILED) (\S+)", re.MULTILINE)
_TRACED_ECHO = re.compile(r"\++ echo ")  # what `set -x` writes before the echo's own line
_ESCAPES = re.compile(r"\x1b\[[\d;]*m")


def mark_script(script: str, nonce: str) -> str:
    """`script` with a line of the grader's before the tests and two after them; unchanged without the markers."""
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


def status_of_tests(log: str, nonce: str, otherwise: int) -> int:
    """The exit status of what ran between the markers of a script by `mark_script`; without markers `otherwise`."""
    statuses = re.findall(rf"^swe_rl {re.escape(nonce)} status (\d+)$", log, re.MULTILINE)
    return int(statuses[-1]) if statuses else otherwise


def check_log(log: str, statuses: Mapping[str, str], parser: str, nonce: str) -> list[str]:
    """The names of what is wrong with `log`, whose tests its reader saw as `statuses`."""
    findings = _markers(log, nonce)
    region = _ESCAPES.sub("", log.split(START, 1)[-1].split(END, 1)[0])
    closing = _ENDS.get(parser, _PYTEST_END if _PYTEST.search(region) else None)
    passes = any(status in PASSING for status in statuses.values())  # a crash that left no result claims nothing
    if passes and closing is not None and not closing.search(region):
        findings.append("no_closing_line")
    if _contradicted(region, statuses):
        findings.append("status_contradicted")
    return findings


def pytest_statuses(log: str) -> dict[str, str]:
    """Test id -> status, from the last closing summary that pytest printed."""
    headers = list(_SUMMARY.finditer(log))
    return {name: status for status, name in _LINE.findall(log[headers[-1].end() :])} if headers else {}


def _markers(log: str, nonce: str) -> list[str]:
    """Between the grader's own two lines each marker once and in order, and none outside of them."""
    text = "\n" + log.replace("\r\n", "\n")
    before, begin, rest = text.partition(f"\nswe_rl {nonce} begin\n")
    if not begin:  # the tests were not reached, or the script has no markers
        return ["marker_repeated"] if before.count(START) > 1 or before.count(END) > 1 else []
    inside, end, after = rest.partition(f"\nswe_rl {nonce} end\n")
    if any(marker in outside for marker in (START, END) for outside in (before, after)):
        return ["marker_repeated"]
    lines = [line for line in inside.splitlines() if not _TRACED_ECHO.match(line)]
    starts = [index for index, line in enumerate(lines) if START in line]
    ends = [index for index, line in enumerate(lines) if END in line]
    exits = [index for index, line in enumerate(lines) if line.startswith(EXIT)]
    if max(len(starts), len(ends), len(exits)) > 1:
        return ["marker_repeated"]
    whole = bool(end and starts and ends) and starts < ends and (not exits or ends < exits)
    return [] if whole else ["marker_missing"]


def _contradicted(region: str, statuses: Mapping[str, str]) -> bool:
    """A test that pytest's lines call failed, and that the last line about it calls passed."""
    failed = {name for status, name in _PYTEST_LINE.findall(region) if status == "FAILED"}
    return any(statuses.get(name) in PASSING for name in failed)
