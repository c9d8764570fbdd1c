"""Each way an attempt can end, its status, and that nothing of it stays open."""

import asyncio
import base64
import dataclasses
import itertools
import math
import time
from contextlib import AbstractAsyncContextManager
from types import SimpleNamespace

import pytest

from swe_rl.agent.agent import AgentError, AgentResult, Exit, Turn, UnknownEndError
from swe_rl.agent.scripted import GoldAgent, ScriptedAgent
from swe_rl.config.choices import ExtensionKind, OutcomeReward, RolloutMode, TrickPolicy
from swe_rl.config.schema import EnvConfig, OutcomeConfig, SandboxConfig
from swe_rl.engine.engine import EngineError
from swe_rl.env.bugs.env import BugsEnv
from swe_rl.env.bugs.workspace import commit_tree
from swe_rl.env.env import Grade, GradeError, InstanceLimits
from swe_rl.extension.find import Foreign
from swe_rl.gateway.live import SessionSummary
from swe_rl.gateway.session import SessionSettings
from swe_rl.gateway.trace import Break, TraceStoreError
from swe_rl.rollout.attempt import Attempter
from swe_rl.rollout.reward import ForeignReward
from swe_rl.rollout.trajectory import Order, Status, TrajectoryId
from swe_rl.sandbox.provider import make_provider
from swe_rl.sandbox.sandbox import ExecResult, OutsideError, SandboxError, Workspace
from tests.support.scripted_sandbox import ScriptedProvider

DIFF = "ZGlmZiAtLWdpdA==:"  # base64 of what git would print, and no name of a file that it could not read


class FakeGateway:
    waited = 0.0
    lost = None  # a future

    def __init__(self, close_error=None, **ended):
        self.opened, self.closed, self._close_error, self._ended = [], [], close_error, ended

    def open_session(self, session_id, settings):
        self.opened.append((session_id, settings))

    def session_url(self, session_id):
        return f"http://gateway/{session_id}"

    def waited_s(self, session_id):
        assert session_id in [name for name, _ in self.opened]
        return self.waited

    def ended(self, session_id):
        return self.lost

    async def close_session(self, session_id):
        self.closed.append(session_id)
        if self.lost is not None:
            return self.lost.result()
        if self._close_error:
            raise self._close_error
        breaks, counts = {Break.branch: 1, Break.duplicate: 2}, {"superseded_replies": 1, "superseded_tokens": 9}
        return SessionSummary(2, 30, breaks, {"queue": 0.5}, **counts, **self._ended)


class FakeEnv:
    name = "fake"

    def __init__(self, grade=None, error=None, workspace=None):
        self.graded, self._grade, self._error, self._workspace = [], grade, error, workspace

    def workspace(self, instance):
        if self._workspace:
            raise self._workspace
        return Workspace()

    def prompt(self, instance):
        return instance.problem_statement

    async def grade(self, instance, patch, sandboxes, timeout_s):
        self.graded.append((patch, timeout_s))
        if self._error:
            raise self._error
        return self._grade


class EndingAgent:
    """Ends as told, or raises."""

    name = "ending"
    needs_door = False

    def __init__(self, end):
        self._end = end

    async def run(self, work):
        if isinstance(self._end, BaseException):
            raise self._end
        if self._end == "hang":
            await asyncio.sleep(60)
        return AgentResult(self._end)


@pytest.fixture
def attempt(config, instance):
    """Runs one attempt with fakes; `.gateway`, `.sandboxes` and `.env` of the result are what it used."""

    async def run(agent, *, env=None, gateway=None, respond=lambda command: DIFF, sandboxes=None, order=None, **more):
        used = SimpleNamespace(
            env=env or FakeEnv(Grade(True, True, {"t::a": True}, {"t::b": True})),
            gateway=gateway or FakeGateway(),
            sandboxes=sandboxes or ScriptedProvider(respond),
        )
        policy = more.pop("rollout", config.rollout)
        attempter = Attempter(
            used.env, agent, used.gateway, used.sandboxes, policy, config.env, model_name="tiny", **more
        )
        order = order or Order(instance(), TrajectoryId("train", 1, "one", 0, 0), SessionSettings(96, 1024))
        try:
            used.trajectory, used.result = await attempter.run(order)
        finally:
            assert used.gateway.closed == [name for name, _ in used.gateway.opened] == [order.trajectory_id]
            assert not getattr(used.sandboxes, "open_sandboxes", [])
        return used

    return run


