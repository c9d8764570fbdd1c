"""`sandbox=swe_rex`: deployments of SWE-ReX, by its own library: local, docker, modal, fargate, daytona, remote.

Invariants:
- One deployment for each sandbox, stopped with it. A folder goes there as one archive, an image is the deployment's.
- Commands are one-shot (`runtime.execute`), never a session of a shell: a small script there bounds their time, ends
  what they started, and gives them an environment that has only PATH and HOME of its own.
- The library is imported when the first of them is made; no call of it runs on this event loop that blocks it.
"""

import asyncio
import base64
import importlib
import shlex
import shutil
import tarfile
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import UserError
from swe_rl.sandbox.base import TIMEOUT_EXIT
from swe_rl.sandbox.protocol import Door, ExecResult, SandboxError, Workspace

_KILLED = 137
_MARGIN_S = 20.0  # for the library's own limit, beyond that of the script
# $1: workdir, $2: seconds, $3: the command, then NAME=VALUE. `timeout` leads a process group of its own; what left the
# group is found by a variable of this command.
_RUN = r"""
cd -- "$1" || exit 125
seconds=$2 command=$3 mark=SWE_RL_COMMAND=$4; shift 4
out=$(mktemp)
env -i PATH="$PATH" HOME="${HOME:-/}" LANG=C.UTF-8 "$mark" "$@" \
  timeout -s KILL "$seconds" bash -c "$command" > "$out" 2>&1 < /dev/null &
pid=$!
wait "$pid" 2> /dev/null; status=$?
kill -KILL -- "-$pid" 2> /dev/null
for tries in 1 2 3; do
  left=$(grep -lsaF -- "$mark" /proc/[0-9]*/environ 2> /dev/null | tr -dc '0-9\n')
  [ -n "$left" ] || break
  kill -KILL $left 2> /dev/null
done
if [ "$(wc -c < "$out")" -gt 2097152 ]; then head -c 1048576 "$out"; echo; tail -c 1048576 "$out"; else cat "$out"; fi
rm -f "$out"
exit "$status"
"""
_INSIDE = r"""
cd -- "$1" || exit 125
path=$(realpath -m -- "$2"); here=$(realpath -- .)
case "$path" in "$here"/*) ;; *) exit 4 ;; esac
"""
_READ = _INSIDE + '[ -e "$path" ] || exit 3; [ -f "$path" ] || exit 4; base64 -w0 -- "$path"'
_WRITE = _INSIDE + 'mkdir -p -- "$(dirname -- "$path")" && mv -f -- "$3" "$path"'
_UNPACK = 'mkdir -p -- "$1" && tar -xf "$2" -C "$1" && rm -f -- "$2"'


class SweRex:
    """`deployment`: local, docker, podman, modal, fargate, daytona or remote; `options`: of its configuration."""

    takes_images = True
    has_network = True  # each deployment has a server that is reached over one

    def __init__(
        self, config: SandboxConfig, scratch: Path, deployment: str = "docker", options: dict[str, Any] | None = None
    ) -> None:
        self._config = config
        self._scratch = scratch
        self._deployment = deployment
        self._options = dict(options or {})
        self._local = deployment == "local"
        try:
            self._kinds = importlib.import_module("swerex.deployment.config")
            importlib.import_module(f"swerex.deployment.{'local' if self._local else 'docker'}")
        except ModuleNotFoundError as error:
            raise UserError(f"sandbox=swe_rex needs {error.name}: pip install 'swe_rl[swe_rex]'") from error

    async def create(self, workspace: Workspace, owner: str, door: Door | None) -> "Deployed":
        image = workspace.image or self._config.image
        if self._local and workspace.image is not None:
            raise UserError(f"{owner}: deployment=local has no images, and this is {workspace.image}; use docker")
        if not self._local and image is None:
            raise UserError(f"{owner}: a folder is copied into an image: sandbox.image=IMAGE with bash and coreutils")
        name = f"swe_rex-{uuid.uuid4().hex[:12]}"
        workdir = str(self._scratch / name) if self._local else workspace.workdir
        made = Deployed(name, workdir, self._made(image), self._scratch, local=self._local)
        try:
            await made.start(workspace.path)
        except BaseException:
            await asyncio.shield(made.close())
            raise
        return made

    def _made(self, image: str | None) -> Any:
        name = "Docker" if self._deployment == "podman" else self._deployment.capitalize()
        of = getattr(self._kinds, f"{name}DeploymentConfig", None)
        if of is None:
            raise UserError(f"sandbox.params.deployment={self._deployment}: SWE-ReX has no such deployment")
        options = dict(self._options)
        if "image" in of.model_fields:
            options.setdefault("image", image)
        if self._deployment in ("docker", "podman"):
            options.setdefault("container_runtime", self._deployment)
            options.setdefault("pull", str(self._config.pull))
        try:
            return of(**options).get_deployment()
        except ValueError as error:
            raise UserError(f"sandbox.params.options of deployment={self._deployment}: {error}") from error

    async def close(self) -> None: ...


