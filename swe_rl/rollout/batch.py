"""Looks at a step's or an evaluation's trajectories together: advantages, and numbers.

Invariants:
- Advantages are computed over whole groups; members outside of the baseline
  neither enter it nor have one.
- Dynamic sampling looks at rewards as they were graded, before any penalty.
- `resolved_rate` counts what infrastructure broke neither as solved nor as a sample, as `reward_mean` does.
- `tokens_per_s` counts trajectories times their average response, as the field does; `sampled_tokens_per_s` counts what
  the policy sampled, superseded replies too.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from typing import Any

from swe_rl.agent.agent import Turn
from swe_rl.algo.advantage import (
    Group,
    batch_advantages,
    group_scale,
    is_overlong,
    overlong_penalty,
    rewards_with_kl,
)
from swe_rl.algo.credit import of_turns, turn_advantages
from swe_rl.algo.foreign.advantage import ask_estimator
from swe_rl.algo.own_algorithm import Advantage as Estimator
from swe_rl.algo.own_algorithm import RewardGroup
from swe_rl.config.choices import FOUND_BY_TRAINER, INFRA_STATUSES, AdvantageKind, DynamicSampling
from swe_rl.config.schema import AlgoConfig, TurnRewardsConfig
from swe_rl.gateway.trace import Trace, superseded_turns, unused_summaries
from swe_rl.report.statistics import clustered_interval
from swe_rl.rollout.collect import Collected
from swe_rl.rollout.counts import (
    groups_of,
    in_baseline,
    is_degenerate_group,
    learning_numbers,
    part_numbers,
    part_of_eval,
    resolved_numbers,
    signal_rate,
    valid_counts,
)
from swe_rl.rollout.segments import response_tokens, segments_of
from swe_rl.rollout.trajectory import Status, Trajectory, cheating_counts

NO_TURN_REWARDS = TurnRewardsConfig()


def set_advantages(
    trajectories: Sequence[Trajectory],
    algo: AlgoConfig,
    kl_sums: Mapping[str, float] | None = None,
    max_trajectory_tokens: int = 0,
    turns: TurnRewardsConfig = NO_TURN_REWARDS,
    estimator: Estimator | None = None,
    *,
    step: int = 0,
) -> int:
    """Fills `advantage` in; returns the number of groups that teach nothing.

    A group goes one of four ways: its attempts are kept or not (`algo.advantage=kept`), it is left out by dynamic
    sampling, the trainer finds its advantages, or it is compared here.

    `kl_sums` by trajectory id (`algo.kl_in=reward`) and the end of the token budget (`algo.overlong_share`) are charged
    to the rewards first; the recorded rewards stay. `turns` and a reward that pays turns add advantages of turns
    (`turn_advantages`). `estimator`: in place of `algo.advantage`; it is told `step`, the one that trains them.
    With `algo.dynamic_sampling` the members of groups of equal rewards are not trained and do not enter a batch's
    normalization (DAPO, arXiv:2503.14476, section 3.2, equation 11). With `algo.overlong_filter` what a limit cut short
    is not trained. Where advantages are the trainer's to find (`algo.advantage=gae` or `teacher`), a trajectory has
    none, its `charged_reward` is for the critic, and no group teaches nothing.
    """
    groups = list(groups_of(trajectories).values())
    if algo.advantage is AdvantageKind.kept:
        return sum(not keep_attempts(group, algo) for group in groups)
    compared = groups
    if algo.dynamic_sampling is not DynamicSampling.none:
        compared = [group for group in groups if not is_degenerate_group(group)]
        _leave_out(group for group in groups if is_degenerate_group(group))
    # Turns of what is left out are paid, too: they are recorded.
    pays_turns = _set_turn_rewards(trajectories, turns)
    charged = [_rewards_of_group(group, algo, kl_sums or {}, max_trajectory_tokens) for group in compared]
    if algo.advantage in FOUND_BY_TRAINER:
        for group, (rewards, _) in zip(compared, charged, strict=True):
            _leave_to_trainer(group, rewards, algo)
        return len(groups) - len(compared)
    estimates = _estimate_advantages(compared, charged, algo, estimator, step)
    for group, of_group, values in zip(compared, charged, estimates, strict=True):
        _set_group_advantages(group, values, algo)
        if pays_turns:
            _set_turn_advantages(group, of_group, algo)
    return sum(not any(_has_advantage(member) for member in group) for group in groups)


def _estimate_advantages(
    groups: Sequence[Sequence[Trajectory]],
    charged: Sequence[Group],
    algo: AlgoConfig,
    estimator: Estimator | None,
    step: int,
) -> Sequence[Sequence[float]]:
    """Returns one advantage a member of each group: by `algo.advantage`, or by an estimator of somebody's own."""
    if estimator is None:
        return batch_advantages(charged, algo, [_graded_rewards(group) for group in groups])
    reward_groups = [_reward_group(group, of_group, step) for group, of_group in zip(groups, charged, strict=True)]
    return ask_estimator(estimator, reward_groups)


