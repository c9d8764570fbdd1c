"""What a step's or an evaluation's trajectories are together: advantages, and numbers.

Invariants:
- Advantages are computed over whole groups; members outside of the baseline neither enter it nor have one.
- Dynamic sampling looks at rewards as they were graded, before any penalty.
- `resolved_rate` counts what infrastructure broke neither as solved nor as a sample, as `reward_mean` does.
- `tokens_per_s` counts trajectories times their average response, as the field does; `sampled_tokens_per_s` counts
  what the policy sampled.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from swe_rl.algo.advantage import (
    Group,
    batch_advantages,
    filtered,
    group_scale,
    is_degenerate,
    overlong_penalty,
    rewards_with_kl,
)
from swe_rl.algo.credit import turn_advantages
from swe_rl.config.choices import DynamicSampling
from swe_rl.config.schema import AlgoConfig, TurnRewardsConfig
from swe_rl.gateway.trace import Trace
from swe_rl.rollout.collect import Collected
from swe_rl.rollout.trajectory import INFRA_STATUSES, Status, Trajectory, cheating_counts
from swe_rl.rollout.turn_reward import pays, turn_reward

NO_TURN_REWARDS = TurnRewardsConfig()


def groups_of(trajectories: Sequence[Trajectory]) -> dict[str, list[Trajectory]]:
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.group_id, []).append(trajectory)
    return groups


def set_advantages(
    trajectories: Sequence[Trajectory],
    algo: AlgoConfig,
    kl_sums: Mapping[str, float] | None = None,
    max_trajectory_tokens: int = 0,
    turns: TurnRewardsConfig = NO_TURN_REWARDS,
) -> int:
    """Fills `advantage` in; returns the number of groups that teach nothing.

    `kl_sums` by trajectory id (`algo.kl_in=reward`) and the end of the token budget (`algo.overlong_share`) are charged
    to the rewards first; the recorded rewards stay. `turns` adds advantages of turns (`turn_advantages`).
    With `algo.dynamic_sampling` the members of groups of equal rewards are not trained and do not enter a batch's
    normalization (DAPO, arXiv:2503.14476, section 3.2, equation 11). With `algo.overlong_filter` what a limit cut short
    is not trained.
    """
    groups = groups_of(trajectories)
    left_out = degenerate_groups(trajectories) if algo.dynamic_sampling is not DynamicSampling.none else set()
    kept = [group for name, group in groups.items() if name not in left_out]
    charged = [_group(group, algo, kl_sums or {}, max_trajectory_tokens) for group in kept]
    advantages = batch_advantages(charged, algo, [[trajectory.reward for trajectory in group] for group in kept])
    for group, values in zip(kept, advantages, strict=True):
        for trajectory, advantage in zip(group, values, strict=True):
            trajectory.advantage = advantage
            trajectory.trained = trajectory.trained and not filtered(trajectory.status.value, algo.overlong_filter)
    if pays(turns):
        for group, (rewards, in_baseline) in zip(kept, charged, strict=True):
            graded = [trajectory.reward for trajectory in group]
            _set_turn_advantages(group, turns, algo, group_scale(rewards, in_baseline, algo, graded))
    for name in left_out:
        for trajectory in groups[name]:
            trajectory.advantage, trajectory.trained = 0.0, False
    return len(left_out) + sum(not any(_teaches(trajectory) for trajectory in group) for group in kept)


def _set_turn_advantages(group: Sequence[Trajectory], table: TurnRewardsConfig, algo: AlgoConfig, scale: float) -> None:
    for trajectory in group:
        trajectory.turn_rewards = [turn_reward(turn, table) for turn in trajectory.turns]
    rewards = [trajectory.turn_rewards for trajectory in group]
    for trajectory, values in zip(group, turn_advantages(rewards, _in_baseline(group), algo, scale), strict=True):
        trajectory.turn_advantages = values


def _teaches(trajectory: Trajectory) -> bool:
    return bool(trajectory.advantage) or any(trajectory.turn_advantages)


def degenerate_groups(trajectories: Sequence[Trajectory]) -> set[str]:
    """The ids of the groups that have nothing to compare: equal rewards, or fewer than two in the baseline."""
    groups = groups_of(trajectories).items()
    return {
        name
        for name, group in groups
        if is_degenerate([trajectory.reward for trajectory in group], _in_baseline(group))
    }


def _group(group: Sequence[Trajectory], algo: AlgoConfig, kl_sums: Mapping[str, float], max_tokens: int) -> Group:
    kl = [kl_sums.get(trajectory.trajectory_id, 0.0) for trajectory in group]
    return rewards_with_kl(
        [_charged(trajectory, algo, max_tokens) for trajectory in group], kl, algo.kl_coef
    ), _in_baseline(group)


def _in_baseline(group: Sequence[Trajectory]) -> list[bool]:
    return [trajectory.in_baseline and trajectory.reward is not None for trajectory in group]


def _charged(trajectory: Trajectory, algo: AlgoConfig, max_tokens: int) -> float | None:
    if trajectory.reward is None:
        return None
    length = trajectory.prompt_tokens + trajectory.response_tokens
    return trajectory.reward + overlong_penalty(length, max_tokens, algo.overlong_share, algo.overlong_penalty)


def count_tokens(trajectory: Trajectory, traces: Sequence[Trace]) -> None:
    """Fills in prompt and response lengths from the longest chain of traces."""
    if not traces:
        return
    trajectory.prompt_tokens = traces[0].prompt_tokens
    trajectory.response_tokens = max(trace.tokens for trace in traces) - trajectory.prompt_tokens


def rollout_numbers(collected: Collected, generate_s: float) -> dict[str, Any]:
    """The rollout's part of a line in `steps.jsonl`."""
    trajectories = collected.trajectories
    count = len(trajectories)
    rewards = [trajectory.reward for trajectory in trajectories if trajectory.reward is not None]
    valid = [trajectory for trajectory in trajectories if trajectory.status not in INFRA_STATUSES]
    average_response = sum(trajectory.response_tokens for trajectory in trajectories) / max(1, count)
    return {
        "num_trajectories": count,
        "avg_response_length": average_response,
        "generate_s": generate_s,
        "tokens_per_s": count * average_response / generate_s,
        "sampled_tokens_per_s": sum(trajectory.sampled_tokens for trajectory in trajectories) / generate_s,
        "reward_mean": sum(rewards) / len(rewards) if rewards else None,
        "resolved_rate": sum(attempt.status is Status.resolved for attempt in valid) / len(valid) if valid else None,
        "resolved_samples": len(valid),
        "statuses": dict(sorted(Counter(trajectory.status.value for trajectory in trajectories).items())),
        "infra_retries": len(collected.retried),
        "cheating": cheating_counts(trajectories),
        "prefix_breaks": sum(trajectory.prefix_breaks for trajectory in trajectories),
        "superseded_replies": sum(trajectory.superseded_replies for trajectory in trajectories),
        "superseded_tokens": sum(trajectory.superseded_tokens for trajectory in trajectories),
    }


