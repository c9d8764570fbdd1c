"""mini-swe-agent's own loop, with a scripted model over HTTP and scripted sandboxes."""

import asyncio
import base64
import subprocess
import sys
import threading

import pytest

pytest.importorskip("minisweagent", reason="the extra `mini_swe` is not installed")

from swe_rl.agent.agent import AgentResult, Assignment, Exit, Task
from swe_rl.agent.bash import BashAgent
from swe_rl.agent.client import ChatClient
from swe_rl.agent.mini_swe.agent import MiniSweAgent
from swe_rl.agent.mini_swe.dialects import SUBMIT_MARKER, packaged_templates
from swe_rl.config.schema import AgentConfig
from swe_rl.engine.engine import EngineError
from swe_rl.sandbox.sandbox import ExecResult, SandboxError, Workspace
from tests.support.fake_chat_server import FakeChatServer, FakeReply, Script, replies
from tests.support.scripted_sandbox import Respond, ScriptedCommand, ScriptedProvider

TASK = Task("calc__calc-1", "add() subtracts: {{it}} and {% raw %}.\n")
DIFF = "diff --git a/calc.py b/calc.py\n--- a/calc.py\n+++ b/calc.py\n"


def block(command: str, language: str = "bash") -> str:
    return f"Next.\n```{language}\n{command}\n```"


def fence(command: str) -> str:
    return block(command, "mswea_bash_command")


async def run(
    client: ChatClient,
    script: Script,
    respond: Respond = lambda command: f"ran {command.command}\n",
    *,
    kind: type = MiniSweAgent,
    prompt: str = "mini_swe",
    tools: str = "bash",
    timeout_s: float = 30.0,
    max_turns: int = 4,
) -> tuple[AgentResult, FakeChatServer, list[str]]:
    config = AgentConfig(
        name="mini_swe", tools=tools, system_prompt=prompt, max_observation_chars=100, max_format_errors=2
    )
    agent = kind(config, max_turns=max_turns, command_timeout_s=5.0, client=client)
    sandbox = await ScriptedProvider(respond).create(Workspace(), owner="t")
    async with FakeChatServer(script) as server:
        result = await agent.run(
            Assignment(TASK, base_url=server.base_url, model="m", sandbox=sandbox, timeout_s=timeout_s)
        )
    return result, server, sandbox.commands


def slow(command: ScriptedCommand) -> ExecResult:
    return ExecResult(124, "half of it", True, 0, command.timeout_s)


CONVERSATIONS = {
    "submit": [block("ls"), block("fix"), block("submit")],
    "step limit": [block("a"), block("b"), block("c"), block("d")],
    "format errors": ["words", block("ls"), block("a") + "\n" + block("b"), block("submit")],
    "too many format errors": [block("ls"), "words", "words", "words"],
    "cut off": [FakeReply("```bash\nls", finish_reason="length"), block("submit")],
    "overflow": [block("ls"), FakeReply("too long", status=400, error_code="context_length_exceeded")],
    "odd text": [block("echo '{{task}} {% if %} é \\x1b[1m'"), block("submit")],
}


@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("respond", [lambda command: f"ran {command.command}\n" + "x" * 200, slow])
async def test_with_our_prompts_it_is_agent_bash(client: ChatClient, name: str, respond: Respond):
    seen = []
    for kind in (BashAgent, MiniSweAgent):
        answers = replies(*CONVERSATIONS[name])
        result, server, commands = await run(client, answers, respond, kind=kind, prompt="short", timeout_s=14.0)
        turns = [
            (t.message, t.command, t.observation, t.exit_code, t.format_error, round(t.command_s, 1))
            for t in result.turns
        ]
        seen.append((result.exit, result.messages, turns, [one["messages"] for one in server.requests], commands))
    assert seen[0] == seen[1]


