"""Somebody's own code in the hands of the run: made by name, and each way to be wrong in one paragraph."""

import asyncio
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import get_args

import pytest

from swe_rl.agent.agent import AgentError, AgentResult, Assignment, Exit, Task
from swe_rl.agent.client import ContextOverflow
from swe_rl.agent.foreign import ForeignAgent
from swe_rl.agent.make import AGENTS
from swe_rl.algo.foreign.advantage import ForeignAdvantage, make_advantage
from swe_rl.algo.own_algorithm import RewardGroup
from swe_rl.check.rules.agent import AGENT_TOOLS
from swe_rl.cli.help import help_text
from swe_rl.config import folders
from swe_rl.config.choices import ROUTERS, ExtensionKind
from swe_rl.config.compose import compose
from swe_rl.config.schema import AdvantageConfig, AlgoConfig, Extensible, RewardConfig
from swe_rl.dataset.instance import InstanceError
from swe_rl.env.env import GradeError
from swe_rl.env.foreign import ForeignEnv
from swe_rl.errors import UserError
from swe_rl.extension.code import code_facts, copy_code, use_code
from swe_rl.extension.find import API_NAMES, Foreign, find_problems
from swe_rl.extension.kinds import CONTRACTS
from swe_rl.extension.make import ExtensionError, ExtensionFailure, make_extension
from swe_rl.job.describe import describe_topic
from swe_rl.logger.foreign import ForeignLogger
from swe_rl.rollout.reward import RewardError, make_reward
from swe_rl.router.core import EngineAdded, Place, RequestArrived, Router, Tick
from swe_rl.router.foreign import ForeignPolicy
from swe_rl.router.make import POLICIES
from swe_rl.sandbox.sandbox import SandboxError
from swe_rl.testing import an_attempt

MAKER = Foreign(ExtensionKind.agent, "mine", "theirs.Mine", "agent._target_")


def test_names_of_ours_are_those_that_rules_know():
    options = (folders.conf_dir() / "agent").glob("*.yaml")
    by_target = {option.stem for option in options if option.read_text().count("\n_target_: swe_rl.")}
    assert by_target and not by_target & set(AGENTS)
    assert set(AGENTS) | by_target == set(AGENT_TOOLS) and set(POLICIES) == set(ROUTERS)


def made(package, source, **params):
    use_code([package("theirs", source)])
    group = Extensible(name="mine", _target_="theirs.Mine", params=params)
    return make_extension(ExtensionKind.reward, group, {}, {}, limit_s=1.0)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("1 / 0\n\nclass Mine:\n    def reward(self, attempt): pass\n", "importing theirs raised ZeroDivisionError"),
        ("def Mine():\n    raise OSError('no disk')\n", "its construction raised OSError: no disk"),
        ("def Mine():\n    return object()\n", "object has no method reward(attempt)"),
        ("def Mine(*, **more): pass\n", "is not Python"),
        ("def Mine(needed): pass\n", "theirs.Mine needs needed"),
        ("import time\n\ndef Mine():\n    time.sleep(30)\n", "its construction did not end within 1 s"),
        ("import time\ntime.sleep(30)\n\ndef Mine(): pass\n", "importing theirs did not end within 1 s"),
        ("Mine = 5\n", "has no class or function Mine"),
    ],
)
def test_each_way_to_be_wrong_is_one_paragraph_that_names_the_class(package, source, words):
    began_s = time.monotonic()
    with pytest.raises(ExtensionError) as raised:
        made(package, source)
    assert words in str(raised.value) and "theirs.Mine" in str(raised.value) and "\n" not in str(raised.value)
    assert raised.value.exit_status == 2 and time.monotonic() - began_s < 20


def test_a_name_that_nobody_has():
    with pytest.raises(UserError, match="reward=nope is not known; choose one of default"):
        make_extension(ExtensionKind.reward, RewardConfig(name="nope"), {}, {"default": "x.y"})


def test_lists_of_params_are_lists(package):
    source = (
        "class Mine:\n    def __init__(self, words):\n        self.words = words\n    def reward(self, attempt): pass\n"
    )
    mine, maker = made(package, source, words=("a", ("b",)))
    assert mine.words == ["a", ["b"]] and str(maker) == "reward=mine (theirs.Mine)"


