from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from swe_rl.router.cap import CapPolicy
from swe_rl.router.core import (
    EngineAdded,
    EngineDrained,
    EngineLost,
    Place,
    ProgramReleased,
    RequestArrived,
    RequestFinished,
    Router,
    Tick,
)

ENGINES = ["e0", "e1"]


def test_programs_over_the_cap_wait_in_order_for_whole_ones_to_end():
    router = Router(CapPolicy(1, 600.0, 5.0), ENGINES)
    placed = [router.handle(RequestArrived(program, program, 1), 0.0) for program in "abcd"]
    assert placed == [[Place("a", "e0")], [Place("b", "e1")], [], []]
    assert router.handle(RequestFinished("b", "b", 2), 1.0) == []  # its tool runs, its place stays
    assert router.handle(RequestArrived("b", "b1", 3), 2.0) == [Place("b1", "e1")]
    assert router.handle(ProgramReleased("b"), 3.0) == [Place("c", "e1")]
    assert router.handle(RequestFinished("d", "d", 1), 4.0) == []  # given up
    assert router.handle(ProgramReleased("a"), 5.0) == []
    assert router.handle(RequestArrived("e", "e", 1), 6.0) == [Place("e", "e0")]


def test_nobody_waits_longer_than_the_bound():
    router = Router(CapPolicy(1, max_hold_s=60.0, tick_s=5.0), ["e0"])
    assert router.tick_s == 5.0
    router.handle(RequestArrived("a", "a", 1), 0.0)
    router.handle(RequestArrived("b", "b", 1), 10.0)
    assert router.handle(Tick(()), 69.9) == []
    (action,) = router.handle(Tick(()), 70.0)
    assert (action.request_id, action.reason) == ("b", "overdue")


def test_programs_of_a_lost_engine_come_before_new_ones():
    router = Router(CapPolicy(1, 600.0, 5.0), ENGINES)
    for program in "abc":
        router.handle(RequestArrived(program, program, 1), 0.0)
    router.handle(EngineLost("e0"), 1.0)
    assert router.handle(RequestArrived("a", "a1", 1), 2.0) == []
    assert router.handle(RequestFinished("a", "a1", 1), 2.0) == []
    assert router.handle(RequestArrived("a", "a2", 1), 2.5) == []
    assert router.handle(ProgramReleased("b"), 3.0) == [Place("a2", "e1")]
    assert router.handle(EngineAdded("e0"), 4.0) == [Place("c", "e0")]


_programs, _requests = st.sampled_from("abcdef"), st.sampled_from(range(40))
_events = st.one_of(
    st.builds(lambda program, n: RequestArrived(program, f"{program}{n}", 1), _programs, _requests),
    st.builds(lambda program, n: RequestFinished(program, f"{program}{n}", 1), _programs, _requests),
    st.builds(ProgramReleased, _programs),
    st.builds(EngineLost, st.sampled_from(ENGINES)),
    st.builds(EngineDrained, st.sampled_from(ENGINES)),
    st.builds(EngineAdded, st.sampled_from(ENGINES)),
    st.just(Tick(())),
)


@given(st.lists(_events, max_size=80), st.integers(1, 2))
def test_the_cap_holds_and_counts_end_at_zero(events, cap):
    policy = CapPolicy(cap, max_hold_s=1000.0, tick_s=5.0)
    state, again = policy.initial(ENGINES), policy.initial(ENGINES)
    seen = set()
    for now, event in enumerate(events):
        if isinstance(event, RequestArrived):
            if event.request_id in seen:
                continue
            seen.add(event.request_id)
        actions = policy.step(state, event, float(now))
        assert actions == policy.step(again, event, float(now))
        assert all(action.engine in state.programs_on for action in actions)
        assert max(state.programs_on.values(), default=0) <= cap
        assert Counter(state.engine_of.values()) == Counter({k: v for k, v in state.programs_on.items() if v})
        assert not (state.waiting and any(programs < cap for programs in state.programs_on.values()))
    for request in seen:
        policy.step(state, RequestFinished(request[0], request, 1), 100.0)
    for program in "abcdef":
        policy.step(state, ProgramReleased(program), 100.0)
    assert not (state.engine_of or state.waiting or state.lost or any(state.programs_on.values()))
