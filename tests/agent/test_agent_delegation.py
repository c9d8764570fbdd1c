"""Sub-agents of agent=bash, with a scripted model over HTTP and a scripted sandbox."""

from dataclasses import replace

import pytest

from swe_rl.agent.agent import AgentResult, Assignment, Exit, Task
from swe_rl.agent.atif import atif_trajectory
from swe_rl.agent.bash import BashAgent
from swe_rl.agent.delegation import NO_SUBMIT
from swe_rl.agent.mini_swe.agent import _shown_messages
from swe_rl.agent.prompts import FORMAT_REMINDER, SYSTEM_PROMPTS, format_reminder, sub_agent_prompt, system_prompt
from swe_rl.config.schema import AgentConfig, DelegateConfig, SandboxConfig
from swe_rl.gateway.trace import Break
from swe_rl.sandbox.sandbox import Workspace
from tests.support.fake_chat_server import FakeChatServer, FakeReply, replies
from tests.support.scripted_sandbox import ScriptedProvider

TASK = Task("calc__calc-1", "add() subtracts.")
ONCE = DelegateConfig(depth=1)
OVERFLOW = FakeReply("full", status=400, error_code="context_length_exceeded")


def block(text, language="bash"):
    return f"Next.\n```{language}\n{text}\n```"


def delegate(task):
    return block(task, "delegate")


def report(text):
    return block(text, "report")


SUBMIT = block("submit")


async def run(client, script, how=ONCE, prompt="short", timeout_s=30.0, **changes):
    config = AgentConfig(system_prompt=prompt, max_observation_chars=300, max_format_errors=1, delegate=how)
    agent = BashAgent(config, client=client, **{"max_turns": 5, "command_timeout_s": 5.0} | changes)
    sandbox = await ScriptedProvider(lambda command: f"ran {command.command}\n").create(Workspace(), owner="t")
    async with FakeChatServer(script) as server:
        work = Assignment(TASK, base_url=server.base_url, model="m", sandbox=sandbox, timeout_s=timeout_s)
        result = await agent.run(work)
    return result, server.requests, sandbox.commands


def said_last(request):
    return request["messages"][-1]["content"]


async def test_a_sub_agent_works_in_the_same_sandbox_with_a_conversation_of_its_own(client):
    script = replies(block("ls"), delegate("Find add()."), block("grep add"), report("calc.py:3"), block("fix"), SUBMIT)
    result, requests, commands = await run(client, script)
    assert result.exit is Exit.SUBMITTED and commands == ["ls", "grep add", "fix"]
    first, after = requests[2]["messages"], requests[3]["messages"]
    assert [message["content"] for message in first] == [sub_agent_prompt("short", may_delegate=False), "Find add()."]
    assert after[:2] == first and said_last(requests[3]) == "ran grep add\n"
    assert said_last(requests[4]) == "calc.py:3", "the agent reads the report and nothing else"
    assert requests[4]["messages"][: len(requests[1]["messages"])] == requests[1]["messages"]
    assert [turn.sub_agent for turn in result.turns] == [0, 0, 1, 1, 0, 0]
    assert [turn.index for turn in result.turns] == list(range(6))
    assert [turn.command for turn in result.turns] == ["ls", None, "grep add", None, "fix", "submit"]
    assert result.turns[1].observation == "calc.py:3"
    assert [message["role"] for message in result.messages] == [
        "system",
        "user",
        *["assistant", "user"] * 3,
        "assistant",
    ]


async def test_calls_say_whose_they_are(client):
    script = replies(delegate("a"), block("ls"), report("1"), delegate("a"), report("2"), SUBMIT)
    _, requests, _ = await run(client, script)
    assert [request.get("segment") for request in requests] == [
        None,
        {"role": "sub_agent", "agent": 1},
        {"agent": 1},
        None,
        {"role": "sub_agent", "agent": 2},
        None,
    ]


async def test_without_sub_agents_nothing_is_said_of_them(client):
    result, requests, _ = await run(client, replies(delegate("a"), SUBMIT), DelegateConfig())
    assert requests[0]["messages"][0]["content"] == SYSTEM_PROMPTS["short"]
    assert said_last(requests[1]) == FORMAT_REMINDER and result.turns[0].format_error
    assert "delegate" not in SYSTEM_PROMPTS["standard"] + SYSTEM_PROMPTS["short"]


async def test_a_sub_agent_hands_nothing_in(client):
    script = replies(delegate("a"), SUBMIT, report("ok"), SUBMIT)
    result, requests, _ = await run(client, script)
    assert said_last(requests[2]) == NO_SUBMIT and result.exit is Exit.SUBMITTED
    assert [turn.format_error for turn in result.turns] == [False, True, False, False]


