"""Whatever a user gives a key, the answer is a ConfigError or findings; never an error of ours."""

from contextlib import contextmanager, suppress

import pytest

from swe_rl.check.check import check_config
from swe_rl.check.findings import Host, report_lines
from swe_rl.config import compose as composing
from swe_rl.config.composition.values import config_hash
from swe_rl.config.explain import ConfigError, check_overrides, explain_errors
from swe_rl.config.keys import key_types
from swe_rl.config.secrets import hide_secrets
from swe_rl.errors import UserError

STRANGE = [
    "", "''", "-1", "1e400", "9" * 40, "nan", "null", "[1,-2,null]", "{a:1}", "true", "${nope}", "${oc.env:NOPE}",
    "???", "${rollout}", "'ключ ☃'", "'a\0b'", "x" * 5000, "'~nobody-here/x'", "'../../etc'", "'{0} %s {'", "1_000",
    "'--flag=1 *[?'", "'2'", "0x10", "'http://[::1'",
]  # fmt: skip
KEYS = sorted(key_types())
HOST = Host(environment={}, version=lambda _: "")


def answers(pairs, monkeypatch):
    """The findings of each override that composes, and the messages of the others."""
    refusals = []

    @contextmanager
    def collected(overrides, config_dir=None):
        try:
            with explain_errors(overrides, config_dir):
                yield
        except UserError as error:
            refusals.append(str(error))

    jobs = []
    for key, value in pairs:
        try:
            (override,) = hide_secrets([f"{key}={value}"], {})
            check_overrides([override])
            jobs.append([override])
        except UserError as error:
            refusals.append(str(error))
    monkeypatch.setattr(composing, "explain_errors", collected)
    found = []
    for composed in composing._compose_chunk(jobs, None):
        findings = check_config(composed.config, composed.origins, HOST)
        found += [report_lines(finding, 100) for finding in findings]
        composing.resolved_yaml(composed)
        config_hash(composed.config)
    return refusals, found


def are_plain(refusals):
    assert all(text.strip() and "\n" not in text and "Traceback" not in text for text in refusals)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_each_key_survives_some_strange_value(part, monkeypatch):
    pairs = [(key, STRANGE[(index + 7 * part) % len(STRANGE)]) for index, key in enumerate(KEYS)]
    refusals, found = answers(pairs[part::5], monkeypatch)
    are_plain(refusals)
    assert refusals and found


@pytest.mark.long
@pytest.mark.parametrize("value", STRANGE, ids=range(len(STRANGE)))
def test_every_key_survives_every_strange_value(value, monkeypatch):
    are_plain(answers([(key, value) for key in KEYS], monkeypatch)[0])


def test_a_value_that_no_grammar_reads_is_a_mistake_of_the_user():
    for text in ("rollout.n=[", "rollout.n={", "rollout.n='", "rollout.n=${", "rollout.n=a b'c"):
        with pytest.raises(ConfigError):
            composing.compose([text])
    with suppress(ConfigError):
        composing.compose([f"rollout.n={'9' * 6000}"])
