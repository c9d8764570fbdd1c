"""A step's numbers as they are defined, and advantages that know who is masked."""

import dataclasses
import statistics
from types import SimpleNamespace

import pytest

from swe_rl.agent.agent import AgentResult, Exit
from swe_rl.config.choices import AdvantageKind, DynamicSampling
from swe_rl.config.schema import AlgoConfig
from swe_rl.gateway.trace import Break
from swe_rl.rollout.batch import count_tokens, eval_numbers, rollout_numbers, set_advantages
from swe_rl.rollout.collect import Collected
from swe_rl.rollout.counts import groups_of
from swe_rl.rollout.rows import Mismatch, retokenized_rows, traced_rows, with_current_advantages
from swe_rl.rollout.trajectory import Status

MEAN_ONLY = AlgoConfig(normalize_std=False)


def test_groups_keep_their_order(trajectory):
    mixed = [trajectory("a", 0), trajectory("b", 0), trajectory("a", 1)]
    groups = groups_of(mixed)
    assert list(groups) == ["a", "b"] and [one.sample for one in groups["a"]] == [0, 1]


def test_a_masked_member_neither_moves_the_baseline_nor_gets_an_advantage(trajectory):
    group = [
        trajectory("a", 0, Status.resolved),
        trajectory("a", 1, Status.unresolved),
        trajectory("a", 2, Status.infra_error),
        trajectory("a", 3, Status.agent_timeout, in_baseline=False, trained=False),
    ]
    assert set_advantages(group, MEAN_ONLY) == 0
    assert [one.advantage for one in group] == [0.5, -0.5, 0.0, 0.0]


def test_groups_do_not_mix_and_degenerate_ones_are_counted(trajectory):
    solved = [trajectory("a", sample, Status.resolved) for sample in range(2)]
    mixed = [trajectory("b", 0, Status.resolved), trajectory("b", 1)]
    alone = [trajectory("c", 0, Status.resolved), trajectory("c", 1, Status.engine_error)]
    assert set_advantages([*solved, *mixed, *alone], MEAN_ONLY) == 2
    assert [one.advantage for one in [*solved, *mixed, *alone]] == [0.0, 0.0, 0.5, -0.5, 0.0, 0.0]


def test_penalties_are_taken_off_but_rewards_stay(trajectory):
    group = [trajectory("a", 0, Status.resolved), trajectory("a", 1, Status.resolved)]
    assert set_advantages(group, dataclasses.replace(MEAN_ONLY, kl_coef=0.1), {"a.0.0": 5.0}) == 0
    assert [one.advantage for one in group] == [-0.25, 0.25]
    assert [one.reward for one in group] == [1.0, 1.0]


def test_what_a_limit_cut_short_is_filtered_but_stays_in_the_baseline(trajectory):
    kinds = (Status.resolved, Status.unresolved, Status.step_limit, Status.context_overflow)
    for overlong_filter in (False, True):
        group = [trajectory("a", sample, status) for sample, status in enumerate(kinds)]
        assert set_advantages(group, dataclasses.replace(MEAN_ONLY, overlong_filter=overlong_filter)) == 0
        assert [one.advantage for one in group] == [0.75, -0.25, -0.25, -0.25]
        assert [one.trained for one in group] == [True, True, not overlong_filter, not overlong_filter]


def test_dynamic_sampling_looks_at_rewards_before_penalties(trajectory):
    """Two failures of different length differ by the penalty only; they teach nothing about the task."""
    algo = dataclasses.replace(MEAN_ONLY, overlong_share=0.5)
    for sampling, degenerate in ((DynamicSampling.none, 0), (DynamicSampling.filter, 1)):
        group = [trajectory("a", 0, response_tokens=100), trajectory("a", 1, response_tokens=10)]
        assert set_advantages(group, dataclasses.replace(algo, dynamic_sampling=sampling), None, 100) == degenerate
        assert [one.advantage for one in group] == ([-0.5, 0.5] if degenerate == 0 else [0.0, 0.0])
        assert [one.trained for one in group] == [degenerate == 0] * 2


def test_what_is_left_out_does_not_enter_the_batch_s_normalization(trajectory):
    algo = AlgoConfig(advantage=AdvantageKind.reinforce_pp_baseline, dynamic_sampling=DynamicSampling.filter)
    mixed = [trajectory("b", 0, Status.resolved), trajectory("b", 1)]
    alone = [dataclasses.replace(one) for one in mixed]
    solved = [trajectory("a", sample, Status.resolved) for sample in range(6)]
    assert set_advantages([*solved, *mixed], algo) == 1
    set_advantages(alone, algo)
    assert [one.advantage for one in mixed] == [one.advantage for one in alone]
    assert not any(one.trained for one in solved)


def test_without_a_group_baseline_the_batch_is_compared(trajectory):
    solved = [trajectory("a", sample, Status.resolved) for sample in range(2)]
    failed = [trajectory("b", 0), trajectory("b", 1), trajectory("b", 2, Status.infra_error)]
    assert set_advantages([*solved, *failed], AlgoConfig(advantage=AdvantageKind.reinforce_pp)) == 0
    signs = [one.advantage for one in [*solved, *failed]]
    assert signs[0] == signs[1] > 0 > signs[2] == signs[3] and signs[4] == 0.0


