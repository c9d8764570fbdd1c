"""Plays a task of a `verifiers` taskset: its prompt, one reply through the gateway, and its own rewards.

Invariants:
- The package's own rollout calls the task's hooks and rewards. The reply is asked for in this process, by no program.
- What a hook or a reward raises, or takes too long for, is an error and no reward.
"""

import asyncio
import importlib
import json
from typing import Any

from swe_rl.agent.agent import AgentError, AgentResult, Assignment, Exit, Turn
from swe_rl.config.ranges import LARGEST_REWARD
from swe_rl.engine.engine import EngineError
from swe_rl.env.verifiers_tasksets import LoadedTaskset
from swe_rl.errors import one_line
from swe_rl.extension.make import describe_value, is_usable_reward
from swe_rl.gateway.errors import CONTEXT_OVERFLOW
from swe_rl.sandbox.sandbox import ends_within

_SCORING_S = 25.0
# An attempt is resolved with so much reward.
_RESOLVED = 1.0


async def play_task(played: LoadedTaskset, work: Assignment, api_key: str) -> AgentResult:
    """Returns what became of a task, with its score as the patch. Raises EngineError, AgentError."""
    rollout = _make_rollout(played, work, api_key)
    running = asyncio.ensure_future(_run_rollout(rollout))
    try:
        if not await ends_within(running, work.timeout_s, work.waited):
            return AgentResult(Exit.AGENT_TIMEOUT)
        trace = running.result()
    finally:
        if not running.done():
            running.cancel()
            await asyncio.wait({running})
    result = AgentResult(Exit.SUBMITTED, turns=_make_turns(trace), messages=_all_messages(trace))
    error = trace.last_error
    if error is not None and CONTEXT_OVERFLOW in error.message:
        result.exit = Exit.CONTEXT_OVERFLOW
        return result
    if error is not None and error.type == "ProviderError":
        raise EngineError(f"the gateway gave no completion: {one_line(error.message)}")
    where = f"env.dataset={played.package}: {work.task.instance_id}"
    if error is not None or str(trace.stop_condition).endswith("_timeout"):
        said = f"{error.type}: {one_line(error.message)}" if error is not None else trace.stop_condition
        raise AgentError(f"{where} ended with {said}")
    result.patch = _write_score(trace, where)
    return result


def _make_rollout(played: LoadedTaskset, work: Assignment, api_key: str) -> Any:
    vf = importlib.import_module("verifiers.v1")
    of_rollout = importlib.import_module("verifiers.v1.rollout")
    of_session = importlib.import_module("verifiers.v1.session")
    # The gateway takes its token as this header, too. No variable of the environment has it.
    client = vf.EvalClientConfig(base_url=work.base_url, api_key_var="", headers={"X-Api-Key": api_key})
    config = vf.AgentConfig(model=work.model, client=client, runtime=vf.SubprocessConfig())
    return of_rollout.Rollout(
        task=played.task(work.task.instance_id),
        agent_config=config,
        harness=_reply_harness(vf),
        ctx=vf.ModelContext(model=work.model, client=client, sampling=vf.SamplingConfig()),
        runtime_config=config.runtime,
        timeouts=of_rollout.RolloutTimeouts(scoring=_SCORING_S),
        limits=of_session.RolloutLimits(),
    )


async def _run_rollout(rollout: Any) -> Any:
    """Returns the rollout's trace. What it holds is free afterwards, also if it is cancelled."""
    try:
        if await rollout.open():
            await rollout.step()
        return await rollout.close()
    except BaseException:
        await rollout.abort()
        raise


def _reply_harness(vf: Any) -> Any:
    """Makes what the package calls a harness: it asks for one reply to the task's prompt."""
    from openai import AsyncOpenAI

    class OneReply(vf.Harness):  # type: ignore[misc]
        APPENDS_SYSTEM_PROMPT = True
        EXECUTES_CODE = False
        NEEDS_CONTAINER = False

        async def launch(
            self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, urls: Any, data: Any, **_: Any
        ) -> Any:
            system, prompt = self.resolve_prompt(data)
            said = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(map(_dump, prompt or ()))
            head = [{"role": "system", "content": system}] if system else []
            messages: Any = [*head, *said]
            async with AsyncOpenAI(base_url=endpoint, api_key=secret, timeout=None, max_retries=0) as client:
                await client.chat.completions.create(model=ctx.model, messages=messages)
            return vf.ProgramResult(exit_code=0, stdout="", stderr="")

    return OneReply(vf.HarnessConfig(id="null"))


def _write_score(trace: Any, where: str) -> str:
    """Returns the reward as JSON. Raises AgentError for one that is no number."""
    reward = trace.reward
    if not is_usable_reward(reward):
        raise AgentError(
            f"{where} gave {describe_value(reward)}, which is no finite number (the largest size is {LARGEST_REWARD:g})"
        )
    record = {
        "reward": float(reward),
        "passed": reward >= _RESOLVED,
        "stop_condition": trace.stop_condition,
        "metrics": dict(trace.metrics),
    }
    return json.dumps(record, default=str) + "\n"


def _dump(message: Any) -> dict[str, Any]:
    return message.model_dump(exclude_none=True)  # type: ignore[no-any-return]


def _all_messages(trace: Any) -> list[dict[str, Any]]:
    return [_dump(message) for branch in trace.branches[:1] for message in branch.messages]


def _make_turns(trace: Any) -> list[Turn]:
    said = [message["content"] for message in _all_messages(trace) if message["role"] == "assistant"]
    return [Turn(index, text if isinstance(text, str) else "", None, None) for index, text in enumerate(said)]
