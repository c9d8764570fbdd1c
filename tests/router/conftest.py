"""The audit of a program-aware router's state, and a closed loop of programs and engines on a virtual clock."""

import heapq
import random
from collections import Counter
from types import SimpleNamespace

import pytest

from swe_rl.router.core import EngineLoad, ProgramReleased, RequestArrived, RequestFinished, Router, Tick


def _audit(state):
    """Recomputes every ledger, queue and index from the programs and requests alone."""
    held = {request.request_id for request in state.requests.values() if request.engine is None}
    assert set(state.held) == held
    assert state.demand_tokens == sum(program.size_tokens for program in state.programs.values())
    groups = Counter(program.group_id for program in state.programs.values() if program.group_id is not None)
    assert {name: group.programs for name, group in state.groups.items()} == groups
    for program in state.programs.values():
        _audit_program(state, program)
    for book in state.books.values():
        _audit_book(state, book)


def _audit_program(state, program):
    mine = [request for request in state.requests.values() if request.program is program]
    assert program.requests == len(mine) and (mine or not program.released)
    assert set(program.held) == {request.request_id for request in mine if request.engine is None}
    assert set(program.running) == {request.request_id for request in mine if request.charge is not None}
    queues = [state.cold, state.new, *(book.resident for book in state.books.values())]
    assert sum(program.program_id in queue for queue in queues) == bool(program.held)
    assert (program.acting is None) == (program.engine is None or bool(program.running))
    assert not (program.held and program.acting)
    if program.engine is not None:
        book = state.books[program.engine]
        assert book.open and book.programs[program.program_id] is program
        assert (program.program_id in book.acting) == (program.acting is not None)


def _audit_book(state, book):
    account = book.account
    running = [request for request in state.requests.values() if request.charge and request.engine == book.name]
    acting = list(book.acting.values())
    assert all(program.engine == book.name for program in book.programs.values())
    idle = [program.idle_since_s for program in acting]
    assert idle == sorted(idle)
    charges = [request.charge for request in running] + [program.acting for program in acting]
    assert (account.running, account.acting) == (len(running), len(acting))
    assert account.running_tokens == sum(charge.own_tokens for charge in charges if not charge.acting)
    assert account.acting_tokens == sum(charge.own_tokens for charge in charges if charge.acting)
    prefix_tokens = account.prefix_tokens, account.idle_prefix_tokens
    assert (sum(prefix_tokens) > 0) <= any(charge.group_id is not None for charge in charges)
    runs = {charge.group_id for charge in charges if not charge.acting} - {None}
    assert (account.prefix_tokens > 0) <= bool(runs) and min(prefix_tokens) >= 0
    assert all(account.hosts(charge.group_id) for charge in charges if charge.group_id is not None)
    assert account.load_tokens(state.now_s) >= 0
    if not charges:
        assert account.empty and account.load_tokens(state.now_s) == sum(prefix_tokens) == 0
    if not book.up:
        assert account.empty and not book.resident and not book.cache.idle_tokens


class Loop:
    """Programs of several turns over engines that take a time for each answer; nothing here depends on the wall clock.

    Every engine answers as many requests as the router gives it; what is measured is the router alone."""

    def __init__(
        self, policy, engines=4, programs=60, capacity=20_000, seed=0, tick_s=1.0, tool_s=2.0, group=4, spacing_s=0.01
    ):
        self.policy = policy
        self.random = random.Random(seed)
        self.names = [f"e{number}" for number in range(engines)]
        self.capacity = capacity
        self.state = policy.initial(self.names)
        self.tick_s, self.tool_s = 1.0, 2.0
        self.now = 0.0
        self.events, self.number = [], 0
        self.arrived, self.held_s, self.actions = {}, [], []
        self.left = programs
        for number in range(programs):
            turns = self.random.randint(2, 9)
            self.push(spacing_s * number, self.arrive, f"p{number}", f"g{number // 4}", turns, 400)
        self.push(self.tick_s, self.tick)

    def push(self, at, function, *arguments):
        self.number += 1
        heapq.heappush(self.events, (at, self.number, function, arguments))

    def feed(self, event):
        for action in self.policy.step(self.state, event, self.now):
            self.actions.append((self.now, action))
            program, group, turns, prompt, since = self.arrived.pop(action.request_id)
            self.held_s.append(self.now - since)
            answer = self.random.randint(50, 600)
            took = 0.2 + answer / 200
            self.push(self.now + took, self.finish, action.request_id, program, group, turns, prompt + answer)

    def arrive(self, program, group, turns, prompt):
        request = f"{program}#{turns}"
        self.arrived[request] = (program, group, turns, prompt, self.now)
        self.feed(RequestArrived(program, request, prompt, group))

    def finish(self, request, program, group, turns, context):
        self.feed(RequestFinished(program, request, context))
        if turns == 1:
            self.left -= 1
            self.feed(ProgramReleased(program))
        else:
            later = self.now + self.random.expovariate(1 / self.tool_s)
            self.push(later, self.arrive, program, group, turns - 1, context + self.random.randint(20, 400))

    def tick(self):
        self.feed(Tick(tuple(EngineLoad(name, 0, 0, 0, self.capacity) for name in self.names)))
        self.push(self.now + self.tick_s, self.tick)

    def run(self, until_s=1e9, max_events=10**9):
        while self.left and max_events and self.events[0][0] <= until_s:
            self.now, _, function, arguments = heapq.heappop(self.events)
            function(*arguments)
            max_events -= 1
        return self


@pytest.fixture
def tr_world():
    return SimpleNamespace(audit=_audit, Loop=Loop, Router=Router)
