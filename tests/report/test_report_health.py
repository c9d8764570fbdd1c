"""The findings on a training, each from made-up steps; a healthy training has none."""

import json
import random
from dataclasses import replace

import pytest

from swe_rl.config.choices import AdvantageKind, DynamicSampling, PolicyLoss
from swe_rl.config.keys import key_types
from swe_rl.logger.folder import RunFolder, RunState, StatusWriter
from swe_rl.logger.jsonl import EventLog, read_events
from swe_rl.report.health.facts import TrainingFacts, facts_of
from swe_rl.report.health.findings import describe_finding, judge_training
from swe_rl.report.health.run import judge_run, record_findings
from swe_rl.report.resolved import gain_of_run

FACTS = TrainingFacts()
TEACHER = TrainingFacts(advantage=AdvantageKind.teacher)

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


def evaluations(*rates, instances=50, attempts=4, seed=None):
    """Returns evaluations of equal instances. With a seed the attempts are drawn, else each instance has its rate."""
    drawn = random.Random(seed)
    events = []
    for place, rate in enumerate(rates):
        counts = [round(rate * attempts)] * instances
        if seed is not None:
            counts = [sum(drawn.random() < rate for _ in range(attempts)) for _ in range(instances)]
        by_instance = {f"i{number}": [count, attempts] for number, count in enumerate(counts)}
        rate = sum(counts) / (attempts * instances)
        event = {"event": "eval", "step": 4 * place, "split": "heldout", "resolved_rate": rate}
        events.append({**event, "by_instance": by_instance})
    return events


def judge(steps, evals=(), facts=FACTS, *, is_over=True):
    return judge_training(steps, gain_of_run(evals), facts, is_over=is_over)


def subjects(steps, evals=(), facts=FACTS, *, is_over=True):
    return [finding.about for finding in judge(steps, evals, facts, is_over=is_over)]


def test_a_healthy_training_says_nothing():
    steps = training(resolved_rate=lambda step: 0.3 + 0.02 * step, entropy=lambda step: 0.5 - 0.02 * step)
    assert judge(steps, evaluations(0.25, 0.25, 0.5)) == []


