"""The driver's link to a rank that is a Ray actor.

Invariants:
- One `take` is always under way: it brings the next answer, or the news of the actor's end.
- Moments that a rank names are told in this host's clock.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from swe_rl.errors import one_line
from swe_rl.hardware.ray_cluster import RayNode
from swe_rl.trainer.ranks.end import RankEnd, last_words
from swe_rl.trainer.ranks.rank import RankSetup
from swe_rl.trainer.ranks.ray_rank import RankHome

_WORD_S = 12.0  # that Ray takes to notice the loss of a node
_LOOK_S = 0.5
_GONE_S = 20.0  # that Ray takes at most to end an actor and to tell
_DETAIL = ("Worker exit detail:", "The actor died because")
_ADVICE = "Some common causes include"


class RayLink:
    """Meets `RankLink`."""

    def __init__(self, rank: int, actor: Any, node: RayNode, log: Path | None) -> None:
        self.rank = rank
        self.actor = actor
        self.node = node
        self.pid = 0
        self._log = log
        self._clock_s = 0.0  # added to the rank's clock, it is ours
        self._over: str | None = None  # Ray's word on the actor's end
        self._serving: Any = None
        self.answer = self._call("take", "take")

    @property
    def is_here(self) -> bool:
        return self.node.here

    def home(self, mark: Path | None) -> Any:
        """A reference to its RankHome."""
        return self._call("ask", "home", mark, self.node.address)

    def meeting_point(self) -> Any:
        """A reference to host:port."""
        return self._call("ask", "meeting_point", self.node.address)

    def settle(self, home: RankHome) -> None:
        """Notes where it is, and compares clocks."""
        import ray

        self.pid = home.pid
        before = time.monotonic()
        there = ray.get(self._call("ask", "clock_s"))
        self._clock_s = (before + time.monotonic()) / 2 - there

    def begin(self, setup: RankSetup) -> None:
        self._serving = self._call("serve", "serve", setup)

    def send(self, request: tuple[str, tuple[Any, ...], Mapping[str, Any]]) -> None:
        """Does not wait; an actor that is gone is met by `recv`."""
        self._call("post", "post", request)

    def recv(self) -> Any:
        import ray
        from ray.exceptions import RayError

        if self._over is not None:
            raise EOFError(self._over)
        try:
            answer = ray.get(self.answer)
        except RayError as error:
            self._over = _told(self._last_word(error))
            raise EOFError(self._over) from error
        self.answer = self._call("take", "take")
        return answer

    def recv_bytes_into(self, buffer: bytearray) -> int:
        content = self.recv()
        buffer[:] = content.data
        return len(buffer)

    def is_alive(self) -> bool:
        """A rank that serves no more, or whose actor is gone, is not."""
        return self._over is None and not (self._serving is not None and _ready(self._serving))

    def reported(self, told: Sequence[Any]) -> RankEnd:
        end = RankEnd.reported(self.rank, told)
        return replace(end, reason=f"{end.reason} (on node {self.node.name})", at_s=end.at_s + self._clock_s)

    def ended(self, when: str) -> RankEnd | None:
        """An actor that went without a word was killed, or crashed: before all that others then say of it."""
        try:
            while self._over is not None or _ready(self.answer):
                answer = self.recv()
                if isinstance(answer, tuple) and answer[0] == "failed":
                    return self.reported(answer[1:])
        except EOFError:
            return RankEnd(self.rank, self._end_of_actor(when), float("-inf"))
        return None

    def kill(self) -> None:
        import ray

        with suppress(Exception):  # Ray has ended it, or is gone itself
            ray.kill(self.actor, no_restart=True)

    def end(self, patience_s: float) -> None:
        import ray

        if not ray.is_initialized():
            return
        with suppress(Exception):  # whatever Ray says of an actor that is gone: it is
            if patience_s and self._serving is not None:
                self._call("post", "hang_up")
                ray.wait([self._serving], timeout=patience_s)
        self.kill()
        with suppress(Exception):
            ray.wait([self.answer], timeout=_GONE_S)

    def _call(self, group: str, method: str, *arguments: Any) -> Any:
        return getattr(self.actor, method).options(concurrency_group=group).remote(*arguments)

    def _last_word(self, error: Exception) -> Exception:
        """An actor that merely cannot be reached is given up as well, but Ray may soon know what became of it."""
        import ray
        from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayError

        until = time.monotonic() + _WORD_S
        while isinstance(error, ActorUnavailableError) and time.monotonic() < until:
            time.sleep(_LOOK_S)
            try:
                ray.get(self._call("ask", "clock_s"), timeout=_WORD_S)
            except GetTimeoutError:
                break
            except RayError as later:
                error = later
        return error

    def _end_of_actor(self, when: str) -> str:
        who = f"its actor on node {self.node.name}, process {self.pid}," if self.pid else "its actor"
        return f"{who} died {when} without a word; Ray says: {self._over}{last_words(self._log)}"


def _ready(reference: Any) -> bool:
    import ray

    return bool(ray.wait([reference], timeout=0)[0])


def _told(error: Exception) -> str:
    """The part of Ray's message that tells what happened."""
    text = " ".join(str(error).split())
    for mark in _DETAIL:
        text = text.partition(mark)[2] or text
    return one_line(text.partition(_ADVICE)[0].strip(" ."))
