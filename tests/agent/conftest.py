"""A client that waits for nothing, and attempts through the real gateway in real sandboxes."""

import os
import random
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from swe_rl.agent.agent import Agent, AgentResult, Assignment, Task, UnknownEndError
from swe_rl.agent.client import ChatClient
from swe_rl.algo.row import Row
from swe_rl.config.schema import EnvConfig, GatewayConfig, RouterConfig, SandboxConfig
from swe_rl.dataset.instance import Instance
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.env.bugs.env import BugsEnv
from swe_rl.env.env import Grade
from swe_rl.env.patch import collect_patch
from swe_rl.gateway.live import SessionSummary
from swe_rl.gateway.server import Gateway
from swe_rl.gateway.session import SessionSettings
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.gateway.trace import Trace
from swe_rl.model.chat import ChatRenderer
from swe_rl.model.tiny import build_tokenizer
from swe_rl.rollout.rows import traced_rows
from swe_rl.rollout.trajectory import Status, Trajectory
from swe_rl.router.make import make_router
from swe_rl.sandbox.provider import make_provider
from swe_rl.sandbox.sandbox import Door, ExecResult, Workspace
from tests.support.scripted_sandbox import ScriptedProvider

TASK = Task("calc__calc-1", "add() subtracts: é 'quoted' $HOME\n")


async def end_of(agent: Agent, answer: ExecResult | str) -> AgentResult:
    """Of a program whose start is answered so."""
    sandbox = await ScriptedProvider(lambda command: answer).create(Workspace(), owner="t")
    return await agent.run(
        Assignment(TASK, base_url="http://h:1/sessions/t/v1", model="m", sandbox=sandbox, timeout_s=9)
    )


@pytest.fixture
def waits() -> list[float]:
    """The waits that the client asked for, in seconds."""
    return []


@pytest.fixture
async def client(waits: list[float]) -> AsyncIterator[ChatClient]:
    async def sleep(wait_s: float) -> None:
        waits.append(wait_s)

    client = ChatClient(rng=random.Random(0), max_retries=3, sleep=sleep)
    yield client
    await client.close()


@dataclass
class Solved:
    """What came of one attempt at an instance of env=bugs through the real gateway, in a real sandbox."""

    result: AgentResult
    grade: Grade | None
    patch: str
    traces: list[Trace]
    summary: SessionSummary
    rows: list[Row]
    instance: Instance


@pytest.fixture(scope="session")
def renderer() -> ChatRenderer:
    corpus = ["You are an agent. Fix the bug in lib/core.py.\n$ ls -la\n  def add(a, b):\n    return a + b\n"] * 3
    return ChatRenderer(build_tokenizer(corpus, 400), template="qwen_plain", thinking=False)


@pytest.fixture
def solve(renderer: ChatRenderer, tmp_path: Path):
    """`await solve(agent, policy)`: `policy(instance)` gives the replies (messages), one after the other, or what says
    the reply to a prompt's text."""

    async def run(
        agent: Agent, policy: Callable[[Instance], Any], *, sandbox: SandboxConfig, **settings: int
    ) -> Solved:
        env = BugsEnv(EnvConfig(), tmp_path / "workspaces")
        instance = env.instances("heldout")[0]
        said = policy(instance)

        def reply(prompt_ids: Sequence[int]) -> Sequence[int]:
            text = renderer.decode(prompt_ids)
            due = said(text) if callable(said) else said[min(text.count("<tool_response>"), len(said) - 1)]
            return renderer.reply({"role": "assistant", "content": "", **due})

        engine = ScriptedEngine(reply, max_model_len=400_000)
        store = TraceStore(tmp_path / "traces.db")
        limits = {"max_turn_tokens": 4000, "max_trajectory_tokens": 400_000} | settings
        gateway = Gateway(
            [engine], make_router(RouterConfig(), [engine]), renderer, store,
            model_name="tiny", config=GatewayConfig(), max_model_len=400_000,
        )  # fmt: skip
        provider = make_provider(sandbox, tmp_path / "scratch", lambda message: None)
        try:
            await gateway.start()
            gateway.open_session("t", SessionSettings(**limits))
            url = urlsplit(gateway.session_url("t"))
            door = Door(str(url.hostname), int(url.port or 0), url.path) if agent.needs_door else None
            workspace = env.workspace(instance)
            box = await provider.create(workspace, owner="t", door=door)
            unknown = None
            try:
                result = await agent.run(Assignment(
                    Task(instance.instance_id, env.prompt(instance)),
                    base_url=gateway.session_url("t"), model="tiny", sandbox=box, timeout_s=120,
                ))  # fmt: skip
            except UnknownEndError as error:
                unknown, result = error, error.result
            patch = (await collect_patch(box, instance.base_commit, 20)).text
            summary = await gateway.close_session("t")
            if unknown is not None and not (summary.overflowed or summary.had_all_calls):
                raise unknown
            traces = store.traces("t")
            grade = await env.grade(instance, patch, provider, 60) if patch else None
        finally:
            await provider.close()
            await gateway.close()
            store.close()
        trajectory = Trajectory("t", "i", "g", "train", 1, 0, 0, Status.resolved, 1.0, True, True, advantage=1.0)
        rows = traced_rows(trajectory, traces)
        return Solved(result, grade, patch, traces, summary, rows, instance)

    return run


def call(name: str, **arguments: object) -> dict[str, object]:
    """A reply that calls a tool."""
    return {"tool_calls": [{"function": {"name": name, "arguments": arguments}}]}


@dataclass(frozen=True)
class Installed:
    """A program of an npm package, wherever that is: beside this interpreter, which sandboxes see, or in the PATH."""

    name: str

    @property
    def path(self) -> Path | None:
        program = shutil.which(self.name, path=str(Path(sys.executable).parent)) or shutil.which(self.name)
        return Path(program) if program else None

    @property
    def needed(self) -> pytest.MarkDecorator:
        return pytest.mark.skipif(self.path is None, reason=f"{self.name} is not installed")

    def option(self) -> str:
        assert self.path
        return f"agent.program_path={self.path.parent}"

    def sandbox(self) -> SandboxConfig:
        """Which sees the packages."""
        assert self.path
        packages = [folder for folder in self.path.resolve().parents if folder.name == "node_modules"]
        folders = [packages[-1]]
        link = self.path
        while link.is_symlink():  # it may lead to another folder of programs before it leads to the package
            folders.append(link.parent)
            link = Path(os.path.normpath(link.parent / link.readlink()))
        outside = sorted({str(folder) for folder in folders if not folder.is_relative_to(sys.prefix)})
        mounts = tuple(f"{folder}:{folder}" for folder in outside)
        return SandboxConfig(memory_gb=16.0, max_processes=256, mounts=mounts)