def test_an_entry_point_of_an_installed_package_is_found_by_name(tmp_path, package, monkeypatch):
    folder = package(
        "theirs", "class Mine:\n    failure = -1.0\n    async def reward(self, attempt):\n        return 2\n"
    )
    info = folder / "theirs-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[swe_rl.reward]\nmine = theirs:Mine\ndefault = theirs:Mine\n")
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    folders.find_offered.cache_clear()
    try:
        assert folders.extension_names() == {"reward": ["mine"]}, "a name of ours stays ours"
        reward = make_reward(RewardConfig(name="mine"), 1.0)
        assert "  reward=mine  theirs.Mine, theirs 1.2\n" in help_text()
        config = compose([]).config
        assert describe_topic(config, "reward")[0]["options"]["mine"] == "theirs.Mine, of the package theirs 1.2"
        assert describe_topic(config, "reward/mine")[0]["file"] == "_target_: theirs.Mine\n"
        assert reward.failure == -1.0 and asyncio.run(reward.reward(an_attempt(resolved=True))) == 2.0
    finally:
        folders.find_offered.cache_clear()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise ValueError('no server')", "its method reward raised ValueError: no server"),
        ("return None", "must return a finite number, not None"),
        ("return float('nan')", "must return a finite number, not nan"),
        ("return -1e308", r"a finite number, not -1e\+308 \(the largest size is 1e\+12\)"),
        ("return 10**400", "a finite number, not 1000"),
        ("return 10**5000", "a finite number, not a value of type int"),
        ("import asyncio; await asyncio.sleep(30)", "did not end within rollout.grade_timeout_s=0.1"),
    ],
)
def test_a_reward_that_fails_is_a_grade_error_and_never_zero(package, body, words):
    use_code([package("theirs", f"class Mine:\n    async def reward(self, attempt):\n        {body}\n")])
    reward = make_reward(RewardConfig(name="mine", _target_="theirs.Mine"), 0.1)
    with pytest.raises(RewardError, match=words) as raised:
        asyncio.run(reward.reward(an_attempt(resolved=True)))
    assert isinstance(raised.value, GradeError) and "reward=mine (theirs.Mine)" in str(raised.value)


@pytest.mark.parametrize("failure", ["float('nan')", "-1e308", "None"])
def test_a_reward_of_failures_that_is_no_number_is_refused_at_the_start(package, failure):
    use_code([package("theirs", f"class Mine:\n    failure = {failure}\n    def reward(self, attempt): return 1.0\n")])
    with pytest.raises(UserError, match="its failure must be a finite number"):
        make_reward(RewardConfig(name="mine", _target_="theirs.Mine"), 0.1)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise ValueError('no server')", "its method turn_rewards raised ValueError: no server"),
        ("return [1.0]", "must return 2 finite numbers"),
        ("return [1.0, None]", "must return 2 finite numbers"),
        ("return [1e308, 10**400]", r"must return 2 finite numbers, not \[1e\+308"),
        ("return 5", "its method turn_rewards: 'int' object is not iterable"),
        ("import asyncio; await asyncio.sleep(30)", "did not end within rollout.grade_timeout_s=0.1"),
    ],
)
def test_turns_that_are_paid_wrongly_are_a_grade_error(package, body, words):
    reward = "    pays_turns = True\n\n    def reward(self, attempt):\n        return 1.0\n"
    turns = f"    async def turn_rewards(self, attempt):\n        {body}\n"
    use_code([package("theirs", f"class Mine:\n{reward}\n{turns}")])
    own = make_reward(RewardConfig(name="mine", _target_="theirs.Mine"), 0.1)
    with pytest.raises(RewardError, match=words) as raised:
        asyncio.run(own.turn_rewards(an_attempt(resolved=True)))
    assert "theirs.Mine" in str(raised.value)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise KeyError('x')", "its method advantages raised KeyError"),
        ("return []", "a list for each of 1 groups, not 0"),
        ("return [[1.0]]", "must return 3 finite numbers"),
        ("return [[1.0, None, 2.0]]", "must return 3 finite numbers"),
        ("return [[1.0, float('inf'), 2.0]]", "must return 3 finite numbers"),
        ("return [[1.0, 1e13, 2.0]]", "must return 3 finite numbers"),
    ],
)
def test_wrong_advantages_end_the_run_with_the_class(package, body, words):
    use_code([package("theirs", f"class Mine:\n    def advantages(self, groups):\n        {body}\n")])
    estimator = make_advantage(AdvantageConfig(name="mine", _target_="theirs.Mine"), AlgoConfig())
    with pytest.raises(ExtensionFailure, match=words) as raised:
        estimator.advantages([RewardGroup((1.0, 0.0, None), (True, True, False), (1.0, 0.0, None))])
    assert "theirs.Mine" in str(raised.value) and raised.value.exit_status == 1


