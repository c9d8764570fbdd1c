"""Who is let in, and where: held programs, whenever there is room.

Invariants:
- Order: held for longer than `max_hold_s` (always let in) > prefix still cached > all others. Within one, the queue's
  order, fewest turns first; its head is waited for, so that room gathers for it.
- A program whose prefix is cached goes to that engine, until it has waited `move_after_s` or another one is free; all
  others go where most room is, or, if that costs little, to a sibling's engine.
- An engine that runs nothing leaves no program waiting.
- Only engines that changed since the last attempt are asked again; all of them at a tick, and at the first event after
  half a second, because leases run out and weights fade by themselves.
- Nothing is let in during a sync.
"""

from collections.abc import Iterable

from swe_rl.router.core import OVERDUE
from swe_rl.router.engine_book import EngineBook
from swe_rl.router.pausing import relieve
from swe_rl.router.programs import AgeingQueue, Program
from swe_rl.router.tr_state import TrState

_ASK_ALL_S = 0.5


def admit_held(state: TrState) -> None:
    if state.clock.syncing:
        return
    if state.held:
        if state.now_s - state.asked_all_s >= _ASK_ALL_S:
            state.all_changed()
        _overdue(state)
        if state.in_tail():
            _everybody(state)
        for book in list(state.changed.values()):
            _resident(state, book)
        if _anywhere(state, state.cold) and _anywhere(state, state.new):
            _moved(state)
    state.changed.clear()


def may_run(state: TrState, book: EngineBook, tokens: int) -> bool:
    """Whether the engine's other limits let a prompt of so many tokens that are not cached start now."""
    account, settings = book.account, state.settings
    if settings.max_num_seqs and account.running >= settings.max_num_seqs:
        return False
    if state.stagger_since_s is None or not account.running:
        return True
    share = 0.25 + 0.75 * (state.now_s - state.stagger_since_s) / settings.stagger_s
    return book.staggered_tokens + tokens <= share * book.capacity.tokens


def enter(state: TrState, program: Program, book: EngineBook, reason: str) -> None:
    """Admits the program and lets its held requests go."""
    requests = list(program.held.values())
    state.unhold_all(program)
    state.end_acting(program)
    state.bind(program, book)
    for request in requests:
        state.run(request, book, reason)


def _overdue(state: TrState) -> None:
    while (request := state.longest_held()) is not None:
        if state.now_s - request.arrived_s < state.settings.max_hold_s:
            return
        if not _let_in(state, request.program, OVERDUE):
            return


def _everybody(state: TrState) -> None:
    while (request := state.longest_held()) is not None and _let_in(state, request.program, "tail"):
        pass


def _let_in(state: TrState, program: Program, reason: str) -> bool:
    """Whether or not there is room. False: no engine is open."""
    book = state.books.get(program.engine or program.origin or "")
    if book is None or not book.open or not (program.running or book.cache.resident_tokens(program.program_id)):
        share = state.settings.resume_at
        book = max(state.open_books(), key=lambda open_book: state.room_tokens(open_book, share), default=None)
    if book is None:
        return False
    enter(state, program, book, reason)
    return True


def _resident(state: TrState, book: EngineBook) -> None:
    while (program_id := book.resident.head()) is not None:
        program = state.programs[program_id]
        if not (_fits(state, program, book) or _fits_after_pausing(state, program, book)):
            return
        enter(state, program, book, "resident")


def _anywhere(state: TrState, queue: AgeingQueue) -> bool:
    """False: its head waits."""
    while (program_id := queue.head()) is not None:
        program = state.programs[program_id]
        books = state.changed if program_id == queue.refused else state.books
        book = _choose(state, program, books.values())
        if book is None:
            queue.refused = program_id
            return False
        enter(state, program, book, "cold" if program.turns else "new")
    return True


def _moved(state: TrState) -> None:
    """Programs that wait for their origin go to an engine that has room for them."""
    for target in list(state.changed.values()):
        for origin in state.books.values() if target.open and not target.resident else ():
            program_id = origin.resident.head()
            if program_id is None:
                continue
            program = state.programs[program_id]
            waited_s = state.now_s - next(iter(program.held.values())).arrived_s
            idle = target.account.running == 0
            if program.running or not (idle or waited_s >= state.settings.move_after_s):
                continue
            if _fits(state, program, target) or (idle and _fits_after_pausing(state, program, target)):
                enter(state, program, target, "moved")


def _choose(state: TrState, program: Program, books: Iterable[EngineBook]) -> EngineBook | None:
    """The engine with most room, or nearly as much and a sibling; engines whose own programs wait are not asked."""
    able = [book for book in books if book.up and not book.draining and not book.resident]
    fitting = [book for book in able if _fits(state, program, book)]
    if fitting:
        return max(fitting, key=lambda book: _prospect(state, program, book))
    return next((book for book in able if _fits_after_pausing(state, program, book)), None)


def _prospect(state: TrState, program: Program, book: EngineBook) -> float:
    """Room once its programs have grown up: young ones are small, and would all gather on one engine."""
    room = state.room_tokens(book, state.settings.resume_at) - len(book.programs) * state.growth.mean_tokens
    if book.account.hosts(program.group_id):
        room += state.prefix_tokens(program) + state.settings.sibling_share * book.capacity.tokens
    return room


def _need_tokens(state: TrState, program: Program, book: EngineBook) -> int:
    """By how much its held requests would raise the engine's load."""
    return book.account.need_tokens(state.held_tokens(program), program.group_id, state.prefix_tokens(program))


def _fits(state: TrState, program: Program, book: EngineBook) -> bool:
    need = _need_tokens(state, program, book)
    fits = book.account.empty or need <= state.room_tokens(book, state.settings.resume_at)
    return fits and may_run(state, book, need)


def _fits_after_pausing(state: TrState, program: Program, book: EngineBook) -> bool:
    """Pauses programs whose lease is over, or any where nothing runs, if that makes enough room."""
    idle = book.account.running == 0
    lease_s = 0.0 if idle else state.settings.lease_s
    if not idle and not book.idle_for(lease_s, state.now_s):
        return False
    need = _need_tokens(state, program, book)
    if not may_run(state, book, need):
        return False
    return relieve(state, book, need - state.room_tokens(book, state.settings.resume_at), "lease", lease_s) or idle