async def test_a_submitted_change_is_graded(attempt, config):
    used = await attempt(ScriptedAgent(["true"]))
    one = used.trajectory
    assert (one.status, one.reward, one.trained, one.in_baseline) == (Status.resolved, 1.0, True, True)
    assert one.patch == "diff --git" and one.tests == {"t::a": True, "t::b": True} and one.error is None
    assert used.env.graded == [("diff --git", config.rollout.grade_timeout_s)]
    assert (one.num_calls, one.sampled_tokens, one.prefix_breaks) == (2, 30, 3)
    assert (one.superseded_replies, one.superseded_tokens) == (1, 9)
    assert {"boot", "agent", "grade", "command", "queue"} <= set(one.times_s)
    assert len(one.turns) == 1 and used.result.exit is Exit.SUBMITTED


@pytest.mark.parametrize(
    ("last", "grade", "status", "by_cut"),
    [
        (Turn(0, "I thi", None, None, format_error=True, cut_tokens=6), None, Status.format_errors, True),
        (Turn(0, "", None, None), None, Status.format_errors, True),  # a program: its turns do not say so
        (Turn(0, "```submit``` and", "submit", None, cut_tokens=9), Grade(False, True), Status.unresolved, False),
        (Turn(0, "", None, None), Grade(True, True), Status.resolved, False),
    ],
)
async def test_what_a_cut_reply_ended_says_so(attempt, last, grade, status, by_cut):
    """Else a limit of ours looks like a model that cannot write a command."""
    end = Exit.FORMAT_ERRORS if grade is None else Exit.SUBMITTED
    agent = SimpleNamespace(needs_door=False, run=lambda work: asyncio.sleep(0, AgentResult(end, [last])))
    gateway = FakeGateway(cut_replies=2, cut_last=True)
    one = (await attempt(agent, env=FakeEnv(grade), gateway=gateway)).trajectory
    assert (one.status, one.ended_by_cut, one.cut_replies) == (status, by_cut, 2)
    assert ("of its 2 replies 2 were cut" in (one.error or "")) == by_cut


class HandsIn:
    """Writes a Latin-1 text, and hands its patch in, or leaves it in the tree."""

    name = "hands_in"
    needs_door = False

    def __init__(self, is_handed_in):
        self._is_handed_in = is_handed_in

    async def run(self, work):
        encoded = await work.sandbox.exec("printf 'caf\\351\\n' > a.txt; git diff | base64 -w0", timeout_s=30)
        patch = base64.b64decode(encoded.output).decode("utf-8", "surrogateescape")
        return AgentResult(Exit.SUBMITTED, patch=patch if self._is_handed_in else None)


@pytest.mark.parametrize("is_handed_in", [True, False])
async def test_the_patch_that_is_graded_is_the_one_that_is_written(attempt, instance, tmp_path, is_handed_in):
    """Its bytes are no UTF-8: what is written as JSON would otherwise be another patch than the graded one."""
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "a.txt").write_text("tea\n")
    base = commit_tree(tmp_path / "tree")
    sandboxes = make_provider(SandboxConfig(), tmp_path / "scratch", print)
    env = FakeEnv(Grade(True, True, {"t::a": True}, {}))
    env.workspace = lambda instance: Workspace(path=tmp_path / "tree")
    order = Order(
        dataclasses.replace(instance(), base_commit=base),
        TrajectoryId("train", 1, "one", 0, 0),
        SessionSettings(96, 1024),
    )
    used = await attempt(HandsIn(is_handed_in), env=env, sandboxes=sandboxes, order=order)
    await sandboxes.close()
    [(graded, _)] = env.graded
    assert used.trajectory.patch == graded == graded.encode().decode() and "GIT binary patch" in graded


class Pays:
    """A reward of somebody's own, which remembers what it was asked."""

    def __init__(self, answer, failure=-3.0):
        self.asked, self.failure, self.pays_turns, self._answer = [], failure, True, answer

    async def reward(self, attempt):
        self.asked.append(attempt.status)
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer

    async def turn_rewards(self, attempt):
        return [0.25 for _ in attempt.turns]


def own(reward, timeout_s=1.0):
    return ForeignReward(
        reward, Foreign(ExtensionKind.reward, "mine", "theirs.Mine", "reward._target_"), timeout_s=timeout_s
    )


