"""This module is `swe_rl.testing.check_sandbox`: it holds a class to all that `swe_rl.api.Sandboxes` says.

Invariants:
- Real commands run in it: bash, coreutils and grep are all that an image needs.
- What a class declares is tried: a network that it says it has not, and an end that it says comes by itself.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from swe_rl.config.choices import ExtensionKind, SandboxKind
from swe_rl.config.schema import SandboxConfig
from swe_rl.extension.conformance import NONE, ConformanceError, LoopWatch, Params, group_for, made_of, require
from swe_rl.extension.find import Foreign
from swe_rl.sandbox.confined_path import MissingFileError
from swe_rl.sandbox.foreign import ForeignProvider, make_own
from swe_rl.sandbox.sandbox import Door, Sandbox, SandboxError, Workspace
from swe_rl.sandbox.snapshot_conformance import check_snapshots

_LATE_S = 10.0  # A command has to be ended so many seconds after its time at the latest.
# This variable of the process must not be seen by any command.
_PLANTED = "SWE_RL_CONFORMANCE_SECRET"
# A file has to come back as it was written, whatever bytes are in it.
_BINARY = bytes(range(256)) * 64


def check_sandbox(
    sandboxes: type, scratch: Path, params: Params = NONE, *, image: str | None = None, lease_s: float = 60.0
) -> None:
    """Checks a class that makes sandboxes. Raises ConformanceError.

    The folder `scratch` is empty, and has to be empty again at the end. A class that takes no folders needs an `image`
    with bash. A killed run's sandbox has to be gone within `lease_s`, where the class says that it goes.
    """
    os.environ[_PLANTED] = "planted"
    try:
        asyncio.run(_try_provider(sandboxes, scratch, params, image, lease_s))
    finally:
        del os.environ[_PLANTED]


async def _try_provider(sandboxes: type, scratch: Path, params: Params, image: str | None, lease_s: float) -> None:
    config = SandboxConfig(kind=SandboxKind.custom, network=True, max_file_mb=1)
    given = {"config": config, "scratch": scratch, "warn": print}
    made, maker = made_of(ExtensionKind.sandbox, sandboxes, params, given)
    said: list[str] = []
    provider = ForeignProvider(made, maker, config, said.append)
    watch = LoopWatch()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "given.txt").write_text("given\n")
        if image:
            workspace = Workspace(image=image)
        else:
            workspace = Workspace(path=Path(folder))
        try:
            async with watch:
                await _check_provider(provider, maker, made, workspace)
                await check_snapshots(provider, workspace)
                if getattr(made, "ends_when_killed", False):
                    await _check_killed(sandboxes, scratch, params, workspace, made, maker, lease_s)
        except SandboxError as error:
            raise ConformanceError(str(error)) from error
        finally:
            await provider.close()
        left = [path.name for path in await asyncio.to_thread(_list_children, Path(folder))]
        require(left == ["given.txt"], maker, "a workspace must be left as it is")
    require(not said, maker, "; ".join(said))
    watch.require_free(maker, "it")
    require(not await asyncio.to_thread(_list_children, scratch), maker, f"close must leave nothing in {scratch}")


def _list_children(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def _check_provider(provider: ForeignProvider, maker: Foreign, made: object, workspace: Workspace) -> None:
    async with await asyncio.start_server(_hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        door = None
        if getattr(made, "has_door", False):
            door = Door("127.0.0.1", port, "/v1")
        first = await provider.create(workspace, owner="conformance/one", door=door)
        await _check_commands(first, maker)
        await _check_ends(first, maker)
        await _check_files(first, maker)
        reached = await first.exec(f"exec 3<>/dev/tcp/127.0.0.1/{port}", timeout_s=20)
        if not getattr(made, "has_network", False) and not door:
            require(reached.exit_code != 0, maker, "commands must not reach this machine, unless has_network = True")
        require(door is None or bool(first.door_url), maker, "what create returns needs a door_url (its has_door)")
    other = await provider.create(workspace, owner="conformance/other")
    fresh = await other.exec("ls", timeout_s=20)
    require("data.bin" not in fresh.output, maker, "create must start each sandbox from a fresh copy")
    require(first.sandbox_id != other.sandbox_id, maker, "sandbox_id must differ")
    await first.close()
    try:
        await first.exec("true", timeout_s=5)
    except SandboxError:
        return
    raise ConformanceError(f"{maker}: exec must fail after close")


async def _hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def _check_commands(sandbox: Sandbox, maker: Foreign) -> None:
    done = await sandbox.exec(f'pwd; echo "$GIVEN"; echo "[${_PLANTED}]"; exit 3', timeout_s=20, env={"GIVEN": "a  b"})
    lines = done.output.split("\n")
    require(done.exit_code == 3, maker, f"exec must say the exit status: {done}")
    require(lines[:2] == [sandbox.workdir, "a  b"], maker, f"exec must run in workdir, with its variables: {done}")
    require(lines[2] == "[]", maker, "exec must not hand on this process's environment: secrets are in it")
    both = await sandbox.exec("echo out; echo err >&2; cat", timeout_s=20)
    require(both.output == "out\nerr\n", maker, f"exec must give both streams as they came, and no input: {both}")


async def _check_ends(sandbox: Sandbox, maker: Foreign) -> None:
    began_s = time.monotonic()
    late = await sandbox.exec("echo begun; sleep 600 & echo $!; sleep 600", timeout_s=1.0)
    took_s = time.monotonic() - began_s
    require(late.timed_out, maker, f"exec must say that the time was over: {late}")
    require(took_s < 1.0 + _LATE_S, maker, f"exec must end within timeout_s; it took {took_s:.0f} s")
    left = await sandbox.exec("sleep 600 > /dev/null 2>&1 & echo $!; sleep 0.3", timeout_s=20)
    pids = [word for word in (late.output + " " + left.output).split() if word.isdigit()]
    running = asyncio.ensure_future(sandbox.exec("echo $$ > running; sleep 600", timeout_s=600))
    await asyncio.sleep(1.0)
    running.cancel()
    await asyncio.wait({running})
    looks = "; ".join(f"tr -d '\\0' < /proc/{pid}/cmdline | grep -o 'sleep.*'" for pid in [*pids, "$(cat running)"])
    still = await sandbox.exec(f"({looks}) 2> /dev/null; rm -f running", timeout_s=20)
    require(not still.output.strip(), maker, "nothing that a command started may outlive it, its time or its caller")


async def _check_files(sandbox: Sandbox, maker: Foreign) -> None:
    await sandbox.write_file("data.bin", _BINARY)
    require(await sandbox.read_file("data.bin") == _BINARY, maker, "read_file must give what write_file wrote")
    await sandbox.write_file("made/for/it.txt", b"x")
    size = await sandbox.exec("wc -c < data.bin", timeout_s=20)
    require(size.output.strip() == str(len(_BINARY)), maker, f"commands must see what write_file wrote: {size}")
    await sandbox.exec("ln -s / out; ln -s /etc/passwd secret", timeout_s=20)
    for what, call in (
        ("write_file", sandbox.write_file("out/tmp/swe_rl_conformance", b"x")),
        ("read_file", sandbox.read_file("secret")),
    ):
        try:
            await call
        except SandboxError:
            continue
        raise ConformanceError(f"{maker}: {what} must refuse a link that leads out of workdir")
    try:
        await sandbox.read_file("nowhere")
    except MissingFileError:
        return
    except SandboxError as error:
        raise ConformanceError(f"{maker}: read_file of no file must be a FileNotFoundError: {error}") from error
    raise ConformanceError(f"{maker}: read_file of no file must be a FileNotFoundError")


_KILLED = """
import asyncio, json, sys
from swe_rl.sandbox.conformance import wait_to_be_killed
asyncio.run(wait_to_be_killed(json.loads(sys.argv[1])))
"""


async def wait_to_be_killed(facts: dict[str, object]) -> None:
    """Makes a sandbox, prints its id, and waits to be killed; it runs in a process of its own."""
    config = SandboxConfig(kind=SandboxKind.custom, network=True)
    config = replace(config, name=str(facts["name"]), _target_=str(facts["target"]), params=dict(facts["params"]))  # type: ignore[call-overload]
    provider = make_own(config, Path(str(facts["scratch"])), print)
    image = facts["image"]
    if image:
        workspace = Workspace(image=str(image))
    else:
        workspace = Workspace(path=Path(str(facts["path"])))
    sandbox = await provider.create(workspace, owner="conformance/killed")
    print(json.dumps(sandbox.sandbox_id), flush=True)
    await sandbox.exec("sleep 600", timeout_s=600)


async def _check_killed(
    sandboxes: type,
    scratch: Path,
    params: Params,
    workspace: Workspace,
    made: object,
    maker: Foreign,
    lease_s: float,
) -> None:
    group = group_for(sandboxes, params)
    facts = {"name": group.name, "target": group._target_, "params": group.params, "scratch": str(scratch)}
    facts |= {"image": workspace.image, "path": str(workspace.path)}
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    words = [sys.executable, "-c", _KILLED, json.dumps(facts)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, stdout=pipe, env=environ, cwd=scratch.parent)
    try:
        assert process.stdout is not None
        line = await process.stdout.readline()
        require(bool(line), maker, "create failed in a process of its own")
        await asyncio.sleep(0.5)
    finally:
        process.kill()
        await process.wait()
    sandbox_id = json.loads(line)
    began_s = time.monotonic()
    while await made.is_there(sandbox_id):  # type: ignore[attr-defined]
        late = time.monotonic() - began_s > lease_s
        require(not late, maker, f"a killed run's sandbox is there after {lease_s:g} s (its ends_when_killed)")
        await asyncio.sleep(0.2)
