"""The closed form against drawn numbers; against the simulator it is held in tests/job/test_plan.py."""

from dataclasses import replace
from math import exp, inf, isfinite
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.config.compose import compose
from swe_rl.config.schema import Config, HardwareConfig, LayoutConfig, ModelConfig, WorkloadConfig
from swe_rl.plan.duration import bound_s, capped_mean, lognormal_mean, mean_turns, wrong_pairs


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize(("pair", "most"), [((9.0, 1.22), 50), ((628.0, 1.25), 4096), ((0.11, 1.36), 0.3), ((5, 0), 3)])
def test_means_of_what_a_limit_cuts(pair, most, power):
    random = Random(0)
    drawn = [min(most, pair[0] * exp(pair[1] * random.gauss(0, 1))) ** power for _ in range(20_000)]
    assert capped_mean(pair, most, power) == pytest.approx(sum(drawn) / len(drawn), rel=0.03)


def test_without_a_limit_it_is_the_mean():
    assert (
        capped_mean((9.0, 1.22), 1e9)
        == pytest.approx(lognormal_mean((9.0, 1.22)))
        == pytest.approx(9 * exp(1.22**2 / 2))
    )
    assert capped_mean((0.0, 1.0), 5) == capped_mean((1.0, 1.0), 0) == 0.0


def test_what_grows_with_the_step():
    config = compose(["model=qwen3_14b", "layout=dp4", "hardware=h200x8", "rollout=swe"]).config
    more = replace(config, rollout=replace(config.rollout, prompts_per_step=4 * config.rollout.prompts_per_step))
    faster = replace(config, hardware=replace(config.hardware, gpu_bandwidth_gb_per_s=9600.0))
    assert bound_s(more) > 3 * bound_s(config) > 3 * bound_s(faster) > 0
    unknown = replace(config, hardware=replace(config.hardware, gpu_bandwidth_gb_per_s=0.0))
    assert bound_s(unknown) == 0.0
    assert 9 < mean_turns(config) < 19  # the mean without limits


def test_pairs_are_looked_at():
    assert list(wrong_pairs(WorkloadConfig())) == []
    wrong = replace(WorkloadConfig(), turns=(9.0,), tool_s=(0.0, -1.0), grade_s=(0.0, 0.0), sampled_tokens=(0.0, 1.0))
    assert list(wrong_pairs(wrong)) == ["turns", "sampled_tokens", "tool_s"]
    assert bound_s(replace(Config(), rollout=replace(Config().rollout, workload=wrong))) == 0.0


GPUS = Config(
    model=ModelConfig(params_b=14.8, active_params_b=14.8),
    layout=LayoutConfig(engines=4, trainer_gpus=4, colocated=False),
    hardware=HardwareConfig(gpu_bf16_tflops=989.0, gpu_bandwidth_gb_per_s=4800.0, gpu_memory_gb=141.0),
)
NUMBERS = st.sampled_from([-1, 0, 1, 7, 10**9])


@given(st.fixed_dictionaries(dict.fromkeys(("n", "max_turns", "max_turn_tokens", "max_trajectory_tokens"), NUMBERS)))
def test_no_limit_is_too_odd(limits):
    """Rules collect all findings: none may die of what another one refuses."""
    base = GPUS
    for engines in (0, 4):
        layout = replace(base.layout, engines=engines)
        found = bound_s(replace(base, layout=layout, rollout=replace(base.rollout, **limits)))
        assert isfinite(found) and 0 <= found < inf
