"""This module holds an agent that a user wrote to what the rollout relies on.

Invariants:
- Whatever it raises is an AgentError, a failure of infrastructure and never a reward; errors of ours keep their type.
- A conversation that no longer fits the model's context is no failure: the trajectory ends as context_overflow.
- It ends, cancelled if need be, `_GRACE_S` after its own time, or after its own `grace_s`, if it has one. That cannot
  end code that blocks the event loop.
"""

import asyncio
import inspect

from swe_rl.agent.agent import Agent, AgentError, AgentResult, Assignment, Exit
from swe_rl.agent.client import ContextOverflow
from swe_rl.errors import SweRlError
from swe_rl.extension.find import Foreign
from swe_rl.extension.make import describe_failure
from swe_rl.sandbox.sandbox import ends_within

# A user's agent has so long beyond rollout.agent_timeout_s to end by itself and to say what it did.
_GRACE_S = 30.0


class ForeignAgent:
    def __init__(self, agent: Agent, maker: Foreign, *, grace_s: float | None = None) -> None:
        self.name = maker.name
        self.needs_door = bool(getattr(agent, "needs_door", False))
        self._agent = agent
        self._maker = maker
        if grace_s is None:
            grace_s = float(getattr(agent, "grace_s", _GRACE_S))
        self._grace_s = grace_s

    async def run(self, work: Assignment) -> AgentResult:
        try:
            result = await self._run(work)
        except ContextOverflow:
            return AgentResult(Exit.CONTEXT_OVERFLOW)
        except SweRlError:
            raise
        except Exception as error:
            raise AgentError(f"{work.task.instance_id}: {describe_failure(self._maker, 'run', error)}") from error
        if not isinstance(result, AgentResult) or not isinstance(result.exit, Exit):
            raise AgentError(f"{self._maker}: its method run must return swe_rl.api.AgentResult, not {result!r:.80}")
        return result

    async def _run(self, work: Assignment) -> AgentResult:
        coroutine = self._agent.run(work)
        if not inspect.isawaitable(coroutine):
            raise TypeError("it must be `async def`")
        running = asyncio.ensure_future(coroutine)
        try:
            if not await ends_within(running, work.timeout_s + self._grace_s, work.waited):
                return AgentResult(Exit.AGENT_TIMEOUT)
            return running.result()
        finally:
            if not running.done():
                running.cancel()
                await asyncio.wait({running})
