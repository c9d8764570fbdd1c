"""This module tests code of your own: each `check_KIND` holds a class to all that `swe_rl.api` says of its kind.

    from my_agent import MyAgent
    from swe_rl.testing import check_agent

    def test_it_conforms():
        check_agent(MyAgent)

Invariants:
- A class is made as a run makes it: by its import path, with `params`, and with what its signature names of ours.
- Nothing is needed but swe_rl and this machine: a model that speaks from a list, a sandbox of processes.
- What is wrong is a ConformanceError that names the class, the method and what was expected.
"""

import asyncio
import math
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from swe_rl.agent.agent import Agent, AgentResult, Assignment, Exit, Task, Turn
from swe_rl.agent.client import ChatClient
from swe_rl.agent.foreign import ForeignAgent
from swe_rl.algo.conformance import check_advantage as check_advantage
from swe_rl.algo.conformance import check_loss as check_loss
from swe_rl.check.findings import Severity
from swe_rl.check.foreign import ForeignRule
from swe_rl.config.choices import ExtensionKind, SandboxKind
from swe_rl.config.compose import compose
from swe_rl.config.schema import AgentConfig, EnvConfig, RouterConfig, SandboxConfig
from swe_rl.dataset.instance import Instance
from swe_rl.env.env import Grade
from swe_rl.env.folder import commit_of, folder_of, patch_between
from swe_rl.env.foreign import ForeignEnv
from swe_rl.env.grading.foreign import ForeignGrader
from swe_rl.env.patch import NOOP_PATCH
from swe_rl.errors import SweRlError
from swe_rl.extension.conformance import NONE, LoopWatch, Params, made_of, require
from swe_rl.extension.conformance import ConformanceError as ConformanceError
from swe_rl.extension.find import Foreign
from swe_rl.extension.make import ExtensionFailure
from swe_rl.logger.foreign import ForeignLogger
from swe_rl.rollout.reward import Attempt, ForeignReward
from swe_rl.router.core import (
    Action,
    EngineAdded,
    EngineDrained,
    EngineLoad,
    EngineLost,
    Event,
    GroupLeft,
    ProgramReleased,
    RequestArrived,
    RequestFinished,
    StepTail,
    SyncBegan,
    SyncEnded,
    Tick,
)
from swe_rl.router.foreign import ForeignPolicy
from swe_rl.sandbox.conformance import check_sandbox as check_sandbox
from swe_rl.sandbox.process.provider import ProcessProvider
from swe_rl.sandbox.sandbox import Workspace

# By default the model says these replies, which solve the task that an agent is given here.
COMMANDS = ("```bash\necho hello > made.txt\n```", "```bash\nsubmit\n```")
_LATE_S = 10.0  # An agent has to end so many seconds after its time at the latest.


def check_agent(agent: type, params: Params = NONE, *, replies: Sequence[str] = COMMANDS) -> None:
    """Checks an agent with a model that says `replies`, one a turn, and the last one again and again.

    The last reply has to end an attempt. Raises ConformanceError.
    """
    asyncio.run(_check_agent(agent, params, replies))


async def _check_agent(agent: type, params: Params, replies: Sequence[str]) -> None:
    async with _Model(replies) as model, _sandboxes() as sandboxes, _client() as client:
        given = {"config": AgentConfig(), "client": client, "max_turns": 6, "command_timeout_s": 5.0}
        made, maker = made_of(ExtensionKind.agent, agent, params, given | {"api_key": None, "patches": None})
        guarded = ForeignAgent(made, maker, grace_s=_LATE_S)
        results = [await _attempt(guarded, model, sandboxes) for _ in range(2)]
        require(
            all(result.exit is Exit.SUBMITTED for result in results), maker, f"run must end as submitted: {results}"
        )
        require(model.asked > 1 or not replies, maker, "run must ask the model at work.base_url")
        for result in results:
            require(len(result.turns) == len(results[0].turns), maker, "run must not remember its former attempts")
        model.overflows = True
        result = await _attempt(guarded, model, sandboxes)
        require(result.exit is Exit.CONTEXT_OVERFLOW, maker, f"run must end as context_overflow, not {result.exit}")
        model.overflows, model.delay_s = False, 60.0
        began_s = time.monotonic()
        result = await _attempt(guarded, model, sandboxes, timeout_s=1.0)
        late_s = time.monotonic() - began_s - 1.0
        require(late_s < _LATE_S, maker, f"run must end within work.timeout_s; it took {late_s:.0f} s longer")
        require(result.exit is Exit.AGENT_TIMEOUT, maker, f"run must end as agent_timeout, not {result.exit}")


