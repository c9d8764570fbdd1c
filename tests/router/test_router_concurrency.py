"""rollout.concurrency=auto: the number of trajectories under way is felt for, found, and kept."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_rl.config.schema import ModelConfig, RouterConfig
from swe_rl.facts.concurrency import Bounds
from swe_rl.plan.engine_speed import engine_speed
from swe_rl.router.concurrency import LEAST_RETURNS, RETREAT, ConcurrencyController, Look
from swe_rl.router.make import make_router
from swe_rl.router.simulation.engine_model import EngineLimits
from swe_rl.router.simulation.simulate import Simulation
from swe_rl.router.simulation.workload import SimulatedProgram, SimulatedTurn, Workload

QWEN3_14B = ModelConfig(
    num_layers=40, hidden_size=5120, num_heads=40, num_kv_heads=8, head_dim=128, params_b=14.8, active_params_b=14.8
)
H200 = engine_speed(QWEN3_14B, 989, 4800)
TURNS = 8


class Line:
    """Engines that carry `carries` trajectories: with more, the share of lost tokens grows by what is too much. Every
    look a share of those under way comes back, and some end; the places that the limit leaves are taken at once."""

    def __init__(self, carries, places):
        self.carries = carries
        self.under_way = places
        self.ended = self.returns = self.reusable = self.reused = 0

    def look(self, limit):
        ended = max(1, self.under_way // 10)
        self.ended += ended
        self.under_way = max(min(self.under_way, limit), self.under_way - ended)
        self.under_way = max(self.under_way, limit) if self.under_way <= limit else self.under_way
        returns = max(1, self.under_way // 4)
        self.returns += returns
        self.reusable += returns * 1000
        lost = min(0.9, max(0.0, 2 * (self.under_way / self.carries - 1)))
        self.reused += int(returns * 1000 * (1 - lost))
        return Look(self.under_way, self.ended, self.under_way, 0, 0, self.returns, self.reusable, self.reused)


def drive(line, controller, looks):
    limits = []
    for _ in range(looks):
        limits.append(controller.observe(line.look(controller.limit)))
    return limits


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(carries=st.integers(8, 400), start=st.integers(1, 500))
def test_it_finds_what_the_engines_carry_and_does_not_swing(carries, start):
    bounds = Bounds(1, 500, start)
    controller = ConcurrencyController(bounds)
    line = Line(carries, controller.limit)
    drive(line, controller, 1500)
    limits = drive(line, controller, 1500)
    assert all(bounds.least <= limit <= bounds.most for limit in limits)
    assert min(limits) >= 0.7 * min(carries, 500) - 2
    assert max(limits) <= 1.3 * carries + 2
    retreats = sum(after < before for before, after in zip(limits, limits[1:], strict=False))
    # All trajectories are replaced 150 times in so many looks, and the limit falls in one of 25 of these.
    assert retreats <= 6
    assert all(after >= (1 - RETREAT) * before - 1 for before, after in zip(limits, limits[1:], strict=False))


@settings(max_examples=30, deadline=None)
@given(before=st.integers(20, 100), after=st.integers(20, 400))
def test_it_follows_a_load_that_changes(before, after):
    controller = ConcurrencyController(Bounds(1, 500, 50))
    line = Line(before, controller.limit)
    drive(line, controller, 1000)
    line.carries = after
    limits = drive(line, controller, 4000)[-500:]
    assert 0.6 * after - 2 <= sum(limits) / len(limits) <= 1.3 * after + 2


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(*(st.integers(0, 200) for _ in range(5)), st.booleans()),
        min_size=1,
        max_size=60,
    )
)
def test_whatever_it_sees_it_stays_within_its_bounds_and_goes_on_after_a_resume(seen):
    bounds = Bounds(3, 90, 20)
    controller = ConcurrencyController(bounds)
    ended = returns = reusable = reused = 0
    for under_way, more_ended, running, waiting, tokens, renewed in seen:
        ended += more_ended
        returns += running
        reusable += tokens
        reused += tokens // 2
        if renewed:
            controller.renew()
        limit = controller.observe(Look(under_way, ended, running, waiting, 0, returns, reusable, reused))
        assert bounds.least <= limit <= bounds.most
    resumed = ConcurrencyController(bounds)
    resumed.restore(controller.state())
    assert resumed.limit == controller.limit and resumed.state() == controller.state()


def test_places_that_nobody_takes_say_nothing():
    controller = ConcurrencyController(Bounds(1, 100, 10))
    for ended in range(50):
        assert controller.observe(Look(4, ended, 4, 0)) == 10


def test_a_queue_stops_growth_and_a_long_one_ends_in_a_retreat():
    controller = ConcurrencyController(Bounds(1, 100, 10))
    limits = [controller.observe(Look(10, ended, 6, 4)) for ended in range(60)]
    assert limits[-1] == limits[30] <= 25
    for ended in range(60, 120):
        limit = controller.observe(Look(limits[-1], ended, 2, 18))
    assert limit < limits[-1] and "wait" in controller.reason


def test_new_weights_are_no_pressure():
    controller = ConcurrencyController(Bounds(1, 100, 10))
    controller.observe(Look(10, 0, 10, 0))
    controller.observe(Look(10, 0, 10, 0, 0, LEAST_RETURNS - 1, 1000, 0))
    controller.renew()
    assert controller.observe(Look(10, 0, 10, 0, 0, LEAST_RETURNS, 1100, 100)) == 10
    assert controller.observe(Look(10, 0, 10, 0, 0, 3 * LEAST_RETURNS, 5000, 100)) == 8


@cache
def simulated(bounds, at_once, tokens_a_turn):
    programs = []
    for number in range(200):
        turns = [SimulatedTurn(tokens_a_turn, 150, 1.0 + (number * 7 + turn) % 4) for turn in range(TURNS)]
        programs.append(SimulatedProgram(f"p{number}", f"g{number}", tuple(turns), 0.05 * (number % 40), 0.0, 500))
    router = make_router(RouterConfig(), [type("Named", (), {"name": "e0"})()], capacity_tokens=100_000)
    limits = EngineLimits(100_000, max_num_seqs=256)
    simulation = Simulation(router, Workload((tuple(programs),), at_once), H200, limits, bounds=bounds)
    return simulation.run().sampled_tokens_per_s, simulation.changes


@pytest.mark.slow
@pytest.mark.parametrize("start", [8, 30, 100])
@pytest.mark.parametrize("tokens_a_turn", [1200, 3000])
def test_in_simulation_it_is_near_the_best_fixed_number_from_any_start(start, tokens_a_turn):
    fixed = {at_once: simulated(None, at_once, tokens_a_turn)[0] for at_once in (4, 8, 12, 16, 24, 32, 48, 64, 100)}
    felt, changes = simulated(Bounds(1, 100, start), 100, tokens_a_turn)
    assert felt >= 0.8 * max(fixed.values()), (felt, fixed, changes)
    numbers = [number for _, number in changes]
    swings = sum(after < before for before, after in zip(numbers, numbers[1:], strict=False))
    assert swings <= 12
