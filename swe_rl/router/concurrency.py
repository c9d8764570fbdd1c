"""Decides how many trajectories are under way at once, where `rollout.concurrency=auto`: more while the engines carry
what they have, fewer when they do not.

An engine with too few programs samples small batches. One with too many computes prefixes again that have left its
cache, preempts requests and lets others wait. Where the best number lies depends on the model, the hardware and the
length of the trajectories, which changes while a model learns. So it is not set, but felt for, as a sender of packets
feels for the capacity of a line: growth is slow and steady, retreat is quick.

Whoever owns the engines gives `observe` a look at them every `LOOK_S`, and keeps as many trajectories under way as it
returns. The simulation and the run drive this same code.

Invariants:
- The limit stays within [least, most], and equal looks give equal limits: there is no clock here, and no randomness.
- It grows only while all places are taken: a limit that nothing fills says nothing about the engines.
- It shrinks at most once until the last retreat is felt: what is under way is never ended, so that takes as long as
  trajectories take.
- Each time the same limit turns out too high, it is approached more slowly. So the swings die out.
"""

from dataclasses import asdict, dataclass
from typing import Any

from swe_rl.facts.concurrency import Bounds

# The engines' own figures are half a second old. A shorter time between looks would count the same figures twice.
LOOK_S = 1.0
# Requests of one moment come in bursts: all tools of a group end together, or new weights begin all prompts anew. So
# what waits is judged by its mean over about so many looks.
QUEUE_LOOKS = 15
# With a fourth of the requests waiting, batches are as large as they can be. More programs would only wait longer, so
# there is no growth. Those that are there do no harm as long as they find their prefixes.
MANY_WAITING = 0.25
# With two thirds waiting, what is sampled gets older for nothing.
TOO_MANY_WAITING = 0.67
# A preempted request is computed again, or copied back. With one for four returns to an engine, it is more than chance.
MOST_PREEMPTED = 0.25
# This share of the tokens that programs had before may be missing when they come back. A few misses are no loss: tools
# that take long let go of prefixes that hardly anybody waits for. With a third, the engine computes more old tokens
# than new ones in a conversation of ten turns.
MOST_LOST = 0.3
# A share is of at least so many returns of programs to their engine. A handful is chance.
LEAST_RETURNS = 24
# A retreat gives up this share of what is under way. Half of it, as for packets, would leave engines idle: a trajectory
# is a large packet, and takes minutes to be replaced.
RETREAT = 0.2
# Once a limit was too high, so much of it is added in the time in which all trajectories are replaced once. A
# trajectory's tokens grow until its end, so a limit can be judged only then.
GROWTH = 0.1
# The slowest growth. With none, a load that became lighter would never be noticed.
LEAST_GROWTH = 0.005
# A limit that is so much above one that was too high is another one: the load changed, and growth is quick again.
BEYOND = 1.15


@dataclass(frozen=True, slots=True)
class Look:
    """Describes a look at engines and trajectories. Totals only grow. `waiting` counts requests that an engine or the
    router lets wait. Programs returned `returns_total` times to ask for their next turn. They had `reusable_total`
    tokens before, of which `reused_total` were cached."""

    under_way: int
    ended_total: int
    running: int
    waiting: int
    preemptions_total: int = 0
    returns_total: int = 0
    reusable_total: int = 0
    reused_total: int = 0


