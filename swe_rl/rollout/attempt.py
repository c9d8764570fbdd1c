"""One attempt of one agent at one instance: boot, act, take the patch, grade; or grade in the sandbox itself.

Invariants:
- Whatever fails, the sandbox is closed and the gateway's session is closed.
- Booting, waiting and grading are outside of the agent's time budget; so is what its calls wait for, up to a limit.
- Every failure of infrastructure ends in its own status with its words, never in a reward.
- The order is told when its agent has acted. With `rollout.mode=stream` gradings have places of their own, as many as
  trajectories have: engines do not wait for tests.
"""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from swe_rl.agent.protocol import (
    Agent,
    AgentError,
    AgentResult,
    Assignment,
    Exit,
    Replay,
    ReplayMismatchError,
    Task,
    UnknownEndError,
)
from swe_rl.config.choices import OutcomeReward, RolloutMode, TrickPolicy
from swe_rl.config.schema import EnvConfig, RolloutConfig
from swe_rl.engine.protocol import EngineError
from swe_rl.env.cheating.attempts import cheating_attempts
from swe_rl.env.history import hide_history
from swe_rl.env.instance import Instance
from swe_rl.env.patch import NOOP_PATCH, collect_patch
from swe_rl.env.protocol import Env, Grade, GradeError, GradesInPlace, Limits, end_of
from swe_rl.errors import one_line
from swe_rl.gateway.errors import GatewayLostError
from swe_rl.gateway.live import SessionSummary
from swe_rl.gateway.server import Gateway
from swe_rl.gateway.session import Beginning, SessionSettings
from swe_rl.gateway.trace import TraceStoreError
from swe_rl.rollout.outcome import findings_of, needs_grading, reward_of, status_of, tricks_of, unanswered
from swe_rl.rollout.reward import Attempt, ForeignReward
from swe_rl.rollout.trajectory import Order, Prefix, Status, Trajectory
from swe_rl.sandbox.protocol import Door, Sandbox, SandboxError, SandboxProvider, Waited, run_whole

_SETUP_S = 600.0
_HIDE_HISTORY_S = 120.0
_PATIENCE_GRAIN_S = 0.1
_NO_LIMITS = Limits(math.inf, math.inf)
_TAKE_PATCH_S = 60.0  # at least: a large tree is no command of the agent's


@dataclass(slots=True)
class _Progress:
    """What is known of an attempt so far; a failure reports what there was."""

    result: AgentResult | None = None
    patch: str = ""
    patch_note: str = ""  # why there is none although something may have been changed
    grade: Grade | None = None
    own_reward: float | None = None  # of somebody's own, where the tests' verdict is paid
    turn_rewards: list[float] = field(default_factory=list)  # of the same
    tricks: list[str] = field(default_factory=list)  # that could have changed the verdict
    began_s: dict[str, float] = field(default_factory=dict)
    prompt_tokens: int = 0  # of the first prompt, where a prefix is behind it
    mismatch: ReplayMismatchError | None = None  # why it has no prefix