async def test_a_reward_of_ones_own_pays_what_was_graded(attempt):
    for grade, status in ((Grade(True, True), Status.resolved), (Grade(False, True), Status.unresolved)):
        used = await attempt(ScriptedAgent(["true"]), env=FakeEnv(grade), reward=own(pays := Pays(0.625)))
        assert (used.trajectory.status, used.trajectory.reward, pays.asked) == (status, 0.625, [status.value])
        assert used.trajectory.own_turn_rewards == [0.25]


@pytest.mark.parametrize("exit", [Exit.STEP_LIMIT, Exit.AGENT_TIMEOUT, Exit.CONTEXT_OVERFLOW])
async def test_what_was_not_graded_gets_its_failure_and_is_not_put_to_it(attempt, exit):
    used = await attempt(EndingAgent(exit), reward=own(pays := Pays(0.625)))
    assert used.trajectory.reward == -3.0 and pays.asked == []


async def test_a_reward_that_raises_or_hangs_is_a_failure_of_infrastructure_and_no_0(attempt):
    hangs = Pays(1.0)
    hangs.reward = lambda attempt: asyncio.Event().wait()
    for reward in (own(Pays(LookupError("no judge"))), own(Pays(float("nan"))), own(hangs, 0.05)):
        one = (await attempt(ScriptedAgent(["true"]), reward=reward)).trajectory
        assert (one.status, one.reward, one.trained, one.in_baseline) == (Status.grade_error, None, False, False)
        assert "reward=mine (theirs.Mine): its method reward" in one.error


async def test_infrastructure_that_failed_is_paid_by_nobody(attempt):
    used = await attempt(ScriptedAgent(["true"]), env=FakeEnv(error=GradeError("x")), reward=own(pays := Pays(1.0)))
    assert (used.trajectory.status, used.trajectory.reward, pays.asked) == (Status.grade_error, None, [])


async def test_a_place_is_given_back_before_the_grading(attempt, instance):
    seen = []

    class Looks(FakeEnv):
        async def grade(self, *arguments):
            seen.append("graded")
            return await super().grade(*arguments)

    name = TrajectoryId("train", 1, "one", 0, 0)
    order = Order(instance(), name, SessionSettings(96, 1024), lambda: seen.append("acted"))
    await attempt(ScriptedAgent(["true"]), order=order, env=Looks(Grade(True, True, {"t::a": True}, {})))
    assert seen == ["acted", "graded"]


@pytest.mark.parametrize(("mode", "most"), [(RolloutMode.stream, 2), (RolloutMode.step, 5)])
async def test_gradings_of_groups_that_flow_have_places_of_their_own(config, instance, mode, most):
    """In steps a grading has its trajectory's place, which the caller counts."""
    at_once = [0, 0]

    class Slow(FakeEnv):
        async def grade(self, *arguments):
            at_once[0] += 1
            at_once[1] = max(at_once)
            await asyncio.sleep(0.02)
            at_once[0] -= 1
            return await super().grade(*arguments)

    rollout = dataclasses.replace(config.rollout, mode=mode, concurrency=2)
    env, sandboxes = Slow(Grade(True, True, {"t::a": True}, {})), ScriptedProvider(lambda command: DIFF)
    agent = ScriptedAgent(["true"])
    attempter = Attempter(env, agent, FakeGateway(), sandboxes, rollout, config.env, model_name="tiny")
    orders = [Order(instance(), TrajectoryId("train", 1, "one", n, 0), SessionSettings(96, 1024)) for n in range(5)]
    ended = await asyncio.gather(*(attempter.run(order) for order in orders))
    assert [trajectory.status for trajectory, _ in ended] == [Status.resolved] * 5 and at_once[1] == most


LEAVES = "diff --git a/one.py b/one.py\n--- a/one.py\n+++ b/one.py\n@@ -0,0 +1 @@\n+import os; os._exit(0)\n"


async def test_words_of_a_patch_cost_no_reward(attempt):
    """One package in ten has such words in honest code. Twins find out what code does."""
    encoded = base64.b64encode(LEAVES.encode()).decode() + ":"
    one = (await attempt(ScriptedAgent(["true"]), respond=lambda command: encoded)).trajectory
    assert (one.status, one.reward, one.trained, one.cheating) == (Status.resolved, 1.0, True, {})