async def _attempt(agent: Agent, model: "_Model", sandboxes: ProcessProvider, timeout_s: float = 30.0) -> AgentResult:
    with tempfile.TemporaryDirectory() as folder:
        path = await asyncio.to_thread(folder_of, {"README.md": "A task.\n"}, Path(folder) / "task")
        sandbox = await sandboxes.create(Workspace(path=path), owner="conformance")
        watch = LoopWatch()
        try:
            task = Task("conformance", "Write hello into made.txt.")
            work = Assignment(task, model.base_url, "tiny", sandbox, timeout_s)
            async with watch:
                result = await agent.run(work)
        finally:
            await sandbox.close()
        watch.require_free(agent.name, "run")
        return result


class _Model:
    """This is an OpenAI-compatible server on loopback, whose model says the replies of a list."""

    def __init__(self, replies: Sequence[str]) -> None:
        self._replies = replies
        self.asked = 0
        self.overflows = False
        self.delay_s = 0.0
        self.base_url = ""

    async def __aenter__(self) -> "_Model":
        from aiohttp import web

        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.base_url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _complete(self, request: Any) -> Any:
        from aiohttp import web

        body = await request.json()
        await asyncio.sleep(self.delay_s)
        self.asked += 1
        if self.overflows:
            refusal = {"message": "too long", "type": "invalid_request_error", "code": "context_length_exceeded"}
            return web.json_response({"error": refusal}, status=400)
        turn = sum(message.get("role") == "assistant" for message in body["messages"])
        message = {"role": "assistant", "content": self._replies[min(turn, len(self._replies) - 1)]}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response({"id": "1", "object": "chat.completion", "model": "tiny", "choices": [choice]})


@asynccontextmanager
async def _sandboxes() -> AsyncIterator[ProcessProvider]:
    with tempfile.TemporaryDirectory() as folder:
        provider = ProcessProvider(SandboxConfig(), Path(folder), warn=lambda _: None)
        try:
            yield provider
        finally:
            await provider.close()


@asynccontextmanager
async def _client() -> AsyncIterator[ChatClient]:
    client = ChatClient(rng=Random(0), max_retries=1)
    try:
        yield client
    finally:
        await client.close()


def check_env(
    env: type, cache: Path, params: Params = NONE, *, splits: Sequence[str] = ("train", "heldout"), most: int = 2
) -> None:
    """Checks an environment, which gets the empty folder `cache`. Raises ConformanceError.

    The first `most` instances of each split are graded three times: with their gold patch, with a patch that changes
    nothing, and with a text that is no patch.
    """
    given = {"config": EnvConfig(), "cache": cache, "sandbox": SandboxKind.process}
    made, maker = made_of(ExtensionKind.env, env, params, given)
    guarded = ForeignEnv(made, maker)
    names: set[str] = set()
    for split in splits:
        instances = guarded.instances(split)
        require(list(instances) == list(guarded.instances(split)), maker, f"instances({split!r}) must not change")
        shared = names & {instance.instance_id for instance in instances}
        require(not shared, maker, f"instances of two splits must differ: {', '.join(sorted(shared))}")
        names |= {instance.instance_id for instance in instances}
        asyncio.run(_check_instances(guarded, maker, instances[:most]))


