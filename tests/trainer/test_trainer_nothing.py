"""A step of which nothing teaches leaves the weights and the optimizer's moments as they are, bit for bit."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from swe_rl.agent.agent import Turn
from swe_rl.config.choices import AdvantageKind
from swe_rl.config.schema import AlgoConfig, TrainerConfig, TurnRewardsConfig
from swe_rl.rollout.batch import set_advantages
from swe_rl.rollout.rows import with_current_advantages
from swe_rl.rollout.trajectory import Status, Trajectory
from swe_rl.trainer.critic import attach_value_head
from swe_rl.trainer.policy import Trainer

CONFIG = TrainerConfig(lr=1e-3, num_threads=1, max_tokens_per_micro_batch=48)
FAILED = Turn(0, "```", "false", "", exit_code=1)


class ByDeviation:
    def advantages(self, groups):
        rewards = [torch.tensor(group.rewards) for group in groups]
        return [((one - one.mean()) / (one.std() + 1e-6)).tolist() for one in rewards]


def a_trajectory(row, reward, turns):
    return Trajectory(
        trajectory_id=row.trajectory_id,
        instance_id=row.group_id,
        group_id=row.group_id,
        split="train",
        step=1,
        sample=0,
        attempt=0,
        status=Status.unresolved,
        reward=reward,
        trained=True,
        in_baseline=True,
        turns=list(turns),
    )


def state_of(trainer):
    weights = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    return weights + [tensor.clone() for tensor in trainer.state_dict()["tensors"].values()]


def unchanged(before, trainer):
    after = state_of(trainer)
    return len(before) == len(after) and all(torch.equal(one, two) for one, two in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("reward", "turns", "estimator"), [(0.0, 3, None), (1 / 3, 0, None), (1 / 3, 0, ByDeviation()), (0.3, 1, None)]
)
def test_equal_groups_through_rewards_rows_and_update(rank_cases, reward, turns, estimator):
    """With momentum in the optimizer, and rows as a run makes them of its trajectories."""
    rows = [
        replace(row, trajectory_id=f"{row.group_id}.{place}", turns=np.zeros(row.sampled_tokens))
        for place, row in enumerate(rank_cases.rows(groups=2, per_group=3))
    ]
    trainer = Trainer(rank_cases.build(), CONFIG, AlgoConfig(), pad_token_id=0)
    assert trainer.train_step(rows, 1).updates == 1
    before = state_of(trainer)
    trajectories = [a_trajectory(row, reward, [FAILED] * turns) for row in rows]
    costs = TurnRewardsConfig(command_failed=-0.1)
    assert set_advantages(trajectories, AlgoConfig(), turns=costs, estimator=estimator) == 2
    metrics = trainer.train_step(with_current_advantages(rows, trajectories), 2)
    assert (metrics.updates, metrics.idle_updates, metrics.trained_rows) == (0, 0, 0)
    assert unchanged(before, trainer)


def paid_at_the_end(rows, reward):
    """Each attempt's reward comes at the last token of its last row."""
    last = {row.trajectory_id: row for row in rows}
    return [
        replace(row, rewards=np.eye(row.sampled_tokens)[-1] * reward * (row is last[row.trajectory_id])) for row in rows
    ]


@pytest.mark.parametrize("reward", [0.1, 1 / 3, 0.7])
@pytest.mark.parametrize("whitened", [True, False])
def test_a_critic_that_foresees_every_reward_leaves_its_policy_alone(rank_cases, monkeypatch, reward, whitened):
    """Every token was foreseen to the last digit that float32 has; whitening would make advantages of that digit."""
    critic = rank_cases.build(1)
    attach_value_head(critic)
    algo = AlgoConfig(advantage=AdvantageKind.gae, normalize_std=whitened)
    trainer = Trainer(rank_cases.build(), CONFIG, algo, pad_token_id=0, critic=critic)
    rows = rank_cases.rows(credit=True)
    assert trainer.train_step(rows, 1).updates > 0
    before = state_of(trainer)
    sure = paid_at_the_end(rows, reward)
    noise = torch.Generator().manual_seed(0)

    def foresees(batch):
        tokens = len(batch.member_of_token)
        return torch.full((tokens,), reward) * (1 + 1e-7 * torch.randn(tokens, generator=noise))

    monkeypatch.setattr(trainer.critic, "_of", foresees)
    metrics = trainer.train_step(sure, 2)
    assert metrics.updates == 0 and metrics.value_explained is None
    assert unchanged(before, trainer)


def test_returns_that_are_all_equal_are_whitened_to_nothing(rank_cases):
    """The first values are 0, so each token's advantage is its return, and their mean rounds."""
    critic = rank_cases.build(1)
    attach_value_head(critic)
    trainer = Trainer(
        rank_cases.build(), CONFIG, AlgoConfig(advantage=AdvantageKind.gae), pad_token_id=0, critic=critic
    )
    rows = paid_at_the_end(rank_cases.rows(credit=True), 0.1)
    before = state_of(trainer)
    assert trainer.train_step(rows, 1).updates == 0
    assert unchanged(before, trainer)


def test_a_teacher_whose_log_probabilities_round_otherwise_teaches_nothing(rank_cases, monkeypatch):
    distill = AlgoConfig(advantage=AdvantageKind.teacher, teacher="/models/teacher")
    teacher = rank_cases.build(0)
    trainer = Trainer(rank_cases.build(0), CONFIG, distill, pad_token_id=0, teacher=teacher)
    before = state_of(trainer)
    exact = trainer._logprobs
    monkeypatch.setattr(
        trainer, "_logprobs", lambda model, batch, _=None: exact(model, batch) * (1 + 1e-7 * (model is teacher))
    )
    metrics = trainer.train_step(rank_cases.rows(), 1)
    assert metrics.updates == 0 and abs(metrics.teacher_kl) < 1e-6
    assert unchanged(before, trainer)
