"""This module decides which programs give way, so that what runs fits: admitted programs whose tool runs.

Invariants:
- Only acting programs are paused, none within `min_stay_s` of its admission and none at the tail of a step.
- A plan is minimal: with any one of its victims left out it misses its target.
- Nothing is sent to an engine: a paused program's next request is held, and its prefix ages out of the cache.
"""

from itertools import islice

from swe_rl.router.engine_book import EngineBook
from swe_rl.router.programs import Program
from swe_rl.router.tr_state import TrState

# A plan considers so many programs at once, the longest idle ones. More would cost time at each event.
_LOOK = 32


def pause_program(state: TrState, program: Program, book: EngineBook, reason: str) -> None:
    state.note("pause", program, book, reason)
    program.pauses += 1
    state.unbind(program)


def relieve_engine(state: TrState, book: EngineBook, excess_tokens: float, reason: str, idle_s: float = 0.0) -> bool:
    """Pauses programs that were idle for at least `idle_s`, so that the load falls by `excess_tokens`. Returns False if
    that is not possible, and then changes nothing."""
    if excess_tokens <= 0:
        return True
    if state.in_tail():
        return False
    victims = plan_pauses(state, book, excess_tokens, idle_s)
    for program in victims:
        pause_program(state, program, book, reason)
    return bool(victims)


def plan_pauses(state: TrState, book: EngineBook, excess_tokens: float, idle_s: float = 0.0) -> list[Program]:
    """Chooses programs whose pause frees `excess_tokens`: first those whose prefix is gone or whose lease is over,
    longest idle first, then those that lose the fewest tokens. Returns an empty list if no plan reaches the target."""
    settings = state.settings
    free: list[tuple[Program, float]] = []
    costly: list[tuple[Program, float]] = []
    for program in islice(book.acting.values(), _LOOK):
        idle = state.now_s - program.idle_since_s
        if idle < idle_s:
            break
        if state.now_s - program.admitted_s < settings.min_stay_s:
            continue
        worth = _pause_gain(state, program)
        if worth > 0:
            lost = idle >= state.lease_s(book) or not book.cache.resident_tokens(program.program_id)
            (free if lost else costly).append((program, worth))
    chosen: list[tuple[Program, float]] = []
    left = excess_tokens
    while left > 0 and (free or costly):
        picked = free.pop(0) if free else _take_cheapest(costly, left)
        chosen.append(picked)
        left -= picked[1]
    if left <= 0:
        return _without_needless(chosen, excess_tokens)
    return []


def _take_cheapest(costly: list[tuple[Program, float]], left: float) -> tuple[Program, float]:
    """Takes out the smallest candidate that is enough alone, else the largest."""
    enough = [candidate for candidate in costly if candidate[1] >= left]
    if enough:
        picked = min(enough, key=lambda candidate: candidate[1])
    else:
        picked = max(costly, key=lambda candidate: candidate[1])
    costly.remove(picked)
    return picked


def _without_needless(chosen: list[tuple[Program, float]], excess_tokens: float) -> list[Program]:
    spare = sum(worth for _, worth in chosen) - excess_tokens
    kept = []
    # The dearest programs were chosen last, so they are left out first.
    for program, worth in reversed(chosen):
        if worth <= spare:
            spare -= worth
        else:
            kept.append(program)
    return kept[::-1]


def _pause_gain(state: TrState, program: Program) -> float:
    """Returns by how much the load falls when the program is paused."""
    if program.acting is None or program.engine is None:
        return 0.0
    return state.books[program.engine].account.worth_tokens(program.acting, state.now_s)
