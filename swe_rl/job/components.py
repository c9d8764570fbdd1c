"""The parts of a rollout, put together from a configuration and taken apart again on every exit.

Invariants:
- Started in the order engine, gateway, sandboxes; stopped in the reverse order, whatever happens in between.
- Working copies live below the scratch folder, which is removed at the end; a killed run's is removed by the next one.
"""

import asyncio
import os
import random
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from swe_rl.agent.client import ChatClient
from swe_rl.agent.make import make_agent
from swe_rl.config.schema import Config
from swe_rl.engine.embedded import EmbeddedEngine
from swe_rl.engine.protocol import Engine
from swe_rl.env.make import make_env
from swe_rl.env.protocol import Env
from swe_rl.gateway.server import Gateway
from swe_rl.gateway.store import TraceStore
from swe_rl.logger.folder import RunFolder
from swe_rl.model.chat import ChatRenderer
from swe_rl.rollout.attempt import Attempter
from swe_rl.rollout.collect import Collector
from swe_rl.router.make import make_router
from swe_rl.sandbox.lease import reap_stale
from swe_rl.sandbox.provider import make_provider

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


@dataclass(slots=True)
class Components:
    env: Env
    engines: list[Engine]
    gateway: Gateway
    store: TraceStore
    renderer: ChatRenderer
    collector: Collector


def cache_folder(config: Config) -> Path:
    """For what can be made again: prepared workspaces. `paths.cache`, or the user's cache folder."""
    if config.paths.cache:
        return Path(config.paths.cache).resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "swe_rl"


def scratch_root(config: Config) -> Path:
    return Path(config.paths.scratch or tempfile.gettempdir()).resolve() / "swe_rl"


@asynccontextmanager
async def components(
    config: Config,
    folder: RunFolder,
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerFast",
    warn: Callable[[str], None],
) -> AsyncIterator[Components]:
    """Everything a rollout needs, up and running. Raises UserError before anything was started, or RunError."""
    async with AsyncExitStack() as stack:
        env = make_env(config.env, cache_folder(config) / "workspaces")
        router_engines = [_engine(config, model, tokenizer, index) for index in range(config.layout.engines)]
        store = TraceStore(folder.traces_db)
        stack.push_async_callback(asyncio.to_thread, store.close)
        for engine in router_engines:
            stack.push_async_callback(engine.close)
            await engine.start()
        renderer = ChatRenderer(tokenizer, template=config.model.chat_template, thinking=config.model.thinking)
        gateway = Gateway(
            router_engines,
            make_router(
                config.router,
                router_engines,
                capacity_tokens=config.engine.max_num_seqs * config.engine.max_model_len,  # where none is reported
                max_num_seqs=config.engine.max_num_seqs,
            ),
            renderer,
            store,
            model_name=config.model.name,
            config=config.gateway,
            max_model_len=config.engine.max_model_len,
            tool_parser=config.model.tool_parser,
        )
        stack.push_async_callback(gateway.close)
        await gateway.start()
        scratch = scratch_root(config)
        reap_stale(scratch)
        sandboxes = make_provider(config.sandbox, scratch, warn)
        stack.push_async_callback(sandboxes.close)
        client = ChatClient(rng=random.Random(config.trainer.seed))
        stack.push_async_callback(client.close)
        agent = make_agent(config.agent, config.rollout, client)
        attempter = Attempter(env, agent, gateway, sandboxes, config.rollout, config.env, model_name=config.model.name)
        collector = Collector(attempter, config.rollout, config.trainer.seed, gateway.tail)
        yield Components(env, list(router_engines), gateway, store, renderer, collector)


def _engine(
    config: Config, model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerFast", index: int
) -> EmbeddedEngine:
    pad = tokenizer.pad_token_id
    assert isinstance(pad, int)
    return EmbeddedEngine(model, config.engine, name=f"engine{index}", pad_token_id=pad)
