"""`agent=verifiers` runs the environment's own rollout, with an OpenAI client of the attempt's session at the gateway.

Invariants:
- The environment leads the conversation; the gateway samples and traces it. Nothing runs in the sandbox.
- What the environment or its rewards raise, and what the gateway could not answer, is an error and no reward.
- It hands in the score of the rollout, as JSON. Only a rollout that ended by itself is scored.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from swe_rl.agent.agent import AgentError, AgentResult, Assignment, Exit, Turn
from swe_rl.agent.verifiers_task import play_task
from swe_rl.config.ranges import LARGEST_REWARD
from swe_rl.engine.engine import EngineError
from swe_rl.env.verifiers import LoadedEnvironment, collect_faults, import_library, load_package
from swe_rl.env.verifiers_tasksets import LoadedTaskset
from swe_rl.errors import one_line
from swe_rl.extension.make import describe_value, is_usable_reward
from swe_rl.sandbox.sandbox import ends_within

# Scoring may take so long beyond the agent's time. Its guard grants a little more.
_SCORING_S = 25.0


class VerifiersAgent:
    """Runs a verifiers environment. `package` and `args` are those of env=verifiers."""

    name = "verifiers"
    needs_door = False

    def __init__(self, max_turns: int, api_key: str | None, package: str, args: dict[str, Any] | None = None) -> None:
        self._max_turns = max_turns
        # The client refuses an empty key.
        self._api_key = api_key or "none"
        self._package = package
        self._arguments = args or {}

    async def run(self, work: Assignment) -> AgentResult:
        """Plays the rollout and scores it. Raises EngineError, AgentError."""
        played = load_package(self._package, self._arguments)
        if isinstance(played, LoadedTaskset):
            return await play_task(played, work, self._api_key)
        played.limit_turns(self._max_turns)
        from openai import AsyncOpenAI

        async with AsyncOpenAI(base_url=work.base_url, api_key=self._api_key, timeout=None) as client:
            state = await self._rollout(played, work, client)
            if state is None:
                return AgentResult(Exit.AGENT_TIMEOUT)
            result = _make_result(played, state)
            if result.exit is Exit.SUBMITTED:
                result.patch = await _score_rubric(played, state, work)
            return result

    async def _rollout(self, played: LoadedEnvironment, work: Assignment, client: Any) -> Any:
        """Returns the rollout's state, or None if it did not end in its time."""
        row = await asyncio.to_thread(played.row, work.task.instance_id)
        door = import_library().OpenAIChatCompletionsClient(client)
        running = asyncio.ensure_future(played.environment.rollout(row, door, work.model, {}))
        try:
            if await ends_within(running, work.timeout_s, work.waited):
                return running.result()
            return None
        finally:
            if not running.done():
                running.cancel()
                await asyncio.wait({running})


def _make_result(played: LoadedEnvironment, state: Any) -> AgentResult:
    """Makes the result of a state. Raises EngineError, AgentError."""
    result = AgentResult(_exit_reason(played, state), turns=_make_turns(state), messages=_all_messages(state))
    result.tools = tuple(_offered_tool(tool) for tool in state.get("tool_defs") or ())
    return result


def _exit_reason(played: LoadedEnvironment, state: Any) -> Exit:
    vf = import_library()
    error = state.get("error")
    if isinstance(error, vf.InvalidModelResponseError | vf.ToolParseError):
        return Exit.FORMAT_ERRORS
    if isinstance(error, vf.ModelError):
        raise EngineError(f"the gateway gave no completion: {_describe_chain(error)}")
    if error is not None:
        raise AgentError(f"env.dataset={played.package}: its rollout ended with {_describe_chain(error)}")
    if state.get("prompt_too_long"):
        return Exit.CONTEXT_OVERFLOW
    if state.get("timed_out"):
        return Exit.AGENT_TIMEOUT
    ours = state.get("stop_condition") == "max_turns_reached" and not played.is_own_limit(len(state["trajectory"]))
    return Exit.STEP_LIMIT if ours else Exit.SUBMITTED


def _describe_chain(error: BaseException) -> str:
    """Says what the error says, and what caused it. Addresses of a session are in neither."""
    cause = error.__cause__
    said = f"{type(error).__name__}: {one_line(error)}".rstrip(": ")
    if cause is None:
        return said
    return f"{said} ({_describe_chain(cause)})"


async def _score_rubric(played: LoadedEnvironment, state: Any, work: Assignment) -> str:
    """Returns the reward by the environment's rubric, as JSON. Raises AgentError."""
    environment = played.environment
    where = f"env.dataset={played.package}: the rubric of {work.task.instance_id}"
    with collect_faults() as raised:
        try:
            await asyncio.wait_for(environment.rubric.score_rollout(state), _SCORING_S)
            await environment.rubric.cleanup(state)
        except TimeoutError as error:
            raise AgentError(f"{where} gave no score in {_SCORING_S:g} s") from error
    if raised:
        raise AgentError(f"{where} gave no score: {'; '.join(raised)}")
    reward = state["reward"]
    if not is_usable_reward(reward):
        raise AgentError(
            f"{where} gave {describe_value(reward)}, which is no finite number (the largest size is {LARGEST_REWARD:g})"
        )
    record = {
        "reward": float(reward),
        "passed": reward >= environment.pass_threshold,
        "stop_condition": state.get("stop_condition"),
        "metrics": state.get("metrics") or {},
    }
    return json.dumps(record, default=str) + "\n"


def _make_turns(state: Any) -> list[Turn]:
    steps = state["trajectory"]
    spans = state["timing"].model.spans
    turns = []
    for index, step in enumerate(steps):
        said = step["completion"][-1]
        calls = [f"{call.name}({call.arguments})" for call in getattr(said, "tool_calls", None) or ()]
        turn = Turn(index, _text_content(said), "; ".join(calls) or None, None)
        if index < len(spans):
            turn.completion_s = spans[index].end - spans[index].start
        if index + 1 < len(steps):
            seen = len(step["prompt"]) + len(step["completion"])
            turn.observation = "\n".join(map(_text_content, steps[index + 1]["prompt"][seen:]))
        turns.append(turn)
    return turns


def _all_messages(state: Any) -> list[dict[str, Any]]:
    completion = state.get("completion") or ()
    return [message.model_dump(exclude_none=True) for message in (*state["prompt"], *completion)]


def _text_content(message: Any) -> str:
    content = message.content
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return json.dumps(content, default=str)


def _offered_tool(tool: Any) -> Mapping[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}
