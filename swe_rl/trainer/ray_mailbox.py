"""The pipe of a rank that is a Ray actor: what its driver posts, and what it has to say, held between the two.

Invariants:
- The rank's side is that of a pipe; a driver that hung up is the end of the pipe.
- Few answers are held at a time: weights that nobody fetches yet wait where they are.
"""

from collections.abc import Callable
from queue import Queue
from typing import Any

_HELD = 2


class Mailbox:
    """Two queues; `send`, `send_bytes` and `recv` are the rank's, the others its driver's."""

    def __init__(self) -> None:
        self._requests: Queue[Callable[[], Any]] = Queue()
        self._answers: Queue[Any] = Queue(maxsize=_HELD)

    def send(self, answer: Any) -> None:
        self._answers.put(answer)

    def send_bytes(self, content: Any) -> None:
        """As an array, which Ray neither copies more than once nor pickles."""
        import numpy as np

        self._answers.put(np.frombuffer(content, dtype=np.uint8))

    def recv(self) -> Any:
        """Raises EOFError once the driver has hung up."""
        return self._requests.get()()

    def post(self, request: Any) -> None:
        self._requests.put(lambda: request)

    def hang_up(self) -> None:
        self._requests.put(_end)

    def take(self) -> Any:
        """The next answer, waited for."""
        return self._answers.get()


def _end() -> Any:
    raise EOFError("the driver has hung up")
