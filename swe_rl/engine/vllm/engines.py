"""Makes the vLLM engines of a run: which GPUs, which arguments, which folders each has.

Invariants:
- An engine's name, GPUs, log and seed follow from its index.
- All of them share one key, made for this run unless the environment has one, and one folder for compiled kernels.
- Without a GPU the output layer is a tensor of its own (see `server/weights`), so that new weights reach all of it.
"""

import logging
import secrets
import shutil
import sys
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from pathlib import Path

from swe_rl.config.environment import key_of
from swe_rl.config.schema import Config
from swe_rl.engine.engine import Record
from swe_rl.engine.server.client import HttpClient
from swe_rl.engine.server.engine import HttpEngine
from swe_rl.engine.server.features import Patience, needs_of_run
from swe_rl.engine.server.weights import WeightFolders, untied_copy
from swe_rl.engine.vllm import step as vllm_step
from swe_rl.engine.vllm.arguments import (
    ServerChoice,
    VllmOptions,
    extension_files,
    served_name,
    server_arguments,
    server_environment,
    show_arguments,
    vllm_command,
)
from swe_rl.engine.vllm.devices import slice_number, visible_devices
from swe_rl.engine.vllm.engine import VllmEngine
from swe_rl.engine.vllm.server import ServerLaunch, VllmServer
from swe_rl.engine.vllm.step import StepSpec
from swe_rl.facts.sizes import serves_adapter
from swe_rl.files.disk import disk_error
from swe_rl.hardware.slurm.nodes import names_of, node_address, step_command, step_environment
from swe_rl.host.addresses import free_port
from swe_rl.layout.placement import PlacedGpu, node_of_run, place_layout
from swe_rl.model.adapter import AdapterShape, alpha_of
from swe_rl.model.load import locate_model
from swe_rl.sandbox.process_tree import MARKER

_BY_HAND = "start `vllm serve` on the others and give all addresses as engine=external engine.urls=[...]"
# A server that we started ourselves may compile kernels for its first reply.
_FIRST_REPLY_S = 300.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineFolders:
    """The folders of engines. `logs` has one file a server; `scratch` is a leased folder of this node.

    `weights` has new ones, and what servers read beside them, seen by all of them; `cache` has compiled kernels.
    """

    logs: Path
    scratch: Path
    weights: Path
    cache: Path


@dataclass(frozen=True, slots=True)
class _Plan:
    """The settings that all engines of a run have in common."""

    config: Config
    folders: EngineFolders
    options: VllmOptions
    environ: Mapping[str, str]
    api_key: str
    say: Callable[[str], None]
    weights: WeightFolders | None
    # This folder has what vLLM's workers import.
    extension: Path | None = None
    # These are names by the layout's numbers, where an engine is on another node than this process.
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Maker:
    """Makes the servers of one engine, and their clients."""

    plan: _Plan
    index: int
    devices: str | None
    # These are its GPUs, on another node.
    away: tuple[PlacedGpu, ...] = ()

    @property
    def name(self) -> str:
        return f"engine{self.index}"

    @property
    def node(self) -> str | None:
        if self.away:
            return self.plan.nodes[self.away[0].node]
        return None

    def server(self, model_path: str, eager: bool, by_number: bool) -> VllmServer:
        """Returns a server. Raises DeviceError."""
        plan = self.plan
        config = self.plan.config
        devices = self.devices
        if by_number and not self.away:
            devices = slice_number(devices or "", plan.environ)
        choice = ServerChoice(self.index, free_port(), model_path, devices, eager)
        environment = server_environment(
            config, choice, plan.environ, cache=plan.folders.cache, api_key=plan.api_key, extension=plan.extension
        )
        # The next run finds by this mark what a killed one left (sandbox/lease).
        environment[MARKER] = f"{plan.folders.scratch}/{self.name}/"
        arguments = server_arguments(config, choice, plan.options)
        where = _describe_place(self.devices) + (f" of node {self.node}" if self.node else "")
        _log.info("%s starts on %s: %s", self.name, where, show_arguments(arguments))
        plan.say(f"{self.name} starts on {where}{_weights_of(model_path)}")
        launch = ServerLaunch(arguments, environment, f"http://127.0.0.1:{choice.port}")
        return VllmServer(
            self._elsewhere(launch, choice.port, by_number) if self.node else launch,
            plan.folders.logs / f"{self.name}.log",
            name=self.name,
            start_timeout_s=plan.options.start_timeout_s,
            stop_timeout_s=plan.options.stop_timeout_s,
            say=plan.say,
        )

    def _elsewhere(self, launch: ServerLaunch, inner: int, by_number: bool) -> ServerLaunch:
        """Returns the launch of a server as a step of this job on its own node.

        The ports are free here, and tried again if not there.
        """
        assert self.node is not None
        plan = self.plan
        gpus = tuple(gpu.index for gpu in self.away)
        spec = StepSpec(free_port(), inner, plan.options.stop_timeout_s, gpus, plan.config.hardware.mig, by_number)
        program = (sys.executable, "-I", vllm_step.__file__, spec.text())
        environment = step_environment(launch.environment)
        # SLURM says there which GPUs are the job's.
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        return ServerLaunch(
            launch.arguments,
            environment,
            f"http://{node_address(self.node)}:{spec.port}",
            step=(*step_command(self.node, self.name), *program),
            api_key=plan.api_key,
        )

    def client(self, url: str) -> HttpEngine:
        config = self.plan.config
        return HttpEngine(
            HttpClient(url, api_key=self.plan.api_key, direct=self.node is not None),
            replace(needs_of_run(config), model=served_name(config)),
            name=self.name,
            max_num_seqs=config.engine.max_num_seqs,
            weights=self.plan.weights,
            patience=Patience(_FIRST_REPLY_S, self.plan.say),
        )


