"""This router is program-aware: an engine serves no more programs than its cache can hold, and a program keeps its
cache while that pays.

Invariants:
- Tokens are counted in ids and exactly; when every program is released and every request finished, all ledgers are 0.
- An admitted program keeps its place while its prefix is cached there; without it, it waits with all others.
- Every event that can make room tries to let held programs in, at once.
- A request is held for `max_hold_s` and one tick at most, syncs aside, while an engine is there.
"""

from collections.abc import Sequence

from swe_rl.router import admission, pausing
from swe_rl.router.core import (
    Action,
    EngineAdded,
    EngineDrained,
    EngineLost,
    Event,
    GroupLeft,
    ProgramReleased,
    RequestArrived,
    RequestFinished,
    StepTail,
    SyncBegan,
    SyncEnded,
    Tick,
)
from swe_rl.router.engine_book import EngineBook
from swe_rl.router.programs import Program, ProgramRequest
from swe_rl.router.tr_settings import TrSettings
from swe_rl.router.tr_state import TrState


def lose_engine(state: TrState, engine: str) -> None:
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
            _end_request(state, request)
    book.up = book.draining = False
    _send_away(state, book)


def _end_request(state: TrState, request: ProgramRequest) -> None:
    """Takes a request that ended with its engine off its program. The program may have moved on before."""
    program = request.program
    del program.running[request.request_id]
    program.overlap = bool(program.running)
    if not program.running:
        program.idle_since_s = state.now_s
        state.rest(program)


def drain_engine(state: TrState, engine: str) -> None:
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


def add_engine(state: TrState, event: EngineAdded) -> None:
    book = state.books.get(event.engine) or state.add_book(event.engine)
    book.up = True
    book.draining = False
    state.all_changed()
    book.capacity.report(event.kv_capacity_tokens)


# Programs that ask nothing any more are looked for so often.
_SWEEP_S = 60.0


class TrPolicy:
    def __init__(self, settings: TrSettings) -> None:
        self.name = settings.name
        self.tick_s: float | None = settings.tick_s
        self.settings = settings

    def initial(self, engines: Sequence[str]) -> TrState:
        return TrState(self.settings, engines)

    def step(self, state: TrState, event: Event, now_s: float) -> list[Action]:
        state.begin(type(event).__name__, now_s)
        if state.stagger_since_s is not None and state.now_s - state.stagger_since_s >= self.settings.stagger_s:
            state.stagger_since_s = None
        if state.stagger_since_s is not None:
            state.all_changed()
        match event:
            case RequestArrived():
                _take_arrival(state, event)
            case RequestFinished():
                _finish_request(state, event)
            case ProgramReleased(program_id):
                _release_program(state, program_id)
            case Tick():
                _take_tick(state, event)
            case EngineLost(engine):
                lose_engine(state, engine)
            case EngineDrained(engine):
                drain_engine(state, engine)
            case EngineAdded():
                add_engine(state, event)
            case SyncBegan():
                state.clock.begin()
                state.tail = False
            case SyncEnded(kv_kept):
                _end_sync(state, kv_kept)
            case StepTail(active):
                state.tail = active
                state.all_changed()
            case GroupLeft(group_id, programs):
                state.left(group_id, programs)
        admission.admit_held(state)
        if isinstance(event, RequestArrived) and event.request_id in state.held:
            held = state.held[event.request_id].program
            state.note("hold", held, None, "sync" if state.clock.syncing else "no room yet")
        return list(state.actions)


def _take_arrival(state: TrState, event: RequestArrived) -> None:
    known = state.requests.get(event.request_id)
    if known is not None:
        state.note("ignore", known.program, None, "request id is in use")
        return
    program = state.known(event.program_id, event.group_id, event.prompt_tokens)
    program.released = False
    program.requests += 1
    state.resize(program, event.prompt_tokens)
    request = ProgramRequest(event.request_id, program, event.prompt_tokens, state.now_s)
    state.requests[event.request_id] = request
    if program.engine is not None and not state.clock.syncing:
        book = state.books[program.engine]
        if _prefix_is_gone(state, program, book):
            state.note("unbind", program, book, "prefix is gone")
            state.unbind(program)
        elif _run_next_turn(state, request, book):
            return
        else:
            pausing.pause_program(state, program, book, "no room for its next turn")
    elif program.engine is not None and not program.running:
        pausing.pause_program(state, program, state.books[program.engine], "sync")
    state.hold(request)