async def _check_instances(env: ForeignEnv, maker: Foreign, instances: Sequence[Instance]) -> None:
    async with _sandboxes() as sandboxes:
        for instance in instances:
            name = instance.instance_id
            prompt = env.prompt(instance)
            require(bool(prompt.strip()), maker, f"prompt({name}) must say what is to be done")
            require(instance.patch.strip() not in prompt, maker, f"prompt({name}) must not have the gold patch")
            workspace = await asyncio.to_thread(env.workspace, instance)
            if workspace.path is None:
                # The workspace is an image, and to start that takes a container engine.
                continue
            verdicts = {"the gold patch": (instance.patch, True), "a change of nothing": (NOOP_PATCH, False)}
            for what, (patch, wanted) in verdicts.items():
                grade = await env.grade(instance, patch, sandboxes, 60.0)
                said = f"grade({name}) with {what} must{'' if wanted else ' not'} be resolved: {grade.log_tail[-300:]}"
                require(grade.resolved is wanted, maker, said)
            grade = await env.grade(instance, "no patch at all", sandboxes, 60.0)
            require(not grade.resolved, maker, f"grade({name}) with what is no patch must not be resolved")


def an_attempt(*, resolved: bool) -> Attempt:
    """Returns an example of what a reward is told of a trajectory, for tests of your own."""
    instance = Instance("conformance", "conformance", "0" * 40, "Function f is broken.", "", "", ("t.py::test_f",), ())
    grade = Grade(resolved, patch_applied=True, fail_to_pass={"t.py::test_f": resolved})
    messages = ({"role": "user", "content": "Function f is broken."}, {"role": "assistant", "content": "Done."})
    status = "resolved" if resolved else "unresolved"
    turns = (Turn(0, "```ls```", "ls", "f.py", exit_code=0), Turn(1, "Done.", "submit", None))
    return Attempt("train.1.conformance.0.0", instance, status, "diff --git a/f.py b/f.py\n", grade, turns, messages)


def check_reward(reward: type, params: Params = NONE) -> None:
    """Checks a reward with a resolved and an unresolved attempt. Raises ConformanceError."""
    made, maker = made_of(ExtensionKind.reward, reward, params, {})
    guarded = ForeignReward(made, maker, timeout_s=30.0)
    require(math.isfinite(guarded.failure), maker, "failure must be a finite number")
    for resolved in (True, False):
        try:
            asyncio.run(guarded.reward(an_attempt(resolved=resolved)))
            asyncio.run(guarded.turn_rewards(an_attempt(resolved=resolved)))
        except SweRlError as error:
            raise ConformanceError(str(error)) from error


# In these events engines are drained, lost and come back, weights are synchronized, and some names are unknown.
_ARRIVE = [RequestArrived(f"p{number}", f"r{number}", 100 + number, "group", 0) for number in range(4)]
_EVENTS: tuple[Event, ...] = (
    StepTail(active=False),
    *_ARRIVE,
    Tick((EngineLoad("a", 1, 0, 500, 10_000), EngineLoad("b", 3, 1, 900, 10_000))),
    *(RequestFinished(f"p{number}", f"r{number}", 200, 100) for number in range(4)),
    RequestArrived("p0", "r0b", 220, "group", 1),
    EngineDrained("a"),
    RequestFinished("p0", "r0b", 300),
    RequestArrived("p1", "r1b", 260, "group", 1),
    RequestFinished("p1", "r1b", 300),
    EngineLost("b"),
    RequestArrived("p2", "r2b", 240, "group", 1),
    EngineAdded("a", 10_000),
    RequestFinished("p2", "r2b", 300),
    SyncBegan(),
    SyncEnded(kv_kept=False),
    EngineAdded("b", 10_000),
    RequestFinished("nobody", "nothing", 0),
    GroupLeft("group", 4),
    *(ProgramReleased(f"p{number}") for number in range(4)),
    GroupLeft("group", 0),
    GroupLeft("nobody", 1),
    ProgramReleased("nobody"),
    StepTail(active=True),
)


def check_router(router: type, params: Params = NONE) -> None:
    """Checks a router while engines are drained, lost and come back. Raises ConformanceError.

    The router has to place every request in the end, and has to do the same for the same events.
    """
    made, maker = made_of(
        ExtensionKind.router, router, params, {"config": RouterConfig(), "capacity_tokens": 10_000, "max_num_seqs": 64}
    )
    first = _routed(made, maker)
    second = _routed(made, maker)
    require(first == second, maker, "step must do the same for the same events: all it remembers is in its state")
    placed = {action.request_id for actions in first for action in actions}
    missing = sorted({event.request_id for event in _EVENTS if isinstance(event, RequestArrived)} - placed)
    require(not missing, maker, f"step must place each request in the end; {', '.join(missing)} waits for ever")


