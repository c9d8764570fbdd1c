"""What an evaluation costs at an endpoint, against attempts that are drawn one by one and paid for call by call."""

from dataclasses import replace

import pytest

from swe_rl.config.compose import compose
from swe_rl.plan.endpoint import attempt_figures
from swe_rl.router.simulation.workload import draw_workload, parameters_of

ENDPOINT = ("job=eval", "engine=endpoint", "engine.url=https://host/v1", "engine.model=m", "rollout=swe")
PRICES = ("engine.price_in=3", "engine.price_out=15")


@pytest.mark.parametrize("limits", [(), ("rollout.max_turns=6",), ("rollout.max_turn_tokens=512",)])
def test_the_estimate_is_the_mean_of_many_attempts(limits):
    config = compose([*ENDPOINT, *PRICES, *limits]).config
    many = replace(config.rollout, prompts_per_step=2000, n=1)
    [attempts] = draw_workload(parameters_of(config.rollout.workload), many, seed=0).steps
    read = sum(sum(attempt.contexts()) - attempt.sampled_tokens for attempt in attempts) / len(attempts)
    sampled = sum(attempt.sampled_tokens for attempt in attempts) / len(attempts)
    figures = attempt_figures(config)
    assert figures["read_tokens_per_attempt"] == pytest.approx(read, rel=0.15)
    assert figures["sampled_tokens_per_attempt"] == pytest.approx(sampled, rel=0.15)
    assert figures["cost_per_1000_attempts"] == pytest.approx(1000 * (3 * read + 15 * sampled) / 1e6, rel=0.15)


@pytest.mark.parametrize(("budget", "budget_tokens"), [(0, 10**7), (50, 0), (50, 10**6), (5, 10**9)])
def test_the_smaller_budget_counts(budget, budget_tokens):
    config = compose([*ENDPOINT, *PRICES, f"engine.budget={budget}", f"engine.budget_tokens={budget_tokens}"]).config
    figures = attempt_figures(config)
    tokens = figures["read_tokens_per_attempt"] + figures["sampled_tokens_per_attempt"]
    by_money = 1000 * budget / figures["cost_per_1000_attempts"] if budget else float("inf")
    by_tokens = budget_tokens / tokens if budget_tokens else float("inf")
    assert figures["attempts_within_budget"] == pytest.approx(min(by_money, by_tokens), rel=0.01, abs=1)