CASES = [
    (training(signal_rate=0.12), (), "Groups without signal", "88.0%"),
    (training(2, updates=0, signal_rate=0.0, trained_rows=0), (), "Nothing was learned", "2 of 2 steps"),
    (training(2, grad_norm=0.0), (), "Nothing was learned", "2 of 2 steps"),
    (training(2, updates=0, nonfinite_updates=1), (), "Nothing was learned", "2 of 2 steps"),
    (training(), evaluations(0.75, 0.5), "Held-out rate fell", "75.0% to 50.0% of 50 instances"),
    (
        training(resolved_rate=lambda step: 0.2 + 0.05 * step),
        evaluations(0.25, 0.25),
        "Training gains more than held-out",
        "+45.0 against +0.0 points",
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
    [finding] = judge(steps, evals)
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
    [finding] = judge(training(3, **facts))
    assert reason in finding.reason


def test_where_nothing_was_learned_the_keys_are_those_of_the_reason():
    full = {"avg_response_length": 0, "num_trajectories": 8, "statuses": {"context_overflow": 8}}
    [finding] = judge(training(3, updates=0, signal_rate=0.0, **full))
    assert finding.keys == ("rollout.max_prompt_tokens", "rollout.max_trajectory_tokens")
    [finding] = judge(training(3, updates=0, nonfinite_updates=2))
    assert "trainer.lr" in finding.keys


def test_a_step_that_learned_is_enough_against_nothing_was_learned():
    steps = [*training(2, grad_norm=0.0), {"step": 3, **HEALTHY}]
    assert subjects(steps) == []


def test_short_runs_and_single_steps_are_not_judged():
    assert subjects(training(2, signal_rate=0.0, cut_reply_rate=1.0, ratio_max=99.0)) == []
    assert subjects(training(7, entropy=lambda step: 0.5 / step**2)) == []


def test_entropy_may_fall_while_the_held_out_rate_gains():
    steps = training(entropy=lambda step: 0.5 / step)
    assert subjects(steps, evaluations(0.25, 0.5, 0.75)) == []
    assert subjects(steps, evaluations(0.25, 0.75, 0.25)) == ["Entropy collapsed"]


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


@pytest.mark.parametrize("attempts", [1, 2, 4])
def test_noise_of_evaluations_and_steps_is_a_finding_in_at_most_one_of_forty_trainings(attempts):
    rates = [0.1, 0.3, 0.5, 0.7, 0.9]
    drawn = random.Random(attempts)
    found = 0
    trainings = 400
    for seed in range(trainings):
        evals = evaluations(drawn.choice(rates), instances=16, attempts=attempts, seed=seed)
        evals += evaluations(evals[0]["resolved_rate"], instances=16, attempts=attempts, seed=seed + trainings)
        evals[1]["step"] = 12
        steps = training(resolved_rate=lambda step: sum(drawn.random() < 0.5 for _ in range(16)) / 16)
        found += bool(subjects(steps, evals))
    assert found / trainings <= 0.025


def test_a_certain_loss_of_few_attempts_is_a_finding_and_events_without_counts_are_none():
    evals = evaluations(1.0, 0.0, instances=24, attempts=1)
    assert subjects(training(), evals) == ["Held-out rate fell"]
    for event in evals:
        del event["by_instance"]
    assert subjects(training(), evals) == []


def test_nothing_was_learned_is_said_of_a_training_that_is_over_only():
    idle = training(2, updates=0, signal_rate=0.0, trained_rows=0)
    assert subjects(idle, is_over=False) == []
    assert subjects(idle) == ["Nothing was learned"]


@pytest.mark.parametrize(
    "facts",
    [
        TrainingFacts(advantage=AdvantageKind.reinforce_pp),
        TrainingFacts(trajectories_per_group=1),
        TrainingFacts(has_own_advantage=True),
    ],
)
def test_where_equal_groups_teach_they_are_no_finding(facts):
    steps = training(signal_rate=0.0)
    assert subjects(steps, facts=facts) == []
    assert subjects(steps) == ["Groups without signal"]


def test_equal_groups_that_are_left_out_are_a_finding_whatever_the_advantage():
    facts = TrainingFacts(advantage=AdvantageKind.reinforce_pp, dynamic_sampling=DynamicSampling.filter)
    assert subjects(training(signal_rate=0.0), facts=facts) == ["Groups without signal"]


def test_paid_turns_teach_within_equal_groups():
    assert subjects(training(signal_rate=0.0, turn_reward_mean=0.1)) == []


REWARDED = {"rollout.n", "rollout.instances", "algo.kl_coef", "algo.entropy_coef", "algo.overlong_share"}
OF_TEACHER = [
    (training(2, updates=0, teacher_kl=0.0), ()),
    (training(2, grad_norm=0.0, teacher_kl=0.0), ()),
    (training(teacher_kl=0.1), evaluations(0.75, 0.5)),
    (training(teacher_kl=0.1, resolved_rate=lambda step: 0.2 + 0.05 * step), evaluations(0.25, 0.25)),
    (training(teacher_kl=0.1, avg_response_length=lambda step: 100.0 * step), ()),
]


@pytest.mark.parametrize(("steps", "evals"), OF_TEACHER)
def test_findings_on_a_distillation_name_no_key_that_is_about_rewards(steps, evals):
    [finding] = judge(steps, evals, TEACHER)
    assert not REWARDED & set(finding.keys) and set(finding.keys) <= set(key_types())


def test_a_policy_that_becomes_as_sure_as_its_teacher_is_no_finding():
    steps = training(teacher_kl=0.1, entropy=lambda step: 0.5 / step)
    assert subjects(steps, facts=TEACHER) == [] and subjects(steps) == ["Entropy collapsed"]


@pytest.mark.parametrize(
    ("policy_loss", "share", "words"),
    [
        (PolicyLoss.clip, 0.3, "a clipped token teaches nothing"),
        (PolicyLoss.cispo, 0.3, "teaches with a weight that is held at the limit"),
        (PolicyLoss.gspo, 0.6, "the tokens of a clipped trajectory teach nothing"),
    ],
)
def test_clipping_is_told_as_the_loss_clips(policy_loss, share, words):
    facts = TrainingFacts(policy_loss=policy_loss)
    [finding] = judge(training(clip_fraction=share), facts=facts)
    assert words in finding.reason
    assert subjects(training(clip_fraction=0.3), facts=replace(facts, policy_loss=PolicyLoss.gspo)) == []


@pytest.mark.parametrize("policy_loss", list(PolicyLoss))
def test_every_loss_is_judged(policy_loss):
    assert subjects(training(), facts=TrainingFacts(policy_loss=policy_loss)) == []


def test_a_long_tail_names_the_dual_clip_only_where_the_loss_has_one():
    for policy_loss, has_key in ((PolicyLoss.clip, True), (PolicyLoss.cispo, False)):
        [finding] = judge(training(ratio_max=55.0), facts=TrainingFacts(policy_loss=policy_loss))
        assert ("algo.clip_c" in finding.keys) is has_key


def test_attempts_that_infrastructure_broke_are_no_drift_of_the_length():
    def broken(step):
        return {"unresolved": 8, "infra_error": 8 if step > 8 else 0}

    of_all = {"avg_response_length": lambda step: 400.0 if step <= 8 else 150.0}
    assert subjects(training(**of_all)) == ["Length drifted"]
    assert subjects(training(**of_all, valid_response_length=400.0)) == []
    # Lines of older versions do not have the mean over the others.
    assert subjects(training(**of_all, statuses=broken)) == []


def test_a_single_batch_at_an_end_is_no_drift():
    lengths = {1: 400.0, 2: 100.0, 3: 1200.0}
    assert subjects(training(avg_response_length=lambda step: lengths.get(step, 200.0))) == []


def test_facts_are_those_of_the_configuration_whatever_it_lacks():
    assert facts_of({}) == FACTS
    assert facts_of({"algo": {"advantage": "unheard of", "policy_loss": 7}, "rollout": "x"}) == FACTS
    config = {
        "algo": {"advantage": "teacher", "policy_loss": "cispo", "dynamic_sampling": "filter"},
        "rollout": {"n": 1},
        "advantage": {"name": "mine"},
    }
    expected = TrainingFacts(
        AdvantageKind.teacher,
        PolicyLoss.cispo,
        DynamicSampling.filter,
        trajectories_per_group=1,
        has_own_advantage=True,
    )
    assert facts_of(config) == expected and not expected.has_teacher


def test_a_run_is_judged_by_its_folder_and_each_finding_is_recorded_once(tmp_path):
    folder = RunFolder(tmp_path)
    folder.config_yaml.write_text("algo: {advantage: reinforce_pp}\n")
    rows = [{"step": step, "updates": 0, "signal_rate": 0.0, "trained_rows": 0} for step in (1, 2, 3)]
    folder.steps_jsonl.write_text("".join(json.dumps(row) + "\n" for row in rows))
    status = StatusWriter(folder.status_json, config_hash="")
    assert judge_run(folder, status.current) == []
    assert judge_run(folder, status.ending(RunState.requeued)) == []
    findings = judge_run(folder, status.ending(RunState.done))
    assert [finding.about for finding in findings] == ["Nothing was learned"]
    with EventLog(folder.events_jsonl) as events:
        record_findings(folder, events, findings)
        record_findings(folder, events, findings)
    assert len(read_events(folder.events_jsonl, "health")) == 1