def vllm_engines(
    config: Config,
    folders: EngineFolders,
    say: Callable[[str], None],
    environ: Mapping[str, str],
    options: VllmOptions,
    record: Record | None = None,
    restarts: MutableMapping[str, int] | None = None,
) -> list[VllmEngine]:
    """Returns the engines, not started. Raises UserError."""
    if not options.command:
        options = replace(options, command=vllm_command(environ))
    placement = place_layout(config)
    placed = placement.engines
    home_node = node_of_run(placement)
    away = [gpus[0].node for gpus in placed if gpus[0].node != home_node]
    nodes = names_of(away, home_node, f"layout={config.layout.name} puts an engine", _BY_HAND, environ)
    weights = weight_folders(config, folders.weights, untied=not placed)
    model_path = locate_model(config.model)
    if not placed and Path(model_path).is_dir():
        model_path = str(untied_copy(Path(model_path), folders.scratch / "untied"))
    key = key_of(environ, "VLLM_API_KEY") or secrets.token_hex(16)
    plan = _Plan(config, folders, options, environ, key, say, weights, _copy_extension(config, folders.weights), nodes)
    makers = [
        _make_maker(plan, index, placed[index] if placed else (), home_node) for index in range(config.layout.engines)
    ]
    return [
        VllmEngine(
            maker,
            name=maker.name,
            model_path=model_path,
            max_restarts=options.max_restarts,
            say=say,
            weights=weights,
            record=record,
            ledger=restarts,
        )
        for maker in makers
    ]


def weight_folders(config: Config, root: Path, *, untied: bool = False) -> WeightFolders | None:
    """Returns the folders of new weights; None where the model is not in a folder of this machine.

    Nothing can be written beside its config then.
    """
    source = _folder_of(locate_model(config.model), config.model.revision)
    trainer = config.trainer
    alpha = alpha_of(trainer.lora_rank, trainer.lora_alpha)
    adapter = None
    if serves_adapter(config):
        adapter = AdapterShape(trainer.lora_rank, alpha)
    if source is None:
        return None
    return WeightFolders(root, source, untied=untied, adapter=adapter)


def _copy_extension(config: Config, root: Path) -> Path | None:
    """Returns a folder with copies of our files: vLLM may be in another environment, which must not see
    our packages.
    """
    files = extension_files(config)
    if not files:
        return None
    folder = root / "extension"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for there, file in files.items():
            shutil.copyfile(Path(__file__).parents[1] / file, folder / there)
    except OSError as error:
        raise disk_error(folder, error, key="paths.scratch") from error
    return folder


def _folder_of(model: str, revision: str | None) -> Path | None:
    """Returns a folder as it is; for a hub id the folder of the hub's cache, if it is there."""
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import try_to_load_from_cache

    file = try_to_load_from_cache(model, "config.json", revision=revision)
    if isinstance(file, str):
        return Path(file).parent
    return None


def _make_maker(plan: _Plan, index: int, gpus: tuple[PlacedGpu, ...], home_node: int) -> _Maker:
    """Returns the maker of one engine. Raises DeviceError."""
    if not gpus:
        return _Maker(plan, index, None)
    if gpus[0].node != home_node:
        return _Maker(plan, index, ",".join(str(gpu.index) for gpu in gpus), away=gpus)
    return _Maker(plan, index, visible_devices(gpus, plan.environ, mig=plan.config.hardware.mig))


def _weights_of(model_path: str) -> str:
    """Returns words about weights of a later step; others are not worth a word."""
    name = Path(model_path).name
    if name.startswith("weights_"):
        return f" with {name}"
    return ""


def _describe_place(devices: str | None) -> str:
    if devices is None:
        return "the CPU"
    return f"GPU {devices}"
