"""What probes may ask of the machine: an interface small enough to be faked.

Invariants:
- A question that the machine does not answer raises Unanswered, with a reason that can be shown.
- An answer of the other side is an answer, whatever its status: probes judge it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from swe_rl.config.schema import Config
from swe_rl.host.program import COMMAND_S, Completed, Unanswered

HTTP_S = 4.0


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer; `body` is cut at a megabyte or so."""

    status: int
    body: bytes = b""

    def json(self) -> Any:
        """Raises Unanswered for a body that is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise Unanswered(f"the answer is not JSON (status {self.status})") from error


@dataclass(frozen=True, slots=True)
class Question:
    """An HTTP request."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = HTTP_S


class Engine(Protocol):
    """A container engine. All raise Unanswered."""

    def info(self) -> Mapping[str, Any]: ...

    def images(self) -> set[str]:
        """Names of all local images, each with its tag or digest."""
        ...

    def has_image(self, name: str) -> bool: ...


class System(Protocol):
    @property
    def environment(self) -> Mapping[str, str]: ...

    @property
    def user(self) -> tuple[str, int]:
        """Name and uid of whoever asks."""
        ...

    def run(self, command: Sequence[str], timeout_s: float = COMMAND_S) -> Completed | None:
        """None where there is no such program. Raises Unanswered."""
        ...

    def http(self, question: Question) -> Answer:
        """Redirects are answers, they are not followed. Raises Unanswered where nothing answers."""
        ...

    def is_socket(self, path: str) -> bool: ...

    def engine(self, address: str) -> Engine:
        """Of unix:///PATH or tcp://HOST:PORT; nothing is asked yet."""
        ...

    def find_program(self, name: str) -> str | None: ...

    def bind_refused(self, host: str, port: int) -> str | None:
        """Why this address cannot be listened on, or None."""
        ...

    def disk_free_bytes(self, path: str) -> int:
        """Of the file system of the path or of its nearest parent that exists. Raises Unanswered."""
        ...

    def writable(self, folder: str) -> bool: ...

    def scratch_refused(self, parent: str | None) -> str | None:
        """Why this user's folder below paths.scratch cannot be used; None where it can."""
        ...

    def exists(self, path: str) -> bool: ...

    def resolve(self, path: str) -> str:
        """Absolute, without `~` and symbolic links."""
        ...

    def read_text(self, path: str) -> str | None:
        """None where there is no such file, or it may not be read."""
        ...

    def list_folder(self, path: str) -> list[str]:
        """Sorted names; none where there is no such folder."""
        ...

    def version(self, distribution: str) -> str | None: ...

    def cpus(self) -> int: ...

    def memory_bytes(self) -> int: ...


def job_environment(config: Config, system: System) -> dict[str, str]:
    """The environment that the job's processes will have."""
    return {**system.environment, **config.hardware.env_vars}
