"""Running a pytest suite and reading its verdict test by test.

Invariants:
- No plugin, no cache and no configuration of the machine takes part: the same tree gives the same verdict.
- A test counts as passed only if pytest's closing report lists it so and pytest's exit status is one that a
  finished session has; a session that ended early (collection error, `os._exit`) passes nothing.
"""

import re
import shlex
from collections.abc import Mapping, Sequence

# 0: all passed, 1: some failed. Everything else is not a finished session.
_FINISHED = frozenset({0, 1})
_LINE = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (\S+)")
_HEADER = re.compile(r"^=+ short test summary info =+$", re.MULTILINE)

ENVIRONMENT: Mapping[str, str] = {
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "COLUMNS": "400",
}


def suite_command(test_ids: Sequence[str] = ()) -> str:
    """The files of `test_ids` are run whole (all tests without ids): a suite's order stays its own."""
    files = sorted({test.split("::")[0] for test in test_ids})
    arguments = " ".join(shlex.quote(name) for name in files)
    return f"python -m pytest -rA -q --tb=line -p no:cacheprovider {arguments}".rstrip()


def passed_tests(output: str, exit_code: int) -> dict[str, bool]:
    """Test id -> passed, from the last summary of `output`; empty when the session did not finish."""
    headers = list(_HEADER.finditer(output))
    if exit_code not in _FINISHED or not headers:
        return {}
    verdicts: dict[str, bool] = {}
    for line in output[headers[-1].end() :].splitlines():
        match = _LINE.match(line)
        if match:
            verdicts[match[2]] = match[1] in ("PASSED", "XFAIL")
    if exit_code == 0 and not all(verdicts.values()):
        return {}
    return verdicts
