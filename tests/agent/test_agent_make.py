"""Every agent that can be named can be made."""

import random
from pathlib import Path

import pytest

from swe_rl.agent.agent import Agent
from swe_rl.agent.client import ChatClient
from swe_rl.agent.make import make_agent
from swe_rl.agent.scripted import GoldAgent
from swe_rl.check.rules.data import AGENT_TOOLS
from swe_rl.config.compose import compose
from swe_rl.config.schema import AgentConfig, RolloutConfig
from swe_rl.errors import UserError

OPTIONS = sorted(path.stem for path in (Path(__file__).parents[2] / "conf" / "agent").glob("*.yaml"))
INSIDE = {"qwen_code", "claude_code", "codex", "opencode", "openhands", "terminus_2", "kimi_cli", "command"}

OF_ENV = {
    "openenv": ("env=openenv", "env.dataset=http://127.0.0.1:8000"),
    "nemo_gym": ("env=nemo_gym", "env.dataset=rows.jsonl", "env.params.server=http://127.0.0.1:8000"),
}


def made(option: str, *overrides: str) -> Agent:
    if option == "mini_swe":
        pytest.importorskip("minisweagent")
    config = compose([f"agent={option}", *overrides]).config
    client = ChatClient(rng=random.Random(0))
    return make_agent(config.agent, config.rollout, client, patches=lambda instance_id: "diff", api_key="k")


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_is_an_agent(option: str):
    agent = made(option, "agent.command=program", *OF_ENV.get(option, ()))
    assert agent.name in AGENT_TOOLS and agent.needs_door is (agent.name in INSIDE)


@pytest.mark.parametrize("tools", AGENT_TOOLS["pdb"])
@pytest.mark.parametrize("prompt", ["short", "standard"])
def test_every_set_of_tools_has_its_prompt(tools: str, prompt: str):
    assert made("pdb", f"agent.tools={tools}", f"model.system_prompt={prompt}").name == "pdb"


def test_what_cannot_be_made_is_refused():
    client = ChatClient(rng=random.Random(0))
    with pytest.raises(UserError, match="agent=x"):
        make_agent(AgentConfig(name="x"), RolloutConfig(), client)
    with pytest.raises(UserError, match="patches"):
        make_agent(AgentConfig(name="gold"), RolloutConfig(), client)
    assert isinstance(make_agent(AgentConfig(name="gold"), RolloutConfig(), client, patches={"a": "b"}), GoldAgent)