def test_kl_in_the_reward_goes_into_the_batch_s_normalization(trajectory):
    algo = AlgoConfig(advantage=AdvantageKind.reinforce_pp, kl_coef=0.1)
    group = [trajectory("a", 0, Status.resolved), trajectory("a", 1)]
    set_advantages(group, algo, {"a.0.0": 5.0})
    assert group[0].advantage == pytest.approx(0.5**0.5, rel=1e-4) and group[1].advantage == -group[0].advantage
    set_advantages(group, algo, {"a.0.0": 10.0})
    assert not any(one.advantage for one in group)


EACH_BATCH = [AdvantageKind.grpo, AdvantageKind.reinforce_pp, AdvantageKind.reinforce_pp_baseline]


@pytest.mark.parametrize("advantage", EACH_BATCH)
def test_a_penalty_in_a_solved_group_is_not_blown_up_to_the_size_of_a_reward(trajectory, advantage):
    """The deviation of equal rewards less tiny penalties is that of penalties: dividing makes them as large as 1."""
    solved = [trajectory("a", sample, Status.resolved) for sample in range(4)]
    kl_sums = {"a.0.0": 0.0, "a.1.0": 0.1, "a.2.0": 0.3, "a.3.0": 0.4}
    set_advantages(solved, AlgoConfig(advantage=advantage, kl_coef=1e-4), kl_sums)
    assert [one.advantage for one in solved] == pytest.approx([2e-5, 1e-5, -1e-5, -2e-5])


@pytest.mark.parametrize("advantage", EACH_BATCH)
def test_where_rewards_differ_the_deviation_is_that_of_charged_rewards(trajectory, advantage):
    mixed = [trajectory("a", 0, Status.resolved), trajectory("a", 1), trajectory("a", 2)]
    set_advantages(mixed, AlgoConfig(advantage=advantage, kl_coef=0.1), {"a.1.0": 5.0})
    charged = [1.0, -0.5, 0.0]
    expected = [(r - statistics.fmean(charged)) / (statistics.stdev(charged) + 1e-6) for r in charged]
    assert [one.advantage for one in mixed] == pytest.approx(expected)


def test_lengths_come_from_the_longest_chain(trajectory, trace):
    one = trajectory("a", 0)
    count_tokens(one, [trace(0, [1, 2], [3]), trace(1, [1, 2, 3, 4], [5, 6]), trace(2, [1, 2], [9], chain=1)])
    assert (one.prompt_tokens, one.response_tokens) == (2, 4)
    none = trajectory("a", 1)
    count_tokens(none, [])
    assert (none.prompt_tokens, none.response_tokens) == (0, 0)


def test_the_numbers_of_a_step(trajectory):
    kinds = (Status.resolved, Status.unresolved, Status.infra_error, Status.resolved)
    done = [
        trajectory(
            "a",
            sample,
            status,
            response_tokens=10 * sample,
            sampled_tokens=sample,
            prefix_breaks=sample,
            superseded_replies=sample,
            superseded_tokens=5 * sample,
            request_notes={"image": sample, "tool": 1},
        )
        for sample, status in enumerate(kinds)
    ]
    numbers = rollout_numbers(Collected(done, [None] * 4, [trajectory("a", 2, Status.infra_error)]), 2.0)
    assert numbers["num_trajectories"] == 4
    assert numbers["avg_response_length"] == 15.0
    assert numbers["tokens_per_s"] == 4 * 15.0 / 2.0
    assert numbers["sampled_tokens_per_s"] == 6 / 2.0
    assert numbers["reward_mean"] == pytest.approx(2 / 3)  # of those that have a reward
    assert (numbers["resolved_rate"], numbers["resolved_samples"]) == (2 / 3, 3)  # of those that were not broken
    assert numbers["statuses"] == {"infra_error": 1, "resolved": 2, "unresolved": 1}
    assert (numbers["infra_retries"], numbers["prefix_breaks"]) == (1, 6)
    assert (numbers["superseded_replies"], numbers["superseded_tokens"]) == (6, 30)
    assert numbers["request_notes"] == {"image": 6, "tool": 4}
    assert numbers["cut_reply_rate"] is None  # nobody asked the model for anything


def test_the_share_of_cut_replies_is_over_replies(trajectory):
    """Not over trajectories, whose shares would weigh the same however often they asked."""
    done = [trajectory("a", 0, num_calls=9, cut_replies=0), trajectory("a", 1, num_calls=1, cut_replies=1)]
    assert rollout_numbers(Collected(done, [None] * 2), 1.0)["cut_reply_rate"] == 0.1
    assert eval_numbers(Collected(done, [None] * 2), step=1, split="s", eval_s=1.0)["cut_reply_rate"] == 0.1