@pytest.mark.parametrize("depth", [1, 2])
async def test_only_so_deep(client, depth):
    script = replies(delegate("a"), delegate("b"), report("deep"), report("done"), SUBMIT)
    result, requests, _ = await run(client, script, replace(ONCE, depth=depth))
    agents = [turn.sub_agent for turn in result.turns]
    assert agents == ([0, 1, 1, 0, 0] if depth == 1 else [0, 1, 2, 1, 0])
    if depth == 1:
        assert said_last(requests[2]) == format_reminder(["bash", "report"])
    else:
        assert requests[1]["messages"][0]["content"] == sub_agent_prompt("short", may_delegate=True)
        assert said_last(requests[3]) == "deep" and said_last(requests[4]) == "done"


async def test_only_so_often(client):
    script = replies(delegate("a"), report("1"), delegate("b"), SUBMIT)
    _, requests, _ = await run(client, script, replace(ONCE, max_calls=1))
    assert said_last(requests[3]) == "You had 1 sub-agents, and there are no more. Do the rest yourself."


@pytest.mark.parametrize(
    ("between", "why"),
    [
        ([block("ls")] * 2, "it had no turns left"),
        ([OVERFLOW], "its conversation grew too long"),
        (["Hm."] * 2, "too many of its replies could not be run"),
    ],
)
async def test_an_agent_goes_on_after_a_sub_agent_without_a_report(client, between, why):
    result, requests, _ = await run(client, replies(delegate("a"), *between, SUBMIT), replace(ONCE, max_turns=2))
    assert said_last(requests[-1]) == (
        f"The sub-agent ended without a report: {why}. What it changed in the repository stays."
    )
    assert result.exit is Exit.SUBMITTED


async def test_turns_of_sub_agents_are_none_of_the_agents_own(client):
    script = replies(delegate("a"), *[block("ls")] * 2, report("ok"), block("a"), block("b"), SUBMIT)
    result, _, _ = await run(client, script, max_turns=4)
    assert result.exit is Exit.SUBMITTED and len(result.turns) == 7


async def test_sub_agents_spend_the_time_of_their_agent(client):
    script = replies(delegate("a"), FakeReply(block("ls"), delay_s=5.0))
    result, requests, _ = await run(client, script, timeout_s=0.6)
    assert result.exit is Exit.AGENT_TIMEOUT and len(requests) == 2
    assert result.turns[0].observation is None


async def test_a_long_report_is_shortened(client):
    _, requests, _ = await run(client, replies(delegate("a"), report("x" * 1000), SUBMIT))
    assert len(said_last(requests[2])) <= 300


async def test_files_of_others_have_the_turns_of_sub_agents_or_leave_them_out(client):
    result, _, _ = await run(client, replies(delegate("a"), block("ls"), report("ok"), block("fix"), SUBMIT))
    written = atif_trajectory(result, trajectory_id="t", agent="bash", model="m", sampled_tokens=1, outcome={})
    numbers = [step.get("extra", {}).get("sub_agent", 0) for step in written["steps"] if step["source"] == "agent"]
    assert numbers == [0, 1, 1, 0, 0]
    shown = _shown_messages(AgentResult(result.exit, result.turns, result.messages))
    actions = [message["extra"]["actions"] for message in shown if message["role"] == "assistant"]
    assert actions == [[], [{"command": "fix"}], [{"command": "submit"}]]


def test_both_prompts_speak_of_sub_agents_only_where_there_may_be_some():
    for name, prompt in SYSTEM_PROMPTS.items():
        assert system_prompt(name) == prompt
        assert "```delegate" in system_prompt(name, may_delegate=True)
        assert "```report" in sub_agent_prompt(name, may_delegate=False)
        assert "submit" not in sub_agent_prompt(name, may_delegate=True)


@pytest.mark.slow
async def test_sub_agents_solve_an_instance_in_a_real_sandbox_and_each_is_a_row(solve, client):
    """Both sub-agents get the same words and say the same. The first one makes half of the change, unseen."""
    config = AgentConfig(system_prompt="short", delegate=ONCE)
    agent = BashAgent(config, client=client, max_turns=6, command_timeout_s=20.0)
    done = 0

    def policy(instance):
        def reply(text):
            nonlocal done
            if "Do this part of a task." in text:
                if "PRINTED" in text:
                    return {"content": report("It is written.")}
                return {"content": block("echo word >> note.txt && echo PRINTED")}
            done += 1
            if done < 3:
                return {"content": delegate("Write the note.")}
            return {"content": block("cat note.txt")} if done == 3 else {"content": SUBMIT}

        return reply

    solved = await solve(agent, policy, sandbox=SandboxConfig(), has_segments=True)
    assert solved.result.exit is Exit.SUBMITTED
    assert [turn.sub_agent for turn in solved.result.turns] == [0, 1, 1, 0, 2, 2, 0, 0]
    assert solved.result.turns[-2].observation == "word\nword\n", "both wrote in the agent's own sandbox"
    assert "+word\n+word\n" in solved.patch
    assert [row.segment for row in solved.rows] == [1, 2, 0], "in the order in which they ended"
    first, second, main = solved.rows
    assert first.token_ids.tolist() == second.token_ids.tolist() != main.token_ids.tolist()
    assert sum(row.trained_tokens for row in solved.rows) == solved.summary.sampled_tokens
    assert solved.summary.breaks == {Break.sub_agent: 2}
