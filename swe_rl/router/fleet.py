"""Engines that come and go.

Invariants:
- An engine that is lost is charged for nothing from then on; its programs begin anew elsewhere, without a prefix.
- A drained one keeps the charges of what it still runs; its programs go elsewhere with their next request.
"""

from swe_rl.router.core import EngineAdded
from swe_rl.router.engine_book import EngineBook
from swe_rl.router.programs import Request
from swe_rl.router.tr_state import TrState


def lost(state: TrState, engine: str) -> None:
    book = state.books.get(engine)
    if book is None or not book.up:
        return
    for program in list(book.programs.values()):
        state.note("unbind", program, book, "engine lost")
        state.unbind(program)
    for request in state.requests.values():
        if request.engine == engine and request.charge is not None:
            book.account.take_back(request.charge, state.now_s)
            request.charge = None
            _end(state, request)
    book.up = book.draining = False
    _send_away(state, book)


def _end(state: TrState, request: Request) -> None:
    """Nothing more is counted of it; its program may have moved on before."""
    program = request.program
    del program.running[request.request_id]
    program.overlap = bool(program.running)
    if not program.running:
        program.idle_since_s = state.now_s
        state.rest(program)


def drained(state: TrState, engine: str) -> None:
    book = state.books.get(engine)
    if book is None or not book.open:
        return
    book.draining = True
    for program in list(book.programs.values()):
        state.note("unbind", program, book, "engine drained")
        state.unbind(program)
    _send_away(state, book)


def _send_away(state: TrState, book: EngineBook) -> None:
    state.forget_cache(book)
    for program_id in list(book.resident):
        state.enqueue(state.programs[program_id])


def added(state: TrState, event: EngineAdded) -> None:
    book = state.books.get(event.engine) or state.add_book(event.engine)
    book.up, book.draining = True, False
    state.all_changed()
    book.capacity.report(event.kv_capacity_tokens)
