from contextlib import asynccontextmanager

import pytest

from swe_rl.config.schema import GatewayConfig, RouterConfig
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.gateway.server import Gateway
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.model.chat import ChatRenderer
from swe_rl.model.tiny import build_tokenizer
from swe_rl.router.make import make_router

_CORPUS = ["You are an agent. Fix the bug in lib/core.py.\n$ ls -la\n  def add(a, b):\n    return a + b\n"] * 3


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