def test_advantages_that_hang_end_the_run_with_the_class():
    class Hangs:
        def advantages(self, groups):
            time.sleep(30)

    with pytest.raises(ExtensionFailure, match=r"theirs\.Mine.*its method advantages did not end within 0.1 s"):
        ForeignAdvantage(Hangs(), MAKER, limit_s=0.1).advantages([])


def test_members_outside_the_baseline_have_no_advantage(package):
    use_code([package("theirs", "class Mine:\n    def advantages(self, groups):\n        return [[1, 2, 3]]\n")])
    estimator = make_advantage(AdvantageConfig(name="mine", _target_="theirs.Mine"), AlgoConfig())
    group = RewardGroup((1.0, None, 0.0), (True, True, False), (1.0, None, 0.0))
    assert estimator.advantages([group]) == [[1.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise ValueError('x')", "must|raised ValueError: x"),
        ("return tokens.logprobs.sum()", r"a tensor of shape \(3,\), not \(\)"),
        ("return 5", r"a tensor of shape \(3,\), not int"),
        ("return tokens.logprobs * float('nan')", "a number that is not finite"),
        ("return tokens.logprobs.detach() - 1.0", "without a gradient: compute it from tokens.logprobs"),
    ],
)
def test_a_wrong_loss_ends_the_run_with_the_class(package, body, words):
    import torch

    from swe_rl.algo.foreign.loss import make_loss
    from swe_rl.algo.own_algorithm import LossTokens
    from swe_rl.config.schema import LossConfig

    use_code([package("theirs", f"class Mine:\n    def loss(self, tokens):\n        {body}\n")])
    formula = make_loss(LossConfig(name="mine", _target_="theirs.Mine"), AlgoConfig())
    with pytest.raises(ExtensionFailure, match=words):
        formula.loss(LossTokens(torch.zeros(3, requires_grad=True), *(torch.zeros(3) for _ in range(4))))


EVERY_METHOD = [(kind, method) for kind in ExtensionKind for method in CONTRACTS[kind].methods]


@pytest.mark.parametrize(("kind", "wrong"), EVERY_METHOD)
@pytest.mark.parametrize("arguments", [None, ("quite", "other", "things", "than", "it", "gets")])
def test_a_method_that_is_missing_or_takes_other_things_is_named_before_and_after_it_is_made(
    package, kind, wrong, arguments
):
    methods = dict(CONTRACTS[kind].methods) | ({wrong: arguments} if arguments else {})
    if not arguments:
        del methods[wrong]
    body = "".join(f"    def {name}(self, {', '.join(names)}): ...\n" for name, names in methods.items())
    call = f"{wrong}({', '.join(CONTRACTS[kind].methods[wrong])})"
    use_code([package("theirs", f"class Mine:\n    pass\n{body}\n\ndef made():\n    return Mine()\n")])
    [said] = find_problems(Foreign(kind, "mine", "theirs.Mine", "-"), Extensible(), ())
    assert said.message.startswith("theirs.Mine") and call in said.message and "docs/extending.md" in said.fix
    for target in ("theirs.Mine", "theirs.made"):  # what a function returns is known once it is made
        with pytest.raises(ExtensionError) as raised:
            make_extension(kind, Extensible(name="mine", _target_=target), {}, {})
        assert call in str(raised.value) and target in str(raised.value) and "\n" not in str(raised.value)


class Says:
    def __init__(self, answer):
        self.answer = answer

    async def run(self, work):
        if isinstance(self.answer, BaseException):
            raise self.answer
        if self.answer == "hangs":
            await asyncio.Event().wait()
        return self.answer


WORK = Assignment(Task("i", "p"), "http://127.0.0.1:1", "m", None, 0.05)


def test_an_agent_that_fails_is_a_failure_of_infrastructure():
    for answer, words in ((ValueError("lost"), "its method run raised ValueError: lost"), (None, "must return")):
        with pytest.raises(AgentError, match=words) as raised:
            asyncio.run(ForeignAgent(Says(answer), MAKER).run(WORK))
        assert "agent=mine (theirs.Mine)" in str(raised.value)
    with pytest.raises(SandboxError, match="broken"):
        asyncio.run(ForeignAgent(Says(SandboxError("broken")), MAKER).run(WORK))


def test_an_agent_that_hangs_or_overflows_ends_as_what_it_is():
    hangs = asyncio.run(ForeignAgent(Says("hangs"), MAKER, grace_s=0.05).run(WORK))
    overflows = asyncio.run(ForeignAgent(Says(ContextOverflow("x")), MAKER).run(WORK))
    assert (hangs.exit, overflows.exit) == (Exit.AGENT_TIMEOUT, Exit.CONTEXT_OVERFLOW)
    result = AgentResult(Exit.SUBMITTED)
    assert asyncio.run(ForeignAgent(Says(result), MAKER).run(WORK)) is result


