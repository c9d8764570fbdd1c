"""Which agent a configuration means."""

from swe_rl.agent.bash import BashAgent
from swe_rl.agent.client import ChatClient
from swe_rl.agent.protocol import Agent
from swe_rl.config.schema import AgentConfig, RolloutConfig
from swe_rl.errors import UserError


def make_agent(config: AgentConfig, rollout: RolloutConfig, client: ChatClient) -> Agent:
    """Raises UserError for an agent that cannot run yet. Sampling is the gateway's: the agent asks for nothing."""
    if config.name != "bash":
        raise UserError(f"agent={config.name} composes but cannot run yet; agent=bash runs")
    return BashAgent(config, max_turns=rollout.max_turns, command_timeout_s=rollout.command_timeout_s, client=client)