async def test_the_packaged_prompts_and_the_submission(client: ChatClient):
    def respond(command: ScriptedCommand) -> str:
        return f"{SUBMIT_MARKER}\n{DIFF}" if SUBMIT_MARKER in command.command else "ran\n"

    submit = f"echo {SUBMIT_MARKER} && cat patch.txt"
    result, server, commands = await run(client, replies(fence("ls"), fence(submit)), respond)
    assert (result.exit, result.patch, commands) == (Exit.SUBMITTED, DIFF, ["ls", submit])
    assert [message["role"] for message in result.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert TASK.prompt.strip() in result.messages[1]["content"]
    assert result.messages[3]["content"] == "<returncode>0</returncode>\n<output>\nran\n</output>"
    assert all(set(message) == {"role", "content"} for message in server.requests[-1]["messages"])


@pytest.mark.parametrize(("again", "patch"), [(b"caf\xe9\n", DIFF + "caf\udce9\n"), (b"other\n", None)])
async def test_a_submission_that_is_no_utf8_keeps_its_bytes(client: ChatClient, again: bytes, patch: str | None):
    """Commands' outputs are texts: the command runs once more for the bytes, and the tree has them where it differs."""
    begun = f"{SUBMIT_MARKER}\n{DIFF}".encode()

    def respond(command: ScriptedCommand) -> str:
        if "base64" in command.command:
            return base64.b64encode(begun + again).decode()
        return (begun + b"caf\xe9\n").decode("utf-8", "replace")

    result, _, commands = await run(client, replies(fence(f"echo {SUBMIT_MARKER} && cat patch.txt")), respond)
    assert (result.exit, result.patch, len(commands)) == (Exit.SUBMITTED, patch, 2)


async def test_a_submission_that_is_no_patch_leaves_the_working_tree(client: ChatClient):
    result, _, _ = await run(client, replies(fence(f"echo {SUBMIT_MARKER}")), lambda command: f"{SUBMIT_MARKER}\n")
    assert (result.exit, result.patch) == (Exit.SUBMITTED, None)


async def test_a_failed_submission_goes_on(client: ChatClient):
    respond = lambda command: ExecResult(1, f"{SUBMIT_MARKER}\n", False, 0, 0.1)  # noqa: E731
    result, _, _ = await run(client, lambda messages: fence("x"), respond, max_turns=2)
    assert result.exit is Exit.STEP_LIMIT


async def test_function_calls_and_several_of_them(client: ChatClient):
    first = FakeReply("I look.", calls=(("bash", {"command": "ls"}), ("bash", {"command": "pwd"})))
    wrong = FakeReply("", calls=(("python", {"code": "1"}),))
    last = FakeReply("", calls=(("bash", {"command": "submit"}),))

    def respond(command: ScriptedCommand) -> str:
        return f"{SUBMIT_MARKER}\n" if command.command == "submit" else command.command

    result, server, commands = await run(client, replies(first, wrong, "words", last), respond, tools="bash_calls")
    assert (result.exit, commands) == (Exit.SUBMITTED, ["ls", "pwd", "submit"])
    roles = [message["role"] for message in result.messages]
    assert roles == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "user",
        "assistant",
        "user",
        "assistant",
    ]
    assert [message["tool_call_id"] for message in result.messages[3:5]] == ["call-1-0", "call-1-1"]
    assert [turn.format_error for turn in result.turns] == [False, True, True, False]
    assert result.turns[0].command == "ls\npwd"
    assert [tool["function"]["name"] for tool in server.requests[0]["tools"]] == ["bash"]
    assert server.requests[-1]["tools"] == list(result.tools)
    sent = [request["messages"] for request in server.requests]
    assert all(after[: len(before)] == before for before, after in zip(sent, sent[1:], strict=False))


async def test_a_timeout_is_told_as_the_library_tells_it(client: ChatClient):
    result, _, _ = await run(client, replies(fence("sleep 9"), fence("x"), fence("y")), slow, timeout_s=8.0)
    assert result.exit is Exit.AGENT_TIMEOUT
    assert "timed out after 5 seconds" in result.messages[3]["content"]
    assert "<returncode>-1</returncode>" in result.messages[3]["content"]


async def test_long_output_is_shortened(client: ChatClient):
    result, _, _ = await run(client, lambda messages: fence("x"), lambda command: "o" * 9000, max_turns=1)
    assert 100 < len(result.messages[3]["content"]) < 300
    assert "8900 characters elided" in result.messages[3]["content"]


async def test_failures_of_engine_and_sandbox_are_themselves(client: ChatClient):
    def broken(command: ScriptedCommand) -> str:
        raise SandboxError("died")

    with pytest.raises(SandboxError, match="died"):
        await run(client, replies(fence("ls")), broken)
    with pytest.raises(EngineError, match="refused"):
        await run(client, replies(FakeReply("no such model", status=404)))


async def test_cancelling_ends_the_request_and_the_thread(client: ChatClient):
    agent = MiniSweAgent(AgentConfig(system_prompt="short"), max_turns=3, command_timeout_s=5.0, client=client)
    sandbox = await ScriptedProvider().create(Workspace(), owner="t")
    asked = asyncio.Event()

    def script(messages: list[dict[str, object]]) -> FakeReply:
        asked.set()
        return FakeReply("late", delay_s=30)

    async with FakeChatServer(script) as server:
        attempt = asyncio.ensure_future(
            agent.run(Assignment(TASK, base_url=server.base_url, model="m", sandbox=sandbox, timeout_s=60))
        )
        await asked.wait()
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt
        await asyncio.sleep(0.1)
        assert server.cancelled == 1
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("mini_swe-") and thread.is_alive()]


async def test_many_attempts_at_a_time_do_not_wait_for_each_other(client: ChatClient):
    agent = MiniSweAgent(AgentConfig(system_prompt="short"), max_turns=3, command_timeout_s=5.0, client=client)
    provider = ScriptedProvider()
    async with FakeChatServer(lambda messages: FakeReply(block("submit"), delay_s=0.3)) as server:
        sandboxes = [await provider.create(Workspace(), owner=f"t{index}") for index in range(40)]
        async with asyncio.timeout(10):
            results = await asyncio.gather(
                *(
                    agent.run(Assignment(TASK, base_url=server.base_url, model="m", sandbox=sandbox, timeout_s=30))
                    for sandbox in sandboxes
                )
            )
    assert {result.exit for result in results} == {Exit.SUBMITTED}


def test_neither_litellm_nor_the_users_settings_are_touched(tmp_path):
    program = (
        "import sys, os; from swe_rl.agent.mini_swe.dialects import load_library, packaged_templates; load_library();"
        "packaged_templates('bash'); packaged_templates('bash_calls');"
        "assert 'litellm' not in sys.modules; assert 'MSWEA_GLOBAL_CONFIG_DIR' not in os.environ; print('ok')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "XDG_CONFIG_HOME": str(tmp_path / "config")},
    )
    assert (done.stdout, done.stderr) == ("ok\n", "")
    assert list(tmp_path.iterdir()) == []


def test_the_packaged_templates_are_the_librarys():
    assert "mswea_bash_command" in packaged_templates("bash").system
    assert "tool call" in packaged_templates("bash_calls").instance
