"""What an event costs the program-aware router: it must not grow with the number of programs."""

import time

import pytest

from swe_rl.router.tr import TrPolicy
from swe_rl.router.tr_settings import TrSettings

FEW, MANY = 1000, 4000


def microseconds_per_event(tr_world, programs, engines):
    """Mean over a stretch in which most programs are alive and many are held; and how many those are."""
    capacity = programs * 400 // engines
    policy = TrPolicy(TrSettings())
    loop = tr_world.Loop(policy, engines, programs, capacity, spacing_s=5 / programs).run(until_s=8.0)
    spent_s, events, step = 0.0, 0, policy.step

    def timed(state, event, now):
        nonlocal spent_s, events
        began = time.thread_time()  # the processor's: what else runs on the machine is no cost of the policy
        actions = step(state, event, now)
        spent_s += time.thread_time() - began
        events += 1
        return actions

    policy.step = timed
    loop.run(max_events=4000)
    return 1e6 * spent_s / events, len(loop.state.programs), len(loop.state.held)


@pytest.mark.parametrize("engines", [4, pytest.param(64, marks=[pytest.mark.slow, pytest.mark.long])])
def test_an_event_costs_microseconds_whatever_the_number_of_programs(tr_world, engines, capsys):
    cost = {}
    for programs in (FEW, MANY):
        cost[programs], live, held = microseconds_per_event(tr_world, programs, engines)
        with capsys.disabled():
            print(f"\n  tr: {programs} programs ({live} live, {held} held), {engines} engines: {cost[programs]:.0f} us")
    assert cost[MANY] < 2 * cost[FEW] + 20  # four times as many
    assert cost[MANY] < 500  # on a busy machine
