"""Times of sandboxes beside those of the engine's own command line, in one run.

    python -m bench.sandbox_bench --kind docker [--host unix:///PATH] [--starts 30] [--execs 300] [--at-once 64]

Without --image, an image of this machine's /usr is made (tests/sandbox/host_image.py); without --host, DOCKER_HOST or
the usual sockets. Kinds process (with bubblewrap where it works), docker and podman. Prints one JSON object.
"""

import argparse
import asyncio
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from swe_rl.config.choices import PullPolicy, SandboxKind
from swe_rl.config.schema import SandboxConfig
from swe_rl.sandbox.provider import make_provider
from swe_rl.sandbox.sandbox import Sandbox, SandboxProvider, Workspace

_TIMEOUT_S = 300.0


def quantiles(times_s: list[float]) -> dict[str, float]:
    """Milliseconds."""
    ordered = sorted(times_s)
    at = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    made = {name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] for name, share in at.items()}
    return {name: round(1000 * value, 2) for name, value in made.items()} | {"n": len(ordered)}


async def timed(action: Callable[[], Awaitable[Any]]) -> float:
    started_s = time.perf_counter()
    await action()
    return time.perf_counter() - started_s


class Ours:
    """What a rollout does: create, exec, close."""

    def __init__(self, provider: SandboxProvider, workspace: Workspace) -> None:
        self._provider = provider
        self._workspace = workspace

    async def start(self, name: str) -> Sandbox:
        sandbox = await self._provider.create(self._workspace, owner=name)
        assert (await sandbox.exec("true", timeout_s=_TIMEOUT_S)).exit_code == 0
        return sandbox

    async def execute(self, sandbox: Sandbox, command: str) -> None:
        assert (await sandbox.exec(command, timeout_s=_TIMEOUT_S)).exit_code == 0

    async def stop(self, sandbox: Sandbox) -> None:
        await sandbox.close()


