"""Rollouts and trainer together in virtual time, on engines whose weights change under what they sample."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.config.compose import compose
from swe_rl.facts.concurrency import Bounds
from swe_rl.router.simulation.balance import Balance, can_balance, divide_gpus, name_division
from swe_rl.router.simulation.engine_model import EngineLimits, SimulationTooSmall
from swe_rl.router.simulation.fleet import Fleet
from swe_rl.router.simulation.pace import FlowPace, TrainerSpeed
from swe_rl.router.simulation.training import SimulatedSchedule, TrainingOutcome, Way, mean_of, simulate_training
from swe_rl.router.simulation.workload import AGENT_LOAD, SimulatedProgram, draw_workload
from tests.router.test_router_simulation import AGENTS, H200, QUICK, ROUTERS, _turns, router_of

WAYS = (Way(False, 0), Way(False, 1), Way(True, 1))
H200X4 = ["model=qwen3_14b", "layout=dp4", "layout.engines=2", "layout.trainer_gpus=2", "layout.sequence_parallel=1"]
STREAM = [*H200X4, "hardware=h200x8", "rollout=swe", "rollout.mode=stream"]


@given(st.sampled_from(ROUTERS), st.lists(st.lists(_turns, min_size=2, max_size=2), min_size=4, max_size=8), st.data())
def test_every_token_is_trained_once_and_counts_for_weights_that_were_there(name, turns, data):
    groups = [
        tuple(SimulatedProgram(f"{number}.{at}", f"{number}", tuple(of), 0.5, 0.7, 1) for at, of in enumerate(group))
        for number, group in enumerate(turns)
    ]
    ahead, prompts = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))
    steps = len(groups) // prompts
    fleet = Fleet(router_of(name, 2, max_programs_per_engine=2 * (name == "cap")), QUICK, EngineLimits(16 * 60, 4, 64))
    trainer = TrainerSpeed(data.draw(st.sampled_from([0.0, 0.01])), 0.3, 0.1)
    bounds = data.draw(st.sampled_from([None, Bounds(1, 6, 2)]))
    pace = FlowPace(fleet, groups, trainer, places=3, prompts=prompts, ahead=ahead, steps=steps, bounds=bounds)
    fleet.run(lambda: len(pace.trained) == steps)
    trained = [number for step in pace.trained for number in step.numbers]
    assert sorted(trained) == list(range(steps * prompts))
    for version, step in enumerate(pace.trained):
        programs = [program for number in step.numbers for program in groups[number]]
        assert sum(step.ages.values()) == sum(program.sampled_tokens for program in programs)
        assert step.tokens == sum(program.total_tokens for program in programs)
        assert all(0 <= age <= version for age in step.ages)
    for engine in fleet.engines.values():
        assert engine.cache.used == 0 and engine.cache.free + engine.cache.idle == 60


def groups_of(seed, count, n):
    rollout = replace(AGENTS, prompts_per_step=count, n=n)
    programs = draw_workload(AGENT_LOAD, rollout, seed).steps[0]
    return [programs[at : at + n] for at in range(0, count * n, n)]


def trained(way, token_s, *, places=16, capacity=1_000_000):
    schedule = SimulatedSchedule(prompts=4, places=places, warm=3, counted=4)
    groups = groups_of(0, schedule.groups(way), 4)
    limits = EngineLimits(capacity, 256)
    return simulate_training(router_of("default"), groups, H200, limits, TrainerSpeed(token_s, 1.0), schedule, way)


def test_where_the_trainer_is_slow_nothing_is_gained_by_flowing():
    step, ahead, stream = (trained(way, 1e-3) for way in WAYS)
    assert step.tokens_per_h < 0.9 * ahead.tokens_per_h
    assert stream.tokens_per_h == pytest.approx(ahead.tokens_per_h, rel=0.05)
    assert stream.slower_side == "trainer" and stream.trainer_idle_share < 0.05 < stream.engine_idle_share


def test_where_engines_are_waited_for_they_work_on():
    step, ahead, stream = (trained(way, 1e-4, places=8) for way in WAYS)
    assert step.tokens_per_h < ahead.tokens_per_h < stream.tokens_per_h
    assert stream.engine_idle_share < ahead.engine_idle_share
    assert stream.slower_side == "engines"


def test_staleness_is_zero_in_step_and_grows_with_what_is_ahead():
    assert trained(WAYS[0], 1e-4).staleness == {0: 1.0}
    assert trained(WAYS[1], 1e-4).staleness == {1: 1.0}
    one, two = (trained(Way(True, ahead), 1e-3, places=40) for ahead in (1, 2))
    assert 0 < one.staleness_mean < two.staleness_mean and sum(two.staleness.values()) == pytest.approx(1.0)


def test_what_does_not_fit_and_too_few_groups_are_said():
    with pytest.raises(SimulationTooSmall, match="does not fit into an engine"):
        trained(WAYS[2], 1e-3, capacity=2000)
    schedule = SimulatedSchedule(4, 16, 3, 4)
    with pytest.raises(ValueError, match="36 groups are needed, not 3"):
        simulate_training(
            router_of("default"),
            groups_of(0, 3, 4),
            H200,
            EngineLimits(10**6, 9),
            TrainerSpeed(0, 0),
            schedule,
            WAYS[2],
        )


def test_the_mean_over_loads():
    outcomes = [
        TrainingOutcome("stream", 100.0, 10.0, 0.1, 0.2, 0.5, {0: 0.5, 1: 0.5}),
        TrainingOutcome("stream", 200.0, 20.0, 0.3, 0.0, 1.5, {1: 0.5, 2: 0.5}),
    ]
    mean = mean_of(outcomes)
    assert (mean.tokens_per_h, mean.step_s, mean.staleness_mean) == (150.0, 15.0, 1.0)
    assert mean.staleness == {0: 0.25, 1: 0.5, 2: 0.25}
    slow = replace(outcomes[0], tokens_per_h=1.0)
    config = compose(STREAM).config
    other = replace(config.layout, engines=3, trainer_gpus=1)
    made = Balance([slow, slow, outcomes[0]], [(config.layout, slow), (other, outcomes[1])])
    assert made.best == other and made.to_record()["best"] == "3 engines + 1 trainer GPU"
    assert made.to_record()["ways"]["stream"]["to_step"] == 100.0
    assert made.to_record()["slower_side"] == "engines"


def test_only_what_holds_the_trainer_is_a_division():
    """In memory, and with equally many trajectories for each rank; nobody moves servers of somebody else's."""
    config = compose([*STREAM, "rollout.prompts_per_step=6", "trainer.prompts_per_mini_batch=6"]).config
    names = [name_division(layout) for layout in divide_gpus(config)]
    assert names == ["1 engine + 3 trainer GPUs", "2 engines + 2 trainer GPUs"]  # 237 GB of states on one rank: no
    small = compose(["model=qwen3_4b", *STREAM[1:]]).config
    assert [layout.engines for layout in divide_gpus(small)] == [2, 3]  # 64 trajectories are not divided by three
    pairs = replace(small, layout=replace(small.layout, sequence_parallel=2))
    assert [layout.engines for layout in divide_gpus(pairs)] == [2]
    two_replicas = replace(small, layout=replace(small.layout, shard_ranks=2))
    assert [layout.engines for layout in divide_gpus(two_replicas)] == [2]
    theirs = replace(small, engine=replace(small.engine, kind="external"))
    assert divide_gpus(theirs) == [small.layout]


def test_only_groups_that_flow_beside_a_trainer_are_balanced():
    assert can_balance(compose(STREAM).config)
    for other in (["rollout.mode=stream"], H200X4, ["layout=colocated4", "hardware=h200x8", "rollout.mode=stream"]):
        assert not can_balance(compose(other).config)


def test_with_places_that_are_felt_for_groups_begin_in_order_and_no_token_gets_older():
    """rollout.concurrency=auto beside groups that flow, with a cache that is too small for all of them."""
    oldest = {}
    for bounds in (None, Bounds(1, 40, 6)):
        fleet = Fleet(router_of("default"), H200, EngineLimits(60_000, 256))
        groups = groups_of(0, 40, 4)
        pace = FlowPace(fleet, groups, TrainerSpeed(1e-4, 1.0), places=40, prompts=4, ahead=1, steps=10, bounds=bounds)
        fleet.run(lambda made=pace: len(made.trained) == 10)
        assert [number for _, number in pace.begun] == list(range(40))
        oldest[bounds] = max(age for step in pace.trained for age in step.ages)
    assert oldest[Bounds(1, 40, 6)] <= oldest[None]
