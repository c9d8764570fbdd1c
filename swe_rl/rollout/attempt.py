"""Makes one attempt of one agent at one instance: boot, act, take the patch, grade, perhaps in the sandbox itself.

Invariants:
- Whatever fails, the sandbox is closed and the gateway's session is closed.
- Booting, waiting and grading are outside of the agent's time budget; so is what its calls wait for, up to a limit.
- Every failure of infrastructure ends in its own status with its words, never in a reward.
- The order is told when its agent has acted. With `rollout.mode=stream` gradings have places of their own, as many as
  trajectories have: engines do not wait for tests.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from swe_rl.agent.agent import (
    Agent,
    AgentError,
    AgentResult,
    Assignment,
    Exit,
    Task,
    UnknownEndError,
)
from swe_rl.config.choices import OutcomeReward, RolloutMode, TrickPolicy
from swe_rl.config.schema import EnvConfig, RolloutConfig
from swe_rl.engine.engine import EngineError
from swe_rl.env.cheating.attempts import cheating_attempts
from swe_rl.env.env import Env, Grade, GradeError, GradesInPlace, end_of
from swe_rl.env.mix import EnvPart, part_of
from swe_rl.env.patch import TakenPatch, collect_patch, submitted_patch
from swe_rl.facts.schedule import rollout_at
from swe_rl.gateway.errors import GatewayLostError
from swe_rl.gateway.live import SessionSummary
from swe_rl.gateway.server import Gateway
from swe_rl.gateway.session import SessionSettings
from swe_rl.gateway.trace import TraceStoreError
from swe_rl.rollout.continued import ContinuedAttempts
from swe_rl.rollout.gradings import Gradings, prepare_image
from swe_rl.rollout.outcome import (
    count_calls,
    findings_of,
    needs_grading,
    reward_of,
    status_if_unanswered,
    status_of,
    tricks_of,
)
from swe_rl.rollout.reward import Attempt, ForeignReward
from swe_rl.rollout.trajectory import Order, Status, Trajectory
from swe_rl.sandbox.sandbox import Door, OutsideError, Sandbox, SandboxError, SandboxProvider, Waited

_PATIENCE_GRAIN_S = 0.1


@dataclass(slots=True)
class _Progress:
    """An attempt as far as it is known; a failure reports what there was."""

    result: AgentResult | None = None
    taken: TakenPatch = field(default_factory=partial(TakenPatch, ""))
    untaken: SandboxError | None = None  # why no patch could be taken, by the agent's doing or the machine's
    grade: Grade | None = None
    own_reward: float | None = None  # of somebody's own, where the tests' verdict is paid
    turn_rewards: list[float] = field(default_factory=list)  # of the same
    tricks: list[str] = field(default_factory=list)  # that could have changed the verdict
    began_s: dict[str, float] = field(default_factory=dict)

    @property
    def patch(self) -> str:
        """The one patch of the attempt: it is graded, and every file that is written of the attempt holds it."""
        return self.taken.text


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
        continued: ContinuedAttempts | None = None,
    ) -> None:
        """`keep_log` gets the whole log of each grading. `reward`: in place of `env.reward`. `continued` knows what
        earlier processes recorded of attempts; None: each begins anew."""
        self._env = env
        self._env_config = env_config
        self._agent = agent
        self._model_name = model_name
        self._gateway = gateway
        self._sandboxes = sandboxes
        self._rollout = rollout
        self._reward = reward
        self._clock = clock
        self._wall_clock = wall_clock
        self._keep_log = keep_log
        self._continued = continued
        self._gradings = Gradings(env, sandboxes, rollout)
        self._places: AbstractAsyncContextManager[object] = nullcontext()  # for gradings
        if rollout.mode is RolloutMode.stream:
            self._places = asyncio.Semaphore(int(rollout.concurrency))

    async def run(self, order: Order) -> tuple[Trajectory, AgentResult | None]:
        """Raises TraceStoreError only: without its traces no trajectory counts."""
        progress = _Progress()
        times_s = dict[str, float]()
        self._gateway.open_session(order.trajectory_id, self._settings(order))
        if self._continued is not None:
            await self._recall_first(self._continued, order.trajectory_id)
        status = Status.infra_error
        error = None
        unknown = None
        try:
            await self._act(order, progress, times_s)
            order.acted()
            if progress.untaken is not None:
                await self._gradings.check_patch_can_be_taken(order.instance, progress.untaken)
            elif progress.grade is not None and (not progress.grade.started or progress.grade.timed_out):
                await self._check_untouched(order, progress.grade, times_s)
            elif progress.grade is not None and progress.grade.session.passed_twins:
                async with self._places:
                    compared = self._gradings.compared_with_the_fix(order.instance, progress.grade)
                    await self._judge(order, progress, times_s, compared)
            elif progress.result and needs_grading(progress.result.exit, progress.patch):
                async with self._places:
                    await self._judge(order, progress, times_s, self._gradings.grade(order.instance, progress.patch))
            assert progress.result is not None
            status = status_of(progress.result.exit, progress.patch, progress.grade)
            await self._pay_own_reward(order, status, progress)
        except TraceStoreError:
            raise
        except GradeError as failure:
            status = Status.grade_error
            error = str(failure)
        except EngineError as failure:
            status = Status.engine_error
            error = str(failure)
        except UnknownEndError as failure:
            error = str(failure)
            unknown = failure
        except (GatewayLostError, SandboxError, AgentError) as failure:
            error = str(failure)
        finally:
            summary = await self._gateway.close_session(order.trajectory_id)
        if summary.lost:
            status = Status.infra_error
            error = summary.lost
            unknown = None
        ended = status_if_unanswered(summary, status if unknown is None else None)
        if ended is not None:
            status, error = ended
            progress.result = progress.result if unknown is None else unknown.result
        trajectory = self._trajectory(order, status, progress, error, times_s)
        count_calls(trajectory, summary)
        trajectory.began_s = progress.began_s | {"end": self._wall_clock()}
        return trajectory, progress.result

    async def _recall_first(self, continued: ContinuedAttempts, trajectory_id: str) -> None:
        recall = await asyncio.to_thread(continued.recall, trajectory_id)
        if recall is not None:
            self._gateway.recall_first(trajectory_id, recall)

    def _settings(self, order: Order) -> SessionSettings:
        """A program inside of the sandbox does not count its turns as we do, if at all: the gateway does. What such a
        program says of its segments is not believed."""
        if not self._agent.needs_door:
            return order.settings
        return replace(order.settings, max_calls=self._max_turns(order), has_segments=False)

    def _max_turns(self, order: Order) -> int:
        """Returns how many turns the attempt may have: those of its step, or of an evaluation."""
        if order.id.is_evaluation:
            return self._rollout.max_turns
        return rollout_at(self._rollout, order.id.step).max_turns

    async def _judge(
        self, order: Order, progress: _Progress, times_s: dict[str, float], grading: Coroutine[Any, Any, Grade]
    ) -> None:
        """Puts what the agent did to the tests. Raises GradeError, SandboxError."""
        progress.began_s.setdefault("grade", self._wall_clock())
        began_s = self._clock()
        try:
            progress.grade = await grading
        finally:
            times_s["grade"] = times_s.get("grade", 0.0) + self._clock() - began_s
        if self._keep_log is not None:
            await asyncio.to_thread(self._keep_log, order, progress.grade.log or progress.grade.log_tail)
        progress.tricks = tricks_of(progress.grade)

    async def _pay_own_reward(self, order: Order, status: Status, progress: _Progress) -> None:
        """Pays by a reward of somebody's own. Raises RewardError."""
        grade = progress.grade
        result = progress.result
        rule = self._rollout.outcomes[status.value].reward
        if self._reward is None or result is None or rule is OutcomeReward.none:
            return
        verdict = Grade(resolved=False, patch_applied=False) if grade is None else grade
        attempt = Attempt(
            order.trajectory_id, order.instance, status.value, progress.patch, verdict, result.turns, result.messages
        )
        paid = await self._reward.turn_rewards(attempt)
        progress.turn_rewards = paid[: len(result.turns)]
        if rule is OutcomeReward.graded and grade is not None and not progress.tricks:
            progress.own_reward = await self._reward.reward(attempt)

    async def _act(self, order: Order, progress: _Progress, times_s: dict[str, float]) -> None:
        """Boots a sandbox, lets the agent act in it and takes the patch out."""
        started_s, progress.began_s["boot"] = self._clock(), self._wall_clock()
        workspace = await asyncio.to_thread(self._env.workspace, order.instance)
        door = self._door(order) if self._agent.needs_door else None
        sandbox = await self._sandboxes.create(workspace, owner=order.trajectory_id, door=door)
        try:
            base_commit = order.instance.base_commit
            env = self._part(order).env
            in_place = env if isinstance(env, GradesInPlace) else None
            if workspace.image is not None and in_place is None:  # what we made ourselves has no history to hide
                base_commit = await prepare_image(sandbox, order.instance)
            times_s["boot"] = self._clock() - started_s
            await self._run_agent(order, progress, times_s, sandbox)
            if in_place is None:
                await self._take_patch(progress, sandbox, base_commit)
            else:
                await self._judge_in(in_place, sandbox, order, progress, times_s)
        finally:
            await sandbox.close()

    async def _run_agent(self, order: Order, progress: _Progress, times_s: dict[str, float], sandbox: Sandbox) -> None:
        started_s, progress.began_s["agent"] = self._clock(), self._wall_clock()
        if self._continued is not None:
            sandbox = await asyncio.to_thread(self._continued.recorded, order.trajectory_id, sandbox)
        waited = partial(self._gateway.waited_s, order.trajectory_id)
        work = Assignment(
            Task(order.instance.instance_id, self._env.prompt(order.instance)),
            base_url=self._gateway.session_url(order.trajectory_id),
            model=self._model_name,
            sandbox=sandbox,
            timeout_s=min(self._rollout.agent_timeout_s, self._gradings.limits(order.instance).agent_s),
            waited=waited,
            max_turns=self._max_turns(order),
        )
        running = asyncio.ensure_future(self._agent.run(work))
        try:
            await self._within_patience(running, waited, self._gateway.ended(order.trajectory_id))
            progress.result = running.result()
        finally:
            if not running.done():
                running.cancel()
                await asyncio.wait({running})
            if self._continued is not None:
                self._continued.ended(order.trajectory_id)
            times_s["waited"] = waited()
        times_s["agent"] = self._clock() - started_s
        times_s["command"] = sum(turn.command_s for turn in progress.result.turns)

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
        """Takes what the agent handed in, or else what its working tree holds."""
        assert progress.result is not None
        if progress.result.exit is not Exit.SUBMITTED:
            return
        try:
            progress.taken = await self._taken_patch(progress.result.patch, sandbox, base_commit)
        except OutsideError:
            raise
        except SandboxError as error:
            progress.taken = TakenPatch("", note=str(error))
            progress.untaken = error

    async def _taken_patch(self, submitted: str | None, sandbox: Sandbox, base_commit: str) -> TakenPatch:
        """Tries twice, because a hiccup of the machine is no doing of the agent's. Raises SandboxError."""

        async def take_once() -> TakenPatch:
            timeout_s = self._gradings.take_patch_s
            if submitted is not None:
                return await submitted_patch(sandbox, base_commit, submitted, timeout_s)
            return await collect_patch(sandbox, base_commit, timeout_s)

        try:
            return await take_once()
        except OutsideError:
            raise
        except SandboxError:
            return await take_once()

    def _part(self, order: Order) -> EnvPart:
        """Returns the environment of the order's instance: a part of a mix, or the only one."""
        return part_of(self._env, self._env_config, order.instance)

    def _door(self, order: Order) -> Door:
        parts = urlsplit(self._gateway.session_url(order.trajectory_id))
        assert parts.hostname is not None and parts.port is not None
        return Door(parts.hostname, parts.port, parts.path)

    async def _judge_in(
        self, env: GradesInPlace, sandbox: Sandbox, order: Order, progress: _Progress, times_s: dict[str, float]
    ) -> None:
        """The sandbox as the agent left it, once: no second one is like it. Raises GradeError, SandboxError."""
        assert progress.result is not None
        if progress.result.exit is not Exit.SUBMITTED:
            return
        order.acted()
        async with self._places:
            await self._judge(order, progress, times_s, self._gradings.grade_in(env, sandbox, order.instance))

    async def _check_untouched(self, order: Order, grade: Grade, times_s: dict[str, float]) -> None:
        """Called once the agent's sandbox has given its place back. Raises GradeError, SandboxError."""
        async with self._places:
            began_s = self._clock()
            try:
                await self._gradings.check_untouched(order.instance, grade)
            finally:
                times_s["grade"] += self._clock() - began_s

    def _trajectory(
        self, order: Order, status: Status, progress: _Progress, error: str | None, times_s: dict[str, float]
    ) -> Trajectory:
        outcome = self._rollout.outcomes[status.value]
        grade = progress.grade
        masked = bool(progress.tricks) and self._rollout.tricks is TrickPolicy.mask
        part = self._part(order)
        reward = reward_of(status, grade, self._rollout.outcomes, part.config.reward)
        if reward is not None and self._reward is not None:
            paid = progress.own_reward is not None and outcome.reward is OutcomeReward.graded
            reward = progress.own_reward if paid else self._reward.failure
        return Trajectory(
            trajectory_id=order.trajectory_id,
            group_id=order.id.group_id,
            **asdict(order.id),
            part=part.name,
            status=status,
            reward=None if masked else reward,
            trained=outcome.trained and not masked,
            in_baseline=outcome.in_baseline and not masked,
            turns=progress.result.turns if progress.result else [],
            own_turn_rewards=progress.turn_rewards,
            patch=progress.patch,
            tests=grade.fail_to_pass | grade.pass_to_pass if grade else {},
            error=error or progress.taken.note or None,
            times_s=times_s,
            cheating=self._cheating(order, progress),
            findings=findings_of(grade),
            grade_log=end_of(grade.log_tail) if grade and not grade.resolved else "",
        )

    def _cheating(self, order: Order, progress: _Progress) -> dict[str, int]:
        turns = progress.result.turns if progress.result else []
        commands = [turn.command for turn in turns if turn.command]
        tried = cheating_attempts(commands, progress.taken.shown, order.instance)
        return dict(sorted((dict.fromkeys(progress.tricks, 1) | tried).items()))
