"""Programs of others as clients of job=serve, with what has ended such programs elsewhere: a character cut in half, an
image as a result, a reply that takes longer than the program waits for a sign of life, and a full context."""

import asyncio
import base64
import json
import os
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from swe_rl.config.schema import GatewayConfig, RouterConfig
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.gateway.server import Gateway
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.model.chat import ChatRenderer
from swe_rl.router.make import make_router
from tests.agent.conftest import Installed, call

pytestmark = pytest.mark.slow
SLOW_S = 40.0
IDLE_S = 15
MOST_S = 240.0
LONG = "python3 -c \"print('a b ' * 5000)\""
EMOJI = "python3 -c \"print('b' * %d + chr(0x1F600) * 30000)\""
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@dataclass(frozen=True)
class Client:
    """`run(folder, url)` gives its command line and environment; `look` and `read` are its tools for a command and for
    a file that is an image, and `full` is in its output at the end of a context that was full."""

    program: Installed
    run: Callable[[Path, str], tuple[list[str], dict[str, str]]]
    look: Callable[[str], dict[str, object]]
    read: Callable[[str], dict[str, object]]
    full: str


def codex(folder: Path, url: str) -> tuple[list[str], dict[str, str]]:
    provider = (
        f'{{name="gateway",base_url="{url}",wire_api="responses",env_key="OPENAI_API_KEY",'
        f"stream_idle_timeout_ms={IDLE_S * 1000},stream_max_retries=1,request_max_retries=1,supports_websockets=false}}"
    )
    settings = ["model=tiny", "model_provider=gateway", f"model_providers.gateway={provider}"]
    options = [word for setting in settings for word in ("-c", setting)]
    freely = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return ["exec", *freely, *options, "Fix it."], {"CODEX_HOME": str(folder / "home")}


def claude(folder: Path, url: str) -> tuple[list[str], dict[str, str]]:
    return ["-p", "Fix it.", "--model", "tiny", "--allowedTools", "Bash,Read"], {
        "ANTHROPIC_BASE_URL": url.removesuffix("/v1"),
        "ANTHROPIC_SMALL_FAST_MODEL": "tiny",
        "CLAUDE_CONFIG_DIR": str(folder / "home"),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_ENABLE_STREAM_WATCHDOG": "1",
        "CLAUDE_STREAM_IDLE_TIMEOUT_MS": str(IDLE_S * 1000),
    }


def qwen(folder: Path, url: str) -> tuple[list[str], dict[str, str]]:
    settings = {"security": {"auth": {"selectedType": "openai"}}, "privacy": {"usageStatisticsEnabled": False}}
    settings["model"] = {"generationConfig": {"timeout": IDLE_S * 1000, "maxRetries": 0, "modalities": {"image": True}}}
    (folder / "home" / "settings.json").write_text(json.dumps(settings))
    env = {"OPENAI_BASE_URL": url, "OPENAI_MODEL": "tiny", "QWEN_HOME": str(folder / "home")}
    return ["-p", "Fix it.", "--yolo"], env