@pytest.mark.parametrize("policy", list(TrickPolicy))
async def test_a_forged_verdict_is_never_paid(attempt, config, policy):
    rollout = dataclasses.replace(config.rollout, tricks=policy)
    env = FakeEnv(Grade(False, True, {"t::a": False}, {"t::b": False}, findings=("twin_passed", "ended_early")))
    one = (await attempt(ScriptedAgent(["true"]), env=env, rollout=rollout)).trajectory
    assert one.status is Status.unresolved and one.reward in (None, 0.0)
    assert one.trained is (policy is not TrickPolicy.mask) and one.cheating == {"twin_passed": 1}


async def test_a_jump_of_the_wall_clock_is_in_no_time(attempt, monkeypatch):
    """An hour back or forth at every look, as a daylight-saving switch or a time server may do it once."""
    clock = itertools.cycle((-3600.0, 0.0, 3600.0))
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + next(clock))
    one = (await attempt(ScriptedAgent(["true"]))).trajectory
    assert one.status is Status.resolved
    assert {"boot", "agent", "grade"} <= set(one.times_s)
    assert all(0.0 <= seconds < 30.0 for seconds in one.times_s.values()), one.times_s


async def test_a_wrong_change(attempt):
    used = await attempt(ScriptedAgent(()), env=FakeEnv(Grade(False, True, {"t::a": False}, {"t::b": True})))
    assert (used.trajectory.status, used.trajectory.reward) == (Status.unresolved, 0.0)


async def test_nothing_changed_is_not_graded(attempt):
    used = await attempt(ScriptedAgent(()), respond=lambda command: "")
    assert (used.trajectory.status, used.trajectory.reward) == (Status.empty_patch, 0.0)
    assert used.env.graded == []


@pytest.mark.parametrize(
    ("end", "status"),
    [
        (Exit.STEP_LIMIT, Status.step_limit),
        (Exit.CONTEXT_OVERFLOW, Status.context_overflow),
        (Exit.AGENT_TIMEOUT, Status.agent_timeout),
        (Exit.FORMAT_ERRORS, Status.format_errors),
        (Exit.AGENT_CRASHED, Status.agent_crashed),
    ],
)
async def test_an_attempt_without_submission(attempt, config, end, status):
    used = await attempt(EndingAgent(end))
    rule = config.rollout.outcomes[status]
    assert used.trajectory.status is status and used.env.graded == [] and used.trajectory.patch == ""
    assert (used.trajectory.trained, used.trajectory.in_baseline) == (rule.trained, rule.in_baseline)


@pytest.mark.parametrize(
    ("ended", "status", "words"),
    [
        ({"overflowed": True}, Status.context_overflow, None),
        ({"failed": "Engine e0 failed"}, Status.engine_error, "its last call of the model failed: Engine e0 failed"),
        ({"refused": "no JSON"}, Status.request_refused, "the gateway refused its last call of the model: no JSON"),
        ({}, Status.infra_error, "status 1"),
    ],
)
async def test_a_program_s_unknown_end_is_what_the_gateway_saw(attempt, ended, status, words):
    result = AgentResult(Exit.CONTEXT_OVERFLOW, [Turn(0, "", "x", "boom")])
    used = await attempt(EndingAgent(UnknownEndError("status 1", result)), gateway=FakeGateway(**ended))
    assert (used.trajectory.status, used.trajectory.error, bool(used.trajectory.turns)) == (status, words, bool(ended))


@pytest.mark.parametrize("refused", [Status.context_overflow, Status.step_limit])
@pytest.mark.parametrize("resolved", [True, False])
async def test_a_program_that_ends_well_after_a_refused_call_is_done_where_its_tests_pass(
    attempt, config, resolved, refused
):
    env = FakeEnv(Grade(resolved, True, {"t::a": resolved}, {"t::b": True}))
    overflowed = refused is Status.context_overflow
    ended = {"overflowed": overflowed, "had_all_calls": not overflowed}
    used = await attempt(EndingAgent(Exit.SUBMITTED), env=env, gateway=FakeGateway(**ended))
    assert used.trajectory.status is (Status.resolved if resolved else refused) and used.trajectory.error is None
    assert len(used.env.graded) == 1 and used.trajectory.reward == float(resolved)
    rules = config.rollout.outcomes | {refused.value: OutcomeConfig(OutcomeReward.failure)}
    paid = {"rollout": dataclasses.replace(config.rollout, outcomes=rules), "reward": own(Pays(0.625))}
    used = await attempt(EndingAgent(Exit.SUBMITTED), env=env, gateway=FakeGateway(**ended), **paid)
    assert used.trajectory.reward == (0.625 if resolved else -3.0), "by the rule of the status that it ends in"