def _routed(policy: Any, maker: Foreign) -> list[list[Action]]:
    guarded = ForeignPolicy(policy, maker)
    try:
        state = guarded.initial(("a", "b"))
        actions = [guarded.step(state, event, float(second)) for second, event in enumerate(_EVENTS)]
    except ExtensionFailure as error:
        raise ConformanceError(str(error)) from error
    require(not state.failed, maker, state.failed)
    return actions


def check_logger(logger: type, folder: Path, params: Params = NONE) -> None:
    """Checks a logger with the calls of a run that was resumed, and so logs a step twice. Raises ConformanceError."""
    given = {"folder": folder, "run_name": "conformance", "configuration": {"trainer.steps": 2}}
    made, maker = made_of(ExtensionKind.logger, logger, params, given)
    guarded = ForeignLogger(made, maker)
    guarded.start()
    for step in (1, 2, 2):
        guarded.log({"step": step, "reward_mean": 0.5, "loss": None, "statuses": {"resolved": 1}}, step)
    guarded.evaluated({"eval/heldout/resolved_rate": 0.5, "eval/heldout/num_samples": 8.0}, 2)
    guarded.summarize({"resolved_rate_after": 0.5})
    guarded.finish(0)
    require(not guarded.failure, maker, guarded.failure)


def check_grader(grader: type, params: Params = NONE) -> None:
    """Checks a grader with one small folder. Raises ConformanceError.

    The grader judges the gold patch, a patch that changes nothing, and a text that is no patch.
    """
    made, maker = made_of(ExtensionKind.grader, grader, params, {"config": EnvConfig()})
    asyncio.run(_check_grader(ForeignGrader(made, maker), maker))


async def _check_grader(grader: ForeignGrader, maker: Foreign) -> None:
    test = "from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n"
    files = {"calc.py": "def add(a, b):\n    return a - b\n"}
    gold = patch_between(files, {"calc.py": "def add(a, b):\n    return a + b\n"})
    base = await asyncio.to_thread(commit_of, files)
    tests = ("test_calc.py::test_add",)
    instance = Instance(
        "conformance", "conformance", base, "add subtracts.", gold, patch_between({}, {"test_calc.py": test}), tests, ()
    )
    cases = {"the gold patch": (gold, True), "a change of nothing": (NOOP_PATCH, False), "no patch": ("none", False)}
    async with _sandboxes() as sandboxes:
        with tempfile.TemporaryDirectory() as folder:
            path = await asyncio.to_thread(folder_of, files, Path(folder) / "task")
            for what, (patch, wanted) in cases.items():
                grade = await grader.grade(instance, patch, Workspace(path=path), sandboxes, 60.0)
                said = f"grade with {what} must{'' if wanted else ' not'} be resolved: {grade.log_tail[-300:]}"
                require(grade.resolved is wanted, maker, said)


def check_rule(rule: type, params: Params = NONE, *, refused: Sequence[str] = (), passed: Sequence[str] = ()) -> None:
    """Checks a rule. Raises ConformanceError.

    The rule must refuse a run with the words `refused` on its command line, and must let one with `passed` start.
    """
    made, maker = made_of(ExtensionKind.rule, rule, params, {})
    guarded = ForeignRule(made, maker)
    for words, wanted in ((passed, False), (refused, True)):
        config = compose(list(words)).config
        try:
            findings = guarded.findings(config)
        except ExtensionFailure as error:
            raise ConformanceError(str(error)) from error
        require(findings == guarded.findings(config), maker, "findings must say the same of the same configuration")
        said = any(finding.severity is Severity.error for finding in findings)
        if words or not wanted:
            require(
                said is wanted, maker, f"findings must {'' if wanted else 'not '}refuse {' '.join(words) or 'a run'}"
            )
