"""Makes the engines of a run, from its configuration.

Invariants:
- Nothing is started here but what `start_engines` starts: all at once, and none is left when one fails.
- What engines write besides logs lives in a folder with a lease: a killed run's is removed by the next one, with the
  servers that it may have left.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from swe_rl.config.choices import EngineKind
from swe_rl.config.schema import Config, EngineConfig
from swe_rl.engine.endpoint.make import make_endpoint
from swe_rl.engine.engine import Engine, EngineError, EngineState, LossTeller, Record
from swe_rl.engine.external import external_engines
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.engine.vllm.arguments import VllmOptions, command_of
from swe_rl.engine.vllm.engines import EngineFolders, vllm_engines, weight_folders
from swe_rl.facts.sizes import asks_model, read_elsewhere, wants_routes
from swe_rl.files.disk import disk_error
from swe_rl.sandbox.lease import make_leased
from swe_rl.sandbox.working_copy import remove_tree

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@contextlib.contextmanager
def engine_scratch(root: Path) -> Iterator[Path]:
    """Yields a leased folder below `root` for the length of a run. Raises DiskError."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        folder = make_leased(root, "engines")
    except OSError as error:
        raise disk_error(root, error, key="paths.scratch") from error
    try:
        yield folder
    finally:
        # A later run finds what is left by its lease.
        with contextlib.suppress(OSError):
            remove_tree(folder)


def make_engines(
    config: Config,
    folders: EngineFolders,
    *,
    model: "PreTrainedModel | None",
    pad_token_id: int,
    say: Callable[[str], None],
    environ: Mapping[str, str] | None = None,
    options: VllmOptions | None = None,
    record: Record | None = None,
    restarts: MutableMapping[str, int] | None = None,
) -> Sequence[Engine]:
    """Returns engine0, engine1, ..., not started; one without a model where no agent asks it. Raises UserError.

    `model` is engine.kind=embedded's; `say` and `record` are told of starts and restarts of servers. `restarts` has
    those so far of servers that the run had up before.
    """
    if environ is None:
        environ = os.environ
    if not asks_model(config):
        return [ScriptedEngine(_nobody_asks, name="engine0")]
    if config.engine.kind is EngineKind.vllm:
        return vllm_engines(config, folders, say, environ, options or options_of(config.engine), record, restarts)
    if config.engine.kind is EngineKind.external:
        weights = None
        if read_elsewhere(config):
            weights = weight_folders(config, folders.weights)
        external = external_engines(config, environ, weights, say)
        for engine in external:
            engine.teller = LossTeller(engine.name, say, record or (lambda *_: None))
        return external
    if config.engine.kind is EngineKind.endpoint:
        return [make_endpoint(config, folders.logs.parent, say)]
    from swe_rl.engine.embedded.engine import EmbeddedEngine

    assert model is not None
    routes = wants_routes(config)
    return [
        EmbeddedEngine(model, config.engine, name=f"engine{index}", pad_token_id=pad_token_id, routes=routes)
        for index in range(config.layout.engines)
    ]


def _nobody_asks(_: Sequence[int]) -> Sequence[int]:
    raise EngineError("no model was loaded: the agent of this run needs none")


def options_of(engine: EngineConfig) -> VllmOptions:
    """Returns the options of vLLM's servers. Raises UserError for a command that no shell could read."""
    return VllmOptions(
        command=command_of("engine.command", engine.command or ""),
        kv_cache_tokens=engine.kv_cache_tokens,
        extra_arguments=tuple(engine.extra_arguments),
        start_timeout_s=engine.start_timeout_s,
        max_restarts=engine.max_restarts,
    )


async def start_engines(engines: Sequence[Engine]) -> None:
    """Starts all at the same time. Raises the first failure, after all were closed. Some may be gone
    then, but not all.
    """
    tasks = [asyncio.ensure_future(engine.start()) for engine in engines]
    try:
        await asyncio.gather(*tasks)
        if all(engine.state is EngineState.gone for engine in engines):
            raise EngineError("; ".join(str(engine.why_lost) for engine in engines))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(engine.close() for engine in engines), return_exceptions=True)
        raise
