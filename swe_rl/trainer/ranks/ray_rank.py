"""The module is a rank as a Ray actor: it does the work of a rank's process, with a mailbox in place of the pipe.

Invariants:
- All that the rank does happens in one thread, that of `serve`; the other methods only post and take.
- Ray ends the actor with its driver's job, whatever the rank is in the middle of.
"""

import os
import platform
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

from swe_rl.host.addresses import free_port, interface_of
from swe_rl.trainer.ranks.rank import RankSetup, carry_out, write_log
from swe_rl.version import __version__

# The mailbox is the pipe of a rank that is a Ray actor: it holds what its driver posts, and what it has to say. The
# rank's side is that of a pipe; a driver that hung up is the end of the pipe. Few answers are held at a time, so that
# weights that nobody fetches yet wait where they are.
_HELD = 2


class Mailbox:
    """A pair of queues. `send`, `send_bytes` and `recv` are the rank's, the others its driver's."""

    def __init__(self) -> None:
        self._requests: Queue[Callable[[], Any]] = Queue()
        self._answers: Queue[Any] = Queue(maxsize=_HELD)

    def send(self, answer: Any) -> None:
        self._answers.put(answer)

    def send_bytes(self, content: Any) -> None:
        """Sends the bytes as an array, which Ray neither copies more than once nor pickles."""
        import numpy as np

        self._answers.put(np.frombuffer(content, dtype=np.uint8))

    def recv(self) -> Any:
        """Returns the next request. Raises EOFError once the driver has hung up."""
        return self._requests.get()()

    def post(self, request: Any) -> None:
        self._requests.put(lambda: request)

    def hang_up(self) -> None:
        self._requests.put(_raise_hung_up)

    def take(self) -> Any:
        """Returns the next answer, waited for."""
        return self._answers.get()


def _raise_hung_up() -> Any:
    raise EOFError("the driver has hung up")


# Each group of methods has a thread of the actor: requests stay in order, and an answer is waited for while the rank
# works.
GROUPS = {"serve": 1, "post": 1, "take": 1, "ask": 1}


@dataclass(frozen=True, slots=True)
class RankHome:
    """The place where an actor found itself. `gpus` is what Ray assigned, as CUDA_VISIBLE_DEVICES.

    `sees` says whether it sees the driver's mark.
    """

    pid: int
    versions: str
    gpus: str
    sees: bool


class RayRank:
    """The driver calls `home`, then `serve` once; from then on `post` and `take`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Sets the driver's variables of `environment`, before any library reads them."""
        os.environ.update(environment)
        self._mailbox = Mailbox()

    def home(self, mark: Path | None, address: str) -> RankHome:
        """Returns where this actor is. `address` is this node's in the cluster.

        gloo uses that interface, where it is not told otherwise. By itself it would ask for the host's name, which some
        hosts say is loopback.
        """
        if (interface := interface_of(address)) is not None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        return RankHome(os.getpid(), describe_versions(), gpus, mark is None or mark.exists())

    def clock_s(self) -> float:
        """Returns the monotonic seconds of this host."""
        return time.monotonic()

    def meeting_point(self, host: str) -> str:
        """Returns host:port where the ranks find each other; `host` is this node's address."""
        return f"{host}:{free_port(host)}"

    def serve(self, setup: RankSetup) -> int:
        """Works until the driver hangs up or the rank fails, which it says itself."""
        threading.current_thread().name = f"trainer-{setup.rank}"
        write_log(setup)
        return carry_out(setup, self._mailbox)

    def post(self, request: Any) -> None:
        self._mailbox.post(request)

    def take(self) -> Any:
        return self._mailbox.take()

    def hang_up(self) -> None:
        self._mailbox.hang_up()


def describe_versions() -> str:
    """Returns the versions of what has to be the same for all ranks and their driver."""
    from importlib.metadata import version

    return f"swe_rl {__version__}, torch {version('torch').partition('+')[0]}, Python {platform.python_version()}"