def _set_group_advantages(group: Sequence[Trajectory], values: Sequence[float], algo: AlgoConfig) -> None:
    for trajectory, advantage in zip(group, values, strict=True):
        trajectory.advantage = advantage
        trajectory.trained = trajectory.trained and not _is_filtered(trajectory, algo)


def _graded_rewards(group: Sequence[Trajectory]) -> list[float | None]:
    """Returns rewards before penalties are taken off."""
    return [trajectory.reward for trajectory in group]


def keep_attempts(group: Sequence[Trajectory], algo: AlgoConfig) -> int:
    """Gives the attempts of a group that are imitated the advantage 1, and leaves the others out. Returns the number of
    those that are imitated.

    It is rejection sampling: an attempt is kept if its graded reward is `algo.keep_reward` or more, and of these the
    `algo.keep_shortest` with the fewest sampled tokens are.
    """
    good = [
        trajectory
        for trajectory in group
        if trajectory.trained
        and trajectory.reward is not None
        and trajectory.reward >= algo.keep_reward
        and not _is_filtered(trajectory, algo)
    ]
    shortest_first = sorted(good, key=lambda trajectory: (trajectory.sampled_tokens, trajectory.trajectory_id))
    kept = {trajectory.trajectory_id for trajectory in shortest_first[: algo.keep_shortest]}
    for trajectory in group:
        trajectory.turn_advantages = []
        trajectory.trained = trajectory.trajectory_id in kept
        trajectory.advantage = 1.0 if trajectory.trained else 0.0
    return len(kept)


def _leave_out(groups: Iterable[Sequence[Trajectory]]) -> None:
    for group in groups:
        for trajectory in group:
            trajectory.advantage = 0.0
            trajectory.turn_advantages = []
            trajectory.trained = False


def _leave_to_trainer(group: Sequence[Trajectory], rewards: Sequence[float | None], algo: AlgoConfig) -> None:
    for trajectory, reward in zip(group, rewards, strict=True):
        trajectory.advantage = None
        trajectory.charged_reward = reward if algo.advantage is AdvantageKind.gae else None
        trajectory.trained = trajectory.trained and not _is_filtered(trajectory, algo)


def _is_filtered(trajectory: Trajectory, algo: AlgoConfig) -> bool:
    return is_overlong(trajectory.status.value, trajectory.ended_by_cut, algo.overlong_filter)


def pays(table: TurnRewardsConfig) -> bool:
    return any(astuple(table))


def turn_reward(turn: Turn, table: TurnRewardsConfig) -> float:
    """Returns what a turn brings by the table.

    Nothing that the agent wrote is believed but its command's status. A command without one, such as the one that
    submits, brings nothing.
    """
    if turn.format_error:
        return table.format_error
    if turn.command is None or turn.exit_code is None:
        return 0.0
    if turn.exit_code:
        return table.command_failed
    return table.command_done


def _set_turn_rewards(trajectories: Sequence[Trajectory], table: TurnRewardsConfig) -> bool:
    """Fills in what turns bring, and tells whether anybody pays for turns at all."""
    if not pays(table) and not any(any(trajectory.own_turn_rewards) for trajectory in trajectories):
        return False
    for trajectory in trajectories:
        trajectory.turn_rewards = _turn_rewards(trajectory, table)
    return True