def _prefix_is_gone(state: TrState, program: Program, book: EngineBook) -> bool:
    """Tells whether the engine has nothing of the program left. Then it waits its turn as all others do, for any
    engine: nothing is lost by that, and programs that are further behind go first."""
    return not (program.running or book.cache.resident_tokens(program.program_id) or state.in_tail())


def _run_next_turn(state: TrState, request: ProgramRequest, book: EngineBook) -> bool:
    """Runs an admitted program's next turn if it fits, and pauses idle programs for it if need be. Returns whether it
    runs."""
    program = request.program
    if program.running:
        state.run(request, book, "beside its other requests")
        return True
    state.end_acting(program)
    need = book.account.need_tokens(state.reserve_tokens(request), program.group_id, state.prefix_tokens(program))
    excess = need - state.room_tokens(book, state.settings.pause_at)
    new_here = state.now_s - program.admitted_s < state.settings.min_stay_s
    if new_here or state.in_tail() or not book.account.running or pausing.relieve_engine(state, book, excess, "growth"):
        state.run(request, book, "continues")
        return True
    return False


def _finish_request(state: TrState, event: RequestFinished) -> None:
    request = state.requests.pop(event.request_id, None)
    if request is None:
        return
    program = request.program
    program.requests -= 1
    if request.engine is None:
        state.unhold(request)
        state.note("drop", program, None, "given up while held")
    elif request.charge is not None:
        _settle_charge(state, request, event)
    if program.released and not program.requests:
        state.forget(program)


def _settle_charge(state: TrState, request: ProgramRequest, event: RequestFinished) -> None:
    """Replaces a finished request's reservation by what its program really holds."""
    program = request.program
    book = state.books[request.engine or ""]
    if request.charge is not None:
        book.account.take_back(request.charge, state.now_s)
    del program.running[request.request_id]
    # Otherwise the request failed.
    if event.context_tokens > request.prompt_tokens:
        state.answers.observe(event.context_tokens - request.prompt_tokens)
    if event.cached_tokens is not None:
        book.cache.observe(request.expected_cached_tokens, event.cached_tokens)
        if not program.turns and program.first_of_group:
            state.learn_common(event.cached_tokens)
    program.turns += 1
    program.context_tokens = max(program.context_tokens if program.overlap else 0, event.context_tokens)
    program.overlap = bool(program.running)
    state.resize(program, program.context_tokens)
    state.changed[book.name] = book
    if program.running:
        return
    program.idle_since_s = state.now_s
    idle_tokens = book.account.idle_tokens(program.context_tokens, program.group_id, state.prefix_tokens(program))
    book.cache.keep(program.program_id, idle_tokens)
    state.rest(program)
    state.squeeze(book)
    pausing.relieve_engine(state, book, -state.room_tokens(book, state.settings.pause_at), "overflow")


def _release_program(state: TrState, program_id: str) -> None:
    program = state.programs.get(program_id)
    if program is not None:
        program.released = True
        if not program.requests:
            state.forget(program)


def _take_tick(state: TrState, event: Tick) -> None:
    state.all_changed()
    for load in event.loads:
        book = state.books.get(load.engine)
        if book is not None and book.up:
            expected = book.account.pinned_tokens - int(book.account.running * state.answers.mean_tokens) // 2
            book.capacity.observe(load, expected)
            state.squeeze(book)
            excess = -state.room_tokens(book, state.settings.pause_at)
            pausing.relieve_engine(state, book, excess, "overflow")
    if state.now_s - state.swept_s >= _SWEEP_S:
        state.swept_s = state.now_s
        _forget_silent(state)


def _forget_silent(state: TrState) -> None:
    for program in list(state.programs.values()):
        if not program.requests and state.now_s - program.idle_since_s >= state.settings.idle_ttl_s:
            state.note("forget", program, None, "silent")
            state.forget(program)


def _end_sync(state: TrState, kv_kept: bool) -> None:
    kv_lost = state.clock.end(kv_kept)
    state.now_s = state.clock.now_s
    state.all_changed()
    if kv_lost:
        for book in state.books.values():
            state.forget_cache(book)
            book.staggered_tokens = 0
        state.stagger_since_s = state.now_s
