"""Which agent a configuration means."""

from swe_rl.agent.client import ChatClient
from swe_rl.agent.protocol import Agent
from swe_rl.agent.scripted import GoldAgent, NoopAgent, Patches, ScriptedAgent
from swe_rl.config.schema import AgentConfig, RolloutConfig
from swe_rl.errors import UserError


def make_agent(
    config: AgentConfig,
    rollout: RolloutConfig,
    client: ChatClient,
    *,
    patches: Patches | None = None,
    api_key: str | None = None,
) -> Agent:
    """`patches`: instance id to its gold patch, for agent=gold. `api_key`: the gateway's token, for programs.

    Raises UserError for what cannot be made. Sampling is the gateway's: the agent asks for nothing.
    """
    turns, command_s = rollout.max_turns, rollout.command_timeout_s
    match config.name:
        case "bash":
            from swe_rl.agent.bash import BashAgent

            return BashAgent(config, max_turns=turns, command_timeout_s=command_s, client=client)
        case "mini_swe":
            from swe_rl.agent.mini_swe.agent import MiniSweAgent

            return MiniSweAgent(config, max_turns=turns, command_timeout_s=command_s, client=client)
        case "pdb":
            from swe_rl.agent.pdb.agent import PdbAgent

            return PdbAgent(config, max_turns=turns, command_timeout_s=command_s, client=client)
        case "qwen_code":
            from swe_rl.agent.qwen_code import QwenCodeAgent

            return QwenCodeAgent(config, max_turns=turns, api_key=api_key)
        case "openhands":
            from swe_rl.agent.program import OpenHandsAgent

            return OpenHandsAgent(config, max_turns=turns, api_key=api_key)
        case "command":
            from swe_rl.agent.program import ProgramAgent

            return ProgramAgent(config, max_turns=turns, api_key=api_key)
        case _:
            return _without_model(config, command_s, patches)


def _without_model(config: AgentConfig, command_timeout_s: float, patches: Patches | None) -> Agent:
    if config.name == "noop":
        return NoopAgent()
    if config.name == "scripted":
        return ScriptedAgent([config.command] if config.command else [], command_timeout_s=command_timeout_s)
    if config.name != "gold":
        raise UserError(f"agent={config.name} is not known; see `python -m swe_rl --help` for the agents")
    if patches is None:
        raise UserError("agent=gold needs the instances' own patches, and this environment has none to give")
    return GoldAgent(patches, command_timeout_s=command_timeout_s)
