"""This module has what a program-aware router remembers of programs, their requests and their groups.

Invariants:
- A program is admitted (to an engine, where its tokens are charged) or not; while it is not, its requests are held.
- An admitted program is charged for each running request, or once as acting when none runs.
- A released program is remembered until its last request is finished.
- A program waits in one queue at most.
- Within a queue the program with the fewest turns goes first (where groups flow, siblings that have not ended count as
  turns, too), but a turn counts less the longer its program has waited: the key `turns + rate * arrival` orders two
  programs the same way at all times, so a heap keeps it, and no program is overtaken by ones that came `turns / rate`
  later.
"""

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from swe_rl.router.ledger import Charge

# The median of so many prompts is steady, and follows a change of the agent's prompt soon.
_PROMPTS_KEPT = 15
# So few stale entries are not worth a sweep.
_SLACK = 64


class AgeingQueue:
    """Orders waiting programs by turns and waiting time. Each operation takes logarithmic time."""

    def __init__(self, ageing_turns_per_s: float) -> None:
        self._rate = ageing_turns_per_s
        self._heap: list[tuple[float, int, str]] = []
        self._number_of: dict[str, int] = {}
        self._pushed = 0
        # There was no room for this head of the queue. The queue's owner sets it.
        self.refused: str | None = None

    def push(self, program_id: str, turns: float, arrived_s: float) -> None:
        """Puts a program in. A program that is in already moves to its new place."""
        self._pushed += 1
        self._number_of[program_id] = self._pushed
        heapq.heappush(self._heap, (turns + self._rate * arrived_s, self._pushed, program_id))
        if len(self._heap) > 2 * len(self._number_of) + _SLACK:
            self._heap = [entry for entry in self._heap if self._number_of.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def remove(self, program_id: str) -> None:
        self._number_of.pop(program_id, None)

    def head(self) -> str | None:
        while self._heap:
            _, number, program_id = self._heap[0]
            if self._number_of.get(program_id) == number:
                return program_id
            heapq.heappop(self._heap)
        return None

    def __contains__(self, program_id: str) -> bool:
        return program_id in self._number_of

    def __len__(self) -> int:
        return len(self._number_of)

    def __iter__(self) -> Iterator[str]:
        return iter(self._number_of)


@dataclass(slots=True, eq=False)
class Group:
    """Programs that begin with the same prompt. `prefix_tokens` is the length of the shortest first prompt among
    them."""

    prefix_tokens: int
    programs: int = 0


@dataclass(slots=True, eq=False)
class ProgramRequest:
    """Describes a request of a program. Its `engine` is None while it is held. Its `charge` is None while it is held,
    or if its engine was lost."""

    request_id: str
    program: "Program"
    prompt_tokens: int
    arrived_s: float
    engine: str | None = None
    charge: Charge | None = None
    expected_cached_tokens: int = 0


@dataclass(slots=True, eq=False)
class Program:
    """Describes a program, admitted on `engine` or not. It ran last on `origin`. `context_tokens` is what its latest
    answered request held, or the most if several ran at once."""

    program_id: str
    number: int
    group_id: str | None = None
    first_prompt_tokens: int = 0
    engine: str | None = None
    origin: str | None = None
    context_tokens: int = 0
    # This is the size of its latest prompt or context.
    size_tokens: int = 0
    # Only finished turns count.
    turns: int = 0
    pauses: int = 0
    running: dict[str, ProgramRequest] = field(default_factory=dict)
    held: dict[str, ProgramRequest] = field(default_factory=dict)
    acting: Charge | None = None
    # Counts requests that arrived and are not finished.
    requests: int = 0
    idle_since_s: float = 0.0
    admitted_s: float = 0.0
    first_of_group: bool = True
    # Several requests ran at once, and not all of them are finished.
    overlap: bool = False
    released: bool = False

    @property
    def status(self) -> str:
        if self.held:
            if self.turns or self.engine:
                return "held"
            return "new"
        if self.running:
            return "reasoning"
        if self.engine is not None:
            return "acting"
        return "paused"

    def snapshot(self) -> dict[str, object]:
        return {
            "program": self.program_id,
            "status": self.status,
            "engine": self.engine,
            "origin": self.origin,
            "context_tokens": self.context_tokens,
            "turns": self.turns,
            "pauses": self.pauses,
            "running": len(self.running),
            "held": len(self.held),
        }


class CommonPrefix:
    """Estimates how many tokens all programs begin with: the median of what the latest first prompts found in a cache,
    with one program a group. Prompts that came to an empty cache, or found more by chance, do not move it."""

    def __init__(self) -> None:
        self._seen: deque[int] = deque(maxlen=_PROMPTS_KEPT)
        self.tokens = 0

    def observe(self, cached_tokens: int) -> bool:
        """Takes a new observation. Returns whether it changed the estimate."""
        self._seen.append(cached_tokens)
        before = self.tokens
        self.tokens = sorted(self._seen)[(len(self._seen) - 1) // 2]
        return self.tokens != before


@dataclass(slots=True, eq=False)
class Running:
    """Keeps a running mean over all programs: of answers' tokens, for what a request will add to its prompt, or of
    programs' growth from their first prompt to their end."""

    mean_tokens: float
    smoothing: float = 0.05

    def observe(self, tokens: int) -> None:
        self.mean_tokens += self.smoothing * (tokens - self.mean_tokens)
