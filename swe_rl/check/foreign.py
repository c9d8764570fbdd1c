"""Runs a user's own rules, which refuse a configuration or warn of it beside ours.

Invariants:
- They are the only code of a user's own that a check runs. It is imported, so it had better import little.
- A rule that cannot be made, raises, hangs, or says what is no finding is an error that names it: nothing starts.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Protocol

from swe_rl.check.findings import Finding, error, value_at
from swe_rl.config.choices import ExtensionKind
from swe_rl.config.schema import Config
from swe_rl.errors import SweRlError
from swe_rl.extension.code import on_path
from swe_rl.extension.find import Foreign
from swe_rl.extension.make import LONGEST_S, NOBODY, ExtensionFailure, describe_failure, limit_time, make_extension


class Rule(Protocol):
    """Says what a run may not be, in the eyes of whoever pays for it."""

    @abstractmethod
    def findings(self, config: Config) -> Iterable[Finding]:
        """Returns findings, which `swe_rl.api.error` and `swe_rl.api.warning` make.

        An error keeps the job from starting.

        `config` is that of the job that is about to start, frozen. The method is called for every job, so it says
        nothing of what it does not mind. Whatever it raises keeps the job from starting as well.
        """
        ...


class ForeignRule:
    def __init__(self, rule: Rule, maker: Foreign, *, limit_s: float = LONGEST_S) -> None:
        self._rule = rule
        self._maker = maker
        self._limit_s = limit_s

    def findings(self, config: Config) -> list[Finding]:
        """Returns the findings with the configuration's values. Raises ExtensionFailure."""
        try:
            with limit_time(self._limit_s):
                said = list(self._rule.findings(config))
        except Exception as error:
            raise ExtensionFailure(describe_failure(self._maker, "findings", error)) from error
        return [self._checked(finding, config) for finding in said]

    def _checked(self, finding: object, config: Config) -> Finding:
        if not isinstance(finding, Finding) or not all(
            isinstance(text, str) and text.strip() for text in (finding.key, finding.message, finding.fix)
        ):
            raise ExtensionFailure(
                f"{self._maker}: its method findings must say what swe_rl.api.error and swe_rl.api.warning make, with "
                f"a key, a message and a fix, not {finding!r:.80}"
            )
        try:
            value_at(config, finding.key)
        except (AttributeError, StopIteration):
            raise ExtensionFailure(
                f"{self._maker}: its method findings names {finding.key}, which is no key of the configuration"
            ) from None
        return finding.valued(config)


def of_somebody(config: Config) -> Iterator[Finding]:
    """Yields what the chosen rule says, or what is wrong with it. It yields nothing where the rule is ours."""
    try:
        with on_path(config.job.code):
            rule, maker = make_extension(ExtensionKind.rule, config.rule, {}, NOBODY)
            said = ForeignRule(rule, maker).findings(config) if maker else []
    except SweRlError as problem:
        value = config.rule._target_ or config.rule.name
        yield error("own_rule", "rule._target_", str(problem), "mend it, or choose rule=default", value=value)
        return
    yield from said
