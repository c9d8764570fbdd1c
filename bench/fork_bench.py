"""Measures snapshots, resets and forks of process sandboxes: python -m bench.fork_bench [--at-once 64].

The workspace has 50 files. It is shared below an overlay, or copied with `--copied`. Before the snapshot ten files were
written, one was changed and one removed.
"""

import argparse
import asyncio
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from swe_rl.config.choices import Isolation
from swe_rl.config.schema import SandboxConfig
from swe_rl.sandbox.process.provider import ProcessProvider
from swe_rl.sandbox.sandbox import Toolchain, Workspace

WRITES = "echo a >> package/m1.py; rm package/m2.py; mkdir new; for i in 0 1 2 3 4 5 6 7 8 9; do echo $i > new/$i; done"


def quantiles_ms(times_s: list[float]) -> dict[str, float]:
    ordered = sorted(times_s)
    places = {"least": 0, "p50": len(ordered) // 2, "p99": min(len(ordered) - 1, int(len(ordered) * 0.99))}
    return {name: round(ordered[place] * 1000, 1) for name, place in places.items()}


async def measure_time(work: Callable[[], Awaitable[Any]]) -> tuple[Any, float]:
    began_s = time.perf_counter()
    made = await work()
    return made, time.perf_counter() - began_s


def make_workspace(folder: Path, *, copied: bool) -> Workspace:
    tree = folder / "tree"
    (tree / "package").mkdir(parents=True)
    for number in range(50):
        (tree / "package" / f"m{number}.py").write_text(f"x = {number}\n" * 200)
    commit = "git init -q . && git add . && git -c user.name=a -c user.email=a@b commit -qm first"
    subprocess.run(commit, shell=True, cwd=tree, check=True)
    if copied:
        return Workspace(path=tree)
    (folder / "tools" / "bin").mkdir(parents=True)
    return Workspace(path=tree, toolchain=Toolchain(folder / "tools", "/opt/tools"))


async def measure(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    config = SandboxConfig(isolation=Isolation.bubblewrap, concurrency=max(8, arguments.at_once))
    provider = ProcessProvider(config, folder / "scratch", warn=print)
    workspace = make_workspace(folder, copied=arguments.copied)
    found: dict[str, Any] = {"load": os.getloadavg()[0]}
    try:
        starts, forks, resets = [], [], []
        for number in range(arguments.count):
            started, took_s = await measure_time(lambda number=number: provider.create(workspace, owner=f"s{number}"))
            starts.append(took_s)
            await started.close()
        parent = await provider.create(workspace, owner="parent")
        await parent.exec(WRITES, timeout_s=60)
        snapshot, took_s = await measure_time(parent.snapshot)
        found["snapshot_ms"] = round(took_s * 1000, 1)
        for number in range(arguments.count):
            await parent.write_file("package/m3.py", b"changed")
            resets.append((await measure_time(lambda: parent.reset(snapshot)))[1])
            fork, took_s = await measure_time(lambda number=number: provider.fork(snapshot, owner=f"f{number}"))
            forks.append(took_s)
            await fork.close()
        found |= {"start_ms": quantiles_ms(starts), "reset_ms": quantiles_ms(resets), "fork_ms": quantiles_ms(forks)}
        names = range(arguments.at_once)
        many = await asyncio.gather(
            *(measure_time(lambda name=name: provider.fork(snapshot, owner=f"m{name}")) for name in names)
        )
        found["forks_at_once_ms"] = quantiles_ms([took_s for _, took_s in many])
        again = await asyncio.gather(*(measure_time(lambda one=one: one.reset(snapshot)) for one, _ in many))
        found["resets_at_once_ms"] = quantiles_ms([took_s for _, took_s in again])
    finally:
        await provider.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--copied", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asyncio.run(measure(Path(folder), arguments)), indent=2))


if __name__ == "__main__":
    main()
