"""This module is a client of remote runtimes that speak OpenHands's protocol.

A server starts the runtimes, and each of them has an action server.

Invariants:
- A command runs as `bash -c` of its own, in the workdir, with its own timeout inside the runtime: nothing is typed
  into the shell session that such runtimes keep.
- What a command left running is killed at its end, found by a variable in its environment: the runtime's own server is
  in the same container, so not everything may be killed. A process that threw its environment away gets away.
- Exit status and output pass through the session as one line of base64, so that neither prompt nor wrapping counts.
- A runtime that does not answer, or says something else, is a SandboxError; so is a start that is refused.
"""

import asyncio
import base64
import io
import os
import re
import secrets
import shlex
import time
import zipfile
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp

from swe_rl.config.environment import key_of
from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import UserError
from swe_rl.sandbox.base import TIMEOUT_EXIT, BaseProvider, BaseSandbox, refused_result
from swe_rl.sandbox.container import files
from swe_rl.sandbox.sandbox import Door, ExecResult, SandboxError, Waited, Workspace, no_wait

_POLL_S = 2.0
_SPARE_S = 30.0  # An action gets so long beyond its command's timeout.
_FULL = 429  # A server that answers so is asked again later.
_MARK = "swe_rl"  # The line with a command's result begins so, followed by a random text.
# The script runs a command with its time, ends what it left, and prints status, size and output as one line.
_RUN = """f=$(mktemp) && cd {workdir} && {{
timeout -k 1 {timeout_s:g} env {variable} {env} bash -c {command} </dev/null >"$f" 2>&1; s=$?
for i in $(seq 50); do l=$(grep -lasxz -- {variable} /proc/[0-9]*/environ); [ -n "$l" ] || break
for p in $l; do p=${{p%/environ}}; kill -9 "${{p#/proc/}}" 2>/dev/null; done; sleep 0.01; done
n=$(stat -c %s "$f"); h={head}; t={tail}
if [ "$n" -le $((h + t)) ]; then o=$(base64 -w0 <"$f"); e=
else o=$(head -c $h "$f" | base64 -w0); e=$(tail -c $t "$f" | base64 -w0); fi
rm -f "$f"; echo "{mark}:$s:$n:$o:$e:"; }}"""


class OpenHandsSandbox(BaseSandbox):
    """This is a sandbox in one runtime; `act` makes a call to its action server."""

    def __init__(
        self,
        sandbox_id: str,
        workdir: str,
        act: Callable[..., Awaitable[Any]],
        config: SandboxConfig,
        on_close: Callable[["OpenHandsSandbox"], Awaitable[None]],
    ) -> None:
        super().__init__(sandbox_id, workdir, config)
        self._act = act
        self._on_close = on_close

    async def exec(
        self,
        command: str,
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        max_output_bytes: int | None = None,
        waited: Waited = no_wait,  # It is not used, because only programs wait, and they need a door.
    ) -> ExecResult:
        self._check_open()
        if (refused := refused_result(command)) is not None:
            return refused
        limit_bytes = max_output_bytes or self._config.max_output_bytes
        mark = f"{_MARK}-{secrets.token_hex(8)}"
        script = _RUN.format(
            workdir=shlex.quote(self.workdir),
            timeout_s=timeout_s,
            env=" ".join(shlex.quote(f"{name}={value}") for name, value in (env or {}).items()),
            command=shlex.quote(command),
            head=limit_bytes // 2,
            tail=limit_bytes - limit_bytes // 2,
            mark=mark,
            variable=f"SWE_RL_COMMAND={mark}",
        )
        started_s = time.monotonic()
        answer = await self._act(
            "POST",
            "/execute_action",
            timeout_s=timeout_s + _SPARE_S,
            json={"action": {"action": "run", "args": {"command": script}, "timeout": timeout_s + _SPARE_S}},
        )
        return _parse_result(answer, mark, limit_bytes, timeout_s, time.monotonic() - started_s, self.sandbox_id)

    async def write_file(self, path: str, content: bytes) -> None:
        self._check_open()
        folder, name = files.relative_parts(path, self.workdir)
        stage = files.stage_name()
        form = aiohttp.FormData()
        form.add_field("file", content, filename=stage, content_type="application/octet-stream")
        await self._act("POST", "/upload_file", params={"destination": "/tmp", "recursive": "false"}, data=form)
        await self._script(files.write_script(folder, name, f"/tmp/{stage}"), path)

    async def read_file(self, path: str) -> bytes:
        """Returns a file's content. Raises MissingFileError (a SandboxError and a FileNotFoundError) without a file."""
        self._check_open()
        files.relative_parts(path, self.workdir)
        folder = f"/tmp/{files.stage_name()}"
        script = files.read_script(path, f"{folder}/file", self._max_bytes)
        await self._script(f"mkdir {folder}; {script}", path)
        try:
            archive = await self._act("GET", "/download_files", params={"path": folder}, binary=True)
            with zipfile.ZipFile(io.BytesIO(archive)) as opened:
                name = next(name for name in opened.namelist() if name.rpartition("/")[2] == "file")
                return opened.read(name)
        except (zipfile.BadZipFile, StopIteration) as error:
            raise SandboxError(f"{path!r} came out of the sandbox as a broken archive: {error}") from error
        finally:
            await self._script(f"rm -rf -- {folder}", path)

    async def _close(self) -> None:
        await self._on_close(self)

    async def _script(self, script: str, path: str) -> None:
        done = await self.exec(script, timeout_s=60.0)
        if (error := files.error_of_status(done.exit_code, path, self.workdir, self._max_bytes)) is not None:
            raise error