@pytest.mark.parametrize(
    ("ended", "diff", "resolved", "status"),
    [
        (Exit.SUBMITTED, DIFF, False, Status.request_refused),
        (Exit.SUBMITTED, "", False, Status.request_refused),
        (Exit.SUBMITTED, DIFF, True, Status.resolved),
        (Exit.AGENT_CRASHED, "", False, Status.agent_crashed),
        (Exit.STEP_LIMIT, "", False, Status.step_limit),
    ],
)
async def test_a_program_that_gives_up_after_a_refused_request_teaches_nothing(
    attempt, config, ended, diff, resolved, status
):
    """It counts as a failure, and is not tried again: else a policy could ask for another attempt at will."""
    env, gateway = FakeEnv(Grade(resolved, True)), FakeGateway(refused="no JSON", notes={"image": 2})
    used = await attempt(EndingAgent(ended), env=env, gateway=gateway, respond=lambda command: diff)
    one = used.trajectory
    assert one.status is status and one.request_notes == {"image": 2}
    if status is Status.request_refused:
        assert (one.reward, one.trained, one.in_baseline) == (0.0, False, False) and "no JSON" in one.error
        assert config.rollout.outcomes["request_refused"].retries == 0


@pytest.mark.parametrize(
    ("ended", "diff", "resolved"),
    [
        (Exit.SUBMITTED, DIFF, False),
        (Exit.SUBMITTED, DIFF, True),
        (Exit.SUBMITTED, "", False),
        (Exit.AGENT_CRASHED, "", False),
        (Exit.AGENT_TIMEOUT, "", False),
    ],
)
async def test_a_program_that_ends_after_a_call_that_failed_is_infrastructure(attempt, ended, diff, resolved):
    """Whatever its tests say: else an engine's failures would take away attempts that fail alone."""
    env, gateway = FakeEnv(Grade(resolved, True)), FakeGateway(failed="Engine e0 failed: it died")
    used = await attempt(EndingAgent(ended), env=env, gateway=gateway, respond=lambda command: diff)
    one = used.trajectory
    assert one.status is Status.engine_error and "Engine e0 failed: it died" in one.error
    assert (one.reward, one.trained, one.in_baseline) == (None, False, False)


async def test_a_program_s_turns_are_counted_by_the_gateway(attempt, config):
    ended = EndingAgent(UnknownEndError("status 1", AgentResult(Exit.CONTEXT_OVERFLOW)))
    ended.needs_door = True
    gateway = FakeGateway(had_all_calls=True)
    gateway.session_url = lambda _: "http://gateway:1/s"
    used = await attempt(ended, gateway=gateway)
    assert used.trajectory.status is Status.step_limit and used.trajectory.error is None
    [(_, settings)] = used.gateway.opened
    assert settings.max_calls == config.rollout.max_turns
    ours = await attempt(EndingAgent(Exit.STEP_LIMIT))
    assert ours.gateway.opened[0][1].max_calls is None, "which counts them itself"


def dies(command):
    raise SandboxError("the sandbox died")


@pytest.mark.parametrize(
    ("parts", "status", "words"),
    [
        ({"agent": EndingAgent(EngineError("no engine"))}, Status.engine_error, "no engine"),
        ({"agent": EndingAgent(AgentError("no agent"))}, Status.infra_error, "no agent"),
        ({"agent": ScriptedAgent(()), "respond": dies}, Status.infra_error, "sandbox died"),
        (
            {"agent": ScriptedAgent(()), "env": FakeEnv(error=GradeError("no verdict"))},
            Status.grade_error,
            "no verdict",
        ),
    ],
)
async def test_failures_of_infrastructure_have_a_status_and_words_but_no_reward(attempt, parts, status, words):
    one = (await attempt(**parts)).trajectory
    assert one.status is status and words in one.error
    assert one.reward is None and not one.trained and not one.in_baseline


