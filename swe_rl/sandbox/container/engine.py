"""This module talks to a container engine through the `docker` SDK; podman's service speaks the same API.

Invariants:
- Every failure leaves as a SandboxError that names what was asked; the SDK's exceptions stay in here.
- Only containers that carry our labels are ever removed, one by one, by id or by the name that we gave.
- The streams of commands need no thread: they live on the event loop (`ContainerStream`).
- Nothing is lost between the answer's head and the stream: both are read by the same reader.
- Frames are unpacked as they come, however they are cut.
- Everything that removes containers goes by these labels; a container without them is nobody's business here.
- The owner is a process, named for good (`ProcessIdentity`): a pid that was given to another process does not count.
"""

import asyncio
import contextlib
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from swe_rl.errors import UserError, one_line
from swe_rl.host.process_identity import ProcessIdentity
from swe_rl.sandbox.sandbox import SandboxError

if TYPE_CHECKING:
    from docker import APIClient

# These are the labels of our containers.
PREFIX = "swe_rl."
PROVIDER = f"{PREFIX}provider"
RUN = f"{PREFIX}run"
OWNER = f"{PREFIX}owner"
_HOST = f"{PREFIX}host"
_STARTS_UNTIL = f"{PREFIX}starts_until_s"  # It tells leftovers of other hosts from containers that are being started.


@dataclass(frozen=True, slots=True)
class ProviderIdentity:
    """This names a process on its host, and one provider in it."""

    provider: str
    run: str
    process: ProcessIdentity

    @classmethod
    def mine(cls, provider: str, run: str) -> "ProviderIdentity":
        """Returns the identity of this process, for one of its providers."""
        return cls(provider, run, ProcessIdentity.mine())


def labels_of(identity: ProviderIdentity, owner: str, starts_until_s: float) -> dict[str, str]:
    """Returns a container's labels. One that does not run after the Unix time `starts_until_s` was left behind."""
    return {
        PROVIDER: identity.provider,
        RUN: identity.run,
        OWNER: owner,
        _STARTS_UNTIL: f"{starts_until_s:.0f}",
        **{f"{PREFIX}{name}": str(value) for name, value in identity.process.record().items()},
    }


def is_orphan(labels: Mapping[str, str], *, running: bool, host: str, now_s: float | None = None) -> bool:
    """Tells whether nobody will ever use a container again.

    On the owner's host its process decides. Elsewhere a running container ends by itself when its lease does
    (guard.sh), and one that does not run is left over once it should have started.
    """
    if PROVIDER not in labels:
        return False
    try:
        if labels[_HOST] == host:
            process = {name.removeprefix(PREFIX): value for name, value in labels.items() if name.startswith(PREFIX)}
            return ProcessIdentity.read(process).is_gone()
        return not running and float(labels[_STARTS_UNTIL]) < (time.time() if now_s is None else now_s)
    except (KeyError, ValueError):
        return False


_HEAD_BYTES = 8  # A frame begins with its stream's number and its length.
_CHUNK_BYTES = 1 << 18


class AttachError(OSError):
    """The engine refused to attach."""


class FrameDecoder:
    """This unpacks Docker's multiplexed stream.

    A frame has the stream's number, three zero bytes, the length (4 bytes, big endian) and the data.
    """

    def __init__(self) -> None:
        self._head = bytearray()
        self._left_bytes = 0

    def feed(self, data: bytes) -> bytes:
        """Returns the payload bytes in `data`, of every stream."""
        payload = bytearray()
        view = memoryview(data)
        while view:
            if self._left_bytes:
                part = view[: self._left_bytes]
                payload += part
                self._left_bytes -= len(part)
                view = view[len(part) :]
                continue
            part = view[: _HEAD_BYTES - len(self._head)]
            self._head += part
            view = view[len(part) :]
            if len(self._head) == _HEAD_BYTES:
                self._left_bytes = int.from_bytes(self._head[4:], "big")
                self._head.clear()
        return bytes(payload)


class ContainerStream:
    """This is a guard's stream to a container, on the event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = FrameDecoder()

    async def read(self) -> bytes:
        while data := await self._reader.read(_CHUNK_BYTES):
            if payload := self._frames.feed(data):
                return payload
        return b""

    async def write(self, data: bytes) -> None:
        if self._writer.is_closing():
            raise BrokenPipeError("the stream is closed")
        self._writer.write(data)
        await self._writer.drain()

    @property
    def ended(self) -> bool:
        return self._reader.at_eof() or self._writer.is_closing()

    async def close(self) -> None:
        """Closes the stream at once; the container's first process sees the end of its input."""
        self._writer.transport.abort()


