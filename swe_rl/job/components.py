"""The parts of a rollout, put together from a configuration and taken apart again on every exit.

Invariants:
- Started in the order engines, gateway, sandboxes; stopped in the reverse order, whatever happens in between.
- Working copies and what servers read live below the scratch folder, which is removed at the end; a killed run's is
  removed by the next one, with what it left running, before anything is started.
- A policy is loaded into this process only where it is sampled from or trained here.
"""

import asyncio
import os
import random
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from swe_rl.agent.client import ChatClient
from swe_rl.agent.make import make_agent
from swe_rl.config.schema import Config, EngineKind
from swe_rl.engine.make import engine_scratch, make_engines, start_engines
from swe_rl.engine.protocol import Engine
from swe_rl.engine.vllm_engines import EngineFolders
from swe_rl.env.make import make_env
from swe_rl.env.protocol import Env
from swe_rl.gateway.server import Gateway
from swe_rl.gateway.store import TraceStore
from swe_rl.job.session import Session
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
    """For what can be made again: prepared workspaces, compiled kernels. `paths.cache`, or the user's cache folder."""
    if config.paths.cache:
        return Path(config.paths.cache).resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "swe_rl"


def scratch_root(config: Config) -> Path:
    return Path(config.paths.scratch or tempfile.gettempdir()).resolve() / "swe_rl"


def load_sampled(config: Config) -> "tuple[PreTrainedModel | None, PreTrainedTokenizerFast]":
    """What a job without a trainer needs of the model: servers hold it themselves. Raises ModelError."""
    from swe_rl.model.load import load_model, load_tokenizer

    model = load_model(config.model) if config.engine.kind is EngineKind.embedded else None
    return model, load_tokenizer(config.model)


@asynccontextmanager
async def components(
    config: Config,
    session: Session,
    model: "PreTrainedModel | None",
    tokenizer: "PreTrainedTokenizerFast",
) -> AsyncIterator[Components]:
    """Everything a rollout needs, up and running. Raises UserError before anything was started, or RunError.

    `model` may be None with engines that are no part of this process.
    """
    say = session.progress.message
    async with AsyncExitStack() as stack:
        env = make_env(config.env, cache_folder(config) / "workspaces")
        scratch = scratch_root(config)
        reap_stale(scratch)
        store = TraceStore(session.folder.traces_db)
        stack.push_async_callback(asyncio.to_thread, store.close)
        engines = await _started_engines(config, session, model, tokenizer, stack)
        renderer = ChatRenderer(tokenizer, template=config.model.chat_template, thinking=config.model.thinking)
        gateway = _gateway(config, engines, renderer, store)
        stack.push_async_callback(gateway.close)
        await gateway.start()
        sandboxes = make_provider(config.sandbox, scratch, say)
        stack.push_async_callback(sandboxes.close)
        client = ChatClient(rng=random.Random(config.trainer.seed))
        stack.push_async_callback(client.close)
        agent = make_agent(config.agent, config.rollout, client)
        attempter = Attempter(env, agent, gateway, sandboxes, config.rollout, config.env, model_name=config.model.name)
        collector = Collector(attempter, config.rollout, config.trainer.seed, gateway.tail)
        yield Components(env, list(engines), gateway, store, renderer, collector)


async def _started_engines(
    config: Config,
    session: Session,
    model: "PreTrainedModel | None",
    tokenizer: "PreTrainedTokenizerFast",
    stack: AsyncExitStack,
) -> Sequence[Engine]:
    """All up at the same time, and closed with `stack`; what servers say is in the run's folder."""
    pad = tokenizer.pad_token_id
    assert isinstance(pad, int)
    embedded = config.engine.kind is EngineKind.embedded
    scratch = scratch_root(config)
    folders = EngineFolders(
        logs=session.folder.engine_logs,
        scratch=scratch if embedded else stack.enter_context(engine_scratch(scratch)),
        cache=cache_folder(config) / "kernels",
    )
    engines = make_engines(
        config,
        folders,
        model=model,
        pad_token_id=pad,
        say=session.progress.message,
        record=lambda event, fields: session.events.write(event, **fields),
    )
    for engine in engines:
        stack.push_async_callback(engine.close)
    if embedded:
        await start_engines(engines)
    else:
        with session.progress.phase("start_engines"):
            await start_engines(engines)
    return engines


def _gateway(config: Config, engines: Sequence[Engine], renderer: ChatRenderer, store: TraceStore) -> Gateway:
    router = make_router(
        config.router,
        engines,
        capacity_tokens=config.engine.max_num_seqs * config.engine.max_model_len,  # where none is reported
        max_num_seqs=config.engine.max_num_seqs,
    )
    return Gateway(
        engines,
        router,
        renderer,
        store,
        model_name=config.model.name,
        config=config.gateway,
        max_model_len=config.engine.max_model_len,
        tool_parser=config.model.tool_parser,
    )
