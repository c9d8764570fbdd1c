"""How a driver reaches the ranks of its trainer, wherever they run: what is asked of one rank, and of all of them.

Invariants:
- A link carries requests one way and answers the other, in order; bytes follow the answer that announces them.
- Whatever a rank's end looks like where it runs, here it is EOFError or OSError, and `ended` says what is known.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from swe_rl.trainer.ranks.end import RankEnd
from swe_rl.trainer.ranks.rank import RankSetup


class RankLink(Protocol):
    """One rank as its driver sees it."""

    @property
    def rank(self) -> int: ...

    @property
    def is_here(self) -> bool:
        """On this host."""
        ...

    @property
    def pid(self) -> int:
        """Of its process, on the host where it runs; 0 while that is not known."""
        ...

    def send(self, request: tuple[str, tuple[Any, ...], Mapping[str, Any]]) -> None:
        """Verb, arguments, named arguments. Raises OSError where the rank is known to be gone."""
        ...

    def recv(self) -> Any:
        """The next answer, waited for. Raises EOFError or OSError where the rank is gone."""
        ...

    def recv_bytes_into(self, buffer: bytearray) -> Any:
        """Bytes that an answer announced. Raises EOFError or OSError where the rank is gone."""
        ...

    def is_alive(self) -> bool: ...

    def reported(self, told: Sequence[Any]) -> RankEnd:
        """What the rank itself said of its failure; see `RankEnd.reported`."""
        ...

    def ended(self, when: str) -> RankEnd | None:
        """None while it lives and has not said that it failed."""
        ...

    def kill(self) -> None:
        """At once, also in the middle of a request, from any thread."""
        ...

    def end(self, patience_s: float) -> None:
        """Lets it leave by itself for so long, then kills it. Returns once it is gone."""
        ...


class Ranks(Protocol):
    """A place for ranks: this host, or a cluster."""

    def launch(self, setup: RankSetup) -> Iterator[RankLink]:
        """In the order of their ranks, each as soon as there is something to kill; all are at work at the end.

        Raises UserError or TrainerError; what was started until then is the caller's to end.
        """
        ...

    def wait(self, links: Sequence[RankLink], timeout_s: float) -> list[RankLink]:
        """Those that have something to receive, the end of them included; none within `timeout_s` seconds: []."""
        ...

    def close(self) -> None:
        """Gives the place back, after its ranks have ended. May be called twice."""
        ...