def turn_numbers(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """What turns brought by themselves: the mean over trajectories of their sums; nothing where turns bring nothing."""
    sums = [sum(trajectory.turn_rewards) for trajectory in trajectories if trajectory.turn_rewards]
    return {"turn_reward_mean": sum(sums) / len(sums)} if sums else {}


def eval_numbers(
    collected: Collected, *, step: int, split: str, eval_s: float, split_instances: int | None = None
) -> dict[str, Any]:
    """The event `eval`. `split_instances`: how many the split has, those left out of this evaluation included."""
    by_instance = valid_counts(collected.trajectories)
    solved, samples = (sum(counts[i] for counts in by_instance.values()) for i in (0, 1))
    return {
        "step": step,
        "split": split,
        "resolved_rate": solved / samples if samples else None,
        "num_samples": samples,
        "num_instances": len(by_instance),
        "split_instances": split_instances,
        "eval_s": eval_s,
        "by_instance": {name: list(counts) for name, counts in by_instance.items()},
        "cheating": cheating_counts(collected.trajectories),
    }


def valid_counts(trajectories: Sequence[Trajectory]) -> dict[str, tuple[int, int]]:
    """(solved, valid attempts) of each instance, in the order of first sight."""
    counts: dict[str, tuple[int, int]] = {}
    for trajectory in trajectories:
        solved, attempts = counts.get(trajectory.instance_id, (0, 0))
        valid = trajectory.status not in INFRA_STATUSES
        counts[trajectory.instance_id] = (solved + (trajectory.status is Status.resolved), attempts + valid)
    return counts
