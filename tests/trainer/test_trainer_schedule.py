"""Learning rates: against transformers' schedules, over whole runs, and where a run was cut in two."""

from dataclasses import replace

import pytest
import torch
from transformers.optimization import (
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_cosine_with_min_lr_schedule_with_warmup,
    get_linear_schedule_with_warmup,
)

from swe_rl.config.choices import AdvantageKind, LrSchedule
from swe_rl.config.compose import compose
from swe_rl.config.composition.values import config_hash
from swe_rl.config.schema import AlgoConfig, TrainerConfig
from swe_rl.imitation.demonstrations import demonstration_stages
from swe_rl.trainer.critic import attach_value_head
from swe_rl.trainer.policy import Trainer
from swe_rl.trainer.schedule import Schedule

STEPS = 12


def theirs(make, *arguments, **named):
    """The learning rates of torch's LambdaLR around an optimizer of peak 1, step by step."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule, rates = make(optimizer, *arguments, **named), []
    for _ in range(STEPS + 3):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


def ours(kind, warmup_steps, final_fraction=0.0):
    schedule = Schedule(kind, warmup_steps, STEPS, final_fraction)
    return [schedule.factor(step) for step in range(STEPS + 3)]


@pytest.mark.parametrize("warmup_steps", [0, 1, 4, 12])
def test_after_the_warm_up_they_are_transformers_own(warmup_steps):
    named = {"num_training_steps": STEPS}
    for kind, make in (
        (LrSchedule.linear, get_linear_schedule_with_warmup),
        (LrSchedule.cosine, get_cosine_schedule_with_warmup),
    ):
        expected = theirs(make, warmup_steps, **named)
        assert ours(kind, warmup_steps)[warmup_steps:STEPS] == pytest.approx(expected[warmup_steps:STEPS], abs=1e-12)
    expected = theirs(get_constant_schedule_with_warmup, warmup_steps)
    assert ours(LrSchedule.constant, warmup_steps)[warmup_steps:] == expected[warmup_steps:]
    expected = theirs(get_cosine_with_min_lr_schedule_with_warmup, warmup_steps, **named, min_lr_rate=0.1)
    assert ours(LrSchedule.cosine, warmup_steps, 0.1)[warmup_steps:STEPS] == pytest.approx(expected[warmup_steps:STEPS])


@pytest.mark.parametrize("kind", list(LrSchedule))
def test_warm_up_is_theirs_one_step_earlier_so_that_the_first_step_learns(kind):
    expected = theirs(get_linear_schedule_with_warmup, 4, STEPS)
    assert ours(kind, 4)[:4] == expected[1:5] == [0.25, 0.5, 0.75, 1.0]
    assert ours(kind, 0)[0] == 1.0


@pytest.mark.parametrize("kind", [LrSchedule.linear, LrSchedule.cosine])
def test_decay_ends_after_the_last_step_and_stays_there(kind):
    factors = ours(kind, 2, 0.2)
    assert factors[2:] == sorted(factors[2:], reverse=True)
    assert factors[STEPS - 1] > 0.2 and factors[STEPS:] == pytest.approx([0.2] * 3)


def test_the_policy_and_its_critic_decay_over_the_steps_that_each_learns(rank_cases):
    critic = rank_cases.build(1)
    attach_value_head(critic)
    config = TrainerConfig(
        lr=1e-2, steps=6, warmup_steps=2, lr_schedule=LrSchedule.linear, lr_final_fraction=0.5, num_threads=1
    )
    algo = AlgoConfig(advantage=AdvantageKind.gae, critic_lr=1e-3, critic_warmup_steps=2)
    one, rates = Trainer(rank_cases.build(), config, algo, pad_token_id=0, critic=critic), []
    update = one.critic.update
    one.critic.update = lambda minis, lr, until: rates.append(lr / 1e-3) or update(minis, lr, until)
    done = [one.train_step(rank_cases.rows(credit=True), step) for step in range(1, 7)]
    assert [metrics.lr / 1e-2 for metrics in done] == pytest.approx([0.5, 0.5, 0.5, 1.0, 1.0, 0.75])
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.875, 0.75, 0.625])


@pytest.mark.parametrize("kind", list(LrSchedule))
def test_a_resumed_trainer_goes_on_where_the_schedule_was(rank_cases, kind):
    config = TrainerConfig(lr=1e-2, steps=5, warmup_steps=1, lr_schedule=kind, num_threads=1)
    rows = rank_cases.rows()
    whole = Trainer(rank_cases.build(), config, AlgoConfig(), pad_token_id=0)
    rates = [whole.train_step(rows, step).lr for step in range(1, 6)]
    assert whole.train_step(rows, 6).lr == (1e-2 if kind is LrSchedule.constant else 0.0)
    first = Trainer(rank_cases.build(), config, AlgoConfig(), pad_token_id=0)
    before = [first.train_step(rows, step).lr for step in range(1, 3)]
    again = Trainer(first.model, config, AlgoConfig(), pad_token_id=0)
    state = first.state_dict()
    again.load_shards(
        list(state["tensors"]),
        lambda name, a, b: state["tensors"][name][a:b] if b else state["tensors"][name],
        state["counters"],
    )
    assert before + [again.train_step(rows, step).lr for step in range(3, 6)] == rates


def test_another_number_of_steps_is_another_run():
    """So no run is resumed whose schedule would jump: `trainer.resume=FOLDER` is refused, `auto` begins anew."""
    base = compose(["trainer.lr_schedule=cosine"]).config
    for changed in ({"steps": 48}, {"lr_schedule": LrSchedule.linear}, {"lr_final_fraction": 0.1}):
        assert config_hash(replace(base, trainer=replace(base.trainer, **changed))) != config_hash(base)


def test_the_warm_start_has_schedules_of_its_own():
    config = compose(["job=sft", "sft.lr=2e-3", "sft.steps=10", "sft.beginner_steps=4", "sft.warmup_steps=2"]).config
    skill, habits = demonstration_stages(config)
    assert [skill.lr_of(step) / config.sft.lr for step in (1, 2, 3)] == pytest.approx([0.5, 1.0, 1.0])
    assert habits.lr_of(11) == config.sft.beginner_lr and habits.lr_of(13) == pytest.approx(config.sft.beginner_lr / 2)
    sft = replace(config.sft, lr_schedule=LrSchedule.linear, lr_final_fraction=0.5)
    skill, habits = demonstration_stages(replace(config, sft=sft))
    assert skill.lr_of(10) == pytest.approx(config.sft.lr * (0.5 + 0.5 / 8))
    assert habits.lr_of(13) == pytest.approx(config.sft.beginner_lr * 0.75)