class Everything:
    """An environment whose every method does the same."""

    def __init__(self, act):
        self.instances = self.workspace = self.prompt = self.left_out = act

    async def grade(self, *_):
        return self.prompt()


def raises(*_):
    raise LookupError("gone")


def test_an_environment_that_fails_names_itself_and_is_never_a_verdict():
    env = ForeignEnv(Everything(raises), MAKER)
    instance = an_attempt(resolved=True).instance
    cases = [
        (InstanceError, lambda: env.instances("train")),
        (InstanceError, lambda: env.left_out("train")),
        (SandboxError, lambda: env.workspace(instance)),
        (SandboxError, lambda: env.prompt(instance)),
        (GradeError, lambda: asyncio.run(env.grade(instance, "", None, 1.0))),
    ]
    for kind, call in cases:
        with pytest.raises(kind, match=r"theirs\.Mine.*raised LookupError: gone"):
            call()
    assert env.split_instances("train") is None
    nothing = ForeignEnv(Everything(lambda *_: []), MAKER)
    with pytest.raises(InstanceError, match="at least one"):
        nothing.instances("train")
    with pytest.raises(GradeError, match=r"swe_rl\.api\.Grade"):
        asyncio.run(nothing.grade(instance, "", None, 1.0))


class Places:
    tick_s = None

    def __init__(self, act):
        self.act = act

    def initial(self, engines):
        return {}

    def step(self, state, event, now_s):
        return self.act(event)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (raises, "its method step raised LookupError"),
        (lambda event: [Place(event.request_id, "moon")], "placed a request on 'moon'; there are a"),
        (lambda event: [Place("other", "a")], "placed 'other', which does not wait"),
        (lambda event: [Place(event.request_id, "a")] * 2, "placed 'r', which does not wait"),
        (lambda event: ["a"], "must return swe_rl.api.Place objects"),
    ],
)
def test_a_router_that_fails_says_so_to_each_request_and_holds_none(act, words):
    router = Router(ForeignPolicy(Places(act), MAKER), ("a",))
    for name in ("r", "s"):
        with pytest.raises(ExtensionFailure, match="theirs.Mine") as raised:
            router.handle(RequestArrived("p", name, 1), 0.0)
        assert words in str(raised.value)


def test_a_router_that_hangs_is_interrupted_at_its_first_step_or_before():
    def hangs(*_):
        time.sleep(30)

    policy = Places(hangs)
    router = Router(ForeignPolicy(policy, MAKER, limit_s=0.1), ("a",))
    with pytest.raises(ExtensionFailure, match=r"theirs\.Mine.*its method step did not end within 0.1 s"):
        router.handle(RequestArrived("p", "r", 1), 0.0)
    policy.initial = hangs
    with pytest.raises(ExtensionFailure, match=r"theirs\.Mine.*its method initial did not end within 0.1 s"):
        Router(ForeignPolicy(policy, MAKER, limit_s=0.1), ("a",))
    policy.initial = raises
    with pytest.raises(ExtensionFailure, match=r"theirs\.Mine.*its method initial raised LookupError: gone"):
        Router(ForeignPolicy(policy, MAKER), ("a",))


def test_requests_that_wait_are_let_go_when_a_router_fails():
    policy = Places(lambda event: raises() if isinstance(event, Tick) else [])
    router = Router(ForeignPolicy(policy, MAKER), ())
    assert router.handle(RequestArrived("p", "r", 1), 0.0) == []
    assert router.handle(Tick(()), 1.0) == []
    assert router.handle(EngineAdded("a"), 2.0) == [Place("r", "a")]


class Notes:
    def __init__(self):
        self.calls = []

    def log(self, record, step):
        self.calls.append((record, step))
        if step == 2:
            raise OSError("disk")


def test_a_logger_that_fails_is_one_warning(caplog):
    notes = Notes()
    logger = ForeignLogger(notes, MAKER)
    logger.start()
    for step in (1, 2, 3):
        logger.log({"step": step}, step)
    logger.summarize({})
    logger.finish(0)
    assert [step for _, step in notes.calls] == [1, 2]
    assert [record.message for record in caplog.records] == [
        "agent=mine (theirs.Mine): its method log raised OSError: disk; the run goes on without it"
    ]