async def attach_stream(address: str, api_version: str, container_id: str) -> ContainerStream:
    """Returns the stream of a container that does not run yet, so that nothing is missed. Raises OSError."""
    url = urlsplit(address)
    if url.scheme == "unix":
        reader, writer = await asyncio.open_unix_connection(url.path)
    else:
        reader, writer = await asyncio.open_connection(url.hostname, url.port or 2375)
    query = "stream=1&stdin=1&stdout=1&stderr=1"
    writer.write(
        f"POST /v{api_version}/containers/{quote(container_id)}/attach?{query} HTTP/1.1\r\n"
        "Host: engine\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n".encode()
    )
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        writer.transport.abort()
        raise AttachError(f"no answer to attach: {error}") from error
    status = head.split(b" ", 2)[1]
    if status not in (b"101", b"200"):
        writer.transport.abort()
        first_line = head.partition(b"\r\n")[0].decode(errors="replace")
        raise AttachError(f"attach was refused: {first_line}")
    return ContainerStream(reader, writer)


_AGAIN_S = 0.05
_REMOVE_TRIES = 100  # The engine refuses while a container is just ending, so a removal is tried for some seconds.
_INFO_S = 10.0  # An engine that does not say its version in this time is taken for one that does not answer.
# The engines say this with status 500 (podman) or 409 of a container that just ends or is being removed.
_ENDED = re.compile("no container with|container state improper|is not running")


class ImageMissingError(SandboxError):
    """The image is not on the engine and could not be, or may not be, pulled."""


@dataclass(frozen=True, slots=True)
class Listed:
    """This is a container as the engine lists it."""

    container_id: str
    name: str
    labels: Mapping[str, str]
    running: bool


