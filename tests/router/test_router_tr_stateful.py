"""Any interleaving of requests, failures, releases, syncs and dying engines: ledgers, queues and bounds hold."""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from swe_rl.router.core import (
    EngineAdded,
    EngineDrained,
    EngineLoad,
    EngineLost,
    GroupLeft,
    ProgramReleased,
    RequestArrived,
    RequestFinished,
    StepTail,
    SyncBegan,
    SyncEnded,
    Tick,
)
from swe_rl.router.tr import TrPolicy
from swe_rl.router.tr_settings import TrSettings

ENGINES = ["e0", "e1", "e2"]
TICK_S, MAX_HOLD_S = 2.0, 20.0
_tokens = st.integers(1, 900)
_engines = st.sampled_from([*ENGINES, "e3"])


class Machine(RuleBasedStateMachine):
    settings_ = TrSettings(max_hold_s=MAX_HOLD_S, capacity_tokens=1000, max_num_seqs=6, idle_ttl_s=100.0)

    def __init__(self):
        super().__init__()
        self.policy = TrPolicy(replace(self.settings_, tick_s=TICK_S))
        self.state, self.twin = self.policy.initial(ENGINES), self.policy.initial(ENGINES)
        self.now, self.number, self.depth = 0.0, 0, 0
        self.held, self.running, self.answered = {}, {}, set()
        self.open = set(ENGINES)

    def feed(self, event):
        actions = self.policy.step(self.state, event, self.now)
        assert actions == self.policy.step(self.twin, event, self.now)
        for action in actions:
            assert action.request_id not in self.answered and action.engine in self.open and not self.depth
            self.answered.add(action.request_id)
            self.running[action.request_id] = self.held.pop(action.request_id)

    @rule(program=st.integers(0, 7), tokens=_tokens, group=st.sampled_from([None, "g", "h"]))
    def arrive(self, program, tokens, group):
        request = f"r{self.number}"
        self.number += 1
        self.held[request] = (f"p{program}", tokens)
        self.feed(RequestArrived(f"p{program}", request, tokens, group))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def repeat(self, data):
        request = data.draw(st.sampled_from(sorted(self.held)))
        self.feed(RequestArrived(self.held[request][0], request, self.held[request][1]))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), answer=st.integers(0, 300), cached=st.sampled_from([None, 0, 500]))
    def finish(self, data, answer, cached):
        request = data.draw(st.sampled_from(sorted(self.running)))
        program, tokens = self.running.pop(request)
        self.feed(RequestFinished(program, request, tokens + answer, cached))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_up(self, data):
        request = data.draw(st.sampled_from(sorted(self.held)))
        program, tokens = self.held.pop(request)
        self.feed(RequestFinished(program, request, tokens))

    @rule(program=st.integers(0, 8))
    def release(self, program):
        self.feed(ProgramReleased(f"p{program}"))

    @rule(wait_s=st.floats(0.01, TICK_S), capacity=st.sampled_from([0, 500, 1000, 3000]), waiting=st.integers(0, 2))
    def tick(self, wait_s, capacity, waiting):
        self.tick_(wait_s, capacity, waiting)

    def tick_(self, wait_s, capacity, waiting):
        self.now += wait_s
        self.feed(Tick(tuple(EngineLoad(name, 1, waiting, capacity, capacity, waiting) for name in ENGINES)))
        if self.open and not self.depth:
            assert all(self.state.now_s - one.arrived_s < MAX_HOLD_S for one in self.state.held.values())

    @rule()
    def many_ticks(self):
        for _ in range(12):
            self.tick_(TICK_S, 0, 0)

    @rule(engine=_engines)
    def lose(self, engine):
        self.open.discard(engine)
        self.feed(EngineLost(engine))

    @rule(engine=_engines)
    def drain(self, engine):
        self.open.discard(engine)
        self.feed(EngineDrained(engine))

    @rule(engine=_engines, capacity=st.sampled_from([0, 2000]))
    def add(self, engine, capacity):
        self.open.add(engine)
        self.feed(EngineAdded(engine, capacity))

    @rule()
    def begin_sync(self):
        self.depth += 1
        self.feed(SyncBegan())

    @rule(kept=st.booleans())
    def end_sync(self, kept):
        self.depth = max(0, self.depth - 1)
        self.feed(SyncEnded(kept))

    @rule(active=st.booleans())
    def tail(self, active):
        self.feed(StepTail(active))

    @rule(group=st.sampled_from(["g", "h"]), left=st.integers(0, 3))
    def group_left(self, group, left):
        self.feed(GroupLeft(group, left))

    @invariant()
    def the_state_is_consistent(self):
        self.audit(self.state)
        assert set(self.state.held) == set(self.held)

    @invariant()
    def an_engine_that_runs_nothing_leaves_nobody_waiting(self):
        if self.depth:
            return
        movable = [one for one in self.state.programs.values() if one.held and not one.running]
        for name in self.open:
            assert self.state.books[name].account.running or not movable, self.state.snapshot()

    def teardown(self):
        """Whatever happened, all that is over leaves nothing."""
        for request, (program, tokens) in [*self.held.items(), *self.running.items()]:
            self.held.pop(request, None)
            self.running.pop(request, None)
            self.feed(RequestFinished(program, request, tokens))
        for program in range(9):
            self.feed(ProgramReleased(f"p{program}"))
        self.audit(self.state)
        assert not (self.state.programs or self.state.requests or self.state.held or self.state.groups)
        assert all(book.account.empty and not book.acting for book in self.state.books.values())
        assert not (self.state.cold or self.state.new or self.state.demand_tokens or self.state.first_tokens)
        assert not any(book.size_tokens or book.first_tokens for book in self.state.books.values())


class Decaying(Machine):
    settings_ = TrSettings(
        acting_token_weight=0.1, acting_half_life_s=3.0, max_hold_s=MAX_HOLD_S, capacity_tokens=800, new_last=True
    )


class Calm(Machine):
    """Engines that stay: programs meet the limits of their caches more often."""

    lose = drain = add = begin_sync = end_sync = tail = None


def _case(machine, tr_world):
    machine.audit = staticmethod(tr_world.audit)
    case = machine.TestCase
    case.settings = settings(stateful_step_count=60)
    return case("runTest")


def test_whole_weights(tr_world):
    _case(Machine, tr_world).runTest()


def test_decaying_weights(tr_world):
    _case(Decaying, tr_world).runTest()


def test_engines_that_stay(tr_world):
    _case(Calm, tr_world).runTest()
