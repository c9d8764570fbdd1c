import pytest

from swe_rl.agent.agent import AgentResult, Exit
from swe_rl.model.chat import TEMPLATES, ChatRenderer
from swe_rl.model.tiny import build_tokenizer
from swe_rl.rollout.rows import Rendered

TOOLS = ({"type": "function", "function": {"name": "bash", "description": "Runs a command."}},)
CALL = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
MESSAGES = [
    {"role": "system", "content": "Fix bugs."},
    {"role": "user", "content": "x"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "lib.py"},
    {"role": "assistant", "content": "Done."},
]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("tools", [(), TOOLS])
def test_the_tools_that_were_offered_are_part_of_the_prompt(template, tools):
    renderer = ChatRenderer(build_tokenizer(["ls lib.py\n"] * 3, 300), template=template)
    rendered = Rendered.of(AgentResult(Exit.SUBMITTED, messages=MESSAGES, tools=tools), renderer)
    spans = [rendered.token_ids[start:end].tolist() for start, end in rendered.spans]
    assert spans == [list(renderer.reply(MESSAGES[2])), list(renderer.reply(MESSAGES[4]))]
    assert rendered.token_ids[: rendered.spans[0][0]].tolist() == list(renderer.start(MESSAGES[:2], tools))
    assert ("Runs a command." in renderer.decode(rendered.token_ids)) == bool(tools)
