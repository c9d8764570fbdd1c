"""The debugging agent's loop and tools, with a scripted model; its debugger has a test of its own."""

import json
import time
from pathlib import Path

import pytest

from swe_rl.agent.agent import AgentResult, Assignment, Exit, Task
from swe_rl.agent.client import ChatClient
from swe_rl.agent.pdb.actions import _show_diff
from swe_rl.agent.pdb.agent import CALL_REMINDER, PdbAgent, debugging_prompt
from swe_rl.agent.pdb.tools import TOOLS, ToolArgumentError, tools_of
from swe_rl.agent.prompts import FORMAT_REMINDER, SYSTEM_PROMPTS
from swe_rl.config.choices import Isolation
from swe_rl.config.schema import AgentConfig, SandboxConfig
from swe_rl.dataset.instance import Instance
from swe_rl.errors import UserError
from swe_rl.sandbox.process.provider import ProcessProvider
from swe_rl.sandbox.sandbox import ExecResult, Workspace
from tests.support.fake_chat_server import FakeChatServer, FakeReply, Script, replies
from tests.support.scripted_sandbox import Respond, ScriptedProvider

TASK = Task("calc__calc-1", "add() subtracts.")
SUBMIT = FakeReply("Done.", calls=(("submit", {}),))


def call(name: str, **arguments: object) -> FakeReply:
    return FakeReply(f"I {name}.", calls=((name, arguments),))


async def run(
    client: ChatClient,
    script: Script,
    respond: Respond = lambda command: f"ran {command.command}\n",
    *,
    files: dict[str, bytes] | None = None,
    timeout_s: float = 30.0,
    max_turns: int = 8,
    **changes: object,
) -> tuple[AgentResult, FakeChatServer, object]:
    settings = {"tools": "full", "system_prompt": "pdb_standard", "max_format_errors": 1} | changes
    agent = PdbAgent(AgentConfig(name="pdb", **settings), max_turns=max_turns, command_timeout_s=5.0, client=client)  # type: ignore[arg-type]
    sandbox = await ScriptedProvider(respond, files).create(Workspace(), owner="t")
    async with FakeChatServer(script) as server:
        result = await agent.run(
            Assignment(TASK, base_url=server.base_url, model="m", sandbox=sandbox, timeout_s=timeout_s)
        )
    return result, server, sandbox


async def test_calls_are_answered_one_by_one_and_requests_only_grow(client: ChatClient):
    two = FakeReply("Look.", calls=(("bash", {"command": "ls"}), ("grep", {"pattern": "a'b", "path": "/testbed/x"})))
    result, server, sandbox = await run(client, replies(two, SUBMIT))
    assert result.exit is Exit.SUBMITTED
    assert [message["role"] for message in result.messages] == [
        "system", "user", "assistant", "tool", "tool", "assistant",
    ]  # fmt: skip
    assert [message["tool_call_id"] for message in result.messages[3:5]] == ["call-1-0", "call-1-1"]
    assert sandbox.commands[0] == "ls" and "-e 'a'\"'\"'b' -- x |" in sandbox.commands[1]
    assert result.turns[0].command == 'bash {"command": "ls"}\ngrep {"pattern": "a\'b", "path": "/testbed/x"}'
    first, second = (request["messages"] for request in server.requests)
    assert second[: len(first)] == first
    assert all(request["tools"] == list(result.tools) for request in server.requests)
    assert [tool["function"]["name"] for tool in server.requests[0]["tools"]] == [
        "bash", "view", "grep", "edit", "pdb", "submit",
    ]  # fmt: skip


async def test_what_is_called_wrongly_is_told(client: ChatClient):
    wrong = FakeReply("", calls=(
        ("python", {}), ("bash", "not json"), ("bash", "[]"), ("bash", {}), ("view", {"path": "a", "start": "x"}),
        ("bash", {"command": 3}), ("bash", {"command": "ls", "cwd": "/"}),
    ))  # fmt: skip
    result, _, sandbox = await run(client, replies(wrong, SUBMIT))
    answers = [message["content"] for message in result.messages if message["role"] == "tool"]
    expected = (
        "no tool 'python'; there are bash, view, grep, edit, pdb, submit", "not JSON", "not a JSON object",
        "needs 'command'", "'start' is a number", "'command' is a text", "no argument 'cwd'",
    )  # fmt: skip
    assert len(answers) == len(expected) and all(want in got for want, got in zip(expected, answers, strict=True)), (
        answers
    )
    assert sandbox.commands == [] and result.exit is Exit.SUBMITTED