def test_the_overlong_filter_masks_what_a_cut_reply_ended(trajectory):
    def members():
        return [
            trajectory("a", 0, Status.format_errors, reward=0.0, ended_by_cut=True),
            trajectory("a", 1, Status.format_errors, reward=0.0),
            trajectory("a", 2, Status.resolved, reward=1.0),
        ]

    for kept in (False, True):
        group = members()
        set_advantages(group, AlgoConfig(overlong_filter=not kept))
        assert [member.trained for member in group] == [kept, True, True]
        assert group[2].advantage == pytest.approx(1.1547, abs=1e-3)  # its reward stays in the baseline


def test_a_step_without_any_reward(trajectory):
    numbers = rollout_numbers(Collected([trajectory("a", 0, Status.infra_error)], [None]), 1.0)
    assert numbers["reward_mean"] is None and numbers["resolved_rate"] is None


def rendering(ids, spans):
    """A renderer that gives the same ids whatever was said."""
    return SimpleNamespace(whole=lambda messages, tools: (ids, spans))


def test_traced_rows_carry_names_advantage_and_mask(trajectory, trace):
    one = dataclasses.replace(trajectory("a", 0, Status.infra_error), advantage=0.25)
    [row] = traced_rows(one, [trace(0, [1, 2], [3])])
    assert (row.trajectory_id, row.group_id, set(row.advantage)) == ("a.0.0", "a", {0.25})
    assert row.trained_tokens == 0 and row.loss_mask.tolist() == [False, False, True]


def test_retokenized_rows_have_no_logprobs_and_are_measured(trajectory, trace):
    one, mismatch = dataclasses.replace(trajectory("a", 0), advantage=1.0), Mismatch()
    traces = [trace(0, [1, 2], [3, 4])]
    renderer = rendering([1, 2, 3, 9], [(2, 4)])
    [row] = retokenized_rows(one, AgentResult(Exit.SUBMITTED), traces, renderer, mismatch)
    assert (
        row.rollout_logprobs is None
        and row.loss_mask.tolist() == [False, False, True, True]
        and row.weight_versions.tolist() == [3, 3]
    )
    assert mismatch.rates() == {
        "mismatch_trajectory_rate": 1.0,
        "mismatch_turn_rate": 1.0,
        "mismatch_token_rate": 0.5,
    }
    assert retokenized_rows(one, None, traces, renderer, mismatch) == []
    assert retokenized_rows(one, AgentResult(Exit.SUBMITTED), [], renderer, mismatch) == []


@pytest.mark.parametrize(("last", "trained"), [(4, True), (9, False)])
def test_what_was_tokenized_otherwise_may_be_masked(trajectory, trace, last, trained):
    one, traces = dataclasses.replace(trajectory("a", 0), advantage=1.0), [trace(0, [1, 2], [3, 4])]
    given = (one, AgentResult(Exit.SUBMITTED), traces, rendering([1, 2, 3, last], [(2, 4)]), Mismatch())
    [kept], [masked] = retokenized_rows(*given), retokenized_rows(*given, masks=True)
    assert kept.trained and kept.trained_tokens == 2
    assert masked.trained is trained and masked.trained_tokens == (2 if trained else 0)
    assert set(masked.advantage) == {1.0}


def test_rows_that_were_made_before_get_the_advantages_and_masks_of_now(trajectory, trace):
    """As if they were made now; what a differing rendering took out of training stays out."""
    learned, cut = trajectory("a", 0), trajectory("a", 1)
    traces = [trace(0, [1, 2], [3]), trace(1, [7], [8], chain=1)]
    rows = [row for one in (learned, cut) for row in traced_rows(one, traces)]
    learned.advantage, cut.advantage, cut.trained = 0.5, -0.5, False
    assert with_current_advantages(rows, [cut, learned]) == [
        row for one in (learned, cut) for row in traced_rows(one, traces)
    ]
    [masked] = with_current_advantages([dataclasses.replace(rows[0], trained=False)], [learned])
    assert not masked.trained and set(masked.advantage) == {0.5}


def test_a_reply_that_a_retry_superseded_is_no_length(trajectory, trace):
    """It is in no row: of two equal solutions none is charged for a reply that its client asked for twice."""
    again = [trace(0, [1] * 10, [7] * 90), trace(1, [1] * 10, [7] * 5, chain=1, break_kind=Break.duplicate)]
    once, short = [trace(0, [1] * 10, [7] * 5)], [trace(0, [1] * 10, [7] * 4)]
    group = [trajectory("a", 0, Status.resolved), trajectory("a", 1, Status.resolved), trajectory("a", 2)]
    for one, traces in zip(group, (again, once, short), strict=True):
        count_tokens(one, traces)
        assert one.response_tokens == sum(row.sampled_tokens for row in traced_rows(one, traces))
    set_advantages(group, dataclasses.replace(MEAN_ONLY, overlong_share=0.5), max_trajectory_tokens=100)
    assert group[0].advantage == group[1].advantage == pytest.approx(1 / 3)
    on = [*again, trace(2, [2], [3], base_turn=0, base_tokens=100)]  # went on from the older one
    count_tokens(group[0], on)
    assert group[0].response_tokens == 92