class Deployed:
    def __init__(self, sandbox_id: str, workdir: str, deployment: Any, scratch: Path, *, local: bool) -> None:
        self.sandbox_id = sandbox_id
        self.workdir = workdir
        self._deployment = deployment
        self._scratch = scratch
        self._local = local
        self._mark = uuid.uuid4().hex

    async def start(self, folder: Path | None) -> None:
        """Raises SandboxError."""
        await self._deployment.start()
        if folder is not None:
            with tempfile.TemporaryDirectory(dir=self._scratch) as place:
                archive = Path(place) / "folder.tar"
                await asyncio.to_thread(_pack, folder, archive)
                there = await self._upload(archive)
            await self._script(_UNPACK, self.workdir, there)

    async def exec(self, command: str, timeout_s: float, env: Mapping[str, str]) -> ExecResult:
        given = [f"{name}={value}" for name, value in env.items()]
        began_s = asyncio.get_running_loop().time()
        words = (self.workdir, f"{timeout_s:g}", command, self._mark, *given)
        try:
            status, output = await self._ran(_RUN, words, timeout_s + _MARGIN_S)
        except asyncio.CancelledError:
            await asyncio.shield(self._end())
            raise
        late = status == _KILLED and asyncio.get_running_loop().time() - began_s >= timeout_s
        return ExecResult(TIMEOUT_EXIT if late else status, output, timed_out=late)

    async def _end(self) -> None:
        """Of a command that nobody waits for any more: its mark finds it."""
        find = 'kill -KILL $(grep -lsaF -- "SWE_RL_COMMAND=$1" /proc/[0-9]*/environ | tr -dc "0-9\\n")'
        await self._ran(find, (self._mark,), _MARGIN_S)

    async def write_file(self, path: str, content: bytes) -> None:
        with tempfile.TemporaryDirectory(dir=self._scratch) as place:
            file = Path(place) / "file"
            await asyncio.to_thread(file.write_bytes, content)
            there = await self._upload(file)
        await self._script(_WRITE, self.workdir, path, there)

    async def read_file(self, path: str) -> bytes:
        return base64.b64decode(await self._script(_READ, self.workdir, path))

    async def close(self) -> None:
        await self._deployment.stop()
        if self._local:
            await asyncio.to_thread(shutil.rmtree, self.workdir, ignore_errors=True)

    async def _upload(self, file: Path) -> str:
        from swerex.runtime.abstract import UploadRequest

        target = f"/tmp/swe_rl-{uuid.uuid4().hex}"
        await self._deployment.runtime.upload(UploadRequest(source_path=str(file), target_path=target))
        return target

    async def _script(self, script: str, *words: str) -> str:
        """Raises FileNotFoundError and SandboxError."""
        status, output = await self._ran(script, words, 120.0)
        if status == 3:
            raise FileNotFoundError(words[1])
        if status:
            raise SandboxError(f"{self.sandbox_id}: {shlex.join(words)[:200]}: status {status} {output[-300:]}")
        return output

    async def _ran(self, script: str, words: tuple[str, ...], limit_s: float) -> tuple[int, str]:
        from swerex.runtime.abstract import Command

        argv = ["bash", "-c", script, "swe_rl", *words]
        command = Command(command=argv, timeout=limit_s, merge_output_streams=True)
        call = self._deployment.runtime.execute(command)
        done = await (asyncio.to_thread(asyncio.run, call) if self._local else call)  # the local one blocks its loop
        return int(done.exit_code or 0), str(done.stdout)


def _pack(folder: Path, archive: Path) -> None:
    with tarfile.open(archive, "w") as packed:
        packed.add(folder, ".")
