"""Rules of somebody's own: said by job=check and before a start, and never the reason for a traceback."""

import time

import pytest

from swe_rl.check.check import check_config
from swe_rl.check.findings import error
from swe_rl.check.foreign import ForeignRule
from swe_rl.cli.dispatch import may_start
from swe_rl.config.choices import ExtensionKind
from swe_rl.config.compose import compose
from swe_rl.extension.find import Foreign
from swe_rl.extension.make import ExtensionFailure
from swe_rl.testing import ConformanceError, check_rule

GOOD = '''
from swe_rl.api import error, warning

class Mine:
    """Keeps groups small."""

    def __init__(self, most: int = 4):
        self.most = most

    def findings(self, config):
        if config.rollout.n > self.most:
            yield error("small", "rollout.n", "a group is too large", f"rollout.n={self.most}")
        if config.trainer.seed == 0:
            yield warning("seed", "trainer.seed", "everybody takes it", "trainer.seed=1")
'''
MAKER = Foreign(ExtensionKind.rule, "mine", "theirs.Mine", "rule._target_")


def composed(package, source, *words):
    return compose(["rule._target_=theirs.Mine", f"job.code=[{package('theirs', source)}]", *words])


def test_what_it_says_is_said_by_the_check_and_before_a_start(package, capsys):
    made = composed(package, GOOD)
    findings = [finding for finding in check_config(made.config, made.origins) if finding.rule_id in ("small", "seed")]
    assert [(it.severity, it.key, it.value) for it in findings] == [
        ("error", "rollout.n", 8),
        ("warning", "trainer.seed", 0),
    ]
    assert not may_start(made)
    started = " ".join(capsys.readouterr().err.split())
    assert "error [small] rollout.n=8" in started and "Nothing was started." in started
    assert all(finding.message in started and finding.fix in started for finding in findings)
    assert may_start(composed(package, GOOD, "+rule.params.most=8"))
    assert "[small]" not in capsys.readouterr().err


@pytest.mark.parametrize("job", ["serve", "prepare", "simulate", "eval", "rollout"])
def test_every_job_asks_it(package, job):
    made = composed(package, GOOD, f"job={job}")
    assert "small" in {finding.rule_id for finding in check_config(made.config)}
    asked = composed(package, GOOD, "job=check", f"job.of={job}")
    assert "small" in {finding.rule_id for finding in check_config(asked.config)}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("1 / 0\nclass Mine:\n    def findings(self, config): ...\n", "importing theirs raised ZeroDivisionError"),
        (
            "class Mine:\n    def __init__(self): raise OSError('x')\n    def findings(self, config): ...\n",
            "OSError: x",
        ),
        ("class Mine:\n    def findings(self, config):\n        raise KeyError('x')\n", "findings raised KeyError"),
        ("class Mine:\n    def findings(self, config):\n        return ['no']\n", "swe_rl.api.error"),
        ("class Mine:\n    def findings(self, config):\n        return None\n", "findings raised TypeError"),
        ("import nowhere_at_all\nclass Mine:\n    def findings(self, config): ...\n", "nowhere_at_all"),
        ("class Mine:\n    pass\n", "has no method findings(config)"),
    ],
)
def test_a_wrong_one_is_one_finding_that_names_it(package, source, words):
    made = composed(package, source)
    [finding] = [it for it in check_config(made.config) if it.rule_id in ("own_rule", "extension")]
    assert words in finding.message and "theirs.Mine" in finding.message and "\n" not in finding.message
    assert not may_start(made)


def test_one_that_hangs_or_names_no_key_is_named():
    class Hangs:
        def findings(self, config):
            time.sleep(30)

    class Elsewhere:
        def findings(self, config):
            return [error("x", "rollout.number", "m", "f")]

    config = compose([]).config
    with pytest.raises(ExtensionFailure, match=r"theirs\.Mine.*did not end within 0.1 s"):
        ForeignRule(Hangs(), MAKER, limit_s=0.1).findings(config)
    with pytest.raises(ExtensionFailure, match=r"rollout\.number, which is no key"):
        ForeignRule(Elsewhere(), MAKER).findings(config)


class Forgets:
    """Refuses what it saw before."""

    def __init__(self):
        self.seen = False

    def findings(self, config):
        said, self.seen = self.seen, True
        return [error("seen", "rollout.n", "again", "rollout.n=1")] if said else []


class Nothing:
    def findings(self, config):
        return []


def test_conformance_finds_what_remembers_and_what_lets_pass():
    with pytest.raises(ConformanceError, match="the same of the same configuration"):
        check_rule(Forgets)
    with pytest.raises(ConformanceError, match=r"must refuse rollout\.n=16"):
        check_rule(Nothing, refused=["rollout.n=16"])
    check_rule(Nothing)
