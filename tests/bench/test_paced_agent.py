"""The agent and the reward of benchmarks with random weights meet the protocols that a run holds them to."""

from bench.paced_agent import PacedAgent, RandomReward
from swe_rl.testing import check_agent, check_reward


def test_the_agent_acts_in_its_own_time_whatever_the_model_says():
    check_agent(PacedAgent, {"turns_min": 2, "turns_max": 2, "tool_s": 0.01, "answer_words": 5})


def test_the_reward_is_a_coin():
    check_reward(RandomReward)
