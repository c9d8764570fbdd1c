from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.config.schema import RouterConfig
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.errors import UserError
from swe_rl.router.core import Place, ProgramReleased, RequestArrived, RequestFinished, Router, Tick
from swe_rl.router.default import DefaultPolicy
from swe_rl.router.make import RouterError, make_router

ENGINES = ["e0", "e1", "e2"]


def arrive(router, program, request="r"):
    (action,) = router.handle(RequestArrived(program, request, 10), 0.0)
    assert isinstance(action, Place) and action.request_id == request
    return action.engine


def test_least_programs_then_engine_order_then_sticky():
    router = Router(DefaultPolicy(), ENGINES)
    assert [arrive(router, program) for program in "abcd"] == ["e0", "e1", "e2", "e0"]
    assert [arrive(router, program) for program in "dcba"] == ["e0", "e2", "e1", "e0"]


def test_a_released_program_makes_room():
    router = Router(DefaultPolicy(), ENGINES)
    for program in "abc":
        arrive(router, program)
    router.handle(ProgramReleased("b"), 1.0)
    assert arrive(router, "d") == "e1"
    assert arrive(router, "b") == "e0"


_events = st.one_of(
    st.builds(RequestArrived, st.sampled_from("abcdef"), st.uuids().map(str), st.integers(0, 99)),
    st.builds(RequestFinished, st.sampled_from("abcdef"), st.just("r"), st.integers(0, 99)),
    st.builds(ProgramReleased, st.sampled_from("abcdef")),
    st.just(Tick(())),
)


@given(st.lists(_events, max_size=60))
def test_counts_are_those_of_the_programs(events):
    policy = DefaultPolicy()
    state, again = policy.initial(ENGINES), policy.initial(ENGINES)
    for now, event in enumerate(events):
        known = dict(state.engine_of)
        actions = policy.step(state, event, float(now))
        assert actions == policy.step(again, event, float(now))
        assert Counter(state.engine_of.values()) == Counter({k: v for k, v in state.programs_per_engine.items() if v})
        assert min(state.programs_per_engine.values()) >= 0
        if isinstance(event, RequestArrived):
            assert actions == [Place(event.request_id, state.engine_of[event.program_id])]
            assert known.get(event.program_id, actions[0].engine) == actions[0].engine
        else:
            assert actions == []


@given(st.lists(st.sampled_from("abcdefgh"), max_size=30))
def test_arrivals_alone_keep_engines_even(programs):
    router_state = DefaultPolicy().initial(ENGINES)
    for program in programs:
        DefaultPolicy().step(router_state, RequestArrived(program, "r", 1), 0.0)
    counts = router_state.programs_per_engine.values()
    assert max(counts) - min(counts) <= 1


def test_make_router():
    engines = [ScriptedEngine(lambda prompt: [1], name=name) for name in ENGINES]
    router = make_router(RouterConfig(), engines)
    assert (router.name, router.engines, router.tick_s) == ("default", tuple(ENGINES), None)
    with pytest.raises(
        UserError, match="router=best is not known; choose one of default, sticky_least_loaded, cap, tr"
    ):
        make_router(RouterConfig(name="best"), engines)
    for wrong in ([], [engines[0], engines[0]]):
        with pytest.raises(RouterError, match="layout.engines"):
            make_router(RouterConfig(), wrong)
