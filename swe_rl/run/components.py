"""Puts the parts of a job together from a configuration, and takes them apart again on every exit.

Invariants:
- Parts are started in the order engines, gateway, sandboxes, and stopped in the reverse order, whatever happens in
  between. Servers of sandboxes hear of the run before its engines start, which may take long.
- Working copies and what servers read live below the scratch folder, which is removed at the end; a killed run's is
  removed by the next one, with what it left running, before anything is started.
- A policy is loaded into this process only where it is sampled from or trained here.
"""

import asyncio
import os
import random
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from swe_rl.agent.agent import Agent
from swe_rl.agent.client import ChatClient
from swe_rl.agent.make import make_agent
from swe_rl.agent.scripted import Patches
from swe_rl.config.choices import EngineKind, JobName
from swe_rl.config.schema import Config
from swe_rl.dataset.predictions import Predictions, read_predictions
from swe_rl.engine.endpoint.engine import EndpointEngine
from swe_rl.engine.engine import Engine, LossTeller
from swe_rl.engine.make import engine_scratch, make_engines, start_engines
from swe_rl.engine.vllm.engines import EngineFolders
from swe_rl.engine.watch import require_an_engine
from swe_rl.env.env import Env
from swe_rl.env.make import make_env
from swe_rl.errors import UserError
from swe_rl.facts.concurrency import adapts_concurrency
from swe_rl.facts.sizes import asks_model, most_at_once, read_elsewhere
from swe_rl.files.disk import write_text_atomic
from swe_rl.gateway.server import Gateway
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.hardware.rendezvous import uses_meeting
from swe_rl.host.addresses import is_loopback
from swe_rl.host.scratch import ScratchRefusedError, make_scratch, scratch_path
from swe_rl.logger.folder import RunFolder
from swe_rl.model.chat import ChatRenderer
from swe_rl.model.make_renderer import make_renderer
from swe_rl.plan.concurrency import bounds_of
from swe_rl.plan.host_tier import host_tier
from swe_rl.rollout.attempt import Attempter
from swe_rl.rollout.collect import Collector
from swe_rl.rollout.continued import ContinuedAttempts, can_continue
from swe_rl.rollout.reward import make_reward
from swe_rl.rollout.trajectory import Order
from swe_rl.router.make import make_router
from swe_rl.run.proving import prove_untried, refuse_unproven, say_left_out
from swe_rl.run.runtime_keeper import kept_fleet
from swe_rl.run.session import RunSession
from swe_rl.run.steering import Steering
from swe_rl.sandbox.lease import reap_stale
from swe_rl.sandbox.provider import greet_server, make_provider, speaks_ours
from swe_rl.sandbox.remote.fleet import RuntimeFleet
from swe_rl.sandbox.sandbox import SandboxProvider
from swe_rl.sandbox.working_copy import remove_tree

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


# A log of a million characters shows any test run that people read; one test that prints without end would fill the
# disk.
_LOG_CHARS = 1_000_000


@dataclass(slots=True)
class Serving:
    """The engines with a gateway before them: any client of the model needs these."""

    engines: list[Engine]
    gateway: Gateway
    store: TraceStore
    renderer: ChatRenderer
    # A client without a session has this base URL.
    url: str


@dataclass(slots=True)
class Components:
    env: Env
    engines: list[Engine]
    gateway: Gateway
    store: TraceStore
    renderer: ChatRenderer
    collector: Collector
    # With rollout.concurrency=auto this changes how many trajectories are under way.
    steering: Steering | None = None
    # agent=predictions hands these patches in.
    predictions: Predictions | None = None
    # Attempts go on by this after a kill; None: they are sampled again.
    continued: ContinuedAttempts | None = None


def cache_folder(config: Config) -> Path:
    """Returns the folder for what can be made again (workspaces, kernels): `paths.cache`, or the user's
    cache folder.
    """
    if config.paths.cache:
        return Path(config.paths.cache).resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "swe_rl"


def scratch_root(config: Config) -> Path:
    """Returns this user's own scratch folder, which is there afterwards. Raises UserError."""
    path = scratch_path(config.paths.scratch)
    try:
        make_scratch(path)
    except ScratchRefusedError as error:
        raise UserError(
            f"paths.scratch={config.paths.scratch or 'null'}: {error}. Sandboxes and weights lie there while a run "
            "lasts, and nobody else may reach them. Use paths.scratch=FOLDER that you may write to, or have what is "
            "there removed."
        ) from error
    return path