class ConcurrencyController:
    """Feels for the limit. `reason` says in words why it changed last."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._limit = float(min(bounds.most, max(bounds.least, bounds.start)))
        self._last: Look | None = None
        self._waiting_share = 0.0
        # The totals when the limit was changed by a retreat, or cached prefixes were lost for another reason.
        self._since: Look | None = None
        # A retreat is felt when so few are under way and so many more have ended.
        self._settled_at_ended = 0
        self._retreating = False
        self._growth = 1.0
        # This limit was too high.
        self._too_high: float | None = None
        self.reason = "the start"

    @property
    def limit(self) -> int:
        return int(self._limit)

    def state(self) -> dict[str, Any]:
        """Returns what a resumed run goes on with, as plain values."""
        return {"limit": self._limit, "growth": self._growth, "too_high": self._too_high}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from `state`, within the bounds of now. Raises KeyError, TypeError, ValueError."""
        limit = float(state["limit"])
        self._growth = float(state["growth"])
        self._too_high = None if state["too_high"] is None else float(state["too_high"])
        self._limit = min(float(self._bounds.most), max(float(self._bounds.least), limit))
        self.reason = "as before the resume"

    def renew(self) -> None:
        """Notes that the caches are empty for another reason than pressure: new weights."""
        self._since = self._last
        self._waiting_share = 0.0

    def observe(self, look: Look) -> int:
        """Takes a look in. Returns the limit from now on."""
        last = self._last or look
        self._last = look
        self._since = self._since or look
        requests = look.running + look.waiting
        share = 0.0
        if requests:
            share = look.waiting / requests
        self._waiting_share += (share - self._waiting_share) / QUEUE_LOOKS
        if self._retreating:
            self._feel_retreat(look)
            return self.limit
        pressure = self._pressure(look)
        if pressure:
            self._retreat(look, pressure)
        else:
            self._grow(look, last)
        return self.limit

    def _pressure(self, look: Look) -> str:
        """Returns what presses the engines, or an empty text."""
        if self._waiting_share > TOO_MANY_WAITING:
            return f"{self._waiting_share:.0%} of the requests wait"
        assert self._since is not None
        since = self._since
        returns = look.returns_total - since.returns_total
        if returns < LEAST_RETURNS:
            return ""
        # Each judgement is about new returns, so that old ones do not count for ever.
        self._since = look
        preempted = (look.preemptions_total - since.preemptions_total) / returns
        lost = 1.0 - (look.reused_total - since.reused_total) / max(1, look.reusable_total - since.reusable_total)
        if lost > MOST_LOST:
            return f"{lost:.0%} of the cached tokens were lost"
        if preempted > MOST_PREEMPTED:
            return f"{preempted:.0%} of the requests were preempted"
        return ""

    def _retreat(self, look: Look, pressure: str) -> None:
        # A limit that was not filled is no better known than what was under way.
        tried = max(1.0, min(self._limit, float(look.under_way)))
        limit = max(float(self._bounds.least), tried * (1.0 - RETREAT))
        if limit >= self._limit:
            return
        if self._too_high is not None and tried <= self._too_high * BEYOND:
            self._growth = max(LEAST_GROWTH, self._growth / 2)
        else:
            self._growth = GROWTH
        self._too_high = tried
        self._limit = limit
        self._retreating = True
        self._settled_at_ended = look.ended_total
        self.reason = pressure

    def _feel_retreat(self, look: Look) -> None:
        """Ends the retreat once no more than the limit are under way, and half of those are new."""
        if look.under_way > self.limit:
            self._settled_at_ended = look.ended_total
        elif look.ended_total - self._settled_at_ended >= self._limit / 2:
            self._retreating = False
            self._since = look
            self._waiting_share = 0.0

    def _grow(self, look: Look, last: Look) -> None:
        ended = look.ended_total - last.ended_total
        if ended <= 0 or look.under_way + ended < self.limit or self._waiting_share > MANY_WAITING:
            return
        if self._too_high is not None and self._limit > self._too_high * BEYOND:
            self._growth = 1.0
            self._too_high = None
        before = self.limit
        self._limit = min(float(self._bounds.most), self._limit + ended * self._growth)
        if self.limit > before:
            self.reason = "the engines carry what they have"


def record_of(controller: ConcurrencyController, look: Look) -> dict[str, Any]:
    """Returns an event's fields: the limit, why, and the look that led to it."""
    return {"limit": controller.limit, "reason": controller.reason, **asdict(look)}
