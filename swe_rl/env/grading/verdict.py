"""What a grader found out beyond resolved or not."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from swe_rl.env.protocol import Grade

_PASSING = frozenset({"passed", "xfailed"})


@dataclass(frozen=True, slots=True)
class Session:
    """What one pytest session proved; `tests` is empty as soon as there is a finding."""

    tests: Mapping[str, str] = field(default_factory=dict)  # test id -> passed, failed, skipped, xfailed, xpassed
    findings: tuple[str, ...] = ()
    log: str = ""
    killed: bool = False  # a process of it got SIGKILL: from outside, for memory, or from what it tested

    def passed(self, test: str) -> bool:
        """An id without its parameters' text after a space stands for all tests that begin so."""
        if test in self.tests:
            return self.tests[test] in _PASSING
        same = [outcome for name, outcome in self.tests.items() if name.split(" ", 1)[0] == test]
        return bool(same) and all(outcome in _PASSING for outcome in same)


@dataclass(frozen=True, slots=True)
class Verdict(Grade):
    """A Grade with its reasons."""

    resolution: str = ""  # the official harness's: RESOLVED_FULL, RESOLVED_PARTIAL or RESOLVED_NO
    restored: tuple[str, ...] = ()  # files of the patch that were put back before the tests ran
    infra_hint: str = ""  # the official harness's guess at a fault of the image; advice only, a log can be forged
    tests_s: float = 0.0  # of duration_s: the test run itself
    not_run: bool = False  # the patch did not apply, so nothing was run
    session: Session = field(default_factory=Session)  # of pytest gradings
