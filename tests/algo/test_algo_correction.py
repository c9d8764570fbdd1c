import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_rl.algo.correction import correction_weights, has_token_weights, weighs_sequences
from swe_rl.algo.sequences import Sequences
from swe_rl.config.choices import Correction, MaskLevel, PolicyLoss
from swe_rl.config.schema import AlgoConfig

OLD = torch.tensor([-1.0, -2.0, -0.5, -3.0, -1.0])
ROLLOUT = torch.tensor([-1.5, -1.0, -2.5, -3.1, -1.2])
NUMBERS = torch.tensor([0, 0, 1, 2, 2])
SEQUENCES = Sequences(NUMBERS, 3)
EVERY = st.builds(
    AlgoConfig,
    correction=st.sampled_from(list(Correction)),
    stale_correction=st.sampled_from([None, *Correction]),
    correction_cap=st.sampled_from([1.0, 2.0]),
    mask_level=st.sampled_from(list(MaskLevel)),
    mask_low=st.just(0.8),
    mask_high=st.just(1.25),
    policy_loss=st.sampled_from(list(PolicyLoss)),
)


def algo(correction=Correction.none, cap=2.0, **changes):
    return AlgoConfig(correction=correction, correction_cap=cap, **changes)


def bounded(low, high, level=MaskLevel.token, **changes):
    return algo(mask_low=low, mask_high=high, mask_level=level, **changes)


def test_none_is_one_even_where_the_engine_is_unknown():
    weights = correction_weights(OLD, torch.full((5,), torch.nan), SEQUENCES, algo())
    assert weights.tolist() == [1.0] * 5


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("cap", [1.0, 2.0])
def test_weights_are_the_papers(reference, make_batch, flat, sequences_of, seed, cap):
    batch = make_batch(seed)
    for correction, by_hand in {
        Correction.token_tis: reference.token_tis,
        Correction.sequence_tis: reference.sequence_tis,
    }.items():
        got = correction_weights(flat(batch, "old"), flat(batch, "rollout"), sequences_of(batch), algo(correction, cap))
        np.testing.assert_allclose(got.numpy(), np.concatenate([by_hand(one, cap) for one in batch]), rtol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_masks_of_whole_trajectories_are_the_papers(reference, make_batch, flat, sequences_of, seed):
    batch = make_batch(seed, trajectories=20)
    for level, by_hand in {
        MaskLevel.geometric: reference.geometric_mask,
        MaskLevel.sequence: reference.sequence_mask,
    }.items():
        config = bounded(0.8, 1.25, level)
        got = correction_weights(flat(batch, "old"), flat(batch, "rollout"), sequences_of(batch), config)
        expected = np.concatenate([by_hand(one, 0.8, 1.25) for one in batch])
        assert 0 < expected.sum() < len(expected)
        np.testing.assert_allclose(got.numpy(), expected)


def test_the_geometric_mean_does_not_grow_with_the_length():
    """A ratio of 1.1 a token: the product of many is far outside of bounds that their mean is well within."""
    old, rollout = torch.full((500,), -1.0), torch.full((500,), -1.0 - float(np.log(1.1)))
    one = Sequences(torch.zeros(500, dtype=torch.int64), 1)
    assert correction_weights(old, rollout, one, bounded(0.5, 2.0, MaskLevel.geometric)).tolist() == [1.0] * 500
    assert correction_weights(old, rollout, one, bounded(0.5, 2.0, MaskLevel.sequence)).tolist() == [0.0] * 500


@settings(deadline=None)
@given(EVERY, st.permutations(range(5)))
def test_the_rows_of_a_split_trajectory_need_not_be_neighbours(config, order):
    order, stale = torch.tensor(order), NUMBERS == 1
    plain = correction_weights(OLD, ROLLOUT, SEQUENCES, config, stale)
    mixed = correction_weights(OLD[order], ROLLOUT[order], Sequences(NUMBERS[order], 3), config, stale[order])
    torch.testing.assert_close(mixed, plain[order])


@settings(deadline=None)
@given(EVERY)
def test_no_gradient_no_negative_weight_and_never_above_the_cap(config):
    old = OLD.clone().requires_grad_()
    weights = correction_weights(old, ROLLOUT, SEQUENCES, config, NUMBERS == 2)
    assert not weights.requires_grad
    assert bool((weights >= 0).all()) and bool((weights <= config.correction_cap + 1e-6).all())


@settings(deadline=None)
@given(EVERY)
def test_no_tokens_are_fine(config):
    empty = torch.zeros(0)
    none = Sequences(empty.long(), 0)
    assert correction_weights(empty, empty, none, config, empty.bool()).shape == (0,)


@pytest.mark.parametrize("correction", list(Correction))
def test_tokens_outside_of_the_bounds_weigh_nothing(correction):
    ratio = (OLD - ROLLOUT).exp()
    free = correction_weights(OLD, ROLLOUT, SEQUENCES, algo(correction))
    got = correction_weights(OLD, ROLLOUT, SEQUENCES, bounded(0.8, 1.25, correction=correction))
    inside = (ratio >= 0.8) & (ratio <= 1.25)
    assert 0 < int(inside.sum()) < len(ratio)
    torch.testing.assert_close(got, torch.where(inside, free, torch.zeros_like(free)))


def test_only_stale_rows_take_the_correction_for_stale_rows():
    stale = torch.tensor([True, True, False, False, False])
    config = algo(stale_correction=Correction.token_tis)
    got = correction_weights(OLD, ROLLOUT, SEQUENCES, config, stale)
    expected = np.where(stale.numpy(), np.minimum(np.exp(OLD.numpy() - ROLLOUT.numpy()), 2.0), 1.0)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6)
    same = algo(Correction.token_tis)
    torch.testing.assert_close(
        correction_weights(OLD, ROLLOUT, SEQUENCES, same, stale), correction_weights(OLD, ROLLOUT, SEQUENCES, same)
    )


