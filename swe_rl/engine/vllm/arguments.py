"""Says how one vLLM server is started: its program, command line and environment, from the configuration.

Invariants:
- Equal inputs give equal results; no secret is ever an argument, as every user of a machine can read those.
- Only flags that vLLM 0.26 to 0.32 all have are used (their sources were compared); code of a checkpoint is never run.
- Nothing is imported or run to find the program.
- What the user set in the environment wins over what is set here, except for what the engine's placement decides.
"""

import importlib.util
import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from swe_rl.config.choices import LogprobsMode
from swe_rl.config.schema import Config
from swe_rl.errors import UserError
from swe_rl.facts.logprobs import scales_raw, served_mode
from swe_rl.facts.server_arguments import VLLM_COMMAND
from swe_rl.facts.sizes import SERVED_LORA_RANKS, serves_adapter, shares_gpus, wants_routes
from swe_rl.facts.weight_sync import GLOO, IPC, transfer_kind
from swe_rl.host.packages import installed_version
from swe_rl.plan.host_cache import host_cache_arguments

_LOGPROBS_FLAG = {LogprobsMode.processed: "processed_logprobs", LogprobsMode.raw: "raw_logprobs"}
_GPU_BLOCK_TOKENS = 16
# The CPU build takes no smaller ones.
_CPU_BLOCK_TOKENS = 32
# This times engine.max_model_len is the cache: as many full sequences fit by default.
_CPU_CACHE_TOKENS = 16
_CPU_FLOAT_BYTES = 4
_SERVE = ("-m", "vllm.entrypoints.cli.main", "serve")
_API_SERVER = ("-m", "vllm.entrypoints.openai.api_server")
# vLLM's workers import these files of swe_rl/engine, by the names that they have there. Some are for our ways of
# transferring weights, one is for log-probabilities.
_TRANSFER_FILES = {
    "swe_rl_worker.py": "transfer/vllm_worker.py",
    "swe_rl_ipc_handle.py": "transfer/ipc_handle.py",
    "swe_rl_staged_layers.py": "transfer/staged_layers.py",
}
_LOGPROBS_FILES = {"swe_rl_logprobs.py": "vllm/whole_logprobs.py"}


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """The options that the configuration's groups do not have. `command` starts a server, up to its arguments.

    `kv_cache_tokens` limits one engine's KV cache; 0: what fits. `extra_arguments` follow all others and win.
    """

    command: tuple[str, ...] = ()
    kv_cache_tokens: int = 0
    extra_arguments: tuple[str, ...] = ()
    start_timeout_s: float = 1800.0
    stop_timeout_s: float = 20.0
    max_restarts: int = 3


@dataclass(frozen=True, slots=True)
class ServerChoice:
    """The differences between two starts of one server.

    `devices` is its CUDA_VISIBLE_DEVICES, None on a machine without GPUs; `eager` is without compiled kernels, whatever
    the key says.
    """

    index: int
    port: int
    model_path: str
    devices: str | None = None
    eager: bool = False


def extension_files(config: Config) -> dict[str, str]:
    """Returns the files that vLLM's workers import in this run; the first one has the class that is named to them."""
    if scales_raw(config):
        logprobs = _LOGPROBS_FILES
    else:
        logprobs = {}
    return logprobs | (_TRANSFER_FILES if transfer_kind(config) in (GLOO, IPC) else {})


def served_name(config: Config) -> str:
    return config.engine.served_model or config.model.name


def server_arguments(config: Config, choice: ServerChoice, options: VllmOptions | None = None) -> tuple[str, ...]:
    """Returns the whole command line, the command first."""
    options = options or VllmOptions()
    engine = config.engine
    # `vllm serve MODEL` takes it as an argument; the module of the API server has --model.
    positional = options.command[-1:] == ("serve",)
    arguments = [*options.command]
    if not positional:
        arguments.append("--model")
    arguments.append(choice.model_path)
    values = {
        "--served-model-name": served_name(config),
        "--host": "127.0.0.1",
        "--port": str(choice.port),
        "--tensor-parallel-size": str(config.layout.engine_tp),
        "--max-model-len": str(engine.max_model_len),
        "--max-num-seqs": str(engine.max_num_seqs),
        "--max-num-batched-tokens": str(max(engine.max_num_batched_tokens, engine.max_num_seqs)),
        "--logprobs-mode": _LOGPROBS_FLAG[served_mode(config)],
        # Engines with equal seeds would sample equal siblings.
        "--seed": str(config.trainer.seed + choice.index),
        # The model folder's own configuration would change what is sampled: every parameter comes with the request.
        "--generation-config": "vllm",
    }
    for flag, value in values.items():
        arguments += [flag, value]
    arguments.append("--enable-prefix-caching" if engine.prefix_caching else "--no-enable-prefix-caching")
    arguments += ["--enable-prompt-tokens-details", "--enable-per-request-metrics", "--disable-uvicorn-access-log"]
    if config.model.revision and not Path(choice.model_path).is_dir():
        arguments += ["--revision", config.model.revision, "--tokenizer-revision", config.model.revision]
    if engine.enforce_eager or choice.eager:
        arguments.append("--enforce-eager")
    if shares_gpus(config):
        arguments.append("--enable-sleep-mode")
    # Two fit at once: the next adapter is there before the last one goes.
    if serves_adapter(config):
        rank = next(served for served in SERVED_LORA_RANKS if served >= config.trainer.lora_rank)
        arguments += ["--enable-lora", "--max-lora-rank", str(rank), "--max-loras", "2"]
    if wants_routes(config):
        arguments.append("--enable-return-routed-experts")
    if transfer := transfer_kind(config):
        arguments += ["--weight-transfer-config", json.dumps({"backend": transfer})]
    for file in list(extension_files(config))[:1]:
        arguments += ["--worker-extension-cls", f"{Path(file).stem}.Extension"]
    # On a CPU everything is float32.
    if config.model.float32_head and choice.devices is not None:
        arguments += ["--hf-overrides", json.dumps({"head_dtype": "float32"})]
    arguments += _memory_arguments(config, options, choice.devices)
    return (*arguments, *options.extra_arguments)


