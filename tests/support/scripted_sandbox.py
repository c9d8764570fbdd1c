"""A sandbox without processes: a function answers the commands. For tests and for drills of the code around it.

Invariants:
- Files live in memory; each sandbox starts with a copy of its provider's files.
- `open_sandboxes` is what was created and not closed, so that leaks show.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from swe_rl.sandbox.confined_path import MissingFileError
from swe_rl.sandbox.sandbox import Door, ExecResult, SandboxError, Waited, Workspace, no_wait


@dataclass(frozen=True, slots=True)
class ScriptedCommand:
    """What the answering function gets; it may change `files`."""

    sandbox_id: str
    command: str
    timeout_s: float
    files: dict[str, bytes]


Respond = Callable[[ScriptedCommand], ExecResult | str]  # a string: exit status 0 and this output; it may raise


@dataclass(slots=True)
class ScriptedSandbox:
    sandbox_id: str
    workdir: str
    respond: Respond
    files: dict[str, bytes] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    door_url: str | None = None
    closed: bool = False

    async def exec(
        self,
        command: str,
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        max_output_bytes: int | None = None,
        waited: Waited = no_wait,
    ) -> ExecResult:
        self._check_open()
        self.commands.append(command)
        answer = self.respond(ScriptedCommand(self.sandbox_id, command, timeout_s, self.files))
        return ExecResult(0, answer, False, 0, 0.0) if isinstance(answer, str) else answer

    async def write_file(self, path: str, content: bytes) -> None:
        self._check_open()
        self.files[path] = content

    async def read_file(self, path: str) -> bytes:
        self._check_open()
        if path not in self.files:
            raise MissingFileError(f"there is no file {path!r} in the sandbox")
        return self.files[path]

    async def close(self) -> None:
        self.closed = True

    def _check_open(self) -> None:
        if self.closed:
            raise SandboxError(f"sandbox {self.sandbox_id} is closed")


class ScriptedProvider:
    """Makes ScriptedSandboxes; `sandboxes` keeps all of them, in order of creation."""

    def __init__(self, respond: Respond = lambda command: "", files: Mapping[str, bytes] | None = None) -> None:
        self._respond = respond
        self._files = dict(files or {})
        self.sandboxes: list[ScriptedSandbox] = []
        self.closed = False

    async def create(self, workspace: Workspace, *, owner: str, door: Door | None = None) -> ScriptedSandbox:
        if self.closed:
            raise SandboxError("the sandbox provider is closed")
        name = f"{owner}-{len(self.sandboxes) + 1}"
        sandbox = ScriptedSandbox(name, workspace.workdir, self._respond, dict(self._files))
        sandbox.door_url = f"http://{door.host}:{door.port}{door.path}" if door else None
        self.sandboxes.append(sandbox)
        return sandbox

    @property
    def open_sandboxes(self) -> list[ScriptedSandbox]:
        return [sandbox for sandbox in self.sandboxes if not sandbox.closed]

    async def close(self) -> None:
        self.closed = True
        for sandbox in self.sandboxes:
            await sandbox.close()