def opencode(folder: Path, url: str) -> tuple[list[str], dict[str, str]]:
    options = {"baseURL": url, "apiKey": "none", "chunkTimeout": IDLE_S * 1000}
    limits = {"context": 10**6, "output": 1000}
    model = {"name": "tiny", "tool_call": True, "attachment": True, "limit": limits}
    model["modalities"] = {"input": ["text", "image"], "output": ["text"]}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "gateway", "options": options, "models": {"tiny": model}}
    settings = {"provider": {"gateway": provider}, "enabled_providers": ["gateway"], "autoupdate": False, "lsp": False}
    settings["permission"] = {"*": "allow"}
    (folder / "home" / "opencode.json").write_text(json.dumps(settings))
    env = {
        name: str(folder / "home") for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")
    }
    env |= {"OPENCODE_CONFIG": str(folder / "home" / "opencode.json"), "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    return ["run", "--model", "gateway/tiny", "Fix it."], env


CLIENTS = [
    Client(
        Installed("codex"), codex,
        lambda command: call("exec_command", cmd=command), lambda path: call("view_image", path=path),
        "ran out of room in the model's context window",
    ),
    Client(
        Installed("claude"), claude,
        lambda command: call("Bash", command=command, description="d"), lambda path: call("Read", file_path=path),
        "Prompt is too long",
    ),
    Client(
        Installed("qwen"), qwen,
        lambda command: call("run_shell_command", command=command, is_background=False),
        lambda path: call("read_file", file_path=path, absolute_path=path),
        "All is done.",
    ),
    Client(
        Installed("opencode"), opencode,
        lambda command: call("bash", command=command, description="d"), lambda path: call("read", filePath=path),
        "All is done.",
    ),
]  # fmt: skip
each_client = pytest.mark.parametrize(
    "client",
    [pytest.param(client, marks=client.program.needed, id=client.program.name) for client in CLIENTS],
)


class Waiting(ScriptedEngine):
    wait_s = 0.0

    async def generate(self, *prompt: Any, **options: Any) -> Any:
        await asyncio.sleep(self.wait_s)
        return await super().generate(*prompt, **options)


@dataclass
class Served:
    engine: Waiting
    gateway: Gateway
    url: str

    async def notes(self) -> set[str]:
        metrics = self.gateway._door._state._metrics
        return {
            sample.labels["kind"] for family in metrics.notes.collect() for sample in family.samples if sample.value
        }

    def statuses(self) -> dict[str, float]:
        family = next(iter(self.gateway._door._state._metrics.requests.collect()))
        return {one.labels["status"]: one.value for one in family.samples if one.name.endswith("_total")}


@pytest.fixture
def served(renderer: ChatRenderer, tmp_path: Path):
    """`async with served(replies, max_model_len) as ...`: as job=serve does, with prepared replies, by the number of
    results before each. After a refusal it is the last one: a client that condensed its conversation begins anew."""

    @asynccontextmanager
    async def serve(replies: list[dict[str, object]], max_model_len: int = 2_000_000) -> AsyncIterator[Served]:
        def reply(prompt_ids: Any) -> Any:
            results = renderer.decode(prompt_ids).count("<tool_response>")
            last = len(replies) - 1
            due = last if "400" in gateway.statuses() else min(results, last)
            return renderer.reply({"role": "assistant", "content": "", **replies[due]})

        engine = Waiting(reply, max_model_len=max_model_len)
        store = TraceStore(tmp_path / "traces.db")
        server = Gateway(
            [engine], make_router(RouterConfig(), [engine]), renderer, store,
            model_name="tiny", config=GatewayConfig(), max_model_len=max_model_len, clients_begin=True,
        )  # fmt: skip
        gateway = Served(engine, server, await server.start())
        try:
            yield gateway
        finally:
            await server.close()
            store.close()

    return serve


async def ended(client: Client, served: Served, folder: Path) -> subprocess.CompletedProcess[str]:
    """The program, run to its end in a folder of its own."""
    for name in ("home", "work"):
        (folder / name).mkdir()
    (folder / "work" / "a.png").write_bytes(PNG)
    arguments, env = client.run(folder, served.url)
    keys = {"OPENAI_API_KEY": "none", "ANTHROPIC_API_KEY": "none", "HOME": str(folder / "home"), "NO_COLOR": "1"}
    command = [str(client.program.path), *arguments]
    return await asyncio.to_thread(
        subprocess.run, command, cwd=folder / "work", env={**os.environ, **keys, **env}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=MOST_S, check=False,
    )  # fmt: skip


def assert_done(program: subprocess.CompletedProcess[str], served: Served) -> None:
    assert program.returncode == 0, program.stdout[-2000:] + program.stderr[-2000:]
    assert "All is done." in program.stdout
    assert set(served.statuses()) == {"200"}


@each_client
async def test_a_character_that_is_cut_in_half(served, tmp_path, client):
    looks = [client.look(EMOJI % before) for before in (0, 1)]
    async with served([*looks, {"content": "All is done."}]) as gateway:
        assert_done(await ended(client, gateway, tmp_path), gateway)


@pytest.mark.long
@each_client
async def test_an_image_as_a_result(served, tmp_path, client):
    async with served([client.read(str(tmp_path / "work" / "a.png")), {"content": "All is done."}]) as gateway:
        assert_done(await ended(client, gateway, tmp_path), gateway)
        assert "image" in await gateway.notes()


@pytest.mark.long
@each_client
async def test_a_reply_that_takes_longer_than_its_idle_limit(served, tmp_path, client):
    async with served([{"content": "All is done."}]) as gateway:
        gateway.engine.wait_s = SLOW_S
        assert_done(await ended(client, gateway, tmp_path), gateway)
        assert len(gateway.engine.requests) == len({prompt for _, prompt, _ in gateway.engine.requests})  # no retry


@pytest.mark.parametrize(
    "client",
    [
        # The others have tests of their own of a context that is full.
        pytest.param(
            client,
            marks=[
                client.program.needed,
                *([pytest.mark.long] if client.program.name in ("qwen", "codex", "opencode") else []),
            ],
            id=client.program.name,
        )
        for client in CLIENTS
    ],
)
async def test_a_context_that_its_second_request_fills(served, tmp_path, client):
    """It goes on with less, or says what is the matter; it takes the refusal for none of its request's form."""
    for name in ("short", "long"):
        (tmp_path / name).mkdir()
    async with served([{"content": "All is done."}]) as gateway:
        assert_done(await ended(client, gateway, tmp_path / "short"), gateway)
        most_tokens = max(len(prompt) for _, prompt, _ in gateway.engine.requests)
    async with served([client.look(LONG), {"content": "All is done."}], most_tokens + 3000) as gateway:
        program = await ended(client, gateway, tmp_path / "long")
        assert "400" in gateway.statuses()
    said = program.stdout + program.stderr
    assert client.full in said, said[-2000:]