async def test_a_reply_without_a_call_is_a_format_error(client: ChatClient):
    result, _, _ = await run(client, replies("words", call("bash", command="ls"), "words", "words"))
    assert result.exit is Exit.FORMAT_ERRORS
    assert result.messages[3] == {"role": "user", "content": CALL_REMINDER}


@pytest.mark.parametrize("prompt", ["pdb_standard", "pdb_short"])
async def test_a_cut_reply_is_said_to_be_cut(client: ChatClient, prompt):
    cut = FakeReply("I look at the", finish_reason="length")
    result, _, _ = await run(client, replies(cut, cut), system_prompt=prompt)
    told = result.turns[0].observation
    assert f"cut at {result.turns[0].cut_tokens} tokens" in told and told.endswith((CALL_REMINDER, FORMAT_REMINDER))


async def test_limits(client: ChatClient):
    result, _, _ = await run(client, lambda messages: call("bash", command="ls"), max_turns=2)
    assert (result.exit, len(result.turns)) == (Exit.STEP_LIMIT, 2)
    slow: Respond = lambda command: ExecResult(124, "", True, 0, command.timeout_s)  # noqa: E731
    result, _, _ = await run(client, lambda messages: call("bash", command="ls"), slow, timeout_s=7.0)
    assert (result.exit, len(result.turns)) == (Exit.AGENT_TIMEOUT, 2)
    full = FakeReply("too long", status=400, error_code="context_length_exceeded")
    result, _, _ = await run(client, replies(call("bash", command="ls"), full))
    assert result.exit is Exit.CONTEXT_OVERFLOW


@pytest.mark.parametrize(
    ("arguments", "answer", "text"),
    [
        ({"old": "a - b", "new": "a + b"}, "+    return a + b", "def add(a, b):\n    return a + b\n"),
        ({"start": 2, "new": "    return 1"}, "+    return 1", "def add(a, b):\n    return 1\n"),
        ({"start": 1, "end": 1, "new": "def plus(a, b):"}, "+def plus", "def plus(a, b):\n    return a - b\n"),
        ({"start": 1, "end": 1, "new": ""}, "-def add", "    return a - b\n"),
        ({"old": "a", "new": "x"}, "3 times", None),
        ({"old": "nowhere", "new": "x"}, "not in it", None),
        ({"new": "x"}, "say what is replaced", None),
        ({"start": 2, "end": 9, "new": "x"}, "which has 2", None),
        ({"start": 1, "old": "a", "new": "x"}, "give either", None),
    ],
)
async def test_edit(client: ChatClient, arguments: dict[str, object], answer: str, text: str | None):
    before = b"def add(a, b):\n    return a - b\n"
    result, _, sandbox = await run(
        client, replies(call("edit", path="/testbed/calc.py", **arguments), SUBMIT), lambda c: "",
        files={"calc.py": before},
    )  # fmt: skip
    assert answer in result.messages[3]["content"]
    assert sandbox.files["calc.py"].decode() == (text or before.decode())


async def test_edit_makes_new_files_and_is_refused_where_the_sandbox_says_so(client: ChatClient):
    result, _, sandbox = await run(client, replies(call("edit", path="new/a.py", new="x = 1\n"), SUBMIT), lambda c: "")
    assert sandbox.files["new/a.py"] == b"x = 1\n" and "+x = 1" in result.messages[3]["content"]
    outside: Respond = lambda command: ExecResult(1, "not in the repository: /etc/x\n", False, 0, 0.1)  # noqa: E731
    result, _, sandbox = await run(client, replies(call("edit", path="../etc/x", new="x"), SUBMIT), outside)
    assert "not in the repository" in result.messages[3]["content"] and sandbox.files == {}


