"""What the rules know of agents is what the agents are."""

from swe_rl.agent.agent import Exit
from swe_rl.agent.pdb.tools import TOOLS
from swe_rl.agent.prompts import SYSTEM_PROMPTS
from swe_rl.check.rules.agent import AGENT_PROMPTS, AGENT_TOOLS, EXITS


def test_names():
    assert set(EXITS) == set(Exit)
    assert set(AGENT_PROMPTS["bash"]) == set(SYSTEM_PROMPTS)
    assert set(AGENT_TOOLS["pdb"]) == set(TOOLS)
