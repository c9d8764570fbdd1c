"""A program as an agent: what it is given, what its end means, and that it leaves nothing in the patch."""

import shlex
import sys

import pytest

from swe_rl.agent.agent import AgentError, Assignment, Exit, UnknownEndError
from swe_rl.agent.program.agent import NO_KEY, ProgramAgent
from swe_rl.config.compose import compose
from swe_rl.config.schema import AgentConfig, SandboxConfig
from swe_rl.dataset.instance import Instance
from swe_rl.errors import UserError
from swe_rl.sandbox.sandbox import ExecResult
from tests.agent.conftest import TASK, end_of
from tests.support.scripted_sandbox import ScriptedSandbox


def agent_of(command: str, api_key: str | None = None, **changes: object) -> ProgramAgent:
    settings = {"exit_codes": {"0": "submitted"}, "max_observation_chars": 1000, **changes}
    config = AgentConfig(name="command", command=command, **settings)  # type: ignore[arg-type]
    return ProgramAgent(config, max_turns=7, api_key=api_key)


@pytest.mark.parametrize(
    ("status", "output", "timed_out", "end"),
    [
        (0, "done", False, Exit.SUBMITTED),
        (53, "turns", False, Exit.STEP_LIMIT),
        (124, "", True, Exit.AGENT_TIMEOUT),
        (0, "what the issue says of maximum context length: context_length_exceeded", False, Exit.SUBMITTED),
        (137, "Killed", False, Exit.AGENT_CRASHED),
        (143, "", False, Exit.AGENT_CRASHED),
    ],
)
async def test_how_it_ends(status, output, timed_out, end):
    agent = agent_of("x", exit_codes={"0": "submitted", "53": "step_limit"})
    result = await end_of(agent, ExecResult(status, output, timed_out, 0, 2.0))
    assert result.exit is end
    assert [(turn.command, turn.observation, turn.exit_code) for turn in result.turns] == [("x", output, status)]
    assert result.messages == [{"role": "user", "content": TASK.prompt}]


async def test_a_status_that_means_nothing_is_the_programs_fault():
    with pytest.raises(UnknownEndError, match=r"status 3 It said at the end: boom") as caught:
        await end_of(agent_of("x"), ExecResult(3, "boom\n", False, 0, 1.0))
    assert [turn.observation for turn in caught.value.result.turns] == ["boom\n"]
    with pytest.raises(AgentError, match=r"agent.program_path"):
        await end_of(agent_of("x"), ExecResult(127, "bash: x: command not found", False, 0, 1.0))


def test_what_cannot_be_started_is_refused():
    with pytest.raises(UserError, match="agent.command"):
        agent_of("")
    for codes in ({"0": "fine"}, {"x": "submitted"}):
        with pytest.raises(UserError, match="agent.exit_codes"):
            agent_of("x", exit_codes=codes)


class Watched(ScriptedSandbox):
    """Keeps the environment of its last command."""

    async def exec(self, command, *, env=None, **limits):
        self.env = env
        return await super().exec(command, env=env, **limits)


@pytest.mark.parametrize("door_url", [None, "http://127.0.0.1:9/v1"])
async def test_the_gateway_is_reached_through_the_door(door_url: str | None):
    sandbox = Watched("one", "/testbed", lambda command: "", door_url=door_url)
    own = "http://h:1/sessions/a%2Fb/secret/v1"
    await agent_of("x").run(Assignment(TASK, base_url=own, model="m", sandbox=sandbox, timeout_s=9))
    assert (sandbox.env["OPENAI_BASE_URL"], sandbox.env["OPENAI_API_BASE"]) == (door_url or own, door_url or own)
    assert sandbox.env["ANTHROPIC_BASE_URL"] + "/v1" == (door_url or own)


CLIENT = f"""\
cat > /tmp/client.py <<'END'
import json, os, sys, urllib.request
task = sys.stdin.read()
assert task == open(os.environ["SWE_RL_TASK_FILE"]).read() == os.environ["SWE_RL_TASK"], task
assert os.environ["OPENAI_API_KEY"] == {NO_KEY!r} and os.environ["SWE_RL_MAX_TURNS"] == "7"
assert not [value for value in os.environ.values() if "sessions" in value], os.environ  # nor any secret
assert os.environ["MINE"] == "1" and os.environ["PATH"].startswith("/opt/tools:")
messages = [{{"role": "user", "content": task}}]

def reply(path, body, key):
    head = {{"Content-Type": "application/json", key: os.environ["ANTHROPIC_API_KEY"]}}
    return json.load(urllib.request.urlopen(urllib.request.Request(path, json.dumps(body).encode(), head)))

ASK
while True:
    said = ask()
    messages += [{{"role": "assistant", "content": said}}, {{"role": "user", "content": "<tool_response>"}}]
    if said == "stop":
        break
    assert os.system(said) == 0
END
mkdir -p .qwen node_modules/a && touch .qwen/state node_modules/a/b
exec {shlex.quote(sys.executable)} /tmp/client.py
"""


ASKS = {
    "chat": """\
def ask():
    body = {"model": os.environ["OPENAI_MODEL"], "messages": messages}
    return reply(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, "X")["choices"][0]["message"]["content"]
""",
    "messages": """\
def ask():
    body = {"model": os.environ["ANTHROPIC_MODEL"], "messages": messages, "max_tokens": 2000}
    return reply(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", body, "x-api-key")["content"][0]["text"]
""",
    "responses": """\
def ask():
    body = {"model": os.environ["OPENAI_MODEL"], "input": messages}
    return reply(os.environ["OPENAI_BASE_URL"] + "/responses", body, "X")["output"][0]["content"][0]["text"]
""",
}


@pytest.mark.parametrize(
    "dialect", ["chat", *(pytest.param(name, marks=pytest.mark.slow) for name in ASKS if name != "chat")]
)
async def test_a_program_of_twenty_lines_solves_an_instance_without_network(solve, dialect):
    def policy(instance: Instance) -> list[dict[str, object]]:
        return [{"content": f"git apply <<'PATCH'\n{instance.patch}PATCH"}, {"content": "stop"}]

    agent = agent_of(
        CLIENT.replace("ASK\n", ASKS[dialect]), env_vars={"MINE": "1"}, program_path="/opt/tools:/opt/more"
    )
    solved = await solve(agent, policy, sandbox=SandboxConfig())
    assert solved.result.exit is Exit.SUBMITTED, solved.result.turns
    assert solved.grade and solved.grade.resolved
    assert solved.patch.count("diff --git") == 1
    assert (len(solved.traces), len(solved.rows), solved.summary.breaks) == (2, 1, {})


async def test_the_option_composes():
    config = compose(["agent=command", "agent.command='my-agent --fast'", "+agent.env_vars.A=b"]).config.agent
    sandbox = Watched("one", "/testbed", lambda command: "")
    work = Assignment(TASK, base_url="http://h:1/v1", model="m", sandbox=sandbox, timeout_s=9)
    result = await ProgramAgent(config, max_turns=7).run(work)
    assert (result.exit, result.turns[0].command, sandbox.env["A"]) == (Exit.SUBMITTED, "my-agent --fast", "b")
