"""This module decides which held programs are let in, and on which engine, whenever there is room.

Invariants:
- Order: held for longer than `max_hold_s` (always let in) > prefix still cached > all others. Within one of these, the
  queue's order holds, fewest turns first; its head is waited for, so that room gathers for it.
- A program whose prefix is cached goes to that engine, until it has waited `move_after_s` or another engine is free.
  All others go where most room is, or, if that costs little, to a sibling's engine.
- An engine that runs nothing leaves no program waiting.
- Only engines that changed since the last attempt are asked again. All of them are asked at a tick, and at the first
  event after half a second, because leases run out and weights fade by themselves.
- Nothing is let in during a sync.
"""

from collections.abc import Iterable

from swe_rl.router.core import OVERDUE
from swe_rl.router.engine_book import EngineBook
from swe_rl.router.pausing import relieve_engine
from swe_rl.router.programs import AgeingQueue, Program
from swe_rl.router.tr_state import TrState

# The programs that are admitted together grow up together, and each that is paused for it loses its whole prefix. They
# end at different times, so that half of the growth that is to come is there at once. Where prefixes fit into the GPU's
# cache alone, they are short and cheap to compute again, and full batches are worth more.
GROWTH_SHARE = 0.5

# Leases run out and weights fade without an event. So all engines are asked again after so long.
_ASK_ALL_S = 0.5


def admit_held(state: TrState) -> None:
    if state.clock.syncing:
        return
    if state.held:
        if state.now_s - state.asked_all_s >= _ASK_ALL_S:
            state.all_changed()
        _admit_overdue(state)
        if state.in_tail():
            _admit_everybody(state)
        for book in list(state.changed.values()):
            _admit_resident(state, book)
        if _admit_anywhere(state, state.cold) and _admit_anywhere(state, state.new):
            _admit_elsewhere(state)
    state.changed.clear()


def may_run(state: TrState, book: EngineBook, tokens: int) -> bool:
    """Tells whether the engine's other limits let a prompt with so many uncached tokens start now."""
    account = book.account
    settings = state.settings
    if settings.max_num_seqs and account.running >= settings.max_num_seqs:
        return False
    if state.stagger_since_s is None or not account.running:
        return True
    share = 0.25 + 0.75 * (state.now_s - state.stagger_since_s) / settings.stagger_s
    return book.staggered_tokens + tokens <= share * book.capacity.tokens


def admit_program(state: TrState, program: Program, book: EngineBook, reason: str) -> None:
    """Admits the program and lets its held requests go."""
    requests = list(program.held.values())
    state.unhold_all(program)
    state.end_acting(program)
    state.bind(program, book)
    for request in requests:
        state.run(request, book, reason)


def _admit_overdue(state: TrState) -> None:
    while (request := state.longest_held()) is not None:
        if state.now_s - request.arrived_s < state.settings.max_hold_s:
            return
        if not _let_in(state, request.program, OVERDUE):
            return


def _admit_everybody(state: TrState) -> None:
    while (request := state.longest_held()) is not None and _let_in(state, request.program, "tail"):
        pass


def _let_in(state: TrState, program: Program, reason: str) -> bool:
    """Admits a program whether or not there is room. Returns False if no engine is open."""
    book = state.books.get(program.engine or program.origin or "")
    if book is None or not book.open or not (program.running or book.cache.resident_tokens(program.program_id)):
        share = state.settings.resume_at
        book = max(state.open_books(), key=lambda open_book: state.room_tokens(open_book, share), default=None)
    if book is None:
        return False
    admit_program(state, program, book, reason)
    return True


def _admit_resident(state: TrState, book: EngineBook) -> None:
    while (program_id := book.resident.head()) is not None:
        program = state.programs[program_id]
        if not (_fits_now(state, program, book) or _fits_after_pausing(state, program, book)):
            return
        admit_program(state, program, book, "resident")


def _admit_anywhere(state: TrState, queue: AgeingQueue) -> bool:
    """Admits the queue's programs in order. Returns False if its head has to wait."""
    while (program_id := queue.head()) is not None:
        program = state.programs[program_id]
        books = state.changed if program_id == queue.refused else state.books
        book = _choose_engine(state, program, books.values())
        if book is None:
            queue.refused = program_id
            return False
        admit_program(state, program, book, "cold" if program.turns else "new")
    return True


def _admit_elsewhere(state: TrState) -> None:
    """Admits programs that wait for their origin to an engine that has room for them."""
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
            if _fits_now(state, program, target) or (idle and _fits_after_pausing(state, program, target)):
                admit_program(state, program, target, "moved")


def _choose_engine(state: TrState, program: Program, books: Iterable[EngineBook]) -> EngineBook | None:
    """Returns the engine with most room, or one with nearly as much and a sibling; with a tier in the host's memory the
    one with the fewest programs. Engines whose own programs wait are not asked."""
    able = [book for book in books if book.up and not book.draining and not book.resident]
    fitting = [book for book in able if _fits_now(state, program, book)]
    if fitting:
        return max(fitting, key=lambda book: (_spare_places(book), _estimate_room(state, program, book)))
    return next((book for book in able if _fits_after_pausing(state, program, book)), None)


def _spare_places(book: EngineBook) -> int:
    """Returns fewer for more programs, where they share the engine's work alone: a tier in the host's memory has room
    for what they hold. The same number for all engines whose cache is what is scarce."""
    if not book.capacity.reaches_host:
        return 0
    return -len(book.programs)


def _estimate_room(state: TrState, program: Program, book: EngineBook) -> float:
    """Estimates the room that is left once the engine's programs have grown up: young ones are small, and would all
    gather on one engine."""
    room = state.room_tokens(book, state.settings.resume_at) - len(book.programs) * state.growth.mean_tokens
    if book.account.hosts(program.group_id):
        room += state.prefix_tokens(program) + state.settings.sibling_share * book.capacity.tokens
    return room


def _need_tokens(state: TrState, program: Program, book: EngineBook) -> int:
    """Returns by how much the program's held requests would raise the engine's load."""
    return book.account.need_tokens(state.held_tokens(program), program.group_id, state.prefix_tokens(program))


def _fits_now(state: TrState, program: Program, book: EngineBook) -> bool:
    need = _need_tokens(state, program, book)
    room = state.room_tokens(book, state.settings.resume_at)
    if book.programs.get(program.program_id) is None and book.capacity.reaches_host:
        room -= GROWTH_SHARE * state.growth_to_come_tokens(program, book)
    return (book.account.empty or need <= room) and may_run(state, book, need)


def _fits_after_pausing(state: TrState, program: Program, book: EngineBook) -> bool:
    """Pauses programs whose lease is over, or any if nothing runs, if that makes enough room. Returns whether the
    program fits."""
    idle = book.account.running == 0
    lease_s = 0.0 if idle else state.lease_s(book)
    if not idle and not book.idle_for(lease_s, state.now_s):
        return False
    need = _need_tokens(state, program, book)
    if not may_run(state, book, need):
        return False
    return (
        relieve_engine(state, book, need - state.room_tokens(book, state.settings.resume_at), "lease", lease_s) or idle
    )