def test_gspo_has_one_weight_a_trajectory():
    token = correction_weights(OLD, ROLLOUT, SEQUENCES, algo(Correction.token_tis))
    config = algo(Correction.token_tis, policy_loss=PolicyLoss.gspo)
    got = correction_weights(OLD, ROLLOUT, SEQUENCES, config)
    first, last = float(token[:2].mean()), float(token[3:].mean())
    torch.testing.assert_close(got, torch.tensor([first, first, float(token[2]), last, last]))


def test_what_needs_the_engine_and_what_needs_the_whole_trajectory():
    plain, tis = algo(), algo(Correction.token_tis)
    assert not has_token_weights(plain) and has_token_weights(tis) and has_token_weights(bounded(0.5, 2.0))
    assert has_token_weights(algo(stale_correction=Correction.token_tis))
    assert not weighs_sequences(tis) and not weighs_sequences(bounded(0.5, 2.0))
    assert weighs_sequences(algo(Correction.sequence_tis))
    assert weighs_sequences(algo(stale_correction=Correction.sequence_tis))
    assert weighs_sequences(bounded(0.5, 2.0, MaskLevel.geometric))
    assert weighs_sequences(dataclasses.replace(tis, policy_loss=PolicyLoss.gspo))
    assert not weighs_sequences(dataclasses.replace(tis, policy_loss=PolicyLoss.gspo_token))


def test_a_lower_bound_of_zero_masks_nothing_however_long_a_trajectory_is():
    """A token's rounding by bfloat16 is 0.0015 nats; the quotient of 20,000 of them is below 1e-13, and above 0."""
    rollout = torch.full((20_000,), -1.0)
    long = Sequences(torch.zeros(20_000, dtype=torch.int64), 1)
    for level in MaskLevel:
        assert correction_weights(rollout - 0.0015, rollout, long, bounded(0.0, 2.0, level)).tolist() == [1.0] * 20_000
    below = correction_weights(rollout - 0.0015, rollout, long, bounded(1e-12, 2.0, MaskLevel.sequence))
    assert not below.any()
    ends = torch.tensor([-torch.inf, torch.nan, 1.0])
    for level in MaskLevel:  # a quotient of 0 is inside, one that nobody knows is not
        each = Sequences(torch.arange(3), 3)
        assert correction_weights(ends, torch.zeros(3), each, bounded(0.0, 2.0, level)).tolist() == [1.0, 0.0, 0.0]