def load_sampled(config: Config) -> "tuple[PreTrainedModel | None, PreTrainedTokenizerFast]":
    """Returns what a job without a trainer needs of the model: servers hold it themselves, and some agents ask none.

    Raises ModelError.
    """
    from swe_rl.model.load import load_model, load_tokenizer

    if config.engine.kind is EngineKind.embedded and asks_model(config):
        model = load_model(config.model)
    else:
        model = None
    return model, load_tokenizer(config.model)


@asynccontextmanager
async def start_serving(
    config: Config,
    session: RunSession,
    model: "PreTrainedModel | None",
    tokenizer: "PreTrainedTokenizerFast",
    *,
    token: str | None = None,
) -> AsyncIterator[Serving]:
    """Yields engines, router and gateway, up and running. Raises UserError before anything was started, or RunError.

    `model` may be None with engines that are no part of this process. `token` is what clients must send.
    """
    async with AsyncExitStack() as stack:
        reap_stale(scratch_root(config))
        store = TraceStore(session.folder.traces_db)
        stack.push_async_callback(asyncio.to_thread, store.close)
        engines = await _started_engines(config, session, model, tokenizer, stack)
        renderer = make_renderer(config.model, tokenizer)
        gateway = _make_gateway(config, engines, renderer, store, token)
        say = session.progress.message
        record = session.record
        gateway.tell_of_engines({engine.name: LossTeller(engine.name, say, record) for engine in engines})
        stack.push_async_callback(gateway.close)
        url = await gateway.start()
        yield Serving(list(engines), gateway, store, renderer, url)


@asynccontextmanager
async def start_components(
    config: Config,
    session: RunSession,
    model: "PreTrainedModel | None",
    tokenizer: "PreTrainedTokenizerFast",
    fleet: RuntimeFleet | None = None,
) -> AsyncIterator[Components]:
    """Yields everything a rollout needs, up and running. Raises UserError before anything was started, or RunError.

    `model` may be None with engines that are no part of this process. `fleet` has servers of sandboxes that somebody
    keeps longer than these components; with None, where there are any, they are kept for as long.
    """
    async with AsyncExitStack() as stack:
        predictions = _read_predictions(config)
        env = make_env(config.env, cache_folder(config) / "workspaces", config.sandbox.kind, config.grader)
        # It refuses before anything was started.
        refuse_unproven(config, env, session.progress.message)
        servers = fleet
        if fleet is None and uses_meeting(config):
            servers = await stack.enter_async_context(kept_fleet(config, session))
        if servers is None and speaks_ours(config.sandbox):
            # The server is asked before an engine is started for nothing.
            await greet_server(config.sandbox)
        key = own_key(config)
        serving = await stack.enter_async_context(start_serving(config, session, model, tokenizer, token=key))
        scratch = scratch_root(config)
        sandboxes = servers or make_provider(config.sandbox, scratch, session.warn, run=session.folder.name)
        if sandboxes is not fleet:
            stack.push_async_callback(sandboxes.close)
        if servers is not None:
            with session.progress.phase("wait_for_sandboxes"):
                await servers.ready()
        await prove_untried(config, session, env, sandboxes)
        say_left_out(config, env, session.progress.message)
        client = ChatClient(rng=random.Random(config.trainer.seed), api_key=key)
        stack.push_async_callback(client.close)
        patches: Patches = _gold_patches(config, env)
        if predictions is not None:
            patches = predictions.patches
        agent = make_agent(config.agent, config.rollout, client, patches=patches, api_key=key)
        steering = _make_steering(config, session, serving)
        continued = None
        if can_continue(config):
            continued = ContinuedAttempts(session.folder.under_way, serving.store, session.progress.message)
        collector = _make_collector(config, session, env, agent, serving, sandboxes, steering, continued)
        yield Components(
            env,
            serving.engines,
            serving.gateway,
            serving.store,
            serving.renderer,
            collector,
            steering,
            predictions,
            continued,
        )


def own_key(config: Config) -> str | None:
    """Returns what this run's agents must send where other machines reach its gateway; it is written nowhere."""
    if is_loopback(config.gateway.host):
        return None
    return secrets.token_urlsafe(32)


def _read_predictions(config: Config) -> Predictions | None:
    """Reads the file of agent=predictions. Raises PredictionsError."""
    if config.agent.name != "predictions" or config.agent.predictions is None:
        return None
    return read_predictions(Path(config.agent.predictions))


def _gold_patches(config: Config, env: Env) -> Callable[[str], str | None]:
    """Returns the gold patch by instance id; the instances are read when agent=gold asks for the first one."""
    splits = [config.env.eval_split]
    if config.job.name is not JobName.eval:
        splits.insert(0, config.env.split)

    @cache
    def patches() -> dict[str, str]:
        return {instance.instance_id: instance.patch for split in splits for instance in env.instances(split)}

    return lambda instance_id: patches().get(instance_id)


