"""This module makes the agent that a configuration means: one of this table, or a user's by `agent._target_` or an
entry point."""

from swe_rl.agent.agent import Agent
from swe_rl.agent.client import ChatClient
from swe_rl.agent.compaction import make_compaction
from swe_rl.agent.foreign import ForeignAgent
from swe_rl.agent.scripted import Patches
from swe_rl.config.choices import ExtensionKind
from swe_rl.config.schema import AgentConfig, RolloutConfig
from swe_rl.extension.make import make_extension

AGENTS = {
    "bash": "swe_rl.agent.bash.BashAgent",
    "mini_swe": "swe_rl.agent.mini_swe.agent.MiniSweAgent",
    "pdb": "swe_rl.agent.pdb.agent.PdbAgent",
    "qwen_code": "swe_rl.agent.program.qwen_code.QwenCodeAgent",
    "claude_code": "swe_rl.agent.program.claude_code.ClaudeCodeAgent",
    "codex": "swe_rl.agent.program.codex.CodexAgent",
    "opencode": "swe_rl.agent.program.opencode.OpencodeAgent",
    "openhands": "swe_rl.agent.program.openhands.OpenHandsAgent",
    "terminus_2": "swe_rl.agent.program.terminus_2.Terminus2Agent",
    "kimi_cli": "swe_rl.agent.program.kimi_cli.KimiCliAgent",
    "command": "swe_rl.agent.program.agent.ProgramAgent",
    "noop": "swe_rl.agent.scripted.NoopAgent",
    "gold": "swe_rl.agent.scripted.gold_agent",
    "demonstrate": "swe_rl.agent.demonstrator.demonstrating_agent",
    "scripted": "swe_rl.agent.scripted.scripted_agent",
    "predictions": "swe_rl.agent.scripted.predictions_agent",
}


def make_agent(
    config: AgentConfig,
    rollout: RolloutConfig,
    client: ChatClient,
    *,
    patches: Patches | None = None,
    api_key: str | None = None,
) -> Agent:
    """Makes the agent. `patches` maps an instance's id to its patch, for agent=gold and agent=predictions. `api_key` is
    the gateway's token, for programs. Sampling is the gateway's: the agent asks for nothing.

    Raises UserError for what cannot be made.
    """
    given = {
        "config": config,
        "client": client,
        "max_turns": rollout.max_turns,
        "compaction": make_compaction(rollout),
        "command_timeout_s": rollout.command_timeout_s,
        "api_key": api_key,
        "patches": patches,
    }
    agent, maker = make_extension(ExtensionKind.agent, config, given, AGENTS)
    made: Agent = agent if maker is None else ForeignAgent(agent, maker)
    return made
