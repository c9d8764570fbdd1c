"""This module has what the program-aware router remembers, and the elementary changes to it.

Invariants:
- Every charge in an engine's account belongs to one program that is admitted there, or one of its running requests.
- A program waits in one queue exactly as long as it has held requests.
- Time here is the policy's own clock: it stands still during a weight sync.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence

from swe_rl.router.core import Decision, DecisionLog, Place
from swe_rl.router.engine_book import EngineBook
from swe_rl.router.programs import AgeingQueue, CommonPrefix, Group, Program, ProgramRequest, Running
from swe_rl.router.tr_settings import TrSettings


# The clock stands still during weight syncs, so that no hold, lease or deadline runs while nothing can move. It never
# goes back. Syncs nest; an end without a beginning is ignored.
class SyncClock:
    def __init__(self) -> None:
        self.wall_s = 0.0
        self.now_s = 0.0
        self._depth = 0
        self._began_s = 0.0
        self._total_s = 0.0
        self._kv_lost = False

    @property
    def syncing(self) -> bool:
        return self._depth > 0

    def set(self, wall_s: float) -> None:
        self.wall_s = max(self.wall_s, wall_s)
        if not self._depth:
            # Rounding must not turn the clock back.
            self.now_s = max(self.now_s, self.wall_s - self._total_s)

    def begin(self) -> None:
        if not self._depth:
            self._began_s = self.wall_s
            self._kv_lost = False
        self._depth += 1

    def end(self, kv_kept: bool) -> bool:
        """Ends a sync. Returns whether it was the outermost one and what the engines had cached is lost."""
        if not self._depth:
            return False
        self._kv_lost |= not kv_kept
        self._depth -= 1
        if self._depth:
            return False
        self._total_s += self.wall_s - self._began_s
        return self._kv_lost


# An answer is expected to be so long before any was seen.
_FIRST_ANSWER_TOKENS = 128
# A program is expected to grow by so much before any was seen.
_FIRST_GROWTH_TOKENS = 4096


class TrState:
    def __init__(self, settings: TrSettings, engines: Sequence[str]) -> None:
        self.settings = settings
        self.books: dict[str, EngineBook] = {}
        self.programs: dict[str, Program] = {}
        self.requests: dict[str, ProgramRequest] = {}
        self.groups: dict[str, Group] = {}
        self.cold = AgeingQueue(settings.ageing_turns_per_s)
        self.new = AgeingQueue(settings.ageing_turns_per_s)
        # The request that was held longest comes first.
        self.held: OrderedDict[str, ProgramRequest] = OrderedDict()
        self.answers = Running(_FIRST_ANSWER_TOKENS)
        self.growth = Running(_FIRST_GROWTH_TOKENS)
        self.common = CommonPrefix()
        self.log = DecisionLog()
        self.actions: list[Place] = []
        self.tail = False
        # Where groups flow, so many programs of a group have not ended.
        self.left_of_group: dict[str, int] = {}
        # Sums the sizes of all programs.
        self.demand_tokens = 0
        # Sums their first prompts.
        self.first_tokens = 0
        # These engines may have more room than at the last attempt.
        self.changed: dict[str, EngineBook] = {}
        self.now_s = 0.0
        self.stagger_since_s: float | None = None
        self.swept_s = 0.0
        self.asked_all_s = 0.0
        self.clock = SyncClock()
        self._event = ""
        self._programs_seen = 0
        for name in engines:
            self.add_book(name)

    def begin(self, event: str, now_s: float) -> None:
        self.clock.set(now_s)
        self._event = event
        self.now_s = self.clock.now_s
        self.actions = []

    # --- engines

    def add_book(self, name: str) -> EngineBook:
        self.books[name] = EngineBook.empty(name, self.settings)
        self.books[name].account.common_tokens = self.common.tokens
        return self.books[name]

    def open_books(self) -> Iterator[EngineBook]:
        return (book for book in self.books.values() if book.up and not book.draining)

    def all_changed(self) -> None:
        self.changed.update(self.books)
        self.asked_all_s = self.now_s

    def in_tail(self) -> bool:
        """Tells whether no program will come any more, and all that are there fit."""
        return self.tail and self.demand_tokens <= sum(book.capacity.tokens for book in self.open_books())

    def lease_s(self, book: EngineBook) -> float:
        """Returns how long an idle program keeps its place: about as long as new prompts take to fill the tier."""
        return self.settings.lease_s * book.capacity.stretch

    def load_tokens(self, book: EngineBook) -> float:
        return book.account.load_tokens(self.now_s)

    def room_tokens(self, book: EngineBook, share: float) -> float:
        return share * book.capacity.tokens - book.account.load_tokens(self.now_s)

    def expected_growth_tokens(self) -> float:
        """Returns by how much a program grows from its first prompt to its end: what programs that ended say, or those
        that are there, if they have grown by more already."""
        living = (self.demand_tokens - self.first_tokens) / max(1, len(self.programs))
        return max(self.growth.mean_tokens, living)

    def growth_to_come_tokens(self, program: Program, book: EngineBook) -> float:
        """Returns by how much the engine's programs are expected to grow yet, with the program among them."""
        grown = book.size_tokens - book.first_tokens + program.size_tokens - program.first_prompt_tokens
        return max(0.0, (len(book.programs) + 1) * self.expected_growth_tokens() - grown)

    def reserve_tokens(self, request: ProgramRequest) -> int:
        return request.prompt_tokens + int(self.answers.mean_tokens)

    def prefix_tokens(self, program: Program) -> int:
        group = self.groups.get(program.group_id or "")
        if group is None:
            return 0
        return group.prefix_tokens

    def learn_common(self, cached_tokens: int) -> None:
        if self.common.observe(cached_tokens):
            for book in self.books.values():
                book.account.common_tokens = self.common.tokens

    def squeeze(self, book: EngineBook) -> None:
        """Lets the cache give way to what runs. Held programs that lost their prefix by it may go to any engine."""
        for program_id in book.cache.squeeze(book.capacity.tokens - book.account.pinned_tokens):
            self._requeue(program_id, book)

    def forget_cache(self, book: EngineBook) -> None:
        for program_id in book.cache.clear():
            self._requeue(program_id, book)

    def _requeue(self, program_id: str, book: EngineBook) -> None:
        if program_id in book.resident:
            self.changed[book.name] = book
            self.enqueue(self.programs[program_id])

    # --- programs

    def known(self, program_id: str, group_id: str | None, prompt_tokens: int) -> Program:
        program = self.programs.get(program_id)
        if program is None:
            self._programs_seen += 1
            program = Program(program_id, self._programs_seen, group_id, prompt_tokens)
            self.programs[program_id] = program
            self.first_tokens += prompt_tokens
            if group_id is not None:
                group = self.groups.setdefault(group_id, Group(prompt_tokens))
                program.first_of_group = not group.programs
                group.programs += 1
                group.prefix_tokens = min(group.prefix_tokens, prompt_tokens)
        return program

    def forget(self, program: Program) -> None:
        self.unbind(program)
        if program.turns:
            self.growth.observe(max(0, program.context_tokens - program.first_prompt_tokens))
        self.resize(program, 0)
        self.first_tokens -= program.first_prompt_tokens
        del self.programs[program.program_id]
        if program.group_id is not None:
            group = self.groups[program.group_id]
            group.programs -= 1
            if not group.programs:
                del self.groups[program.group_id]

    def resize(self, program: Program, tokens: int) -> None:
        added = tokens - program.size_tokens
        self.demand_tokens += added
        if program.engine is not None:
            self.books[program.engine].size_tokens += added
        program.size_tokens = tokens

    def bind(self, program: Program, book: EngineBook) -> None:
        self.unbind(program)
        program.engine = program.origin = book.name
        program.admitted_s = self.now_s
        book.programs[program.program_id] = program
        book.size_tokens += program.size_tokens
        book.first_tokens += program.first_prompt_tokens

    def unbind(self, program: Program) -> None:
        """Ends the program's admission. Running requests keep their charges."""
        if program.engine is not None:
            self.end_acting(program)
            book = self.books[program.engine]
            del book.programs[program.program_id]
            book.size_tokens -= program.size_tokens
            book.first_tokens -= program.first_prompt_tokens
            program.engine = None

    def rest(self, program: Program) -> None:
        """Notes that no request of the program runs any more: its tool does, if it is admitted and has no held
        request."""
        if program.held or program.released:
            self.unbind(program)
            self.enqueue(program)
        elif program.engine is not None:
            self._begin_acting(program, self.books[program.engine])

    def _begin_acting(self, program: Program, book: EngineBook) -> None:
        program.acting = book.account.charge(
            program.context_tokens, program.group_id, self.prefix_tokens(program), True, self.now_s
        )
        book.acting[program.program_id] = program

    def end_acting(self, program: Program) -> None:
        if program.acting is not None and program.engine is not None:
            book = self.books[program.engine]
            book.account.take_back(program.acting, self.now_s)
            del book.acting[program.program_id]
            program.acting = None
            self.changed[book.name] = book

    # --- requests

    def hold(self, request: ProgramRequest) -> None:
        request.program.held[request.request_id] = request
        self.held[request.request_id] = request
        self.enqueue(request.program)
        self.changed.update((book.name, book) for book in self.books.values() if not book.account.running)

    def unhold(self, request: ProgramRequest) -> None:
        """Lets a request go. Its program leaves its queue with its last held request."""
        del request.program.held[request.request_id]
        del self.held[request.request_id]
        self.enqueue(request.program)

    def unhold_all(self, program: Program) -> None:
        for request_id in program.held:
            del self.held[request_id]
        program.held.clear()
        self.enqueue(program)

    def longest_held(self) -> ProgramRequest | None:
        return next(iter(self.held.values()), None)

    def held_tokens(self, program: Program) -> int:
        return sum(map(self.reserve_tokens, program.held.values()))

    def enqueue(self, program: Program) -> None:
        """Puts the program into the queue where it belongs now, or into none."""
        self.new.remove(program.program_id)
        self.cold.remove(program.program_id)
        origin = self.books.get(program.origin or "")
        if origin is not None:
            origin.resident.remove(program.program_id)
            self.changed[origin.name] = origin
        if program.held:
            longest = next(iter(program.held.values()))
            self._queue(program, origin).push(program.program_id, self._standing(program), longest.arrived_s)

    def left(self, group_id: str, programs: int) -> None:
        """Notes that so many programs of a group have not ended."""
        if programs <= 0:
            self.left_of_group.pop(group_id, None)
            return
        self.left_of_group[group_id] = programs
        waiting = {request.program.program_id: request.program for request in self.held.values()}
        for program in waiting.values():
            if program.group_id == group_id:
                self.enqueue(program)

    def _standing(self, program: Program) -> float:
        """Returns the program's standing in turns: the lowest goes first."""
        left = 0
        if program.group_id is not None:
            left = self.left_of_group.get(program.group_id, 0)
        return program.turns + self.settings.sibling_turns * left

    def _queue(self, program: Program, origin: EngineBook | None) -> AgeingQueue:
        if origin is None:
            if program.turns or not self.settings.new_last:
                return self.cold
            return self.new
        here = bool(program.running) or origin.cache.resident_tokens(program.program_id) > 0
        if here and origin.open:
            return origin.resident
        return self.cold

    def run(self, request: ProgramRequest, book: EngineBook, reason: str) -> None:
        """Charges a request to an engine where its program is admitted, and places it."""
        program = request.program
        tokens = self.reserve_tokens(request)
        self.note("place", program, book, reason)
        request.engine = book.name
        # A shorter prompt does not go on from what the program had, so nothing says what of it can be cached.
        request.expected_cached_tokens = 0
        if request.prompt_tokens >= program.context_tokens:
            request.expected_cached_tokens = book.cache.resident_tokens(program.program_id)
        request.charge = book.account.charge(tokens, program.group_id, self.prefix_tokens(program), False, self.now_s)
        program.running[request.request_id] = request
        if self.stagger_since_s is not None and not request.expected_cached_tokens:
            book.staggered_tokens += tokens
        book.cache.drop(program.program_id)
        self.squeeze(book)
        self.actions.append(Place(request.request_id, book.name, reason))

    def note(self, decision: str, program: Program, book: EngineBook | None, reason: str) -> None:
        load_tokens = 0
        if book is not None:
            load_tokens = int(self.load_tokens(book))
        capacity_tokens = 0
        if book is not None:
            capacity_tokens = int(book.capacity.tokens)
        self.log.add(
            Decision(
                self.clock.wall_s,
                self._event,
                program.program_id,
                decision,
                book.name if book is not None else None,
                reason,
                program.context_tokens,
                load_tokens,
                capacity_tokens,
                len(self.held),
            )
        )

    # --- for people

    def snapshot(self) -> dict[str, object]:
        return {
            "syncing": self.clock.syncing,
            "tail": self.tail,
            "groups_left": dict(self.left_of_group),
            "held_requests": len(self.held),
            "demand_tokens": self.demand_tokens,
            "mean_answer_tokens": round(self.answers.mean_tokens, 1),
            "mean_growth_tokens": round(self.growth.mean_tokens, 1),
            "engines": [book.snapshot(self.now_s) for book in self.books.values()],
            "program_counts": dict(Counter(program.status for program in self.programs.values())),
            "programs": [program.snapshot() for program in self.programs.values()],
            **self.log.snapshot(),
        }
