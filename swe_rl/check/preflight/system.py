"""Asks the machine the questions of the probes.

Invariants:
- A question that the machine does not answer raises Unanswered, with a reason that can be shown.
- An answer of the other side is an answer, whatever its status: probes judge it.
- Nothing outlives a question: a program that takes too long is killed with its children.
- No redirect is followed, so a key goes to nobody but the server that was named. Addresses are http or https.
- `user:password@` of an address is sent as basic authentication, never as a part of the host's name.
"""

import http.client
import json
import os
import pwd
import shutil
import socket
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit, urlunsplit

from swe_rl.check.findings import folder_names, folder_writable, path_exists
from swe_rl.config.engine_address import is_socket
from swe_rl.config.schema import Config
from swe_rl.host import machine
from swe_rl.host.packages import installed_version
from swe_rl.host.program import COMMAND_S, Completed, Unanswered, run_program
from swe_rl.host.scratch import scratch_path, scratch_refusal

if TYPE_CHECKING:
    from docker import APIClient

HTTP_S = 4.0
_MAX_BYTES = 4_000_000  # so much of an answer is read


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """Holds an HTTP answer. `body` is cut at a few megabytes."""

    status: int
    body: bytes = b""

    def json(self) -> Any:
        """Returns the body as JSON. Raises Unanswered for a body that is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise Unanswered(f"the answer is not JSON (status {self.status})") from error


@dataclass(frozen=True, slots=True)
class HttpQuestion:
    """Describes an HTTP request."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = HTTP_S
    body: bytes | None = None


class System:
    """Answers for this machine. Tests have one of given answers."""

    exists = staticmethod(path_exists)
    writable = staticmethod(folder_writable)
    list_folder = staticmethod(folder_names)

    @property
    def environment(self) -> Mapping[str, str]:
        return os.environ

    @property
    def user(self) -> tuple[str, int]:
        """Returns the name and uid of whoever asks."""
        uid = os.getuid()
        try:
            return pwd.getpwuid(uid).pw_name, uid
        except KeyError:  # in containers a uid often has no name
            return os.environ.get("USER", str(uid)), uid

    def run(
        self, command: Sequence[str], timeout_s: float = COMMAND_S, environment: Mapping[str, str] | None = None
    ) -> Completed | None:
        """Runs a command, and returns None where there is no such program.

        `environment` is used as `run_program` uses it. Raises Unanswered.
        """
        return run_program(command, timeout_s, environment)

    def http(self, question: HttpQuestion) -> HttpAnswer:
        """Returns the answer to a request.

        A redirect is an answer and is not followed. Raises Unanswered where nothing answers.
        """
        try:
            return _fetch_answer(question)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unanswered(_inner_reason(error)) from error

    def is_socket(self, path: str) -> bool:
        return is_socket(path)

    def engine(self, address: str) -> "AskedEngine":
        """Returns the engine at unix:///PATH or tcp://HOST:PORT. Nothing is asked yet."""
        return AskedEngine(address)

    def bind_refused(self, host: str, port: int) -> str | None:
        """Returns why this address cannot be listened on, or None."""
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, kind, protocol) as listener:
                # Servers do so too: TIME_WAIT is no refusal.
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((address[0], port, *address[2:]))
                listener.listen()
        except (OSError, OverflowError) as error:
            return _inner_reason(error)
        return None

    def find_program(self, name: str) -> str | None:
        return shutil.which(name)

    def version(self, distribution: str) -> str | None:
        return installed_version(distribution)

    def disk_free_bytes(self, path: str) -> int:
        """Returns what is free in the file system of the path or of its nearest parent that exists.

        Raises Unanswered.
        """
        for folder in (absolute := Path(path).expanduser().absolute(), *absolute.parents):
            with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                return shutil.disk_usage(folder).free
        raise Unanswered(f"the file system of {path} does not say how much is free")

    def scratch_refused(self, parent: str | None) -> str | None:
        """Returns why this user's folder below paths.scratch cannot be used, or None where it can."""
        return scratch_refusal(scratch_path(parent))

    def resolve(self, path: str) -> str:
        """Returns the absolute path, without `~` and symbolic links."""
        return str(Path(path).expanduser().resolve())

    def read_text(self, path: str) -> str | None:
        """Returns the text of a file, or None where there is no such file, or it may not be read."""
        try:
            return Path(path).expanduser().read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def file_bytes(self, path: str) -> int:
        """Returns the size of a file, or 0 where there is no such file."""
        try:
            return Path(path).expanduser().stat().st_size
        except OSError:
            return 0

    def cpus(self) -> int:
        return machine.count_cpus(self.read_text)

    def memory_bytes(self) -> int:
        return machine.memory_bytes(self.read_text)


def job_environment(config: Config, system: System) -> dict[str, str]:
    """Returns the environment that the job's processes will have."""
    return {**system.environment, **config.hardware.env_vars}


class AskedEngine:
    """Asks a container engine, docker's or podman's, which speak the same API. All methods raise Unanswered."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._version = "auto"

    def info(self) -> Mapping[str, Any]:
        facts: Mapping[str, Any] = self._ask(lambda client: client.info())
        return facts

    def _ask(self, question: Callable[["APIClient"], Any]) -> Any:
        """Returns the answer to a question to the client. Raises Unanswered."""
        try:
            from docker import APIClient
            from docker.errors import DockerException
        except ImportError as error:
            raise Unanswered("the Python package docker is not installed") from error
        try:
            with closing(APIClient(self._address, version=self._version, timeout=HTTP_S)) as client:
                self._version = client.api_version
                return question(client)
        except (DockerException, OSError, ValueError) as error:  # errors of requests are OSErrors
            raise Unanswered(_engines_reason(error)) from error


def _inner_reason(error: BaseException) -> str:
    """Returns `connection refused` rather than the wrapping of three libraries."""
    inner = getattr(error, "reason", None)
    if isinstance(inner, BaseException):
        return _inner_reason(inner)
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(inner or error) or type(error).__name__


def _engines_reason(error: BaseException) -> str:
    """Returns the engine's own words, or else what the innermost library says."""
    inner = error.__cause__ or error.__context__
    if words := getattr(error, "explanation", None):
        return f"status {getattr(error, 'status_code', None)}: {words}"
    if inner is not None:
        return _engines_reason(inner)
    return _inner_reason(error)


def _fetch_answer(question: HttpQuestion) -> HttpAnswer:
    """Returns the answer to a request. Raises OSError, HTTPException or ValueError where nothing answers."""
    url, headers = _without_login(question)
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError("not an http or https address")
    request = urllib.request.Request(url, data=question.body, method=question.method, headers=headers)
    opener = urllib.request.build_opener(_StayHere)
    try:
        with opener.open(request, timeout=question.timeout_s) as response:
            return HttpAnswer(response.status, response.read(_MAX_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            return HttpAnswer(error.code, error.read(_MAX_BYTES))


class _StayHere(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        return None


def _without_login(question: HttpQuestion) -> tuple[str, dict[str, str]]:
    parts = urlsplit(question.url)
    headers = dict(question.headers)
    login, at, host = parts.netloc.rpartition("@")
    if at:
        headers["Authorization"] = "Basic " + b64encode(unquote(login).encode()).decode()
    return urlunsplit(parts._replace(netloc=host)), headers
