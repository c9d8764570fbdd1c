from dataclasses import replace
from random import Random
from statistics import fmean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.config.schema import RolloutConfig
from swe_rl.router.simulation.workload import (
    MINI_SWE,
    WORKLOADS,
    Lognormal,
    RecordedTurn,
    SimulatedProgram,
    SimulatedTurn,
    Workload,
    draw_workload,
    mean_context_tokens,
    oversubscription,
    program_of,
    shared_tokens,
)

SWE = RolloutConfig(
    prompts_per_step=99,
    n=4,
    max_turns=20,
    max_prompt_tokens=4096,
    max_trajectory_tokens=32768,
    max_turn_tokens=4096,
    concurrency=396,
    command_timeout_s=180.0,
    grade_timeout_s=3600.0,
)


def quantile(values, share):
    return sorted(values)[int(share * len(values))]


def test_the_published_distributions():
    parameters, rng = MINI_SWE, Random(0)
    turns = [parameters.turns.draw(rng) for _ in range(20000)]
    assert (median(turns), fmean(turns)) == (pytest.approx(9, rel=0.05), pytest.approx(19, rel=0.05))
    assert quantile(turns, 0.9) == pytest.approx(49, rel=0.15)
    out = [parameters.out_tokens.draw(rng) for _ in range(20000)]
    assert (median(out), fmean(out)) == (pytest.approx(628, rel=0.05), pytest.approx(1380, rel=0.05))
    tools = [parameters.tool_s.draw(rng) for _ in range(20000)]
    assert (median(tools), quantile(tools, 0.99)) == (pytest.approx(0.11, rel=0.05), pytest.approx(2.6, rel=0.1))


def test_the_run_on_four_engines():
    load = draw_workload(MINI_SWE, SWE, seed=0)
    assert len(load.steps[0]) == 396
    assert mean_context_tokens(load.steps[0]) == pytest.approx(15_000, rel=0.15)
    assert oversubscription(load, 4, 200_000) == pytest.approx(7, rel=0.15)


def test_the_measured_agent_load():
    rollout = replace(SWE, prompts_per_step=160, n=1, concurrency=160)
    programs = draw_workload(WORKLOADS["agent_load"], rollout, seed=0).steps[0]
    assert {len(program.turns) for program in programs} <= set(range(8, 17))
    assert fmean(program.total_tokens for program in programs) == pytest.approx(11_000, rel=0.1)
    assert max(turn.tool_s for program in programs for turn in program.turns) <= 30.0


def test_seeds_and_sizes():
    small, large = replace(SWE, prompts_per_step=2), replace(SWE, prompts_per_step=3)
    one = draw_workload(MINI_SWE, small, seed=1)
    assert one == draw_workload(MINI_SWE, small, seed=1)
    assert one != draw_workload(MINI_SWE, small, seed=2)
    assert draw_workload(MINI_SWE, large, seed=1).steps[0][:8] == one.steps[0]
    two_steps = draw_workload(MINI_SWE, small, seed=1, steps=2)
    assert two_steps.steps[0] == one.steps[0] != two_steps.steps[1]


def test_a_group_shares_its_prompt_and_nothing_else():
    programs = draw_workload(MINI_SWE, replace(SWE, prompts_per_step=2, n=3), seed=0).steps[0]
    first, other = programs[:3], programs[3:]
    assert {program.group for program in first} == {"0.0"} and {program.group for program in other} == {"0.1"}
    assert len({program.prompt_tokens for program in first}) == 1
    assert len({program.turns for program in first}) == 3
    assert {program.system_tokens for program in programs} == {1500}
    assert len({program.program_id for program in programs}) == 6


@given(
    st.sampled_from(sorted(WORKLOADS)),
    st.integers(1, 6),
    st.integers(1, 3000),
    st.integers(2, 6000),
    st.integers(1, 500),
    st.integers(0, 9),
)
def test_limits_hold(name, max_turns, max_prompt, max_trajectory, max_turn, seed):
    rollout = replace(
        SWE,
        prompts_per_step=3,
        n=2,
        max_turns=max_turns,
        max_prompt_tokens=max_prompt,
        max_trajectory_tokens=max_trajectory,
        max_turn_tokens=max_turn,
        command_timeout_s=1.0,
        grade_timeout_s=2.0,
    )
    for program in draw_workload(WORKLOADS[name], rollout, seed).steps[0]:
        assert 1 <= len(program.turns) <= max_turns
        assert 1 <= program.prompt_tokens <= max_prompt
        assert program.system_tokens <= program.prompt_tokens
        assert program.total_tokens <= max_trajectory
        assert program.grade_s <= 2.0 and program.boot_s >= 0
        assert list(program.contexts())[-1] == program.total_tokens
        for turn in program.turns:
            assert turn.new_in_tokens >= 1 and 1 <= turn.out_tokens <= max_turn and 0 <= turn.tool_s <= 1.0


def test_lognormal_is_cut_off():
    rng = Random(0)
    assert max(Lognormal(10.0, 2.0, high=15.0).draw(rng) for _ in range(100)) == 15.0


def test_oversubscription_counts_what_is_under_way():
    program = SimulatedProgram(
        "p", "g", (SimulatedTurn(90, 10, 0.0), SimulatedTurn(90, 10, 0.0))
    )  # holds 100, then 200
    load = Workload(((program,) * 8,), concurrency=4)
    assert mean_context_tokens(load.steps[0]) == 150
    assert oversubscription(load, engines=2, capacity_tokens=600) == pytest.approx(2 * 150 / 600)


def test_a_recorded_program():
    turns = [RecordedTurn(100, 20, 0.0, 5.0), RecordedTurn(150, 10, 7.5, 8.0), RecordedTurn(120, 5, 7.9, 9.0)]
    program = program_of("p", "g", turns, boot_s=1.0, grade_s=2.0)
    # the third prompt is shorter than what was held (a cut chain), and was asked before the second's answer
    assert program == SimulatedProgram(
        "p", "g", (SimulatedTurn(100, 20, 2.5), SimulatedTurn(30, 10, 0.0), SimulatedTurn(1, 5, 0.0)), 1.0, 2.0
    )
    assert program_of("p", "g", []) is None


def test_shared_tokens():
    assert shared_tokens([(1, 2, 3), (1, 2, 4, 5), (1, 2)]) == 2
    assert shared_tokens([(1, 2, 3)]) == 3
    assert shared_tokens([(1,), (2,)]) == shared_tokens([]) == 0