def _keep_log(folder: RunFolder, order: Order, log: str) -> None:
    """Writes the log of an attempt's grading beside the attempt; of a very long one beginning and end. Raises
    DiskError.
    """
    if len(log) > _LOG_CHARS:
        left_out = len(log) - _LOG_CHARS
        log = f"{log[: _LOG_CHARS // 4]}\n... {left_out} characters left out ...\n{log[-_LOG_CHARS * 3 // 4 :]}"
    write_text_atomic(folder.attempt_file(order.id.instance_id, order.id.sample, "grade.log"), log)


def _make_steering(config: Config, session: RunSession, serving: Serving) -> Steering | None:
    if not adapts_concurrency(config):
        return None
    steering = Steering(bounds_of(config), serving.engines, serving.gateway, session.record, session.progress.message)
    steering.resume(session.folder)
    return steering


def _make_collector(
    config: Config,
    session: RunSession,
    env: Env,
    agent: Agent,
    serving: Serving,
    sandboxes: SandboxProvider,
    steering: Steering | None,
    continued: ContinuedAttempts | None,
) -> Collector:
    # Places that are steered are made elsewhere; what else needs a number takes the most that there can be.
    rollout = replace(config.rollout, concurrency=most_at_once(config))
    gateway = serving.gateway
    attempter = Attempter(
        env,
        agent,
        gateway,
        sandboxes,
        rollout,
        config.env,
        model_name=config.model.name,
        reward=make_reward(config.reward, rollout.grade_timeout_s),
        keep_log=partial(_keep_log, session.folder) if config.job.name is JobName.eval else None,
        continued=continued,
    )
    watch = partial(require_an_engine, serving.engines, config.engine.max_away_s, session.progress.message)
    delegates = config.agent.delegate.depth > 0
    collector = Collector(attempter, rollout, config.trainer.seed, gateway.tail, watch, delegates=delegates)
    if continued is not None:
        collector.hand_over = continued.hand_over
    if steering is not None:
        collector.make_places = steering.make_places
        collector.steer = steering.steer
    for engine in serving.engines:
        if isinstance(engine, EndpointEngine):
            collector.watch = partial(engine.watch, lambda: collector.num_under_way)
    return collector


@contextmanager
def _weights_folder(config: Config, folder: RunFolder, scratch: Path) -> Iterator[Path]:
    """Yields the folder that new weights pass through: the run's own where others have to see them, else scratch."""
    if config.paths.scratch or not read_elsewhere(config):
        yield scratch
        return
    try:
        # A killed process may have left them; this one holds the folder's lock.
        with suppress(OSError):
            remove_tree(folder.weights)
        yield folder.weights
    finally:
        with suppress(OSError):
            remove_tree(folder.weights)


async def _started_engines(
    config: Config,
    session: RunSession,
    model: "PreTrainedModel | None",
    tokenizer: "PreTrainedTokenizerFast",
    stack: AsyncExitStack,
) -> Sequence[Engine]:
    """Starts all engines at the same time, to be closed with `stack`; what servers say is in the run's folder."""
    pad = tokenizer.pad_token_id
    assert isinstance(pad, int)
    embedded = config.engine.kind is EngineKind.embedded or not asks_model(config)
    scratch = scratch_root(config)
    if embedded:
        leased = scratch
    else:
        leased = stack.enter_context(engine_scratch(scratch))
    folders = EngineFolders(
        logs=session.folder.engine_logs,
        scratch=leased,
        weights=stack.enter_context(_weights_folder(config, session.folder, leased)),
        cache=cache_folder(config) / "kernels",
    )
    engines = make_engines(
        config,
        folders,
        model=model,
        pad_token_id=pad,
        say=session.progress.message,
        record=session.record,
        restarts=session.engine_restarts,
    )
    for engine in engines:
        stack.push_async_callback(engine.close)
    with nullcontext() if embedded else session.progress.phase("start_engines"):
        await start_engines(engines)
    return engines


def _make_gateway(
    config: Config, engines: Sequence[Engine], renderer: ChatRenderer, store: TraceStore, token: str | None
) -> Gateway:
    router = make_router(
        config.router,
        engines,
        # This counts where no capacity is reported.
        capacity_tokens=config.engine.max_num_seqs * config.engine.max_model_len,
        max_num_seqs=config.engine.max_num_seqs,
        host=host_tier(config),
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
        model_path=config.model.path,
        vocab_size=config.model.vocab_size,
        token=token,
        clients_begin=config.job.name is JobName.serve,
    )