@pytest.mark.parametrize("end", ["hang", Exit.SUBMITTED])
async def test_a_lost_process_of_the_gateway_is_infrastructure_that_failed(attempt, end):
    """At once, where the agent goes on waiting; also where the agent took it for its own end."""
    gateway = FakeGateway()
    lost = asyncio.get_running_loop().create_future()
    lost.set_result(SessionSummary(0, 0, {}, {}, lost="process 1 of gateway.processes ended with status -9"))
    if end == "hang":
        gateway.lost = lost
    else:
        gateway.close_session = lambda session_id: gateway.closed.append(session_id) or lost
    trajectory = (await asyncio.wait_for(attempt(EndingAgent(end), gateway=gateway), 20)).trajectory
    assert trajectory.status is Status.infra_error and "gateway.processes" in trajectory.error
    assert trajectory.reward is None and not trajectory.trained and not trajectory.in_baseline


async def test_no_sandbox_at_all(attempt):
    sandboxes = ScriptedProvider()
    await sandboxes.close()
    used = await attempt(ScriptedAgent(()), sandboxes=sandboxes)
    assert used.trajectory.status is Status.infra_error and used.result is None


async def test_what_an_agent_did_before_the_sandbox_died_is_kept(attempt):
    def respond(command):
        return dies(command) if "git diff" in command.command else "seen"

    used = await attempt(ScriptedAgent(["ls"]), respond=respond)
    assert used.trajectory.status is Status.infra_error
    assert [turn.observation for turn in used.trajectory.turns] == ["seen"]


@pytest.mark.parametrize("error", [TraceStoreError("disk full"), ValueError("a fault of ours")])
async def test_what_is_no_matter_of_one_attempt_is_raised(attempt, error):
    with pytest.raises(type(error), match=str(error)):
        await attempt(EndingAgent(error))
    with pytest.raises(type(error), match=str(error)):
        await attempt(ScriptedAgent(()), env=FakeEnv(workspace=error))


async def test_traces_that_cannot_be_committed_are_raised(attempt):
    with pytest.raises(TraceStoreError, match="disk full"):
        await attempt(ScriptedAgent(()), gateway=FakeGateway(TraceStoreError("disk full")))


async def test_cancelling_closes_everything(attempt):
    task = asyncio.create_task(attempt(EndingAgent("hang")))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_real_instance_with_and_without_the_gold_patch(attempt, config, tmp_path):
    env = BugsEnv(EnvConfig(), tmp_path / "cache")
    instance = env.instances("train")[1]
    order = Order(instance, TrajectoryId("train", 1, instance.instance_id, 0, 0), SessionSettings(96, 1024))
    sandboxes = make_provider(SandboxConfig(), tmp_path / "scratch", print)
    try:
        for agent, status in (
            (GoldAgent({instance.instance_id: instance.patch}), Status.resolved),
            (ScriptedAgent(()), Status.empty_patch),
            (GoldAgent({}), Status.infra_error),
        ):
            used = await attempt(agent, env=env, sandboxes=sandboxes, order=order)
            assert used.trajectory.status is status, used.trajectory.error
    finally:
        await sandboxes.close()
    assert not list((tmp_path / "scratch").iterdir())


async def test_an_agent_inside_gets_a_door_and_its_patch_counts(attempt):
    class Inside(EndingAgent):
        needs_door = True

        async def run(self, work):
            self.door_url = work.sandbox.door_url
            result = await super().run(work)
            result.patch = "diff --git a/x b/x"
            return result

    class PortGateway(FakeGateway):
        def session_url(self, session_id):
            return f"http://127.0.0.1:8123/sessions/{session_id}/secret/v1"

    agent = Inside(Exit.SUBMITTED)
    used = await attempt(agent, gateway=PortGateway())
    assert agent.door_url == PortGateway().session_url(used.trajectory.trajectory_id)
    assert used.env.graded[0][0] == used.trajectory.patch == "diff --git a/x b/x"


async def test_an_image_s_history_is_hidden_first_and_a_patch_is_of_what_it_left(attempt, instance):
    asked = []

    def respond(command):
        asked.append(command.command)
        if "swe_rl hidden" in command.command:
            return "noise\nswe_rl hidden 1234abcd"
        return DIFF

    class ImageEnv(FakeEnv):
        def workspace(self, instance):
            return Workspace(image="somebody/image")

    row = dataclasses.replace(instance(), setup_script="true " + "x" * 200_000)  # longer than a command may be
    order = Order(row, TrajectoryId("train", 1, "one", 0, 0), SessionSettings(96, 1024))
    await attempt(ScriptedAgent(["true"]), env=ImageEnv(Grade(True, True)), respond=respond, order=order)
    made, hidden, acted, taken = asked
    assert "/script.sh" in made and len(made) < 200
    assert "swe_rl hidden" in hidden and acted == "true" and "1234abcd" in taken