def server_environment(
    config: Config,
    choice: ServerChoice,
    environ: Mapping[str, str],
    *,
    cache: Path,
    api_key: str,
    extension: Path | None = None,
) -> dict[str, str]:
    """Returns the server's environment. `cache` holds what vLLM compiles, for all engines of this machine.

    `extension` is a folder with extension_files.
    """
    devices = choice.devices
    caches = {
        "VLLM_CACHE_ROOT": cache / "vllm",
        "TRITON_CACHE_DIR": cache / "triton",
        "TORCHINDUCTOR_CACHE_DIR": cache / "inductor",
        "FLASHINFER_WORKSPACE_BASE": cache / "flashinfer",
    }
    defaults = {name: str(path) for name, path in caches.items()} | {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # The parts of one server talk over loopback.
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_LOGGING_COLOR": "0",
        "PYTHONUNBUFFERED": "1",
        **({"HF_HUB_OFFLINE": "1"} if Path(choice.model_path).is_dir() or not config.hardware.internet else {}),
        **({"VLLM_CPU_OMP_THREADS_BIND": "nobind", "GLOO_SOCKET_IFNAME": "lo"} if devices is None else {}),
    }
    decided = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_API_KEY": api_key}
    if scales_raw(config):
        # whole_logprobs.py extends the sampler of the first model runner.
        decided["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    if serves_adapter(config):
        decided["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if devices is not None:
        decided["CUDA_VISIBLE_DEVICES"] = devices
    if devices is None:
        decided |= {"OMP_NUM_THREADS": str(config.engine.num_threads), "CUDA_VISIBLE_DEVICES": ""}
    if devices is None or choice.eager:
        # The sampler is compiled even with --enforce-eager.
        decided["TORCH_COMPILE_DISABLE"] = "1"
    given = {**defaults, **environ, **config.hardware.env_vars, **decided}
    if extension is not None:
        given["PYTHONPATH"] = os.pathsep.join(filter(None, (str(extension), given.get("PYTHONPATH"))))
    return given


def show_arguments(arguments: Sequence[str]) -> str:
    """Returns the text for a log line: one JSON list, so that spaces and quotes are seen."""
    return json.dumps(list(arguments))


def _memory_arguments(config: Config, options: VllmOptions, devices: str | None) -> list[str]:
    limit = options.kv_cache_tokens
    if devices is not None:
        arguments = ["--gpu-memory-utilization", str(config.engine.gpu_memory_utilization)]
        if limit:
            arguments += ["--num-gpu-blocks-override", str(-(-limit // _GPU_BLOCK_TOKENS))]
        return arguments + host_cache_arguments(config)
    tokens = limit or _CPU_CACHE_TOKENS * config.engine.max_model_len
    # vLLM keeps one block for itself.
    blocks = -(-tokens // _CPU_BLOCK_TOKENS) + 1
    model = config.model
    block_bytes = 2 * model.num_layers * model.num_kv_heads * model.head_dim * _CPU_FLOAT_BYTES * _CPU_BLOCK_TOKENS
    # The cache is set by bytes, as the share of a machine's memory that is the default elsewhere cannot be had beside
    # other processes.
    sizes = ["--kv-cache-memory-bytes", str(2 * blocks * block_bytes), "--num-gpu-blocks-override", str(blocks)]
    return ["--dtype", "float32", "--block-size", str(_CPU_BLOCK_TOKENS), *sizes]


class NoVllmError(UserError):
    """engine=vllm on a machine without vLLM."""


def vllm_command(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Returns SWE_RL_VLLM_COMMAND, or this interpreter's vLLM, or the one on PATH. Raises UserError.

    The variable may name an interpreter, `vllm`, or a whole command.
    """
    if command := command_of(VLLM_COMMAND, environ.get(VLLM_COMMAND, "")):
        return command
    if importlib.util.find_spec("vllm") is not None:
        return (sys.executable, *(_SERVE if installed_version("vllm") else _API_SERVER))
    program = shutil.which("vllm", path=environ.get("PATH"))
    if program is not None:
        return (program, "serve")
    raise NoVllmError(
        f"engine=vllm: vLLM is not installed here. Install the extra `gpu`, name the command in {VLLM_COMMAND} "
        "(/path/to/python of another environment will do), or choose engine=embedded or engine=external"
    )


def command_of(key: str, text: str) -> tuple[str, ...]:
    """Returns a command; a bare interpreter or `vllm` gets what is missing to start a server. Nothing is no command.

    Raises UserError for what no shell could read.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"{key}={text} is no command: {error}. Quote it as for a shell, or leave it out") from error
    if not words:
        return ()
    last = PurePath(words[-1]).name
    if last.startswith("python"):
        # The CPU build is another distribution, which `vllm serve` does not accept; its API server does.
        return (*words, *_API_SERVER)
    if last == "vllm":
        return (*words, "serve")
    return tuple(words)