class ContainerEngine:
    """This is a client of one engine, in at most `threads` threads. Raises UserError when none is at `address`."""

    def __init__(self, address: str, *, threads: int, timeout_s: float) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="containers")
        self._clients: list[APIClient] = []
        self._local = threading.local()
        try:
            self.api_version = _spoken_version(address)
        except Exception as error:
            self._threads.shutdown(wait=False)
            raise UserError(
                f"the container engine at {address} does not answer: {one_line(error)}. Start it, or name another: "
                "sandbox.host=unix:///PATH"
            ) from error

    async def call(self, action: Callable[["APIClient"], Any]) -> Any:
        """Returns what `action` returns for a client of its own thread.

        A cancelled caller waits for its end first, which comes within `timeout_s`: then what it made can be removed.
        """
        loop = asyncio.get_running_loop()
        asked = loop.run_in_executor(self._threads, lambda: action(self._client()))
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            await asyncio.wait([asked])
            asked.exception()
            raise

    async def call_aside(self, action: Callable[["APIClient"], Any]) -> Any:
        """Returns what `action` returns in a thread of its own, as it may take half an hour and must hold up nobody."""
        from docker import APIClient

        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()

        def work() -> None:
            try:
                with contextlib.closing(APIClient(self.address, self.api_version, self._timeout_s)) as client:
                    value = action(client)
                    error = None
            except Exception as raised:
                value = None
                error = raised
            with contextlib.suppress(RuntimeError):  # The loop may be gone, and whoever waited with it.
                loop.call_soon_threadsafe(_settle_answer, answer, value, error)

        threading.Thread(target=work, name="containers-aside", daemon=True).start()
        return await answer

    async def create(self, image: str, argv: list[str], name: str, **options: Any) -> str:
        """Returns the new container's id. Raises ImageMissingError, or SandboxError for any other refusal."""
        host = options.pop("host_options")

        def action(client: "APIClient") -> str:
            config = client.create_host_config(**host)
            made = client.create_container(
                image, entrypoint=argv, name=name, stdin_open=True, host_config=config, **options
            )
            return str(made["Id"])

        return str(await self._asked(action, f"container {name} of image {image!r} could not be created", image=image))

    async def filters_calls(self) -> bool:
        """Tells whether the engine filters the system calls of containers. Raises SandboxError."""
        facts = await self._asked(lambda client: client.info(), "the engine does not say what it can do")
        return any("name=seccomp" in str(option) for option in facts.get("SecurityOptions") or ())

    async def attach(self, container_id: str) -> ContainerStream:
        """Returns the stream of a container that does not run yet. Raises SandboxError."""
        try:
            return await asyncio.wait_for(attach_stream(self.address, self.api_version, container_id), self._timeout_s)
        except (AttachError, OSError, TimeoutError) as error:
            raise SandboxError(f"container {container_id[:12]}: {one_line(error)}") from error

    async def start(self, container_id: str, name: str) -> None:
        """Starts a container. Raises SandboxError."""
        await self._asked(lambda client: client.start(container_id), f"container {name} could not be started")

    async def signal(self, container_id: str, name: str) -> None:
        """Sends a signal to a container's first process; one that has ended is fine. Raises SandboxError."""
        say = f"{name} could not be sent to container {container_id[:12]}"
        reason = await self._asked(_return_refusal(lambda client: client.kill(container_id, name)), say)
        if reason and not _ENDED.search(reason):
            raise SandboxError(f"{say}: {reason}")

    async def put_archive(self, container_id: str, folder: str, archive: bytes) -> None:
        """Unpacks a tar archive in `folder`. Raises SandboxError."""
        say = f"files could not be written to {folder} of container {container_id[:12]}"
        if not await self._asked(lambda client: client.put_archive(container_id, folder, archive), say):
            raise SandboxError(f"{say}: the engine refused them")

    async def get_archive(self, container_id: str, path: str) -> bytes:
        """Returns a file of a container as a tar archive. Raises SandboxError."""
        say = f"{path} of container {container_id[:12]} could not be read"
        chunk_bytes = 1 << 20
        asked = self._asked(lambda client: b"".join(client.get_archive(container_id, path, chunk_bytes)[0]), say)
        return bytes(await asked)

    async def remove(self, name: str) -> None:
        """Kills and removes one container, by name or id; one that is gone is fine. Raises SandboxError."""
        reason = ""
        for _ in range(_REMOVE_TRIES):
            removing = _return_refusal(lambda client: client.remove_container(name, force=True, v=True))
            reason = await self._asked(removing, f"container {name} could not be removed")
            if not reason:
                return
            await asyncio.sleep(_AGAIN_S)
        raise SandboxError(f"container {name} could not be removed from the engine at {self.address}: {reason}")

    async def rename(self, container_id: str, name: str) -> None:
        """Gives a container another name. Raises SandboxError."""
        say = f"container {container_id[:12]} could not be renamed"
        await self._asked(lambda client: client.rename(container_id, name), say)

    async def ours(self, label: str = PROVIDER) -> list[Listed]:
        """Returns the containers with our label, running or not. Raises SandboxError."""
        return list(await self._asked(lambda client: list_labelled(client, label), "containers could not be listed"))

    async def remove_orphans(self, host: str) -> list[str]:
        """Removes the containers that runs have left behind, and returns their names. Raises SandboxError."""
        orphans = [row for row in await self.ours() if is_orphan(row.labels, running=row.running, host=host)]
        for orphan in orphans:
            await self.remove(orphan.container_id)
        return [orphan.name for orphan in orphans]

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown, wait=True)
        for client in self._clients:
            client.close()

    async def _asked(self, action: Callable[["APIClient"], Any], say: str, image: str | None = None) -> Any:
        from docker.errors import DockerException, ImageNotFound
        from requests.exceptions import RequestException

        try:
            return await self.call(action)
        except ImageNotFound as error:
            raise ImageMissingError(f"image {image!r} is not on the engine at {self.address}") from error
        except (DockerException, RequestException, OSError) as error:
            raise SandboxError(f"{say}: {one_line(error)}") from error

    def _client(self) -> "APIClient":
        """Returns the client of this thread, because the SDK's session is not made for several threads."""
        from docker import APIClient

        client: APIClient | None = getattr(self._local, "client", None)
        if client is None:
            client = APIClient(base_url=self.address, version=self.api_version, timeout=self._timeout_s)
            self._local.client = client
            self._clients.append(client)
        return client


def _spoken_version(address: str) -> str:
    """Returns the API version that SDK and engine share. It is asked for once, as podman takes a second for it."""
    from docker import APIClient

    client = APIClient(base_url=address, timeout=_INFO_S)
    try:
        return str(client.api_version)
    finally:
        client.close()


def list_labelled(client: "APIClient", label: str) -> list[Listed]:
    """Returns the containers with a label, which is NAME or NAME=VALUE. Raises what the SDK raises."""
    rows = client.containers(all=True, filters={"label": label})
    return [
        Listed(row["Id"], row["Names"][0].lstrip("/"), row.get("Labels") or {}, row.get("State") == "running")
        for row in rows
        if row.get("Names")
    ]


def _settle_answer(answer: "asyncio.Future[Any]", value: Any, error: Exception | None) -> None:
    if not answer.done() and error is None:
        answer.set_result(value)
    elif not answer.done() and error is not None:
        answer.set_exception(error)


def _return_refusal(action: Callable[["APIClient"], Any]) -> Callable[["APIClient"], str]:
    """Returns an action that does not raise a refusal, but returns what the engine said, or an empty text.

    A container that is gone is no refusal. One that is just ending, and being removed by the engine itself, is refused
    in many words by both engines.
    """

    def asked(client: "APIClient") -> str:
        from docker.errors import APIError, NotFound

        try:
            action(client)
        except NotFound:
            return ""
        except APIError as error:
            return one_line(error)
        return ""

    return asked
