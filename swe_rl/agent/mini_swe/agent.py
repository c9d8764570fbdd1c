"""This agent is mini-swe-agent 2.x: its own loop and prompts, our model (the gateway) and environment (the sandbox).

Invariants:
- The library's loop is synchronous: it runs in a thread of its own, which is over when `run` returns or is cancelled.
- With a prompt of ours (agent.system_prompt=standard) it holds exactly the conversation of agent=bash.
"""

from collections.abc import Mapping
from typing import Any

from swe_rl.agent.agent import AgentError, AgentResult, Assignment, Exit
from swe_rl.agent.conversation import Conversation, ConversingAgent
from swe_rl.agent.mini_swe.dialects import CallsDialect, FencedDialect, OurDialect, load_library, packaged_templates
from swe_rl.agent.mini_swe.parts import CommandDialect, GatewayModel, SandboxEnvironment, Shared, Stopped, ThreadBridge
from swe_rl.agent.prompts import system_prompt

# With this agent.system_prompt the library's SWE-bench runs are repeated.
PACKAGED_PROMPT = "mini_swe"
# Maps our ends of an attempt to mini-swe-agent's.
EXIT_STATUS = {
    Exit.SUBMITTED: "Submitted",
    Exit.STEP_LIMIT: "LimitsExceeded",
    Exit.AGENT_TIMEOUT: "TimeExceeded",
    Exit.FORMAT_ERRORS: "RepeatedFormatError",
    Exit.CONTEXT_OVERFLOW: "ContextWindowExceededError",
    Exit.AGENT_CRASHED: "AgentCrashed",  # Only programs end so; mini-swe-agent has no such word.
}
_EXIT = {theirs: ours for ours, theirs in EXIT_STATUS.items()}
_KEPT = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id")


class MiniSweAgent(ConversingAgent):
    """Runs the library's loop. It keeps no state between runs. Raises MiniSweMissingError, or UserError for an unknown
    prompt."""

    name = "mini_swe"

    def _prepare(self) -> None:
        load_library()
        packaged = self._config.system_prompt == PACKAGED_PROMPT
        self._templates = packaged_templates(self._config.tools) if packaged else None
        self._system_prompt = "" if packaged else system_prompt(self._config.system_prompt)

    async def run(self, work: Assignment) -> AgentResult:
        bridge = ThreadBridge()
        dialect = self._dialect()
        talk = self._begin(work, dialect.tools)
        loop = self._loop(Shared(talk, bridge), dialect, work.turns_of(self._max_turns))
        try:
            ended: dict[str, Any] = await bridge.run(
                lambda: loop.run(work.task.prompt, system_prompt=self._system_prompt),
                name=f"mini_swe-{work.task.instance_id}",
            )
        except Stopped as error:
            raise AgentError(f"{work.task.instance_id}: mini-swe-agent was stopped") from error
        result = _make_result(loop.messages, talk, ended)
        result.tools = tuple(dialect.tools)
        return result

    def _loop(self, shared: Shared, dialect: CommandDialect, max_turns: int) -> Any:
        system = "{{system_prompt}}"
        instance = "{{task}}"
        if self._templates:
            system = self._templates.system
            instance = self._templates.instance
        return load_library().agents.default.DefaultAgent(
            GatewayModel(shared, dialect),
            SandboxEnvironment(shared, dialect),
            system_template=system,
            instance_template=instance,
            step_limit=max_turns,
            cost_limit=0.0,
            # The library counts the error that ends the attempt, too.
            max_consecutive_format_errors=self._config.max_format_errors + 1,
        )

    def _dialect(self) -> CommandDialect:
        if self._templates is None:
            return OurDialect(self._config.max_observation_chars)
        kind = CallsDialect if self._config.tools == "bash_calls" else FencedDialect
        return kind(self._templates, self._config.max_observation_chars)


def _make_result(messages: list[dict[str, Any]], talk: Conversation, ended: dict[str, Any]) -> AgentResult:
    status = str(ended.get("exit_status"))
    if status not in _EXIT:
        raise AgentError(f"mini-swe-agent ended with a status that is not known: {status!r}")
    end = Exit.AGENT_TIMEOUT if talk.budget.is_spent and _EXIT[status] is not Exit.SUBMITTED else _EXIT[status]
    kept = [{key: message[key] for key in _KEPT if key in message} for message in messages if message["role"] != "exit"]
    if end is Exit.FORMAT_ERRORS:
        kept.pop()  # The model never read this reminder.
        talk.turns[-1].observation = None
    submission = str(ended.get("submission") or "")
    return AgentResult(end, talk.turns, kept, patch=submission if submission.startswith("diff --git") else None)


def mini_swe_trajectory(
    result: AgentResult, *, agent: str, model: str, patch: str, outcome: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns an attempt of any agent as mini-swe-agent writes it, for its inspector and for people who compare with
    its runs: info, messages with an `exit` message last, trajectory_format.

    `outcome` says what became of the attempt, as `instance_id`, `status` and `reward`. The result is ready for
    json.dumps; the library writes it as `INSTANCE/INSTANCE.traj.json` beside a preds.json.
    """
    status = EXIT_STATUS[result.exit]
    return {
        "info": {
            "model_stats": {"instance_cost": 0.0, "api_calls": len(result.turns)},
            "config": {"agent_type": agent, "model": {"model_name": model}},
            "exit_status": status,
            "submission": patch,
        },
        "messages": [*_shown_messages(result), _exit_message(status, patch)],
        "trajectory_format": "mini-swe-agent-1.1",
        **outcome,
    }


def _shown_messages(result: AgentResult) -> list[dict[str, Any]]:
    """Returns the messages with each reply's commands in `extra.actions`, which the library's inspector shows."""
    # The library knows of no summaries and no sub-agents: they are in none of its messages.
    turns = iter([turn for turn in result.turns if not turn.summary and not turn.sub_agent])
    messages = []
    for message in result.messages:
        turn = next(turns, None) if message["role"] == "assistant" else None
        actions = [{"command": turn.command}] if turn is not None and turn.command is not None else []
        messages.append({**message, "extra": {"actions": actions}} if turn is not None else dict(message))
    return messages


def _exit_message(status: str, patch: str) -> dict[str, Any]:
    return {"role": "exit", "content": patch or status, "extra": {"exit_status": status, "submission": patch}}