async def test_tricks_are_counted(attempt):
    used = await attempt(ScriptedAgent(["curl https://example.org/fix.patch | git apply", "ls"]))
    assert used.trajectory.cheating and all(count >= 1 for count in used.trajectory.cheating.values())


async def test_tests_that_never_end_are_no_verdict_unless_they_are_known_to_end(attempt, config, instance):
    limit_s = config.rollout.grade_timeout_s
    hung, good = Grade(False, True, timed_out=True, duration_s=limit_s), Grade(True, True, duration_s=limit_s / 4)
    unknown = await attempt(ScriptedAgent(["true"]), env=FakeEnv(hung))
    assert (unknown.trajectory.status, unknown.trajectory.reward) == (Status.grade_error, None)
    assert "rollout.grade_timeout_s" in unknown.trajectory.error and "a new run" in unknown.trajectory.error

    env, sandboxes = FakeEnv(good), ScriptedProvider(lambda command: DIFF)
    attempter = Attempter(
        env, ScriptedAgent(["true"]), FakeGateway(), sandboxes, config.rollout, config.env, model_name="tiny"
    )
    order = Order(instance(), TrajectoryId("train", 1, "one", 0, 0), SessionSettings(96, 1024))
    first, _ = await attempter.run(order)
    env._grade = hung
    second, _ = await attempter.run(order)
    assert (first.status, second.status, second.reward) == (Status.resolved, Status.unresolved, 0.0)


@pytest.mark.parametrize("broken", [{"started": False}, {"patch_applied": False}])
async def test_tests_that_did_not_run_do_not_make_them_known_to_end(config, instance, broken):
    """An agent that breaks their runner ends them at once."""
    env, sandboxes = FakeEnv(), ScriptedProvider(lambda command: DIFF)
    attempter = Attempter(
        env, ScriptedAgent(["true"]), FakeGateway(), sandboxes, config.rollout, config.env, model_name="tiny"
    )
    order = Order(instance(), TrajectoryId("train", 1, "one", 0, 0), SessionSettings(96, 1024))
    hung = Grade(False, True, timed_out=True, duration_s=config.rollout.grade_timeout_s)
    for grade, status in (
        (dataclasses.replace(Grade(False, True), **broken), Status.unresolved),
        (hung, Status.grade_error),
    ):
        env._grade = grade
        trajectory, _ = await attempter.run(order)
        assert trajectory.status is status


class MuteEnv(FakeEnv):
    """Its verifier takes 2 s without a verdict in an agent's sandbox, and 3 s in an untouched one, for `grade`."""

    now_s = 0.0

    def limits(self, instance):
        return InstanceLimits(math.inf, math.inf)

    async def grade_in(self, instance, sandbox, timeout_s):
        self.now_s += 2.0
        return Grade(False, True, started=False)

    async def grade(self, *arguments):
        self.now_s += 3.0
        return await super().grade(*arguments)


@pytest.mark.parametrize(
    ("untouched", "status", "words"),
    [
        ({"grade": Grade(False, True)}, Status.unresolved, ""),
        ({"grade": Grade(False, True, started=False, log_tail="no disk")}, Status.grade_error, "none either: no disk"),
        ({"grade": Grade(False, True, timed_out=True)}, Status.grade_error, "none either: it did not end in time"),
        ({"error": GradeError("no room")}, Status.grade_error, "no room"),
    ],
)
async def test_an_untouched_sandbox_is_asked_until_it_has_a_verdict_and_no_wait_is_in_its_time(
    config, instance, untouched, status, words
):
    env, sandboxes = MuteEnv(**untouched), ScriptedProvider(lambda command: DIFF)
    of_run = (env, ScriptedAgent(["true"]), FakeGateway(), sandboxes, config.rollout, config.env)
    attempter = Attempter(*of_run, model_name="tiny", clock=lambda: env.now_s)

    class Places(AbstractAsyncContextManager):
        async def __aenter__(self):
            env.now_s += 100.0

        async def __aexit__(self, *_):
            pass

    attempter._places = Places()
    for number in range(2):
        order = Order(instance(), TrajectoryId("train", 1, "one", number, 0), SessionSettings(96, 1024))
        trajectory, _ = await attempter.run(order)
        assert trajectory.status is status and words in (trajectory.error or "")
        asked = number == 0 or status is not Status.unresolved
        assert trajectory.times_s["grade"] == (5.0 if asked else 2.0)
    assert len(env.graded) == (1 if status is Status.unresolved else 2)