@pytest.mark.parametrize("method", ["summarize", "finish"])
def test_what_a_logger_does_at_the_end_cannot_end_the_run_otherwise(caplog, method):
    notes = Notes()
    setattr(notes, method, raises)
    logger = ForeignLogger(notes, MAKER)
    logger.start()
    logger.log({}, 1)
    logger.summarize({})
    logger.finish(0)
    [said] = [record.message for record in caplog.records]
    assert said == f"agent=mine (theirs.Mine): its method {method} raised LookupError: gone; the run goes on without it"


def test_a_logger_that_hangs_ends_with_the_run(caplog):
    notes = Notes()
    notes.log = lambda *_: time.sleep(5)
    logger = ForeignLogger(notes, MAKER, finish_timeout_s=0.05)
    logger.start()
    began_s = time.monotonic()
    logger.log({}, 1)
    logger.finish(0)
    assert time.monotonic() - began_s < 3 and "did not finish" in caplog.text


def test_code_comes_along_without_runs_and_without_what_python_makes(tmp_path):
    source = tmp_path / "work"
    for name in ("mine/agent.py", "mine/data.json", "mine/__pycache__/agent.pyc", ".git/HEAD", "outputs/run/big.bin"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    sweep = source / "outputs" / "sweep"
    [copy] = copy_code([str(source)], sweep / "frozen" / "code", sweep)
    files = sorted(str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file())
    assert files == ["mine/agent.py", "mine/data.json"]
    [before] = code_facts([source], sweep)
    assert before.files == 2 and code_facts([copy], sweep)[0].sha256 == before.sha256
    (source / "mine" / "agent.py").write_text("other")
    assert code_facts([source], sweep)[0].sha256 != before.sha256


def test_an_option_file_names_a_class_and_is_called_as_its_file(tmp_path):
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "careful.yaml").write_text("# Careful.\n_target_: a.B\nparams: {tries: 3, deep: {x: [1]}}\n")
    config = compose(["agent=careful", "agent.params.tries=4"], tmp_path).config
    assert config.agent.name == "careful" and config.agent._target_ == "a.B"
    assert config.agent.params == {"tries": 4, "deep": {"x": (1,)}}
    assert compose(["agent._target_=a.B"]).config.agent.name == "B", "never one of ours"


def test_contracts_are_what_the_protocols_promise():
    import swe_rl.api as api

    for kind, contract in CONTRACTS.items():
        protocol = getattr(api, API_NAMES[kind])
        assert set(contract.methods) == set(protocol.__abstractmethods__), kind
        for name, value in contract.declares.items():
            assert getattr(protocol, name, value) == value, (kind, name)
        for method, names in contract.methods.items():
            code = getattr(protocol, method).__code__
            assert code.co_varnames[1 : code.co_argcount] == names, (kind, method)


def test_the_public_surface_is_what_it_was():
    """A change here breaks other people's code: raise swe_rl.api.API_VERSION, and say so in CHANGELOG."""
    golden = Path(__file__).parent / "public_surface.json"
    if os.environ.get("SWE_RL_WRITE_GOLDEN"):
        golden.write_text(json.dumps(surface(), indent=1, sort_keys=True) + "\n")
    assert surface() == json.loads(golden.read_text())


def test_a_router_of_ones_own_is_tried_with_every_event_and_can_name_each():
    import swe_rl.api as api
    from swe_rl.router.core import Event
    from swe_rl.testing import _EVENTS

    kinds = set(get_args(Event))
    assert kinds == {type(event) for event in _EVENTS}
    assert {kind.__name__ for kind in kinds} <= set(api.__all__)


def surface():
    import dataclasses
    import inspect

    import swe_rl.api as api
    import swe_rl.testing as testing

    def signature(function):
        return re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(function)))

    def shown(value):
        if dataclasses.is_dataclass(value):
            return {field.name: str(field.type) for field in dataclasses.fields(value)}
        if inspect.isclass(value):
            members = {name: function for name, function in vars(value).items() if inspect.isfunction(function)}
            public = {name: signature(function) for name, function in members.items() if name[0] != "_"}
            return public | {name: str(hint) for name, hint in vars(value).get("__annotations__", {}).items()}
        return signature(value) if inspect.isfunction(value) else str(value)

    names = {name: shown(getattr(api, name)) for name in api.__all__}
    checks = {name: shown(value) for name, value in vars(testing).items() if name.startswith(("check_", "an_attempt"))}
    ours = {"AgentConfig", "AlgoConfig", "EnvConfig", "RouterConfig", "Event"}  # the schema's keys, which only grow
    return {name: value for name, value in names.items() if name not in ours} | checks