class OpenHandsProvider(BaseProvider[OpenHandsSandbox]):
    """This starts runtimes on a server, and looks every `poll_s` seconds at one that is starting.

    Raises UserError without an address.
    """

    def __init__(self, config: SandboxConfig, *, poll_s: float = _POLL_S) -> None:
        if not config.runtime_url:
            raise UserError("sandbox.kind=remote needs sandbox.runtime_url=http://HOST:PORT")
        super().__init__(config)
        self._url = config.runtime_url.rstrip("/")
        self._poll_s = poll_s
        key = key_of(os.environ, config.runtime_key_env)
        if key:
            self._headers = {"X-API-Key": key}
        else:
            self._headers = {}
        self._session: aiohttp.ClientSession | None = None
        self._runtimes: dict[OpenHandsSandbox, str] = {}

    async def _prepare(self, workspace: Workspace, owner: str, door: Door | None) -> None:
        """Raises UserError for what the protocol cannot do: folders of this machine, and doors."""
        if workspace.image is None or door is not None:
            raise UserError(
                f"{owner}: sandbox.runtime_protocol=openhands starts images only, without a way to the gateway; use "
                "sandbox.runtime_protocol=swe_rl (job=runtime) for folders and for programs in the sandbox"
            )

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._runtimes)), return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def _make(self, workspace: Workspace, owner: str, door: Door | None) -> OpenHandsSandbox:
        session_id = f"{re.sub(r'[^a-z0-9-]+', '-', owner.lower())[:40]}-{secrets.token_hex(6)}"
        order: dict[str, Any] = {
            "image": workspace.image,
            "command": [],
            "working_dir": workspace.workdir,
            "environment": {},
            "session_id": session_id,
            "resource_factor": max(1, round(self._config.cpus)),
        }
        made = await self._ask("POST", f"{self._url}/start", json=order, timeout_s=self._config.start_timeout_s)
        runtime = str(made["runtime_id"])
        url = str(made["url"]).rstrip("/")
        if made.get("session_api_key"):
            headers = {"X-Session-API-Key": str(made["session_api_key"])}
        else:
            headers = {}

        async def act(method: str, path: str, **options: Any) -> Any:
            return await self._ask(method, url + path, headers=headers, **options)

        try:
            await self._alive(act, owner)
        except BaseException:
            await asyncio.shield(self._stop(runtime))
            raise
        sandbox = OpenHandsSandbox(session_id, workspace.workdir, act, self._config, self._closed_one)
        self._runtimes[sandbox] = runtime
        return sandbox

    async def _alive(self, act: Callable[..., Awaitable[Any]], owner: str) -> None:
        end_s = time.monotonic() + self._config.start_timeout_s
        while True:
            try:
                await act("GET", "/alive", timeout_s=10.0)
                return
            except SandboxError as error:
                if time.monotonic() > end_s:
                    raise SandboxError(f"{owner}: its runtime did not come up: {error}") from error
            await asyncio.sleep(self._poll_s)

    async def _closed_one(self, sandbox: OpenHandsSandbox) -> None:
        try:
            await self._stop(self._runtimes.pop(sandbox))
        finally:
            self._places.release()

    async def _stop(self, runtime: str) -> None:
        await self._ask("POST", f"{self._url}/stop", json={"runtime_id": runtime})

    async def _ask(
        self,
        method: str,
        url: str,
        *,
        timeout_s: float = 60.0,
        headers: Mapping[str, str] | None = None,
        binary: bool = False,
        **body: Any,
    ) -> Any:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        sent = {**self._headers, **(headers or {})}
        while True:
            try:
                async with self._session.request(method, url, timeout=timeout, headers=sent, **body) as response:
                    status = response.status
                    said = await response.read()
                    if status == 200:
                        if binary:
                            return said
                        return await response.json(content_type=None)
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                raise SandboxError(f"the runtime at {url} does not answer: {error or type(error).__name__}") from error
            if status != _FULL:
                raise SandboxError(f"the runtime at {url} answered {status}: {said[:300].decode(errors='replace')}")
            await asyncio.sleep(self._poll_s)


def _parse_result(
    answer: Any, mark: str, limit_bytes: int, timeout_s: float, duration_s: float, sandbox_id: str
) -> ExecResult:
    content = ""
    if isinstance(answer, dict):
        content = str(answer.get("content", ""))
    match = re.search(rf"{mark}:(\d+):(\d+):([A-Za-z0-9+/=\s]*):([A-Za-z0-9+/=\s]*):", content)
    if match is None:
        raise SandboxError(f"sandbox {sandbox_id}: a command ended without a result: {content[-300:]!r}")
    status = int(match[1])
    left_out_bytes = max(0, int(match[2]) - limit_bytes)
    text = _decode_text(match[3])
    if left_out_bytes:
        text += f"\n... [{left_out_bytes} bytes left out] ...\n{_decode_text(match[4])}"
    timed_out = status in (TIMEOUT_EXIT, 137) and duration_s >= timeout_s
    return ExecResult(
        TIMEOUT_EXIT if timed_out else status,
        text,
        timed_out,
        left_out_bytes,
        timeout_s if timed_out else duration_s,
    )


def _decode_text(encoded: str) -> str:
    return base64.b64decode(encoded).decode("utf-8", "replace")
