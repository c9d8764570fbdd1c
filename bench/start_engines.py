"""Starts vLLM servers for a benchmark, one GPU each, runs a command with their addresses, and ends them.

    python -m bench.start_engines --model-dir /tmp/qwen3_14b --engines 4 -- \\
        python -m bench.router_bench --model-dir /tmp/qwen3_14b --url {urls} --out arms.jsonl

`--url {urls}` becomes one `--url` for each server. Without a command it serves until it is interrupted.

Invariants:
- Servers run below the guard of swe_rl/engine: whatever ends this process, none is left.
- The command starts when every server answers /health; its status is this program's.
"""

import argparse
import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from swe_rl.engine.vllm.arguments import vllm_command
from swe_rl.engine.vllm.server import ServerLaunch, VllmServer
from swe_rl.errors import RunError, UserError
from swe_rl.host.addresses import free_port

URLS = "{urls}"
FIRST_PORT = 8001
MODEL = "policy"


def server_arguments(arguments: argparse.Namespace, command: Sequence[str], index: int, port: int) -> tuple[str, ...]:
    """The whole command line of server `index`."""
    model = (str(arguments.model_dir),) if command[-1] == "serve" else ("--model", str(arguments.model_dir))
    blocks = ("--num-gpu-blocks-override", str(arguments.kv_blocks)) if arguments.kv_blocks else ()
    return (
        *command,
        *model,
        *("--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port)),
        *("--load-format", "dummy"),
        *("--max-model-len", str(arguments.max_model_len)),
        *("--max-num-seqs", str(arguments.max_num_seqs)),
        *("--logprobs-mode", "processed_logprobs"),
        *("--generation-config", "vllm", "--seed", str(index)),
        *("--enable-prefix-caching", "--enable-prompt-tokens-details", "--enable-per-request-metrics"),
        "--disable-uvicorn-access-log",
        *(() if arguments.cpu else ("--gpu-memory-utilization", str(arguments.gpu_memory_utilization))),
        *blocks,
        *shlex.split(arguments.extra),
    )


def environment(arguments: argparse.Namespace, index: int) -> dict[str, str]:
    decided = {
        "VLLM_SERVER_DEV_MODE": "1",  # /reset_prefix_cache
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "PYTHONUNBUFFERED": "1",
    }
    if arguments.cpu:
        decided |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "TORCH_COMPILE_DISABLE": "1"}
    else:
        decided["CUDA_VISIBLE_DEVICES"] = arguments.devices.split(",")[index] if arguments.devices else str(index)
    return {**os.environ, **decided}


def with_urls(command: Sequence[str], urls: Sequence[str]) -> list[str]:
    """`--url {urls}` as often as there are servers."""
    words: list[str] = []
    for word in command:
        if word == URLS and words:
            flag = words.pop()
            words += [part for url in urls for part in (flag, url)]
        else:
            words.append(word)
    return words


async def serve(arguments: argparse.Namespace) -> int:
    command = vllm_command(os.environ)
    ports = [
        arguments.first_port + index if arguments.first_port else free_port() for index in range(arguments.engines)
    ]
    servers = []
    for index, port in enumerate(ports):
        url = f"http://127.0.0.1:{port}"
        launch = ServerLaunch(server_arguments(arguments, command, index, port), environment(arguments, index), url)
        log = arguments.logs / f"engine{index}.log"
        server = VllmServer(
            launch,
            log,
            name=f"engine{index}",
            start_timeout_s=arguments.start_timeout_s,
            stop_timeout_s=10.0,
            say=lambda line: print(line, flush=True),
        )
        servers.append(server)
    print(shlex.join(server_arguments(arguments, command, 0, ports[0])), flush=True)
    try:
        # One after the other until the first has compiled its kernels: the others find them.
        took_s = [await servers[0].start()]
        took_s += await asyncio.gather(*(server.start() for server in servers[1:]))
        print(f"{len(servers)} servers ready after {', '.join(f'{one:.0f}' for one in took_s)} s", flush=True)
        return await _run(arguments.command, [server.url for server in servers])
    finally:
        await asyncio.gather(*(server.stop() for server in servers))


async def _run(command: Sequence[str], urls: Sequence[str]) -> int:
    if not command:
        print(" ".join(urls), flush=True)
        await asyncio.Event().wait()
    process = await asyncio.create_subprocess_exec(*with_urls(command, urls))
    try:
        return await process.wait()
    except asyncio.CancelledError:
        process.terminate()
        await process.wait()
        raise


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="vLLM servers for the time of a command.")
    parser.add_argument("--model-dir", type=Path, required=True)
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--first-port", type=int, default=FIRST_PORT, help="0: any free ones")
    parser.add_argument("--devices", default="", help="CUDA devices, separated by commas; default: 0, 1, ...")
    parser.add_argument("--cpu", action="store_true", help="the CPU build of vLLM")
    parser.add_argument("--kv-blocks", type=int, default=7500, help="of 16 tokens; 0: what fits")
    parser.add_argument("--max-model-len", type=int, default=16384)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.9)
    parser.add_argument("--start-timeout-s", type=float, default=420.0)
    parser.add_argument("--logs", type=Path, default=Path("engine_logs"))
    parser.add_argument("--extra", default="", help="further arguments of vllm serve, as one string")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="after --: run with the servers")
    arguments = parser.parse_args(words)
    arguments.command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    return arguments


async def _main(arguments: argparse.Namespace) -> int:
    serving = asyncio.ensure_future(serve(arguments))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, serving.cancel)
    try:
        return await serving
    except asyncio.CancelledError:
        return 130
    except (UserError, RunError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(asyncio.run(_main(parse(sys.argv[1:]))))
