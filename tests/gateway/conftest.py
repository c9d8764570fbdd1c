import asyncio
import os
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from swe_rl.config.schema import GatewayConfig, RouterConfig
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.gateway.server import Gateway
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.model.chat import ChatRenderer
from swe_rl.model.tiny import build_tokenizer
from swe_rl.router.make import make_router
from tests.support.command import Started, warm

WORKER = "swe_rl.gateway.processes.worker"
RUN_WORKER = f"""
import runpy, sys
del sys.modules["{WORKER}"]
sys.argv = ["-m", *map(str, KEPT)]
runpy.run_module("{WORKER}", run_name="__main__", alter_sys=True)
"""
EXECUTE = asyncio.create_subprocess_exec

_CORPUS = ["You are an agent. Fix the bug in lib/core.py.\n$ ls -la\n  def add(a, b):\n    return a + b\n"] * 3


class Forked:
    """As much of asyncio's Process as `gateway.processes` uses."""

    def __init__(self, started: Started):
        self._started, self.pid = started, started.pid

    @property
    def returncode(self):
        return self._started.poll()

    async def wait(self):
        while (status := self.returncode) is None:  # noqa: ASYNC110 - a thread would wait on after a cancellation
            await asyncio.sleep(0.01)
        return status

    def kill(self):
        self._started.kill()


async def execute(*command, **options):
    if command[1:3] == ("-m", WORKER) and len(options["pass_fds"]) <= 2:
        forked = warm((WORKER,)).start([], Path.cwd(), dict(os.environ), RUN_WORKER, (1, 2), options["pass_fds"])
        if forked:
            return Forked(forked)
    return await EXECUTE(*command, **options)


@pytest.fixture(autouse=True)
def processes_are_forked(monkeypatch):
    """Else each start of a process imports for half a second; `processes_from_nothing` leaves this out."""
    monkeypatch.setattr(asyncio, "create_subprocess_exec", execute)


@pytest.fixture
def processes_from_nothing(processes_are_forked, monkeypatch):
    monkeypatch.setattr(asyncio, "create_subprocess_exec", EXECUTE)


@pytest.fixture(scope="session")
def tokenizer():
    return build_tokenizer(_CORPUS, 400)


@pytest.fixture(scope="session")
def renderer(tokenizer):
    return ChatRenderer(tokenizer, template="qwen_plain", thinking=False)


@pytest.fixture
def says(renderer):
    """A reply function that always says the same message."""

    def make(message):
        ids = renderer.reply({"role": "assistant", "content": message} if isinstance(message, str) else message)
        return lambda prompt_ids: ids

    return make


@pytest.fixture
def serve(renderer, tmp_path):
    """`async with serve(engine, ...) as (gateway, store, url)`."""

    @asynccontextmanager
    async def served(*engines: ScriptedEngine, config: GatewayConfig | None = None, **options):
        store = TraceStore(tmp_path / "traces.db")
        options.setdefault("max_model_len", 2048)
        options.setdefault("clients_begin", True)
        gateway = Gateway(
            engines,
            make_router(RouterConfig(), engines),
            renderer,
            store,
            model_name="tiny",
            config=config or GatewayConfig(max_body_mb=1),
            **options,
        )
        try:
            yield gateway, store, await gateway.start()
        finally:
            await gateway.close()
            store.close()

    return served
