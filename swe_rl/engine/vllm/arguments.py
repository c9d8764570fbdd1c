"""How one vLLM server is started: its program, command line and environment, from the configuration.

Invariants:
- Equal inputs give equal results; no secret is ever an argument, as every user of a machine can read those.
- Only flags that vLLM 0.26 to 0.32 all have (their sources were compared); code of a checkpoint is never run.
- Nothing is imported or run to find the program.
- What the user set in the environment wins over what is set here, except for what the engine's placement decides.
"""

import importlib.metadata
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
from swe_rl.plan.sizes import SERVED_LORA_RANKS, VLLM_COMMAND, serves_adapter, shares_gpus, wants_routes
from swe_rl.plan.weight_sync import GLOO, IPC, transfer_kind

_LOGPROBS_FLAG = {LogprobsMode.processed: "processed_logprobs", LogprobsMode.raw: "raw_logprobs"}
_GPU_BLOCK_TOKENS = 16
_CPU_BLOCK_TOKENS = 32  # the smallest that the CPU build takes
_CPU_CACHE_TOKENS = 16  # times engine.max_model_len: as many full sequences fit by default
_CPU_FLOAT_BYTES = 4
_SERVE = ("-m", "vllm.entrypoints.cli.main", "serve")
_API_SERVER = ("-m", "vllm.entrypoints.openai.api_server")
# What vLLM's workers import for our ways of transferring weights: files of engine/transfer, as they are called there.
EXTENSION_FILES = {"vllm_worker.py": "swe_rl_worker.py", "ipc_handle.py": "swe_rl_ipc_handle.py"}


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """What the configuration's groups do not say. `command`: how a server is started, up to its arguments.

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
    """What differs between two starts of one server.

    `devices` is its CUDA_VISIBLE_DEVICES, None on a machine without GPUs; `eager`: without compiled kernels, whatever
    the key says.
    """

    index: int
    port: int
    model_path: str
    devices: str | None = None
    eager: bool = False


def served_name(config: Config) -> str:
    return config.engine.served_model or config.model.name


def server_arguments(config: Config, choice: ServerChoice, options: VllmOptions | None = None) -> tuple[str, ...]:
    """The whole command line, the command first."""
    options = options or VllmOptions()
    engine = config.engine
    positional = options.command[-1:] == ("serve",)  # `vllm serve MODEL`; the module of the API server has --model
    arguments = [
        *options.command,
        *((choice.model_path,) if positional else ("--model", choice.model_path)),
        *("--served-model-name", served_name(config)),
        *("--host", "127.0.0.1"),
        *("--port", str(choice.port)),
        *("--tensor-parallel-size", str(config.layout.engine_tp)),
        *("--max-model-len", str(engine.max_model_len)),
        *("--max-num-seqs", str(engine.max_num_seqs)),
        *("--max-num-batched-tokens", str(max(engine.max_num_batched_tokens, engine.max_num_seqs))),
        *("--logprobs-mode", _LOGPROBS_FLAG[engine.logprobs_mode]),
        *("--seed", str(config.trainer.seed + choice.index)),  # equal ones would sample equal siblings
        *("--generation-config", "vllm"),  # not the model folder's: every parameter comes with the request
        "--enable-prefix-caching" if engine.prefix_caching else "--no-enable-prefix-caching",
        "--enable-prompt-tokens-details",
        "--enable-per-request-metrics",
        "--disable-uvicorn-access-log",
    ]
    if config.model.revision and not Path(choice.model_path).is_dir():
        arguments += ["--revision", config.model.revision, "--tokenizer-revision", config.model.revision]
    if engine.enforce_eager or choice.eager:
        arguments.append("--enforce-eager")
    if shares_gpus(config):
        arguments.append("--enable-sleep-mode")
    if serves_adapter(config):  # two: the next one is there before the last one goes
        rank = next(served for served in SERVED_LORA_RANKS if served >= config.trainer.lora_rank)
        arguments += ["--enable-lora", "--max-lora-rank", str(rank), "--max-loras", "2"]
    if wants_routes(config):
        arguments.append("--enable-return-routed-experts")
    if transfer := transfer_kind(config):
        arguments += ["--weight-transfer-config", json.dumps({"backend": transfer})]
        if transfer in (GLOO, IPC):
            arguments += ["--worker-extension-cls", "swe_rl_worker.Extension"]
    if config.model.float32_head and choice.devices is not None:  # on a CPU everything is float32
        arguments += ["--hf-overrides", json.dumps({"head_dtype": "float32"})]
    arguments += _memory(config, options, choice.devices)
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
    """`cache` holds what vLLM compiles, for all engines of this machine; `extension`: a folder with EXTENSION_FILES."""
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
        "VLLM_HOST_IP": "127.0.0.1",  # the parts of one server talk over loopback
        "VLLM_LOGGING_COLOR": "0",
        "PYTHONUNBUFFERED": "1",
        **({"HF_HUB_OFFLINE": "1"} if Path(choice.model_path).is_dir() or not config.hardware.internet else {}),
        **({"VLLM_CPU_OMP_THREADS_BIND": "nobind", "GLOO_SOCKET_IFNAME": "lo"} if devices is None else {}),
    }
    decided = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_API_KEY": api_key}
    if serves_adapter(config):
        decided["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if devices is not None:
        decided["CUDA_VISIBLE_DEVICES"] = devices
    if devices is None:
        decided |= {"OMP_NUM_THREADS": str(config.engine.num_threads), "CUDA_VISIBLE_DEVICES": ""}
    if devices is None or choice.eager:
        decided["TORCH_COMPILE_DISABLE"] = "1"  # the sampler is compiled even with --enforce-eager
    given = {**defaults, **environ, **config.hardware.env_vars, **decided}
    if extension is not None:
        given["PYTHONPATH"] = os.pathsep.join(filter(None, (str(extension), given.get("PYTHONPATH"))))
    return given


def shown(arguments: Sequence[str]) -> str:
    """For a log line: one JSON list, so that spaces and quotes are seen."""
    return json.dumps(list(arguments))


def _memory(config: Config, options: VllmOptions, devices: str | None) -> list[str]:
    limit = options.kv_cache_tokens
    if devices is not None:
        arguments = ["--gpu-memory-utilization", str(config.engine.gpu_memory_utilization)]
        return [*arguments, "--num-gpu-blocks-override", str(-(-limit // _GPU_BLOCK_TOKENS))] if limit else arguments
    tokens = limit or _CPU_CACHE_TOKENS * config.engine.max_model_len
    blocks = -(-tokens // _CPU_BLOCK_TOKENS) + 1  # vLLM keeps one block for itself
    model = config.model
    block_bytes = 2 * model.num_layers * model.num_kv_heads * model.head_dim * _CPU_FLOAT_BYTES * _CPU_BLOCK_TOKENS
    # By bytes, as the share of a machine's memory that is the default elsewhere cannot be had beside other processes.
    sizes = ["--kv-cache-memory-bytes", str(2 * blocks * block_bytes), "--num-gpu-blocks-override", str(blocks)]
    return ["--dtype", "float32", "--block-size", str(_CPU_BLOCK_TOKENS), *sizes]


class NoVllmError(UserError):
    """engine=vllm on a machine without vLLM."""


def vllm_command(environ: Mapping[str, str]) -> tuple[str, ...]:
    """SWE_RL_VLLM_COMMAND, or this interpreter's vLLM, or the one on PATH. Raises UserError.

    The variable may name an interpreter, `vllm`, or a whole command.
    """
    if command := command_of(VLLM_COMMAND, environ.get(VLLM_COMMAND, "")):
        return command
    if importlib.util.find_spec("vllm") is not None:
        return (sys.executable, *(_SERVE if _is_installed("vllm") else _API_SERVER))
    program = shutil.which("vllm", path=environ.get("PATH"))
    if program is not None:
        return (program, "serve")
    raise NoVllmError(
        f"engine=vllm: vLLM is not installed here. Install the extra `gpu`, name the command in {VLLM_COMMAND} "
        "(/path/to/python of another environment will do), or choose engine=embedded or engine=external"
    )


def command_of(key: str, text: str) -> tuple[str, ...]:
    """A bare interpreter or a bare `vllm` gets what is missing to start a server; nothing is no command.

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
    return (*words, "serve") if last == "vllm" else tuple(words)


def _is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