class CommandLine:
    """The same by the engine's program, as scaffolds around `docker exec` do it."""

    def __init__(self, program: str, config: SandboxConfig, workspace: Workspace) -> None:
        self._program = program
        self._folder = str(workspace.path)
        self._image = str(config.image)
        self._options = ["--network", "none", "--memory", f"{config.memory_gb:g}g", "--cpus", f"{config.cpus:g}"]
        self._options += ["--pids-limit", str(config.max_processes), "--label", "swe_rl_bench=1"]
        for mount in config.mounts:
            self._options += ["-v", f"{mount}:ro"]
        self._environment = dict(os.environ)
        if config.host:
            self._environment["DOCKER_HOST"] = self._environment["CONTAINER_HOST"] = config.host
        self._places = asyncio.Semaphore(config.start_concurrency)

    async def start(self, name: str) -> str:
        async with self._places:
            await self._run("run", "-d", "--name", name, *self._options, self._image, "sleep", "1d")
            await self._run("cp", f"{self._folder}/.", f"{name}:/testbed")
        await self.execute(name, "true")
        return name

    async def execute(self, name: str, command: str) -> None:
        await self._run("exec", name, "bash", "-c", command)

    async def stop(self, name: str) -> None:
        at_once = ["-t", "0"] if Path(self._program).name == "podman" else []  # it would wait ten seconds
        await self._run("rm", "-f", *at_once, name)

    async def _run(self, *words: str) -> None:
        remote = ["--remote"] if Path(self._program).name == "podman" else []
        process = await asyncio.create_subprocess_exec(
            self._program,
            *remote,
            *words,
            env=self._environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await process.communicate()
        assert process.returncode == 0, said.decode(errors="replace")


async def measure(way: Any, prefix: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Starts one after another, commands in one, then many at once."""
    starts, stops = [], []
    for i in range(arguments.starts):
        began_s = time.perf_counter()
        one = await way.start(f"{prefix}-start-{i}")
        starts.append(time.perf_counter() - began_s)
        stops.append(await timed(lambda one=one: way.stop(one)))
    found: dict[str, Any] = {"start": quantiles(starts), "stop": quantiles(stops)}
    one = await way.start(f"{prefix}-exec")
    for name, command in (("exec_true", "true"), ("exec_python", "python3 -c pass")):
        times = [await timed(lambda command=command: way.execute(one, command)) for _ in range(arguments.execs)]
        found[name] = quantiles(times)
    await way.stop(one)
    return found | await at_once(way, prefix, arguments.at_once)


async def at_once(way: Any, prefix: str, count: int) -> dict[str, Any]:
    if not count:
        return {}
    began_s = time.perf_counter()
    many = await asyncio.gather(*(way.start(f"{prefix}-many-{i}") for i in range(count)))
    up_s = time.perf_counter() - began_s
    times: list[float] = []

    async def one_command(one: Any) -> None:
        times.append(await timed(lambda: way.execute(one, "true")))

    began_s = time.perf_counter()
    await asyncio.gather(*map(one_command, many))
    commands_s = time.perf_counter() - began_s
    began_s = time.perf_counter()
    await asyncio.gather(*map(way.stop, many))
    return {
        "at_once": count,
        "at_once_up_s": round(up_s, 2),
        "at_once_exec": quantiles(times),
        "at_once_execs_per_s": round(count / commands_s, 1),
        "at_once_stop_s": round(time.perf_counter() - began_s, 2),
    }


async def warm_starts(config: SandboxConfig, folder: Path, workspace: Workspace, count: int) -> dict[str, Any]:
    """Starts from a pool of eight, with a second of an agent's work in between."""
    from dataclasses import replace

    provider = make_provider(replace(config, warm_pool=8), folder / "warm", print)
    try:
        way = Ours(provider, workspace)
        times = []
        await way.stop(await way.start("first"))
        for i in range(count):
            await asyncio.sleep(1.0)
            began_s = time.perf_counter()
            one = await way.start(f"warm-{i}")
            times.append(time.perf_counter() - began_s)
            await way.stop(one)
    finally:
        await provider.close()
    return {"warm_start": quantiles(times)}


async def left_behind(config: SandboxConfig) -> int:
    """Containers of this process that are still there."""
    from swe_rl.config.engine_address import engine_address
    from swe_rl.sandbox.container.engine import ContainerEngine

    engine = ContainerEngine(engine_address(config, os.environ), threads=1, timeout_s=60)
    try:
        mine = [one for one in await engine.ours() if one.labels.get("swe_rl.pid") == str(os.getpid())]
        return len(mine)
    finally:
        await engine.close()


async def bench(arguments: argparse.Namespace) -> dict[str, Any]:
    kind = SandboxKind(arguments.kind)
    with tempfile.TemporaryDirectory(prefix="swe_rl-bench-") as made:
        folder = Path(made)
        workspace = Workspace(path=_workspace(folder / "workspace"))
        config = _config(kind, arguments)
        provider = make_provider(config, folder / "scratch", print)
        try:
            ours = await measure(Ours(provider, workspace), "ours", arguments)
        finally:
            await provider.close()
        found: dict[str, Any] = {"kind": str(kind), "machine": platform.platform(), "cpus": os.cpu_count()}
        found |= {"load": os.getloadavg()[0], "ours": ours}
        if kind is not SandboxKind.process:
            found["ours"] |= await warm_starts(config, folder, workspace, arguments.starts)
            found["left_behind"] = await left_behind(config)
            program = shutil.which(arguments.program or str(kind))
            if program is not None:
                line = CommandLine(program, config, workspace)
                found["command_line"] = await measure(line, "swe_rl-bench", arguments)
        return found


def _config(kind: SandboxKind, arguments: argparse.Namespace) -> SandboxConfig:
    common: dict[str, Any] = {"kind": kind, "cpus": 1.0, "memory_gb": 1.0, "concurrency": max(128, arguments.at_once)}
    if kind is SandboxKind.process:
        return SandboxConfig(**common)
    from tests.sandbox import host_image

    config = SandboxConfig(**common, host=arguments.host, pull=PullPolicy.never)
    if arguments.image:
        return SandboxConfig(**common, host=arguments.host, image=arguments.image)
    from swe_rl.config.engine_address import engine_address

    image = host_image.load(engine_address(config, os.environ))
    return SandboxConfig(**common, host=arguments.host, image=image, mounts=host_image.mounts(), pull=PullPolicy.never)


def _workspace(folder: Path) -> Path:
    """Forty small files: what an instance of env=bugs has."""
    for i in range(40):
        path = folder / f"package_{i % 4}" / f"module_{i}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"value = {i}\n" * 100)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=["process", "docker", "podman"], default="docker")
    parser.add_argument("--host", help="the engine's address")
    parser.add_argument("--image", help="one with bash and python3")
    parser.add_argument("--program", help="of the command line (default: docker or podman)")
    parser.add_argument("--starts", type=int, default=30)
    parser.add_argument("--execs", type=int, default=300)
    parser.add_argument("--at-once", type=int, default=64)
    print(json.dumps(asyncio.run(bench(parser.parse_args())), indent=1))


if __name__ == "__main__":
    main()
