"""Modal's SDK for tests: the calls that sandboxes need, on machines of this host; commands run for real.

Invariants:
- The service's own protocol is the SDK's affair. So the calls of the SDK are faked, and each is held to the signature
  that the installed SDK has.
- A sandbox ends when it was idle for its time: no command runs in it.
- What a call raises instead is in `faults` (always) and `busy` (so often), by its name.
"""

import asyncio
import inspect
import time
import uuid
from types import SimpleNamespace
from typing import Any

import modal
from modal.exception import AuthError, NotFoundError, ResourceExhaustedError

from tests.support.fake_machine import FakeMachine

ID = "ak-of-nobody"
SECRET = "as-that-nobody-may-read"


def _aio(real: Any, act: Any, bound: bool = False) -> SimpleNamespace:
    """A call of the SDK as it is in asyncio. It takes what the real one takes."""
    signature = inspect.signature(getattr(real, "aio", real))

    def call(*words: Any, **options: Any) -> Any:
        signature.bind(*((None,) if bound else ()), *words, **options)
        return act(*words, **options)

    return SimpleNamespace(aio=call)


class FakeModal:
    """`monkeypatch.setitem(sys.modules, "modal", FakeModal())`."""

    def __init__(self) -> None:
        self.sandboxes: dict[str, FakeSandbox] = {}
        self.calls: list[str] = []
        self.faults: dict[str, Exception] = {}
        self.busy: dict[str, int] = {}
        real = modal.Sandbox
        self.Client = SimpleNamespace(from_credentials=_aio(modal.Client.from_credentials, self._connect, bound=True))
        self.App = SimpleNamespace(lookup=_aio(modal.App.lookup, self._look_up))
        self.Image = SimpleNamespace(from_registry=self._image)
        self.Sandbox = SimpleNamespace(
            create=_aio(real.create, self._create),
            from_id=_aio(real.from_id, self._from_id),
            list=_aio(real.list, self._list),
        )

    def note(self, name: str) -> None:
        self.calls.append(name)
        if self.busy.get(name, 0) > 0:
            self.busy[name] -= 1
            raise ResourceExhaustedError("too many requests")
        if name in self.faults:
            raise self.faults[name]

    async def _connect(self, token_id: str, token_secret: str) -> object:
        self.note("connect")
        if (token_id, token_secret) != (ID, SECRET):
            raise AuthError(f"{token_secret} is no key")
        return "client"

    async def _look_up(self, name: str, **_: Any) -> object:
        return SimpleNamespace(app_id=f"ap-{name}")

    def _image(self, tag: str, **options: Any) -> object:
        inspect.signature(modal.Image.from_registry).bind(tag, **options)
        return SimpleNamespace(entrypoint=lambda words: (tag, words))

    async def _create(self, *first: str, **asked: Any) -> "FakeSandbox":
        self.note("create")
        modal._utils.name_utils.check_tag_dict(asked["tags"])  # type: ignore[attr-defined]
        sandbox = FakeSandbox(self, first, asked)
        self.sandboxes[sandbox.object_id] = sandbox
        return sandbox

    async def _from_id(self, sandbox_id: str, **_: Any) -> "FakeSandbox":
        if sandbox_id not in self.sandboxes:
            raise NotFoundError("there is no such sandbox")
        return self.sandboxes[sandbox_id]

    async def _list(self, *, tags: dict[str, str], **_: Any) -> Any:
        self.note("list")
        self.end_idle()
        for sandbox in list(self.sandboxes.values()):
            if tags.items() <= sandbox.asked["tags"].items():
                yield sandbox

    def end_idle(self) -> None:
        for sandbox in list(self.sandboxes.values()):
            if not sandbox.num_running and time.monotonic() - sandbox.acted_s > sandbox.asked["idle_timeout"]:
                sandbox.end()

    def close(self) -> None:
        for sandbox in list(self.sandboxes.values()):
            sandbox.end()


class FakeSandbox:
    def __init__(self, service: FakeModal, first: tuple[str, ...], asked: dict[str, Any]) -> None:
        real = modal.Sandbox
        self.object_id = f"sb-{uuid.uuid4().hex[:20]}"
        self.service = service
        self.asked = asked
        self.acted_s = time.monotonic()
        self.num_running = 0
        self.machine = FakeMachine(first, network=not asked["block_network"])
        self.exec = _aio(real.exec, self._exec, bound=True)
        self.terminate = _aio(real.terminate, self._terminate, bound=True)
        self.get_tags = _aio(real.get_tags, self._get_tags, bound=True)
        files = modal.sandbox._filesystem._SandboxFilesystem  # type: ignore[attr-defined]
        self.filesystem = SimpleNamespace(write_bytes=_aio(files.write_bytes, self._write, bound=True))

    def end(self) -> None:
        self.service.sandboxes.pop(self.object_id, None)
        self.machine.end()

    async def _terminate(self) -> None:
        self.end()

    async def _get_tags(self) -> dict[str, str]:
        return self.asked["tags"]

    async def _write(self, data: bytes, remote_path: str) -> None:
        self._check()
        self.service.note("write")
        process = await self.machine.enter(["bash", "-c", 'cat > "$1"', "modal", remote_path])
        await process.communicate(data)

    async def _exec(self, *argv: str, timeout: int, text: bool = True, workdir: str = "/") -> object:
        self._check()
        self.service.note("exec")
        assert sum(map(len, argv)) < 1 << 16, "no command line of the service is longer"
        process = await self.machine.enter(argv, cwd=workdir, stdin=asyncio.subprocess.DEVNULL)
        self.num_running += 1
        reads = {name: asyncio.ensure_future(getattr(process, name).read()) for name in ("stdout", "stderr")}

        async def wait() -> int:
            try:
                status = await asyncio.wait_for(process.wait(), timeout)
            except TimeoutError:
                return -1
            finally:
                self.num_running -= 1
                self.acted_s = time.monotonic()
            self._check()
            return status if status >= 0 else 128 - status

        async def read(name: str) -> bytes:
            return await reads[name]

        streams = {name: SimpleNamespace(read=SimpleNamespace(aio=lambda name=name: read(name))) for name in reads}
        return SimpleNamespace(wait=SimpleNamespace(aio=wait), **streams)

    def _check(self) -> None:
        if self.machine.has_ended:
            raise NotFoundError("the sandbox has ended")
