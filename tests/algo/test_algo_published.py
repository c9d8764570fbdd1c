"""Losses of whole mini-batches against the papers' formulas in NumPy: value and gradient."""

import numpy as np
import pytest
import torch

from swe_rl.algo.loss import row_weights, token_loss
from swe_rl.config.choices import LossAggregation, PolicyLoss
from swe_rl.config.schema import AlgoConfig

SEEDS = pytest.mark.parametrize("seed", range(8))


@pytest.fixture
def ours(flat, sequences_of):
    """Loss and gradient (of each token's log-probability) of a batch, as the trainer puts them together."""

    def compute(batch, algo, correction=None, mean_log_ratio=None):
        new, old, advantages = flat(batch, "new").requires_grad_(), flat(batch, "old"), flat(batch, "A")
        lengths = [len(one["new"]) for one in batch]
        weights = row_weights(
            lengths, [str(i) for i in range(len(batch))], algo.loss_aggregation, algo.loss_norm_tokens
        )
        each = torch.tensor(np.repeat(weights, lengths))
        ratio = sequences_of(batch).mean(new.detach() - old)
        correction = torch.ones_like(old) if correction is None else correction
        loss = token_loss(new, old, advantages, torch.zeros_like(old), correction, None, algo, ratio)
        total = (loss.total * each).sum()
        total.backward()
        return float(total.detach()), new.grad.numpy(), loss

    return compute


@SEEDS
def test_grpo_and_dapo(reference, make_batch, ours, seed):
    batch = make_batch(seed)
    algo = AlgoConfig(clip_low=0.2, clip_high=0.28)
    assert ours(batch, algo)[0] == pytest.approx(reference.dapo_loss(batch, 0.2, 0.28))
    algo = AlgoConfig(clip_low=0.2, clip_high=0.2, loss_aggregation=LossAggregation.sequence_mean)
    assert ours(batch, algo)[0] == pytest.approx(reference.grpo_loss(batch, 0.2, 0.2))


@SEEDS
@pytest.mark.parametrize("policy_loss", [PolicyLoss.gspo, PolicyLoss.gspo_token])
@pytest.mark.parametrize("clip", [(3e-4, 4e-4), (0.2, 0.3)])
def test_gspo(reference, make_batch, ours, seed, policy_loss, clip):
    batch, (low, high) = make_batch(seed), clip
    algo = AlgoConfig(
        policy_loss=policy_loss, clip_low=low, clip_high=high, loss_aggregation=LossAggregation.sequence_mean
    )
    value, gradient, loss = ours(batch, algo)
    assert value == pytest.approx(reference.gspo_loss(batch, low, high))
    expected = np.concatenate(reference.gspo_gradient(batch, low, high))
    np.testing.assert_allclose(gradient, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(loss.clipped.numpy(), expected == 0)


@SEEDS
def test_gspo_clips_trajectories_and_never_parts_of_them(make_batch, ours, seed):
    batch = make_batch(seed, trajectories=10)
    clipped = ours(batch, AlgoConfig(policy_loss=PolicyLoss.gspo, clip_low=0.05, clip_high=0.05))[2].clipped.tolist()
    for one in batch:
        own, clipped = clipped[: len(one["new"])], clipped[len(one["new"]) :]
        assert len(set(own)) == 1


@SEEDS
@pytest.mark.parametrize("clip", [(1.0, 4.0), (0.1, 0.1)])
def test_cispo(reference, make_batch, ours, seed, clip):
    batch = make_batch(seed)
    algo = AlgoConfig(policy_loss=PolicyLoss.cispo, clip_low=clip[0], clip_high=clip[1])
    value, gradient, _ = ours(batch, algo)
    assert value == pytest.approx(reference.cispo_loss(batch, *clip))
    np.testing.assert_allclose(gradient, np.concatenate(reference.cispo_gradient(batch, *clip)), rtol=1e-9)


@SEEDS
def test_gspo_is_token_clipping_where_every_trajectory_is_one_token(make_batch, ours, seed):
    batch = make_batch(seed, longest=1)
    by_token, by_trajectory = (ours(batch, AlgoConfig(policy_loss=one)) for one in (PolicyLoss.clip, PolicyLoss.gspo))
    assert by_trajectory[0] == pytest.approx(by_token[0])
    np.testing.assert_allclose(by_trajectory[1], by_token[1], rtol=1e-9)