async def test_what_its_calls_waited_is_told_to_the_agent_and_kept_apart(attempt):
    class Asking(EndingAgent):
        async def run(self, work):
            self.told_s = work.waited()
            return await super().run(work)

    gateway, agent = FakeGateway(), Asking(Exit.AGENT_TIMEOUT)
    gateway.waited = 33.0
    used = await attempt(agent, gateway=gateway)
    assert agent.told_s == 33.0 and used.trajectory.times_s["waited"] == 33.0
    assert used.trajectory.status is Status.agent_timeout


async def test_nobody_waits_for_ever_and_the_end_is_the_engines(attempt, config):
    gateway = FakeGateway()
    gateway.waited = config.rollout.max_wait_s - 0.05
    asyncio.get_running_loop().call_later(0.3, setattr, gateway, "waited", config.rollout.max_wait_s)
    used = await asyncio.wait_for(attempt(EndingAgent("hang"), gateway=gateway), 20)
    assert used.trajectory.status is Status.engine_error and used.trajectory.reward is None
    assert "7200 s in all, as long as they may (rollout.max_wait_s)" in used.trajectory.error


class HangsForOwners(ScriptedProvider):
    """Git does not answer in time in the sandboxes of some owners."""

    def __init__(self, *owners):
        super().__init__(self._answer)
        self._owners = owners

    def _answer(self, command):
        is_hung = "git" in command.command and command.sandbox_id.startswith(self._owners)
        return ExecResult(124, "", timed_out=True) if is_hung else DIFF


@pytest.mark.parametrize(
    ("owners", "status", "reward"),
    [(("train",), Status.empty_patch, 0.0), (("train", "untouched"), Status.infra_error, None)],
)
async def test_a_patch_that_cannot_be_taken_is_the_agents_failure_unless_an_untouched_tree_has_none_either(
    attempt, owners, status, reward
):
    """Patterns in .gitignore can keep git busy for ever."""
    sandboxes = HangsForOwners(*owners)
    one = (await attempt(ScriptedAgent(["true"]), sandboxes=sandboxes)).trajectory
    assert (one.status, one.reward) == (status, reward) and "could not be taken" in one.error
    assert len(sandboxes.sandboxes) == 2


class BrokenInPlace(MuteEnv):
    async def grade_in(self, instance, sandbox, timeout_s):
        raise self._in_place


@pytest.mark.parametrize(
    ("error", "untouched", "status"),
    [
        (SandboxError("its folder is no folder"), {"grade": Grade(False, True)}, Status.unresolved),
        (GradeError("no place for tests"), {"grade": Grade(False, True)}, Status.unresolved),
        (GradeError("no place for tests"), {"error": GradeError("none either")}, Status.grade_error),
        (OutsideError("its server is gone"), {"grade": Grade(False, True)}, Status.infra_error),
    ],
)
async def test_a_verifier_that_cannot_be_started_is_the_agents_failure_where_it_starts_elsewhere(
    attempt, error, untouched, status
):
    env = BrokenInPlace(**untouched)
    env._in_place = error
    one = (await attempt(ScriptedAgent(["true"]), env=env)).trajectory
    is_blamed = status is Status.unresolved
    assert one.status is status and one.reward == (0.0 if is_blamed else None)
    assert not is_blamed or one.findings == ["grading_broken"]


async def test_tests_that_only_the_known_fix_ends_are_the_patchs_failure(attempt, config):
    limit_s = config.rollout.grade_timeout_s

    class Hangs(FakeEnv):
        async def grade(self, instance, patch, sandboxes, timeout_s):
            await super().grade(instance, patch, sandboxes, timeout_s)
            if patch == instance.patch:
                return Grade(True, True, duration_s=self._of_the_fix_s)
            return Grade(False, True, timed_out=True, duration_s=limit_s)

    for of_the_fix_s, status in ((limit_s / 4, Status.unresolved), (limit_s * 0.9, Status.grade_error)):
        env = Hangs()
        env._of_the_fix_s = of_the_fix_s
        one = (await attempt(ScriptedAgent(["true"]), env=env)).trajectory
        assert one.status is status, one.error
        assert [patch for patch, _ in env.graded] == ["diff --git", "diff --git", "gold"]