async def test_the_debugger_is_put_in_place_once_and_may_have_to_be_earned(client: ChatClient):
    edits = [call("edit", path=f"f{number}.py", new="x\n") for number in range(5)]
    script = replies(call("pdb", command="c"), *edits, call("pdb", command="c\nn"), call("pdb", command="n"), SUBMIT)
    result, _, sandbox = await run(client, script, lambda c: "", tools="debug_after_5", max_turns=12)
    tools = [message["content"] for message in result.messages if message["role"] == "tool"]
    assert tools[0] == "pdb can be used after 5 edits; there were 0"
    assert "one command a call" in tools[6] and "one command a call" not in tools[7]
    asked = [command for command in sandbox.commands if "debugger.py" in command]
    assert [json.loads(command.split("'")[1])["command"] for command in asked] == ["c", "n"]
    assert sum(command.startswith("mkdir") for command in sandbox.commands) == 1


async def test_the_ablation_has_no_debugger_and_no_word_of_it(client: ChatClient):
    result, server, _ = await run(client, replies(call("pdb", command="c"), SUBMIT), tools="rewrite_only")
    assert "no tool 'pdb'" in result.messages[3]["content"]
    assert "pdb" not in json.dumps(server.requests[0]["tools"])
    assert "debug" not in result.messages[0]["content"] and "pdb" not in result.messages[0]["content"]


async def test_small_models_call_by_blocks(client: ChatClient):
    script = replies(
        "```bash\nls\n```", "```pdb\npython -m pdb a.py\n```", "```pdb\nb a.py:3\n```", "words", "```bash\nsubmit\n```"
    )
    result, server, sandbox = await run(client, script, system_prompt="pdb_short")
    assert result.exit is Exit.SUBMITTED and "tools" not in server.requests[0]
    assert [message["role"] for message in result.messages[2:]] == ["assistant", "user"] * 4 + ["assistant"]
    orders = [json.loads(command.split("'")[1]) for command in sandbox.commands if "debugger.py" in command]
    assert [(one["command"], one["entrypoint"]) for one in orders] == [("", "python -m pdb a.py"), ("b a.py:3", "")]
    assert result.messages[-2]["content"] == FORMAT_REMINDER


def test_the_small_ablation_is_the_warm_started_prompt():
    assert debugging_prompt("pdb_short", "rewrite_only").text == SYSTEM_PROMPTS["short"]
    assert debugging_prompt("pdb_short", "full").text.startswith(SYSTEM_PROMPTS["short"])
    with pytest.raises(UserError, match="pdb_standard or pdb_short"):
        debugging_prompt("pdb", "full")
    with pytest.raises(UserError, match=r"agent.tools='x'"):
        tools_of("x")


@pytest.mark.parametrize("kind", TOOLS)
def test_schemas_say_what_is_checked(kind: str):
    for tool in tools_of(kind).values():
        parameters = tool.schema()["function"]["parameters"]
        assert set(parameters["required"]) <= set(parameters["properties"]) == {*tool.needed, *tool.optional}
        with pytest.raises(ToolArgumentError):
            tool.arguments('{"no such": 1}')


@pytest.fixture
async def workspace(tmp_path: Path):
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "calc.py").write_text("def add(a, b):\n    total = a - b\n    return total\n")
    (folder / "test_calc.py").write_text("from calc import add\n\ndef test_add():\n    assert add(1, 2) == 3\n")
    (folder / "out").symlink_to("/etc")
    provider = ProcessProvider(SandboxConfig(isolation=Isolation.auto), tmp_path / "scratch", warn=lambda words: None)
    yield await provider.create(Workspace(path=folder), owner="pdb")
    await provider.close()


@pytest.mark.parametrize("mark", ["\x0c", "\x0b", "\x1c", "\x85", "\u2028", "\r"])
async def test_the_lines_of_an_edit_are_those_of_view(client: ChatClient, workspace, mark: str):
    source = f"a = 1\n{mark}\nb = '{mark}'\nc = 3\n"
    await workspace.write_file("marks.py", source.encode())
    script = replies(
        call("view", path="marks.py", start=4, end=4), call("edit", path="marks.py", start=4, new="c = 4"), SUBMIT
    )
    config = AgentConfig(tools="full", system_prompt="pdb_standard")
    agent = PdbAgent(config, max_turns=5, command_timeout_s=30.0, client=client)
    async with FakeChatServer(script) as server:
        result = await agent.run(Assignment(TASK, base_url=server.base_url, model="m", sandbox=workspace, timeout_s=60))
    told = [message["content"] for message in result.messages if message["role"] == "tool"]
    assert told[0].split() == ["4", "c", "=", "3"] and "-c = 3\n+c = 4" in told[1]
    assert (await workspace.read_file("marks.py")).decode() == source.replace("c = 3", "c = 4")


