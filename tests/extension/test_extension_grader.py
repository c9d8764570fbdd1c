"""Graders of somebody's own: asked by every environment of ours, and never the reason for a reward of 0."""

import asyncio
import json

import pytest

from swe_rl.check.check import check_config
from swe_rl.config.choices import ExtensionKind, GradingKind, SandboxKind
from swe_rl.config.compose import compose
from swe_rl.config.schema import EnvConfig, GraderConfig
from swe_rl.dataset.instance import Instance, Source
from swe_rl.env.env import Grade, GradeError
from swe_rl.env.grading.foreign import ForeignGrader, make_grader
from swe_rl.env.make import make_env
from swe_rl.extension.code import use_code
from swe_rl.extension.find import Foreign
from swe_rl.sandbox.sandbox import SandboxError
from swe_rl.testing import ConformanceError, check_grader

MAKER = Foreign(ExtensionKind.grader, "mine", "theirs.Mine", "grader._target_")
MINE = GraderConfig(name="mine", _target_="theirs.Mine")
COUNTS = '''
from swe_rl.api import Grade

class Mine:
    """Counts."""

    def __init__(self, config, words: str = ""):
        self.asked, self.env = 0, config.name

    async def grade(self, instance, patch, workspace, sandboxes, timeout_s):
        self.asked += 1
        return Grade(True, patch_applied=True, log_tail=f"{self.env} {instance.instance_id} {self.asked}")
'''


async def test_every_environment_of_ours_asks_it_each_time(package, tmp_path):
    use_code([package("theirs", COUNTS)])
    row = {"question_id": "a", "question": "q", "solution": "def f(): return 1", "test": "def test_f(): pass"}
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n")
    functions = EnvConfig(name="kodcode", dataset=str(tmp_path), eval_split="test", grading=GradingKind.tests)
    for config in (EnvConfig(cache_verdicts=True), functions):
        env = make_env(config, tmp_path / "cache", SandboxKind.process, MINE)
        instance = env.instances("train")[0]
        tails = [(await env.grade(instance, "x", None, 1.0)).log_tail for _ in range(2)]
        assert tails == [f"{config.name} {instance.instance_id} {number}" for number in (1, 2)]
    rows = make_env(EnvConfig(name="jsonl", dataset="x.jsonl"), tmp_path, SandboxKind.docker, MINE)
    published = Instance("a__b-1", "a/b", "c" * 40, "s", "p", "t", ("x",), (), image="a/b")
    assert (await rows.grade(published, "x", None, 1.0)).log_tail == "jsonl a__b-1 1"


def test_a_proof_is_of_the_grader_that_made_it(package, tmp_path):
    use_code([package("theirs", COUNTS)])
    instance = Instance("a", "a/b", "c" * 40, "s", "p", "t", ("x",), (), source=Source(sdist="b-1.0", python="3.9"))
    other = GraderConfig(name="mine", _target_="theirs.Mine", params={"words": "other"})
    config = EnvConfig(name="jsonl", dataset="x.jsonl")
    digests = {
        make_env(config, tmp_path, SandboxKind.process, grader).digests(instance)[0]
        for grader in (GraderConfig(), MINE, other)
    }
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ("raise LookupError('gone')", GradeError, "its method grade raised LookupError: gone"),
        ("return 1.0", GradeError, r"must return swe_rl\.api\.Grade, not 1\.0"),
        ("await asyncio.sleep(30)", GradeError, "its method grade did not end within 0.13 s"),
        ("raise SandboxError('broken')", SandboxError, "broken"),
    ],
)
def test_one_that_fails_is_a_failure_of_infrastructure(body, kind, words):
    space = {"asyncio": asyncio, "SandboxError": SandboxError}
    exec(f"class Mine:\n    async def grade(self, *_):\n        {body}\n", space)  # noqa: S102
    grader = ForeignGrader(space["Mine"](), MAKER, grace_s=0.1)
    instance = Instance("i", "r", "0" * 40, "s", "", "", (), ())
    with pytest.raises(kind, match=words) as raised:
        asyncio.run(grader.grade(instance, "", None, None, 0.01))
    assert kind is SandboxError or "theirs.Mine" in str(raised.value)


def test_ours_is_ours_and_an_environment_that_grades_itself_is_named(package):
    assert make_grader(GraderConfig(), EnvConfig()) is None
    source = f"{COUNTS}\n\nclass Env:\n    def instances(self, split): ...\n    def workspace(self, instance): ...\n"
    source += (
        "    def prompt(self, instance): ...\n    async def grade(self, instance, patch, sandboxes, timeout_s): ...\n"
    )
    words = [f"job.code=[{package('theirs', source)}]", "grader._target_=theirs.Mine"]
    assert "own_grader" not in {finding.rule_id for finding in check_config(compose(words).config)}
    [said] = [
        it for it in check_config(compose([*words, "env._target_=theirs.Env"]).config) if it.rule_id == "own_grader"
    ]
    assert said.key == "grader.name" and said.fix == "grader=default"


class Generous:
    async def grade(self, instance, patch, workspace, sandboxes, timeout_s):
        return Grade(True, patch_applied=True)


def test_conformance_finds_a_grader_that_resolves_nothing_changed():
    with pytest.raises(ConformanceError, match="a change of nothing must not be resolved"):
        check_grader(Generous)