class Attempter:
    def __init__(
        self,
        env: Env,
        agent: Agent,
        gateway: Gateway,
        sandboxes: SandboxProvider,
        rollout: RolloutConfig,
        env_config: EnvConfig,
        *,
        model_name: str,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        keep_log: Callable[[Order, str], None] | None = None,
        reward: ForeignReward | None = None,
    ) -> None:
        """`keep_log` gets the whole log of each grading. `reward`: in place of `env.reward`."""
        self._env, self._env_config, self._agent, self._model_name = env, env_config, agent, model_name
        self._gateway, self._sandboxes, self._rollout, self._reward = gateway, sandboxes, rollout, reward
        self._clock, self._wall_clock, self._keep_log = clock, wall_clock, keep_log
        self._tests_s: dict[str, float] = {}  # by instance: the shortest grading whose tests ran to their end
        self._judged_untouched: set[str] = set()  # instances whose verifier gave a verdict where nobody acted
        self._gradings: AbstractAsyncContextManager[object] = nullcontext()
        if rollout.mode is RolloutMode.stream:
            self._gradings = asyncio.Semaphore(rollout.concurrency)

    async def run(self, order: Order) -> tuple[Trajectory, AgentResult | None]:
        """Raises TraceStoreError only: without its traces no trajectory counts."""
        progress, times_s = _Progress(), dict[str, float]()
        self._gateway.open_session(order.trajectory_id, self._settings(order))
        status, error, unknown = Status.infra_error, None, None
        try:
            await self._act(order, progress, times_s)
            order.acted()
            if progress.grade is not None and not progress.grade.started:
                await self._check_untouched(order, times_s)
            elif progress.result and needs_grading(progress.result.exit, progress.patch):
                async with self._gradings:
                    await self._judge(order, progress, times_s, self._grade(order, progress.patch))
            assert progress.result is not None
            status = status_of(progress.result.exit, progress.patch, progress.grade)
            await self._pay(order, status, progress)
        except TraceStoreError:
            raise
        except GradeError as failure:
            status, error = Status.grade_error, str(failure)
        except EngineError as failure:
            status, error = Status.engine_error, str(failure)
        except UnknownEndError as failure:
            error, unknown = str(failure), failure
        except (GatewayLostError, SandboxError, AgentError) as failure:
            error = str(failure)
        finally:
            summary = await self._gateway.close_session(order.trajectory_id)
        if summary.lost:
            status, error, unknown = Status.infra_error, summary.lost, None
        ended = unanswered(summary, status if unknown is None else None)
        if ended is not None:
            status, error = ended
            progress.result = progress.result if unknown is None else unknown.result
        trajectory = self._trajectory(order, status, progress, error, times_s)
        _say_prefix(trajectory, order.prefix, progress)
        trajectory.num_calls = summary.num_calls
        trajectory.sampled_tokens = summary.sampled_tokens
        trajectory.prefix_breaks = sum(summary.breaks.values())
        trajectory.superseded_replies = summary.superseded_replies
        trajectory.superseded_tokens = summary.superseded_tokens
        trajectory.times_s |= summary.times_s
        trajectory.began_s = progress.began_s | {"end": self._wall_clock()}
        return trajectory, progress.result

    def _settings(self, order: Order) -> SessionSettings:
        """A program inside of the sandbox does not count its turns as we do, if at all: the gateway does."""
        return replace(order.settings, max_calls=self._rollout.max_turns) if self._agent.needs_door else order.settings

    async def _judge(
        self, order: Order, progress: _Progress, times_s: dict[str, float], grading: Coroutine[Any, Any, Grade]
    ) -> None:
        """Puts what the agent did to the tests. Raises GradeError, SandboxError."""
        progress.began_s["grade"] = self._wall_clock()
        began_s = self._clock()
        try:
            progress.grade = await grading
        finally:
            times_s["grade"] = self._clock() - began_s
        if self._keep_log is not None:
            await asyncio.to_thread(self._keep_log, order, progress.grade.log or progress.grade.log_tail)
        progress.tricks = tricks_of(progress.grade, progress.patch, order.instance)
        if progress.tricks and self._rollout.tricks is not TrickPolicy.count:
            progress.grade = progress.grade.worthless()

    async def _pay(self, order: Order, status: Status, progress: _Progress) -> None:
        """By a reward of somebody's own. Raises RewardError."""
        grade, result, rule = progress.grade, progress.result, self._rollout.outcomes[status.value].reward
        if self._reward is None or result is None or rule is OutcomeReward.none:
            return
        verdict = Grade(resolved=False, patch_applied=False) if grade is None else grade
        attempt = Attempt(
            order.trajectory_id, order.instance, status.value, progress.patch, verdict, result.turns, result.messages
        )
        paid = await self._reward.turn_rewards(attempt)
        progress.turn_rewards = [reward for turn, reward in zip(result.turns, paid, strict=False) if not turn.replayed]
        tricked = progress.tricks and self._rollout.tricks is not TrickPolicy.count
        if rule is OutcomeReward.graded and grade is not None and not tricked:
            progress.own_reward = await self._reward.reward(attempt)

    async def _act(self, order: Order, progress: _Progress, times_s: dict[str, float]) -> None:
        """From the order's prefix; from the task alone where that cannot be repeated, in a sandbox that is as new."""
        try:
            await self._act_from(order.prefix, order, progress, times_s)
        except ReplayMismatchError as mismatch:
            progress.mismatch = mismatch
            await self._act_from(None, order, progress, times_s)

    async def _act_from(
        self, prefix: Prefix | None, order: Order, progress: _Progress, times_s: dict[str, float]
    ) -> None:
        """Boots a sandbox, lets the agent act in it and takes the patch out. Raises ReplayMismatchError."""
        started_s, progress.began_s["boot"] = self._clock(), self._wall_clock()
        workspace = await asyncio.to_thread(self._env.workspace, order.instance)
        door = self._door(order) if self._agent.needs_door else None
        sandbox = await self._sandboxes.create(workspace, owner=order.trajectory_id, door=door)
        try:
            base_commit = order.instance.base_commit
            in_place = self._env if isinstance(self._env, GradesInPlace) else None
            if workspace.image is not None and in_place is None:  # what we made ourselves has no history to hide
                base_commit = await _ready(sandbox, order.instance)
            times_s["boot"] = self._clock() - started_s
            await self._run_agent(prefix, order, progress, times_s, sandbox)
            if in_place is None:
                await self._take_patch(progress, sandbox, base_commit)
            else:
                await self._judge_in(in_place, sandbox, order, progress, times_s)
        finally:
            await sandbox.close()

    async def _run_agent(
        self, prefix: Prefix | None, order: Order, progress: _Progress, times_s: dict[str, float], sandbox: Sandbox
    ) -> None:
        started_s, progress.began_s["agent"] = self._clock(), self._wall_clock()
        waited = partial(self._gateway.waited_s, order.trajectory_id)
        work = Assignment(
            Task(order.instance.instance_id, self._env.prompt(order.instance)),
            base_url=self._gateway.session_url(order.trajectory_id),
            model=self._model_name,
            sandbox=sandbox,
            timeout_s=min(self._rollout.agent_timeout_s, self._limits(order.instance).agent_s),
            waited=waited,
            replay=None if prefix is None else self._replay(prefix, order, progress),
        )
        running = asyncio.ensure_future(self._agent.run(work))
        try:
            await self._within_patience(running, waited, self._gateway.ended(order.trajectory_id))
            progress.result = running.result()
        finally:
            if not running.done():
                running.cancel()
                await asyncio.wait({running})
            times_s["waited"] = waited()
        times_s["agent"] = self._clock() - started_s
        times_s["command"] = sum(turn.command_s for turn in progress.result.turns)

    def _replay(self, prefix: Prefix, order: Order, progress: _Progress) -> Replay:
        async def stands(messages: Sequence[Mapping[str, Any]]) -> None:
            beginning = Beginning(messages, prefix.sampled_ids, prefix.begun_ids)
            progress.prompt_tokens = await self._gateway.replay(order.trajectory_id, beginning)

        return Replay(prefix.turns, stands)

    async def _within_patience(
        self, running: "asyncio.Future[AgentResult]", waited: Waited, ended: "asyncio.Future[SessionSummary] | None"
    ) -> None:
        """Returns when it is done. Raises EngineError where its calls waited for longer than any may, GatewayLostError
        where its session has ended."""
        limit_s = self._rollout.max_wait_s
        while not running.done():
            left_s = limit_s - waited()
            if left_s <= 0:
                raise EngineError(
                    f"its calls waited for the router and the engines for {limit_s:g} s in all, as long as they may "
                    "(rollout.max_wait_s)"
                )
            either: set[asyncio.Future[Any]] = {running} if ended is None else {running, ended}
            await asyncio.wait(either, timeout=max(left_s, _PATIENCE_GRAIN_S), return_when=asyncio.FIRST_COMPLETED)
            if ended is not None and ended.done():
                raise GatewayLostError(ended.result().lost)

    async def _take_patch(self, progress: _Progress, sandbox: Sandbox, base_commit: str) -> None:
        """What the agent handed in, or else what its working tree holds."""
        assert progress.result is not None
        if progress.result.exit is not Exit.SUBMITTED:
            return
        if progress.result.patch is not None:
            progress.patch = progress.result.patch
            return
        taken = await collect_patch(sandbox, base_commit, max(self._rollout.command_timeout_s, _TAKE_PATCH_S))
        progress.patch, progress.patch_note = taken.text, taken.note

    def _door(self, order: Order) -> Door:
        parts = urlsplit(self._gateway.session_url(order.trajectory_id))
        assert parts.hostname is not None and parts.port is not None
        return Door(parts.hostname, parts.port, parts.path)

    def _limits(self, instance: Instance) -> Limits:
        return self._env.limits(instance) if isinstance(self._env, GradesInPlace) else _NO_LIMITS

    async def _judge_in(
        self, env: GradesInPlace, sandbox: Sandbox, order: Order, progress: _Progress, times_s: dict[str, float]
    ) -> None:
        """The sandbox as the agent left it, once: no second one is like it. Raises GradeError, SandboxError."""
        assert progress.result is not None
        if progress.result.exit is not Exit.SUBMITTED:
            return
        order.acted()
        async with self._gradings:
            await self._judge(order, progress, times_s, self._grade_in(env, sandbox, order.instance))

    async def _grade_in(self, env: GradesInPlace, sandbox: Sandbox, instance: Instance) -> Grade:
        timeout_s = min(self._rollout.grade_timeout_s, env.limits(instance).grade_s)
        grade = await env.grade_in(instance, sandbox, timeout_s)
        self._is_out_of_time(instance.instance_id, grade, timeout_s)
        return grade

    async def _check_untouched(self, order: Order, times_s: dict[str, float]) -> None:
        """A verifier without a verdict was broken by the agent only if it gives one where nobody acted. Called once the
        agent's sandbox has given its place back. Raises GradeError, SandboxError."""
        instance_id, timeout_s = order.instance.instance_id, self._rollout.grade_timeout_s
        if instance_id in self._judged_untouched:
            return
        async with self._gradings:
            began_s = self._clock()
            try:
                grade = await self._env.grade(order.instance, NOOP_PATCH, self._sandboxes, timeout_s)
            finally:
                times_s["grade"] += self._clock() - began_s
        if not grade.started or grade.timed_out:
            words = "it did not end in time" if grade.timed_out else one_line(grade.log_tail[-300:])
            raise GradeError(
                f"the verifier of {instance_id} gave no verdict, and in an untouched sandbox it gives none "
                f"either: {words}"
            )
        self._judged_untouched.add(instance_id)

    async def _grade(self, order: Order, patch: str) -> Grade:
        """Tests that did not end are run once more where they can: a hiccup of the machine is no verdict."""
        timeout_s = self._rollout.grade_timeout_s
        for _ in range(2):
            grade = await self._env.grade(order.instance, patch, self._sandboxes, timeout_s)
            if not self._is_out_of_time(order.instance.instance_id, grade, timeout_s):
                break
        return grade

    def _is_out_of_time(self, instance_id: str, grade: Grade, timeout_s: float) -> bool:
        """Tests that did not end say something of a patch only where they are known to end in half of the time.

        Raises GradeError where it may as well be the machine, or the limit.
        """
        if grade.started and grade.patch_applied and not grade.timed_out and not grade.cached:
            self._tests_s[instance_id] = min(grade.duration_s, self._tests_s.get(instance_id, grade.duration_s))
        if grade.timed_out and self._tests_s.get(instance_id, timeout_s) > timeout_s / 2:
            raise GradeError(
                f"the tests of {instance_id} did not end within rollout.grade_timeout_s={timeout_s:g}, and no attempt "
                "ended them in half of it; raise it, or lower rollout.concurrency; with other values it is a new run"
            )
        return grade.timed_out

    def _trajectory(
        self, order: Order, status: Status, progress: _Progress, error: str | None, times_s: dict[str, float]
    ) -> Trajectory:
        outcome = self._rollout.outcomes[status.value]
        grade = progress.grade
        masked = bool(progress.tricks) and self._rollout.tricks is TrickPolicy.mask
        reward = reward_of(status, grade, self._rollout.outcomes, self._env_config.reward)
        if reward is not None and self._reward is not None:
            paid = progress.own_reward is not None and outcome.reward is OutcomeReward.graded
            reward = progress.own_reward if paid else self._reward.failure
        return Trajectory(
            trajectory_id=order.trajectory_id,
            group_id=order.id.group_id,
            **asdict(order.id),
            status=status,
            reward=None if masked else reward,
            trained=outcome.trained and not masked,
            in_baseline=outcome.in_baseline and not masked,
            turns=progress.result.turns if progress.result else [],
            own_turn_rewards=progress.turn_rewards,
            patch=progress.patch.encode("utf-8", "replace").decode(),
            tests=grade.fail_to_pass | grade.pass_to_pass if grade else {},
            error=error or progress.patch_note or None,
            times_s=times_s,
            cheating=self._cheating(order, progress),
            findings=findings_of(grade),
            grade_log=end_of(grade.log_tail) if grade and not grade.resolved else "",
        )

    def _cheating(self, order: Order, progress: _Progress) -> dict[str, int]:
        turns = progress.result.turns if progress.result else []
        tried = cheating_attempts([turn.command for turn in turns if turn.command], progress.patch, order.instance)
        return dict(sorted((dict.fromkeys(progress.tricks, 1) | tried).items()))


def _say_prefix(trajectory: Trajectory, prefix: Prefix | None, progress: _Progress) -> None:
    if prefix is None:
        return
    trajectory.prefix, trajectory.prefix_sampled_tokens = prefix.source, prefix.sampled_tokens
    trajectory.prompt_tokens = progress.prompt_tokens
    if progress.mismatch is not None:  # of that turn the command can be repeated up to its last token
        trajectory.prefix_dropped = str(progress.mismatch)
        trajectory.prefix_sampled_tokens = prefix.tokens_through(progress.mismatch.turn + 1) - 1


async def _ready(sandbox: Sandbox, instance: Instance) -> str:
    """An image as an agent may see it; returns the commit to take patches against. Raises SandboxError."""
    for name, script in (("setup_script", instance.setup_script), ("hide_script", instance.hide_script)):
        if not script:
            continue
        done = await run_whole(sandbox, script, _SETUP_S)
        if done.exit_code:
            raise SandboxError(
                f"{instance.instance_id}: its {name} failed with status {done.exit_code}: {done.output[-500:]}"
            )
    return await hide_history(sandbox, instance.base_commit, _HIDE_HISTORY_S)
