"""`agent=verifiers`: the environment's own rollout, with an OpenAI client of the attempt's session at the gateway.

Invariants:
- The environment leads the conversation; the gateway samples and traces it. Nothing runs in the sandbox.
- What the environment or its rewards raise, and what the gateway could not answer, is an error and no reward.
- What it hands in is the score of the rollout, as JSON. Only a rollout that ended by itself is scored.
"""

import asyncio
import json
import math
from collections.abc import Mapping
from typing import Any

from swe_rl.agent.protocol import AgentError, AgentResult, Assignment, Exit, Turn
from swe_rl.engine.protocol import EngineError
from swe_rl.env.verifiers import Loaded, faults, library, loaded
from swe_rl.errors import one_line
from swe_rl.sandbox.protocol import ends_within

_SCORING_S = 25.0  # beyond the agent's time: less than what its guard grants


class VerifiersAgent:
    """`package` and `args`: those of env=verifiers."""

    name = "verifiers"
    needs_door = False

    def __init__(self, max_turns: int, api_key: str | None, package: str, args: dict[str, Any] | None = None) -> None:
        self._max_turns = max_turns
        self._api_key = api_key or "none"  # the client refuses an empty one
        self._package = package
        self._arguments = args or {}

    async def run(self, work: Assignment) -> AgentResult:
        """Raises EngineError, AgentError."""
        played = loaded(self._package, self._arguments)
        played.limit_turns(self._max_turns)
        from openai import AsyncOpenAI

        async with AsyncOpenAI(base_url=work.base_url, api_key=self._api_key, timeout=None) as client:
            state = await self._rollout(played, work, client)
            if state is None:
                return AgentResult(Exit.AGENT_TIMEOUT)
            result = _result(played, state)
            if result.exit is Exit.SUBMITTED:
                result.patch = await _score(played, state, work)
            return result

    async def _rollout(self, played: Loaded, work: Assignment, client: Any) -> Any:
        """Its state; None where it did not end in its time."""
        row = await asyncio.to_thread(played.row, work.task.instance_id)
        door = library().OpenAIChatCompletionsClient(client)
        running = asyncio.ensure_future(played.environment.rollout(row, door, work.model, {}))
        try:
            return running.result() if await ends_within(running, work.timeout_s, work.waited) else None
        finally:
            if not running.done():
                running.cancel()
                await asyncio.wait({running})


def _result(played: Loaded, state: Any) -> AgentResult:
    """Raises EngineError, AgentError."""
    result = AgentResult(_exit(played, state), turns=_turns(state), messages=_messages(state))
    result.tools = tuple(_offered(tool) for tool in state.get("tool_defs") or ())
    return result


def _exit(played: Loaded, state: Any) -> Exit:
    vf, error = library(), state.get("error")
    if isinstance(error, vf.InvalidModelResponseError | vf.ToolParseError):
        return Exit.FORMAT_ERRORS
    if isinstance(error, vf.ModelError):
        raise EngineError(f"the gateway gave no completion: {_chain(error)}")
    if error is not None:
        raise AgentError(f"env.dataset={played.package}: its rollout ended with {_chain(error)}")
    if state.get("prompt_too_long"):
        return Exit.CONTEXT_OVERFLOW
    if state.get("timed_out"):
        return Exit.AGENT_TIMEOUT
    ours = state.get("stop_condition") == "max_turns_reached" and not played.is_own_limit(len(state["trajectory"]))
    return Exit.STEP_LIMIT if ours else Exit.SUBMITTED


def _chain(error: BaseException) -> str:
    """What it says, and what caused it; addresses of a session are in neither."""
    cause = error.__cause__
    said = f"{type(error).__name__}: {one_line(error)}".rstrip(": ")
    return said if cause is None else f"{said} ({_chain(cause)})"


async def _score(played: Loaded, state: Any, work: Assignment) -> str:
    """The reward by the environment's rubric, as JSON. Raises AgentError."""
    environment = played.environment
    where = f"env.dataset={played.package}: the rubric of {work.task.instance_id}"
    with faults() as raised:
        try:
            await asyncio.wait_for(environment.rubric.score_rollout(state), _SCORING_S)
            await environment.rubric.cleanup(state)
        except TimeoutError as error:
            raise AgentError(f"{where} gave no score in {_SCORING_S:g} s") from error
    if raised:
        raise AgentError(f"{where} gave no score: {'; '.join(raised)}")
    reward = state["reward"]
    if not isinstance(reward, bool | int | float) or not math.isfinite(reward):
        raise AgentError(f"{where} gave {reward!r:.80}, which is no finite number")
    record = {
        "reward": float(reward),
        "passed": reward >= environment.pass_threshold,
        "stop_condition": state.get("stop_condition"),
        "metrics": state.get("metrics") or {},
    }
    return json.dumps(record, default=str) + "\n"


def _turns(state: Any) -> list[Turn]:
    steps = state["trajectory"]
    spans = state["timing"].model.spans
    turns = []
    for index, step in enumerate(steps):
        said = step["completion"][-1]
        calls = [f"{call.name}({call.arguments})" for call in getattr(said, "tool_calls", None) or ()]
        turn = Turn(index, _text(said), "; ".join(calls) or None, None)
        if index < len(spans):
            turn.completion_s = spans[index].end - spans[index].start
        if index + 1 < len(steps):
            seen = len(step["prompt"]) + len(step["completion"])
            turn.observation = "\n".join(map(_text, steps[index + 1]["prompt"][seen:]))
        turns.append(turn)
    return turns


def _messages(state: Any) -> list[dict[str, Any]]:
    completion = state.get("completion") or ()
    return [message.model_dump(exclude_none=True) for message in (*state["prompt"], *completion)]


def _text(message: Any) -> str:
    content = message.content
    return content if isinstance(content, str) else "" if content is None else json.dumps(content, default=str)


def _offered(tool: Any) -> Mapping[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}
