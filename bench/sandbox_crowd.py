"""Many sandboxes at once, each with a short command every now and then, as agents that mostly wait for a model.

    python -m bench.sandbox_crowd [--count 1000] [--every-s 1] [--seconds 20] [--remote] [--isolation none]

Sandboxes are processes of this machine. With --remote they are at a server (job=runtime's) in a process of its own,
which is asked by HTTP. Commands of one sandbox do not overlap: one that is late delays the next. Prints one JSON
object: the time of a command, commands per second, CPU seconds of this process, of the server and of what they start
for each command, and the memory of all of them.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import random
import resource
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil

from bench.sandbox_bench import quantiles
from swe_rl.config.choices import Isolation, SandboxKind
from swe_rl.config.schema import SandboxConfig
from swe_rl.sandbox.provider import make_provider
from swe_rl.sandbox.remote.server import ServerOptions, run_server
from swe_rl.sandbox.sandbox import Sandbox, SandboxProvider, Workspace

_LONGEST_S = 120.0


def _raise_open_files() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _config(arguments: argparse.Namespace) -> SandboxConfig:
    return SandboxConfig(
        kind=SandboxKind.process,
        isolation=Isolation(arguments.isolation),
        concurrency=arguments.at_once,
        memory_gb=1.0,
    )


def _serve(arguments: argparse.Namespace, folder: Path, pipe: Connection) -> None:
    """Runs a server of sandboxes until somebody says something."""
    _raise_open_files()

    async def serve() -> None:
        provider = make_provider(_config(arguments), folder, print)
        async with run_server(provider, folder, ServerOptions(arguments.count, lease_s=600.0, key=None)) as url:
            pipe.send(url)
            await asyncio.to_thread(pipe.recv)

    asyncio.run(serve())


async def _run_commands(sandbox: Sandbox, every_s: float, ends_s: float, times_s: list[float]) -> None:
    """Runs a command every so often. The first one comes at any time within the first period."""
    due_s = time.perf_counter() + every_s * random.random()
    while due_s < ends_s:
        await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        began_s = time.perf_counter()
        assert (await sandbox.exec("echo hi", timeout_s=_LONGEST_S)).exit_code == 0
        times_s.append(time.perf_counter() - began_s)
        due_s = max(due_s + every_s, time.perf_counter())


async def _measure(provider: SandboxProvider, arguments: argparse.Namespace, server: int | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="swe_rl-crowd-") as made:
        workspace = Path(made)
        (workspace / "module.py").write_text("value = 1\n")
        began_s = time.perf_counter()
        many = await asyncio.gather(
            *(provider.create(Workspace(path=workspace), owner=f"crowd-{number}") for number in range(arguments.count))
        )
        up_s = time.perf_counter() - began_s
        memory_mb = _memory_mb()
        before = _cpu_s(server)
        times_s: list[float] = []
        began_s = time.perf_counter()
        ends_s = began_s + arguments.seconds
        await asyncio.gather(*(_run_commands(one, arguments.every_s, ends_s, times_s) for one in many))
        taken_s = time.perf_counter() - began_s
        spent = {name: seconds - before[name] for name, seconds in _cpu_s(server).items()}
    return {
        "up_s": round(up_s, 1),
        "command": quantiles(times_s),
        "commands_per_s": round(len(times_s) / taken_s, 1),
        "wanted_per_s": round(arguments.count / arguments.every_s, 1),
        "cpu_ms_per_command": {name: round(1000 * seconds / len(times_s), 2) for name, seconds in spent.items()},
        "idle_memory_mb": memory_mb,
    }


def _memory_mb() -> dict[str, float]:
    """Memory of this process and of all below it, shared pages divided among those that share them."""
    own = psutil.Process()
    below = own.children(recursive=True)
    sizes = {"own": own.memory_full_info().pss, "below": 0, "processes_below": len(below)}
    for process in below:
        try:
            sizes["below"] += process.memory_full_info().pss
        except psutil.Error:
            continue
    return {name: size if name == "processes_below" else round(size / 2**20, 1) for name, size in sizes.items()}


def _cpu_s(server: int | None) -> dict[str, float]:
    """CPU seconds so far: of this process, of a server, and of all that either of them started and waited for."""
    own = psutil.Process().cpu_times()
    spent = {"own": own.user + own.system, "commands": own.children_user + own.children_system}
    if server is not None:
        there = psutil.Process(server).cpu_times()
        spent["server"] = there.user + there.system
        spent["commands"] += there.children_user + there.children_system
    return spent


async def bench(arguments: argparse.Namespace) -> dict[str, Any]:
    _raise_open_files()
    found: dict[str, Any] = {"machine": platform.platform(), "cpus": os.cpu_count(), "load": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory(prefix="swe_rl-crowd-") as made:
        config = _config(arguments)
        if not arguments.remote:
            provider = make_provider(config, Path(made), print)
            try:
                return found | await _measure(provider, arguments, None)
            finally:
                await provider.close()
        here, there = multiprocessing.get_context("spawn").Pipe()
        server = multiprocessing.get_context("spawn").Process(target=_serve, args=(arguments, Path(made), there))
        server.start()
        url = await asyncio.to_thread(here.recv)
        remote = SandboxConfig(kind=SandboxKind.remote, runtime_url=url, concurrency=arguments.count)
        provider = make_provider(remote, Path(made), print)
        try:
            return found | await _measure(provider, arguments, server.pid)
        finally:
            await provider.close()
            here.send("end")
            server.join(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--every-s", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--at-once", type=int, default=16, help="commands of this machine that run at a time")
    parser.add_argument("--isolation", choices=[str(one) for one in Isolation], default="auto")
    parser.add_argument("--remote", action="store_true")
    print(json.dumps(asyncio.run(bench(parser.parse_args())), indent=1))


if __name__ == "__main__":
    main()