def _turn_rewards(trajectory: Trajectory, table: TurnRewardsConfig) -> list[float]:
    """Returns what the table pays for each turn, and what a reward of somebody's own pays."""
    turns = trajectory.turns
    by_code = trajectory.own_turn_rewards or [0.0 for _ in turns]
    return [turn_reward(turn, table) + paid for turn, paid in zip(turns, by_code, strict=True)]


def _set_turn_advantages(group: Sequence[Trajectory], charged: Group, algo: AlgoConfig) -> None:
    """Adds advantages of turns, scaled as the rewards of their group are."""
    scale = group_scale(*charged, algo, _graded_rewards(group))
    rewards = [trajectory.turn_rewards for trajectory in group]
    for trajectory, values in zip(group, turn_advantages(rewards, in_baseline(group), algo, scale), strict=True):
        trajectory.turn_advantages = values


def _has_advantage(trajectory: Trajectory) -> bool:
    advantage = trajectory.advantage or 0.0
    return bool(of_turns(advantage, trajectory.turn_advantages or [0.0]).any())


def _reward_group(group: Sequence[Trajectory], charged: Group, step: int) -> RewardGroup:
    """Returns what an estimator of somebody's own knows of a group."""
    rewards, in_baseline = charged
    return RewardGroup(
        rewards=tuple(rewards),
        in_baseline=tuple(in_baseline),
        graded=tuple(trajectory.reward for trajectory in group),
        sampled_tokens=tuple(
            trajectory.sampled_tokens - trajectory.superseded_tokens - trajectory.rejected_tokens
            for trajectory in group
        ),
        response_tokens=tuple(trajectory.response_tokens for trajectory in group),
        # Programs tell of no turns.
        turns=tuple(len(trajectory.turns) or trajectory.num_calls for trajectory in group),
        trajectory_ids=tuple(trajectory.trajectory_id for trajectory in group),
        instance_id=group[0].instance_id,
        step=step,
    )


def _rewards_of_group(
    group: Sequence[Trajectory], algo: AlgoConfig, kl_sums: Mapping[str, float], max_tokens: int
) -> Group:
    kl = [kl_sums.get(trajectory.trajectory_id, 0.0) for trajectory in group]
    return rewards_with_kl(
        [_charged_reward(trajectory, algo, max_tokens) for trajectory in group], kl, algo.kl_coef
    ), in_baseline(group)


def _charged_reward(trajectory: Trajectory, algo: AlgoConfig, max_tokens: int) -> float | None:
    if trajectory.reward is None:
        return None
    length = trajectory.prompt_tokens + trajectory.response_tokens
    return trajectory.reward + overlong_penalty(length, max_tokens, algo.overlong_share, algo.overlong_penalty)


def count_tokens(trajectory: Trajectory, traces: Sequence[Trace], *, sub_agents_trained: bool = True) -> None:
    """Fills in the segments, and prompt and response lengths. A reply that a retry superseded does not count."""
    if not traces:
        return
    trajectory.prompt_tokens = traces[0].prompt_tokens
    trajectory.segments = segments_of(traces, sub_agents_trained=sub_agents_trained)
    trajectory.response_tokens = response_tokens(traces)
    # A retry took the place of some of them, and these are counted as superseded.
    unused = unused_summaries(traces) - superseded_turns(traces)
    trajectory.rejected_summaries = len(unused)
    trajectory.rejected_tokens = sum(len(trace.sampled_ids) for trace in traces if trace.turn in unused)


