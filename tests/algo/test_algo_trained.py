"""The losses inside of the trainer, on a tiny model: splits, old rows, and what the metrics say."""

from dataclasses import replace

import pytest
import torch

from swe_rl.algo.row import Row
from swe_rl.config.choices import Correction, MaskLevel, PolicyLoss
from swe_rl.config.schema import AlgoConfig, TrainerConfig
from swe_rl.trainer.policy import Trainer
from swe_rl.trainer.trainer import TrainerError

CONFIG = TrainerConfig(lr=3e-3, num_threads=1, prompts_per_mini_batch=1)


@pytest.fixture
def train(rank_cases):
    """Metrics of two steps, weights, for an algorithm and a size of micro-batches."""

    def run(algo, tokens=4096, rows=None, step=1):
        model = rank_cases.build(0)
        trainer = Trainer(model, replace(CONFIG, max_tokens_per_micro_batch=tokens), algo, pad_token_id=0)
        rows = rank_cases.rows() if rows is None else rows
        metrics = [trainer.train_step(rows, step + i) for i in range(2)]
        return metrics, torch.cat([one.flatten() for one in trainer.policy_weights().values()])

    return run


WHOLE = {
    "gspo": AlgoConfig(policy_loss=PolicyLoss.gspo, correction=Correction.token_tis),
    "gspo_token": AlgoConfig(policy_loss=PolicyLoss.gspo_token),
    "cispo": AlgoConfig(policy_loss=PolicyLoss.cispo, clip_low=1.0),
    "geometric": AlgoConfig(mask_level=MaskLevel.geometric, mask_low=0.4, mask_high=2.5),
    "sequence": AlgoConfig(mask_level=MaskLevel.sequence, mask_low=1e-9, mask_high=1e9),
    "stale": AlgoConfig(stale_correction=Correction.sequence_tis),
}


@pytest.mark.parametrize("name", WHOLE)
def test_micro_batches_and_split_trajectories_change_nothing(train, name):
    """One trajectory of these rows is split in two; micro-batches of 20 tokens tear it apart."""
    (_, together), whole = train(WHOLE[name])
    (_, apart), pieces = train(WHOLE[name], tokens=20)
    torch.testing.assert_close(pieces, whole, rtol=0, atol=3e-5)
    assert apart.loss == pytest.approx(together.loss, rel=1e-4)
    assert apart.ratio_max == pytest.approx(together.ratio_max, rel=1e-4) and together.ratio_max > 1.0


def test_the_metrics_tell_the_ends_of_the_clip_apart(train, rank_cases):
    """What lowers all of its tokens is held by the lower end, what raises them by the upper one."""
    algo = replace(WHOLE["gspo_token"], clip_low=1e-4, clip_high=1e-4)
    for sign in (-1.0, 1.0):
        rows = [replace(row, advantage=sign, group_id=f"g{i % 2}") for i, row in enumerate(rank_cases.rows())]
        (_, metrics), _ = train(algo, rows=rows)
        held, other = metrics.clip_fraction_high, metrics.clip_fraction_low
        held, other = (held, other) if sign > 0 else (other, held)
        assert held > 0.0 and other == 0.0 and metrics.clip_fraction == held


def test_one_update_a_step_has_ratio_one(rank_cases):
    trainer = Trainer(
        rank_cases.build(0), replace(CONFIG, prompts_per_mini_batch=8), WHOLE["gspo_token"], pad_token_id=0
    )
    metrics = trainer.train_step(rank_cases.rows(), 1)
    assert (metrics.ratio_min, metrics.ratio_max, metrics.clip_fraction) == (1.0, 1.0, 0.0)


def test_rows_past_the_limit_are_not_trained_and_counted(train, rank_cases):
    rows = [replace(row, weight_versions=(4,) * row.sampled_tokens) for row in rank_cases.rows()]
    old = [
        replace(row, weight_versions=(4,) * (row.sampled_tokens - 1) + (2,), trajectory_id=f"old.{i}")
        for i, row in enumerate(rows[:3])
    ]
    limited = AlgoConfig(max_staleness_steps=1)
    (having, _), weights = train(limited, rows=[*rows, *old], step=5)
    (without, _), expected = train(limited, rows=rows, step=5)
    assert (having.stale_rows, having.staleness_mean, having.staleness_max) == (3, 0.0, 0)
    assert having.loss == without.loss and having.trained_tokens == without.trained_tokens
    assert torch.equal(weights, expected)
    (free, _), _ = train(AlgoConfig(), rows=[*rows, *old], step=5)
    assert (free.stale_rows, free.staleness_max) == (0, 2)
    assert free.trained_tokens > having.trained_tokens


def test_a_step_of_old_rows_only_changes_nothing(train):
    (first, second), _ = train(AlgoConfig(max_staleness_steps=0), step=5)
    assert first.updates == second.updates == 0 and first.trained_rows == 0 and first.staleness_max is None


def test_fresh_rows_do_not_take_the_correction_for_stale_ones(train, rank_cases):
    fresh = [replace(row, weight_versions=(9,) * row.sampled_tokens) for row in rank_cases.rows()]
    (metrics, _), weights = train(WHOLE["stale"], rows=fresh)
    _, plain = train(AlgoConfig(), rows=fresh)
    assert metrics.correction_mean == 1.0 and torch.equal(weights, plain)
    (corrected, _), _ = train(WHOLE["stale"], step=2)
    assert corrected.correction_mean != 1.0


def test_masked_trajectories_are_counted_and_have_no_influence(train, rank_cases):
    """A trajectory that the engine found much less likely than the trainer does; its tokens may be anything."""
    algo = AlgoConfig(mask_level=MaskLevel.geometric, mask_low=1e-3, mask_high=1e3)
    rows = [replace(row, rollout_logprobs=tuple(-4.0 * one for one in row.loss_mask)) for row in rank_cases.rows()]
    (metrics, _), _ = train(algo, rows=rows)
    assert metrics.masked_fraction == 0.0
    far = tuple(-60.0 * one for one in rows[5].loss_mask)
    odd = [[*rows[:5], replace(rows[5], rollout_logprobs=far, advantage=a), *rows[6:]] for a in (1.0, 50.0)]
    (metrics, _), weights = train(algo, rows=odd[0])
    assert metrics.masked_fraction > 0.0
    assert torch.equal(train(algo, rows=odd[1])[1], weights)


def test_masks_and_corrections_of_stale_rows_need_the_engine(train):
    row = Row("t", "g", (1, 2, 3), (0, 0, 1), None, 1.0, (0,))
    for algo in (WHOLE["geometric"], WHOLE["stale"]):
        with pytest.raises(TrainerError, match="log-probabilities"):
            train(algo, rows=[row])
