from hypothesis import given
from hypothesis import strategies as st

from swe_rl.router.core import (
    EngineAdded,
    EngineDrained,
    EngineLost,
    ProgramReleased,
    RequestArrived,
    RequestFinished,
    Router,
)
from swe_rl.router.sticky import InFlightLoad, StickyLeastLoadedPolicy

ENGINES = ["e0", "e1", "e2"]


def arrive(router, program, request=None, tokens=10):
    (action,) = router.handle(RequestArrived(program, request or program, tokens), 0.0)
    return action.engine


def test_a_program_begins_where_fewest_requests_and_tokens_are_in_flight():
    router = Router(StickyLeastLoadedPolicy(), ENGINES)
    assert [arrive(router, "a", tokens=50), arrive(router, "b", tokens=20), arrive(router, "c")] == ENGINES
    assert arrive(router, "d") == "e2"  # as many requests everywhere, fewest tokens
    router.handle(RequestFinished("b", "b", 30), 1.0)
    assert arrive(router, "e") == "e1"  # b still lives there, but its tool runs
    assert arrive(router, "b", "b1") == "e1"


def test_a_program_moves_only_when_its_engine_is_gone():
    router = Router(StickyLeastLoadedPolicy(), ENGINES)
    for program in "abc":
        arrive(router, program)
    router.handle(EngineDrained("e1"), 1.0)
    router.handle(EngineLost("e0"), 1.0)
    assert (arrive(router, "b", "b1"), arrive(router, "a", "a1")) == ("e2", "e2")
    router.handle(EngineAdded("e0"), 2.0)
    assert arrive(router, "a", "a2") == "e2"
    assert arrive(router, "d") == "e0"


_events = st.one_of(
    st.builds(RequestArrived, st.sampled_from("abcdef"), st.sampled_from("uvwxyz"), st.integers(0, 99)),
    st.builds(RequestFinished, st.sampled_from("abcdef"), st.sampled_from("uvwxyz"), st.integers(0, 99)),
    st.builds(ProgramReleased, st.sampled_from("abcdef")),
    st.builds(EngineLost, st.sampled_from(ENGINES)),
    st.builds(EngineDrained, st.sampled_from(ENGINES)),
    st.builds(EngineAdded, st.sampled_from(ENGINES)),
)


@given(st.lists(_events, max_size=80))
def test_loads_end_at_zero_and_nothing_is_held_while_an_engine_is_open(events):
    policy = StickyLeastLoadedPolicy()
    state, again = policy.initial(ENGINES), policy.initial(ENGINES)
    for now, event in enumerate(events):
        open_before = list(state.open)
        actions = policy.step(state, event, float(now))
        assert actions == policy.step(again, event, float(now))
        assert all(action.engine in open_before or isinstance(event, EngineAdded) for action in actions)
        assert not (state.open and state.held)
        assert all(load.requests >= 0 and load.tokens >= 0 for load in state.engines.values())
    for request in "uvwxyz":
        policy.step(state, RequestFinished("?", request, 0), 100.0)
    for program in "abcdef":
        policy.step(state, ProgramReleased(program), 100.0)
    assert all(load == InFlightLoad() for load in state.engines.values())
    assert not (state.engine_of or state.placed or state.held)