def rollout_numbers(collected: Collected, generate_s: float) -> dict[str, Any]:
    """Returns the rollout's part of a line in `steps.jsonl`."""
    trajectories = collected.trajectories
    count = len(trajectories)
    rewards = [trajectory.reward for trajectory in trajectories if trajectory.reward is not None]
    valid = [trajectory for trajectory in trajectories if trajectory.status not in INFRA_STATUSES]
    average_response = sum(trajectory.response_tokens for trajectory in trajectories) / max(1, count)
    return {
        "num_trajectories": count,
        "avg_response_length": average_response,
        "valid_response_length": sum(attempt.response_tokens for attempt in valid) / len(valid) if valid else None,
        "generate_s": generate_s,
        "tokens_per_s": count * average_response / generate_s,
        "sampled_tokens_per_s": sum(trajectory.sampled_tokens for trajectory in trajectories) / generate_s,
        "reward_mean": sum(rewards) / len(rewards) if rewards else None,
        "signal_rate": signal_rate(trajectories),
        "resolved_rate": sum(attempt.status is Status.resolved for attempt in valid) / len(valid) if valid else None,
        "resolved_samples": len(valid),
        "resolved_interval": clustered_interval(list(valid_counts(trajectories).values())),
        "statuses": dict(sorted(Counter(trajectory.status.value for trajectory in trajectories).items())),
        "cut_reply_rate": cut_reply_rate(trajectories),
        "infra_retries": len(collected.retried),
        "cheating": cheating_counts(trajectories),
        "prefix_breaks": sum(trajectory.prefix_breaks for trajectory in trajectories),
        "request_notes": dict(sorted(request_notes(trajectories).items())),
        "superseded_replies": sum(trajectory.superseded_replies for trajectory in trajectories),
        "superseded_tokens": sum(trajectory.superseded_tokens for trajectory in trajectories),
        **segment_numbers(trajectories),
        **part_numbers(trajectories, learning_numbers),
    }


def segment_numbers(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Returns how often conversations were compacted and tasks delegated, and what of that is not trained; nothing
    where all attempts are of one segment and none wrote a summary."""
    if not any(len(trajectory.segments) > 1 or trajectory.rejected_summaries for trajectory in trajectories):
        return {}
    count = len(trajectories)
    return {
        "segments_mean": sum(len(trajectory.segments) for trajectory in trajectories) / count,
        "compactions_mean": sum(trajectory.compactions for trajectory in trajectories) / count,
        "rejected_summaries": sum(trajectory.rejected_summaries for trajectory in trajectories),
        "rejected_tokens": sum(trajectory.rejected_tokens for trajectory in trajectories),
        "sub_agents_mean": sum(trajectory.sub_agents for trajectory in trajectories) / count,
        "untrained_sub_agent_tokens": sum(trajectory.untrained_sub_agent_tokens for trajectory in trajectories),
    }


def request_notes(trajectories: Sequence[Trajectory]) -> Counter[str]:
    """Returns the number of calls in which the gateway mended something, by what it mended."""
    notes: Counter[str] = Counter()
    for trajectory in trajectories:
        notes.update(trajectory.request_notes)
    return notes


def cut_reply_rate(trajectories: Sequence[Trajectory]) -> float | None:
    """Returns the share of the model's replies that a limit of their length cut; None where there is no reply."""
    replies = sum(trajectory.num_calls for trajectory in trajectories)
    if replies:
        return sum(trajectory.cut_replies for trajectory in trajectories) / replies
    return None


def learned_numbers(trajectories: Sequence[Trajectory], algo: AlgoConfig) -> dict[str, Any]:
    """Returns what is to be learned of a step: of kept attempts their number, else the mean of what turns brought.

    Where attempts are kept, a group has a signal as soon as it has one of those, also if all its rewards are equal.
    """
    if algo.advantage is not AdvantageKind.kept:
        return turn_numbers(trajectories)
    groups = groups_of(trajectories)
    with_kept = {trajectory.group_id for trajectory in trajectories if trajectory.trained}
    kept = sum(trajectory.trained for trajectory in trajectories)
    return {"kept_attempts": kept, "signal_rate": len(with_kept) / max(1, len(groups))}


def turn_numbers(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Returns the mean over trajectories of what their turns brought; nothing where turns bring nothing."""
    sums = [sum(trajectory.turn_rewards) for trajectory in trajectories if trajectory.turn_rewards]
    if sums:
        return {"turn_reward_mean": sum(sums) / len(sums)}
    return {}


def eval_numbers(
    collected: Collected, *, step: int, split: str, eval_s: float, split_instances: int | None = None
) -> dict[str, Any]:
    """Returns the event `eval`. `split_instances` is the number that the split has, those left out included."""
    trajectories = collected.trajectories
    return {
        "step": step,
        "split": split,
        **resolved_numbers(trajectories),
        "split_instances": split_instances,
        "cut_reply_rate": cut_reply_rate(trajectories),
        "eval_s": eval_s,
        "by_instance": {name: list(counts) for name, counts in valid_counts(trajectories).items()},
        **part_numbers(trajectories, part_of_eval),
        "cheating": cheating_counts(collected.trajectories),
    }