@pytest.mark.slow
async def test_the_tools_in_a_real_sandbox(client: ChatClient, workspace):
    script = replies(
        call("view", path="calc.py", start=2, end=2), call("view", path="."), call("view", path="none.py"),
        call("grep", pattern="tot.l ="), call("edit", path="out/passwd", new="x", start=1),
        call("pdb", command="b calc.py:3"), call("pdb", command="c"), call("pdb", command="p total"),
        call("edit", path="calc.py", old="a - b", new="a + b"), call("pdb", command="c"),
        call("pdb", command="p total"), SUBMIT,
    )  # fmt: skip
    entrypoint = "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 python -m pdb -m pytest -q test_calc.py"  # traced, plugins are slow
    agent = PdbAgent(
        AgentConfig(tools="full", system_prompt="pdb_standard", debug_entrypoint=entrypoint),
        max_turns=20, command_timeout_s=30.0, client=client,
    )  # fmt: skip
    async with FakeChatServer(script) as server:
        result = await agent.run(
            Assignment(TASK, base_url=server.base_url, model="m", sandbox=workspace, timeout_s=300)
        )
    told = [message["content"] for message in result.messages if message["role"] == "tool"]
    assert told[0].split() == ["2", "total", "=", "a", "-", "b"]
    assert told[1].split()[-3:] == ["calc.py", "out@", "test_calc.py"] or "calc.py" in told[1]
    assert "No such file" in told[2] and "(exit status 1)" in told[2]
    assert told[3] == "./calc.py:2:    total = a - b\n" or "calc.py:2:" in told[3]
    assert "not in the repository: /etc/passwd" in told[4]
    assert "Breakpoint 1 at" in told[5] and told[6].count("calc.py(3)add()") == 1
    assert told[7].startswith("-1\n")
    assert "+    total = a + b" in told[8]
    assert "the source has changed: started again" in told[9] and "calc.py(3)add()" in told[9]
    assert told[10].startswith("3\n")
    assert result.exit is Exit.SUBMITTED


@pytest.mark.slow
async def test_it_solves_an_instance_in_one_chain(solve, client: ChatClient):
    def policy(instance: Instance) -> list[dict[str, object]]:
        lines = instance.patch.splitlines()
        path = lines[0].split(" b/")[1]
        old = [line[1:] for line in lines if line.startswith("-") and not line.startswith("---")]
        new = [line[1:] for line in lines if line.startswith("+") and not line.startswith("+++")]
        asked = [
            ("grep", {"pattern": "def ", "path": path}),
            ("edit", {"path": path, "old": "\n".join(old), "new": "\n".join(new)}),
            ("submit", {}),
        ]
        return [{"tool_calls": [{"function": {"name": name, "arguments": given}}]} for name, given in asked]

    config = AgentConfig(tools="full", system_prompt="pdb_standard")
    agent = PdbAgent(config, max_turns=20, command_timeout_s=30.0, client=client)
    solved = await solve(agent, policy, sandbox=SandboxConfig())
    assert solved.result.exit is Exit.SUBMITTED and solved.grade and solved.grade.resolved, solved.result.turns
    assert (len(solved.traces), len(solved.rows), solved.summary.breaks) == (3, 1, {})
    assert solved.patch.count("diff --git") == 1


def test_the_diff_of_an_edit_is_of_its_lines():
    lines = [str(number % 150) for number in range(200_000)]
    before = "\n".join(lines)
    after = "\n".join([*lines[:9], "x", "y", *lines[10:]])
    expected = "Edited a.csv:\n@@ -7,7 +7,8 @@\n 6\n 7\n 8\n-9\n+x\n+y\n 10\n 11\n 12"
    began_s = time.process_time()
    assert _show_diff("a.csv", before, after) == expected
    assert time.process_time() - began_s < 5.0
    assert (
        _show_diff("a", "", "x\n") == "Edited a:\n@@ -0,0 +1,1 @@\n+x"
        and _show_diff("a", "x\n", "x\n") == "a is as it was"
    )
