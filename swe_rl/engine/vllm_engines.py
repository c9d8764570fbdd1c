"""The vLLM engines of a run: which GPUs, which arguments, which folders each has.

Invariants:
- An engine's name, GPUs, log and seed follow from its index.
- All of them share one key, made for this run unless the environment has one, and one folder for compiled kernels.
- Without a GPU the output layer is a tensor of its own (see `http_weights`), so that new weights reach all of it.
"""

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from swe_rl.config.schema import Config
from swe_rl.engine.external import needs
from swe_rl.engine.http import HttpEngine
from swe_rl.engine.http_client import HttpClient
from swe_rl.engine.http_weights import WeightFolders, untied_copy
from swe_rl.engine.vllm import VllmEngine
from swe_rl.engine.vllm_arguments import (
    ServerChoice,
    VllmOptions,
    served_name,
    server_arguments,
    server_environment,
    shown,
)
from swe_rl.engine.vllm_command import vllm_command
from swe_rl.engine.vllm_devices import DeviceError, visible_devices
from swe_rl.engine.vllm_makers import Makers, Record
from swe_rl.engine.vllm_server import Launch, VllmServer, free_port
from swe_rl.layout.placement import Gpu, place
from swe_rl.model.load import locate
from swe_rl.sandbox.process_tree import MARKER

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineFolders:
    """`logs`: one file a server; `scratch`: new weights, a leased folder; `cache`: compiled kernels."""

    logs: Path
    scratch: Path
    cache: Path


@dataclass(frozen=True, slots=True)
class _Plan:
    """What all engines of a run have in common."""

    config: Config
    folders: EngineFolders
    options: VllmOptions
    environ: Mapping[str, str]
    api_key: str
    say: Callable[[str], None]
    weights: WeightFolders | None


@dataclass(frozen=True, slots=True)
class _Maker:
    """Makes the servers of one engine, and their clients."""

    plan: _Plan
    index: int
    devices: str | None

    @property
    def name(self) -> str:
        return f"engine{self.index}"

    def server(self, model_path: str, eager: bool) -> VllmServer:
        plan, config = self.plan, self.plan.config
        choice = ServerChoice(self.index, free_port(), model_path, self.devices, eager)
        environment = server_environment(config, choice, plan.environ, cache=plan.folders.cache, api_key=plan.api_key)
        # By this mark the next run finds what a killed one left (sandbox/lease).
        environment[MARKER] = f"{plan.folders.scratch}/{self.name}"
        arguments = server_arguments(config, choice, plan.options)
        _log.info("%s starts on %s: %s", self.name, _where(self.devices), shown(arguments))
        plan.say(f"{self.name} starts on {_where(self.devices)}{_weights_of(model_path)}")
        return VllmServer(
            Launch(arguments, environment, f"http://127.0.0.1:{choice.port}"),
            plan.folders.logs / f"{self.name}.log",
            name=self.name,
            start_timeout_s=plan.options.start_timeout_s,
            stop_timeout_s=plan.options.stop_timeout_s,
            say=plan.say,
        )

    def client(self, url: str) -> HttpEngine:
        config = self.plan.config
        return HttpEngine(
            HttpClient(url, api_key=self.plan.api_key),
            replace(needs(config), model=served_name(config)),
            name=self.name,
            max_num_seqs=config.engine.max_num_seqs,
            weights=self.plan.weights,
        )


def vllm_engines(
    config: Config,
    folders: EngineFolders,
    say: Callable[[str], None],
    environ: Mapping[str, str],
    options: VllmOptions,
    record: Record | None = None,
) -> list[VllmEngine]:
    """Not started. Raises UserError."""
    if not options.command:
        options = replace(options, command=vllm_command(environ))
    placed = place(config).engines
    weights = weight_folders(config, folders.scratch, untied=not placed)
    model_path = locate(config.model)
    if not placed and Path(model_path).is_dir():
        model_path = str(untied_copy(Path(model_path), folders.scratch / "untied"))
    key = environ.get("VLLM_API_KEY") or secrets.token_hex(16)
    plan = _Plan(config, folders, options, environ, key, say, weights)
    makers = [
        _Maker(plan, index, _devices(config, placed[index], environ) if placed else None)
        for index in range(config.layout.engines)
    ]
    return [
        VllmEngine(
            Makers(maker.server, maker.client),
            name=maker.name,
            model_path=model_path,
            max_restarts=options.max_restarts,
            say=say,
            weights=weights,
            record=record,
        )
        for maker in makers
    ]


def weight_folders(config: Config, root: Path, *, untied: bool = False) -> WeightFolders | None:
    """None where the model is not in a folder of this machine, so that nothing can be written beside its config."""
    source = _folder_of(locate(config.model), config.model.revision)
    return None if source is None else WeightFolders(root, source, untied=untied)


def _folder_of(model: str, revision: str | None) -> Path | None:
    """A folder as it is; for a hub id the folder of the hub's cache, if it is there."""
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(model, "config.json", revision=revision)
    return Path(found).parent if isinstance(found, str) else None


def _devices(config: Config, gpus: tuple[Gpu, ...], environ: Mapping[str, str]) -> str:
    away = [gpu.node for gpu in gpus if gpu.node]
    if away:
        raise DeviceError(
            f"layout={config.layout.name} puts an engine on node {away[0]}, and engine=vllm starts servers on its own "
            "node only: start `vllm serve` on the others and give all addresses as engine=external engine.urls=[...]"
        )
    return visible_devices(gpus, environ, mig=config.hardware.mig)


def _weights_of(model_path: str) -> str:
    """Those of a later step are worth a word."""
    name = Path(model_path).name
    return f" with {name}" if name.startswith("weights_") else ""


def _where(devices: str | None) -> str:
    return "the CPU" if devices is None else f"GPU {devices}"
