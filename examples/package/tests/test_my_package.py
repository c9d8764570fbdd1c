"""Each class has what its kind has to have, and does what it says."""

import asyncio

import torch
from my_package.advantage import MyPackageAdvantage
from my_package.agent import MyPackageAgent
from my_package.env import MyPackageEnv
from my_package.loss import MyPackageLoss
from my_package.reward import MyPackageReward

from swe_rl.api import LossTokens, RewardGroup
from swe_rl.testing import an_attempt, check_advantage, check_agent, check_env, check_loss, check_reward


def test_the_agent_conforms():
    check_agent(MyPackageAgent)


def test_the_environment_conforms(tmp_path):
    check_env(MyPackageEnv, tmp_path)


def test_no_task_is_trained_and_held_out(tmp_path):
    env = MyPackageEnv(tmp_path)
    train, heldout = ({task.instance_id for task in env.instances(split)} for split in ("train", "heldout"))
    assert len(train) == 4 and len(heldout) == 2 and not train & heldout


def test_the_reward_conforms():
    check_reward(MyPackageReward)


def test_a_resolved_task_is_worth_more_than_any_other():
    assert 0.5 <= asyncio.run(MyPackageReward().reward(an_attempt(resolved=True))) <= 1.0
    assert asyncio.run(MyPackageReward().reward(an_attempt(resolved=False))) == 0.0


def test_the_advantage_conforms():
    check_advantage(MyPackageAdvantage)


def test_an_attempt_is_compared_with_the_others():
    group = RewardGroup((1.0, 0.0, 0.5, None), (True, True, True, False), (1.0, 0.0, 0.5, None))
    assert MyPackageAdvantage().advantages([group]) == [[0.75, -0.75, 0.0, 0.0]]


def test_the_loss_conforms():
    check_loss(MyPackageLoss)


def test_a_better_token_is_made_more_likely_up_to_the_clip():
    logprobs = torch.tensor([-1.0, -1.0, -0.5], requires_grad=True)
    old = torch.full((3,), -1.0)
    advantages = torch.tensor([1.0, -1.0, 1.0])
    MyPackageLoss().loss(LossTokens(logprobs, old, old, advantages, old)).sum().backward()
    better, worse, clipped = logprobs.grad
    assert better < 0 < worse and clipped == 0
