"""These agents have no model: they do what a perfect or an idle agent would do, for oracle runs and tests.

Invariants:
- They never use their base URL; their conversation is the task and the commands.
- With the gold patch every instance must be resolved, and with a change that fixes nothing none: else the environment
  is broken.
"""

from collections.abc import Callable, Mapping, Sequence

from swe_rl.agent.agent import AgentError, AgentResult, Assignment, Exit, Turn
from swe_rl.agent.conversation import Budget
from swe_rl.agent.observation import format_observation
from swe_rl.config.schema import AgentConfig
from swe_rl.env.patch import NOOP_PATCH
from swe_rl.errors import UserError

_PATCH_FILE = ".gold.patch"
Patches = Mapping[str, str] | Callable[[str], str | None]


def look_up(patches: Patches) -> Callable[[str], str | None]:
    """Returns a function that gives an instance's patch by its id."""
    return patches if callable(patches) else patches.get


class ScriptedAgent:
    """Runs `commands` in order, then submits."""

    name = "scripted"
    needs_door = False
    # No model reads the observations. They are kept for the person who looks at the trajectory.
    _max_observation_chars = 8000

    def __init__(self, commands: Sequence[str], *, command_timeout_s: float = 60.0) -> None:
        self._commands = tuple(commands)
        self._command_timeout_s = command_timeout_s

    async def run(self, work: Assignment) -> AgentResult:
        return await self._carry_out(work, self._commands)

    async def _carry_out(self, work: Assignment, commands: Sequence[str]) -> AgentResult:
        """Runs the commands one after another, until the time of the attempt is over."""
        budget = Budget(work.timeout_s)
        result = AgentResult(Exit.SUBMITTED, messages=[{"role": "user", "content": work.task.prompt}])
        for index, command in enumerate(commands):
            if budget.is_spent:
                result.exit = Exit.AGENT_TIMEOUT
                break
            done = await work.sandbox.exec(command, timeout_s=min(self._command_timeout_s, budget.left_s))
            budget.spend(done.duration_s)
            observation = format_observation(done, self._max_observation_chars)
            said = f"```bash\n{command}\n```"
            result.turns.append(
                Turn(index, said, command, observation, exit_code=done.exit_code, command_s=done.duration_s)
            )
            result.messages.append({"role": "assistant", "content": said})
            result.messages.append({"role": "user", "content": observation})
        return result


class NoopAgent(ScriptedAgent):
    """Hands in a new file that fixes nothing, as a proof does: with an empty patch the tests would never be run."""

    name = "noop"

    def __init__(self) -> None:
        super().__init__(())

    async def run(self, work: Assignment) -> AgentResult:
        result = await super().run(work)
        result.patch = NOOP_PATCH
        return result


def scripted_agent(config: AgentConfig, command_timeout_s: float) -> ScriptedAgent:
    """Makes agent=scripted, which runs `agent.command` if there is one."""
    return ScriptedAgent([config.command] if config.command else [], command_timeout_s=command_timeout_s)


def gold_agent(patches: Patches | None, command_timeout_s: float) -> "GoldAgent":
    """Makes agent=gold. Raises UserError."""
    return GoldAgent(require_patches("gold", patches), command_timeout_s=command_timeout_s)


def require_patches(agent: str, patches: Patches | None) -> Patches:
    """Returns the patches of the environment's instances. Raises UserError where it has none."""
    if patches is None:
        raise UserError(f"agent={agent} needs the instances' own patches, and this environment has none to give")
    return patches


def predictions_agent(patches: Patches | None) -> "PredictionsAgent":
    """Makes agent=predictions. Raises UserError."""
    if patches is None:
        raise UserError("agent=predictions needs a file of patches: agent.predictions=FILE")
    return PredictionsAgent(patches)


class PredictionsAgent(ScriptedAgent):
    """Hands in the patch that a predictions file has for the instance, and leaves the working tree as it is.

    The grader applies the patch, so that a patch that does not apply is the attempt's failure, as in SWE-bench.
    """

    name = "predictions"

    def __init__(self, patches: Patches) -> None:
        super().__init__(())
        self._patch_of = look_up(patches)

    async def run(self, work: Assignment) -> AgentResult:
        result = await super().run(work)
        result.patch = self._patch_of(work.task.instance_id) or ""
        return result


class GoldAgent(ScriptedAgent):
    """Applies the gold patch of the task's instance. `patches` maps an instance's id to a unified diff, or to a
    script."""

    name = "gold"

    def __init__(self, patches: Patches, *, command_timeout_s: float = 60.0) -> None:
        self._patch_of = look_up(patches)
        super().__init__(
            [
                f"if [ \"$(head -c 2 {_PATCH_FILE})\" = '#!' ]; then bash {_PATCH_FILE}; "
                f"else git apply --whitespace=nowarn {_PATCH_FILE}; fi; "
                f"status=$?; rm -f {_PATCH_FILE}; exit $status"
            ],
            command_timeout_s=command_timeout_s,
        )

    async def run(self, work: Assignment) -> AgentResult:
        """Applies the patch and submits. Raises AgentError when there is no gold patch for the instance or it does not
        apply."""
        patch = self._patch_of(work.task.instance_id)
        if not patch:
            raise AgentError(f"{work.task.instance_id}: the gold agent has no patch for this instance")
        await work.sandbox.write_file(_PATCH_FILE, patch.encode())
        result = await super().run(work)
        if result.exit is Exit.SUBMITTED and result.turns[-1].exit_code:
            raise AgentError(f"{work.task.instance_id}: the gold patch does not apply: {result.turns[-1].observation}")
        return result
