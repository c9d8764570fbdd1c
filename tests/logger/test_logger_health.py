"""The findings on a training, each from made-up steps; a healthy training has none."""

import pytest

from swe_rl.config.keys import key_types
from swe_rl.logger.health import describe_finding, judge_training

HEALTHY = {
    "updates": 4,
    "nonfinite_updates": 0,
    "signal_rate": 0.6,
    "resolved_rate": 0.4,
    "trained_rows": 32,
    "entropy": 0.5,
    "cut_reply_rate": 0.01,
    "avg_response_length": 400.0,
    "grad_norm": 0.3,
    "ratio_max": 1.9,
    "clip_fraction": 0.02,
}


def training(count=12, **columns):
    """Returns the lines of `count` steps. A column is a figure of all steps, or a function of the step."""
    rows = []
    for step in range(1, count + 1):
        changed = {key: value(step) if callable(value) else value for key, value in columns.items()}
        rows.append({"step": step, **HEALTHY, **changed})
    return rows


def evaluations(*rates):
    return [
        {"event": "eval", "step": 4 * place, "split": "heldout", "resolved_rate": rate}
        for place, rate in enumerate(rates)
    ]


def subjects(steps, evals=()):
    return [finding.about for finding in judge_training(steps, evals)]


def test_a_healthy_training_says_nothing():
    steps = training(resolved_rate=lambda step: 0.3 + 0.02 * step, entropy=lambda step: 0.5 - 0.02 * step)
    assert judge_training(steps, evaluations(0.2, 0.3, 0.4)) == []


CASES = [
    (training(signal_rate=0.12), (), "Groups without signal", "88.0%"),
    (training(2, updates=0, signal_rate=0.0, trained_rows=0), (), "Nothing was learned", "2 of 2 steps"),
    (training(2, grad_norm=0.0), (), "Nothing was learned", "2 of 2 steps"),
    (training(2, updates=0, nonfinite_updates=1), (), "Nothing was learned", "2 of 2 steps"),
    (training(), evaluations(0.875, 0.789), "Held-out rate fell", "87.5% to 78.9%"),
    (
        training(resolved_rate=lambda step: 0.2 + 0.05 * step),
        evaluations(0.3, 0.32),
        "Training gains more than held-out",
        "+45.0 against +2.0 points",
    ),
    (training(entropy=lambda step: 0.5 / step), (), "Entropy collapsed", "0.306 to 0.0457 nats"),
    (training(cut_reply_rate=0.4), (), "Replies cut", "40.0%"),
    (training(avg_response_length=lambda step: 100.0 * step), (), "Length drifted", "200 to 1100 tokens"),
    (training(avg_response_length=lambda step: 1200.0 / step), (), "Length drifted", "733 to 110 tokens"),
    (training(ratio_max=55.0), (), "Ratios have a long tail", "55"),
    (training(clip_fraction=0.3), (), "Many tokens clipped", "30.0%"),
]


@pytest.mark.parametrize(("steps", "evals", "about", "value"), CASES)
def test_each_fault_is_found_alone_with_its_value_and_the_keys_that_change_it(steps, evals, about, value):
    [finding] = judge_training(steps, evals)
    assert finding.about == about and value in finding.value
    assert finding.threshold and finding.reason and finding.keys
    assert set(finding.keys) <= set(key_types())
    line = describe_finding(finding)
    assert line.isascii() and all(part in line for part in (finding.value, finding.threshold, *finding.keys))


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"updates": 0, "signal_rate": 0.0, "trained_rows": 0}, "all groups had equal rewards"),
        ({"updates": 0, "trained_rows": 0, "stale_rows": 3}, "algo.max_staleness_steps"),
        ({"updates": 0, "nonfinite_updates": 2}, "no gradient was finite"),
        ({"grad_norm": 0.0}, "the gradients of all updates were 0"),
    ],
)
def test_where_nothing_was_learned_the_reason_is_said(facts, reason):
    [finding] = judge_training(training(3, **facts))
    assert reason in finding.reason


def test_where_nothing_was_learned_the_keys_are_those_of_the_reason():
    full = {"avg_response_length": 0, "num_trajectories": 8, "statuses": {"context_overflow": 8}}
    [finding] = judge_training(training(3, updates=0, signal_rate=0.0, **full))
    assert finding.keys == ("rollout.max_prompt_tokens", "rollout.max_trajectory_tokens")
    [finding] = judge_training(training(3, updates=0, nonfinite_updates=2))
    assert "trainer.lr" in finding.keys


def test_a_step_that_learned_is_enough_against_nothing_was_learned():
    steps = [*training(2, grad_norm=0.0), {"step": 3, **HEALTHY}]
    assert subjects(steps) == []


def test_short_runs_and_single_steps_are_not_judged():
    assert subjects(training(2, signal_rate=0.0, cut_reply_rate=1.0, ratio_max=99.0)) == []
    assert subjects(training(7, entropy=lambda step: 0.5 / step**2)) == []


def test_entropy_may_fall_while_the_held_out_rate_is_at_its_best():
    steps = training(entropy=lambda step: 0.5 / step)
    assert subjects(steps, evaluations(0.2, 0.4, 0.6)) == []
    assert subjects(steps, evaluations(0.2, 0.6, 0.4)) == ["Entropy collapsed"]


def test_a_critic_and_a_teacher_learn_from_equal_rewards():
    assert subjects(training(signal_rate=0.0, value_loss=0.1)) == []
    assert subjects(training(signal_rate=0.0, teacher_kl=0.1)) == []


def test_what_is_missing_or_not_finite_is_no_finding():
    odd = dict.fromkeys(("signal_rate", "entropy", "cut_reply_rate", "avg_response_length", "ratio_max"), None)
    assert subjects(training(**odd)) == []
    assert subjects(training(entropy=float("nan"), ratio_max=float("inf"), clip_fraction=True)) == []
    assert subjects([{}, {"step": "x"}, {"step": 1, "stage": 1, "updates": 0}]) == []
    assert subjects([{"step": step, "signal_rate": 0.0} for step in range(1, 9)]) == []
    assert subjects([], evaluations(0.5)) == []


def test_a_step_that_was_done_again_counts_with_its_last_line():
    steps = [*training(3, updates=0), *training(3)]
    assert subjects(steps) == []


def test_evaluations_of_another_split_do_not_count():
    others = [{"event": "eval", "step": 9, "split": "train", "resolved_rate": 0.0}]
    assert subjects(training(), [*evaluations(0.5, 0.5), *others]) == []
