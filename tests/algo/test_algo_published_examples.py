"""OPO, length-normalized leave-one-out and GMPO of examples/published, against their papers' formulas in NumPy."""

import copy
import sys

import numpy as np
import pytest
import torch

from swe_rl.algo.conformance import check_advantage, check_loss
from swe_rl.algo.foreign.loss import make_loss
from swe_rl.algo.own_algorithm import RewardGroup
from swe_rl.config.choices import LossAggregation
from swe_rl.config.folders import examples_dir
from swe_rl.config.schema import AlgoConfig, LossConfig, TrainerConfig
from swe_rl.trainer.metrics import StepStats
from swe_rl.trainer.policy import Trainer


@pytest.fixture
def published(monkeypatch):
    monkeypatch.syspath_prepend(str(examples_dir() / "published"))
    import gmpo
    import length_loo
    import opo

    yield opo.Opo, length_loo.LengthLoo, gmpo.Gmpo
    for name in ("gmpo", "length_loo", "opo"):
        sys.modules.pop(name, None)


def a_group(seed, outside=()):
    rng = np.random.default_rng(seed)
    number = int(rng.integers(2, 9))
    rewards = tuple(float(reward) for reward in rng.normal(size=number).round(3))
    kept = tuple(place not in outside for place in range(number))
    lengths = tuple(int(tokens) for tokens in rng.integers(1, 500, number))
    return RewardGroup(rewards, kept, rewards, sampled_tokens=lengths), np.array(rewards), np.array(lengths)


def test_they_conform(published):
    opo, length_loo, gmpo = published
    check_advantage(opo)
    check_advantage(length_loo)
    check_loss(gmpo)


@pytest.mark.parametrize("seed", range(8))
def test_opo_s_baseline_is_the_mean_weighted_by_length(published, seed):
    group, rewards, lengths = a_group(seed)
    [got] = published[0]().advantages([group])
    np.testing.assert_allclose(got, rewards - (lengths * rewards).sum() / lengths.sum(), atol=1e-12)
    assert np.dot(lengths, got) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_leave_one_out_over_the_length(published, seed):
    group, rewards, lengths = a_group(seed)
    [got] = published[1]().advantages([group])
    others = np.array([np.delete(rewards, place).mean() for place in range(len(rewards))])
    np.testing.assert_allclose(got, (rewards - others) * lengths.mean() / lengths, atol=1e-12)
    # Under a mean over tokens each trajectory's push is its own advantage, over the number of trajectories.
    np.testing.assert_allclose(np.array(got) * lengths / lengths.sum(), (rewards - others) / len(rewards), atol=1e-12)


def test_members_outside_of_the_baseline_move_nobody(published):
    group, rewards, lengths = a_group(3, outside=(1,))
    kept = np.array(group.in_baseline)
    [got] = published[0]().advantages([group])
    baseline = (lengths[kept] * rewards[kept]).sum() / lengths[kept].sum()
    np.testing.assert_allclose(np.array(got)[kept], rewards[kept] - baseline, atol=1e-12)
    assert got[1] == 0.0


def test_groups_made_before_there_were_lengths_still_work(published):
    old = RewardGroup((1.0, 0.0, 0.0), (True, True, True), (1.0, 0.0, 0.0))
    assert published[0]().advantages([old])[0] == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    assert published[1]().advantages([old])[0] == pytest.approx([1.0, -0.5, -0.5])


def logprobs_of(model, row):
    logits = model(torch.tensor([row.token_ids.tolist()])).logits[0].double()
    places = np.flatnonzero(row.loss_mask)
    return torch.log_softmax(logits, -1)[places - 1, torch.tensor(row.token_ids[places].astype(np.int64))]


def gmpo_by_hand(rows, now, old, low, high):
    """Trajectory by trajectory: a product of clipped ratios, to the power of 1 / length, times A."""
    objective = 0.0
    names = list(dict.fromkeys(row.trajectory_id for row in rows))
    for name in names:
        members = [place for place, row in enumerate(rows) if row.trajectory_id == name]
        sign = np.sign(rows[members[0]].advantage[0])
        ratio = torch.cat([(now[place] - old[place]).exp() for place in members])
        bounded = ratio.clamp(np.exp(-low), np.exp(high))
        chosen = torch.minimum(sign * ratio, sign * bounded).abs()
        objective = objective + chosen.prod() ** (1 / len(ratio)) * float(rows[members[0]].advantage[0])
    return -objective / len(names)


@pytest.mark.parametrize("max_tokens", [40, 4096])
def test_gmpo_is_the_geometric_mean_in_value_and_gradient(published, rank_cases, monkeypatch, max_tokens):
    """Of one update after the policy has moved, and of trajectories whose rows are in several micro-batches."""
    low, high = 0.05, 0.1
    rows = [row for row in rank_cases.rows() if row.teaches]
    algo = AlgoConfig(loss_aggregation=LossAggregation.sequence_mean)
    config = TrainerConfig(lr=1e-3, num_threads=1, max_tokens_per_micro_batch=max_tokens, grad_clip=1e9)
    formula = make_loss(LossConfig(name="gmpo", _target_="gmpo.Gmpo", params={"low": low, "high": high}), algo)
    before, after = rank_cases.build(0).eval(), rank_cases.build(0).eval()
    with torch.no_grad():
        for parameter in after.parameters():
            parameter.mul_(1.05)
        old = [logprobs_of(before, row) for row in rows]
    expected_model = copy.deepcopy(after)
    loss = gmpo_by_hand(rows, [logprobs_of(expected_model, row) for row in rows], old, low, high)
    loss.backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in expected_model.parameters()])

    trainer, seen = Trainer(after, config, algo, pad_token_id=0, loss=formula), {}
    apply = trainer._optimizer.apply

    def spy(lr, again):
        seen["gradient"] = torch.cat([parameter.grad.flatten() for parameter in after.parameters()]).clone()
        return apply(lr, again)

    monkeypatch.setattr(trainer._optimizer, "apply", spy)
    of_row = {row.token_ids.tobytes(): value.float() for row, value in zip(rows, old, strict=True)}
    works = trainer._works(trainer._mini_batches(rows, 1)[0])
    start = []
    for work in works:
        mini = trainer._mini_batches(rows, 1)[0]
        start.append(torch.cat([of_row[mini.rows[member].token_ids.tobytes()] for member in work.batch.members]))
    means, stats = trainer._sequence_means(works, start, moved=True), StepStats()
    trainer._accumulate(works, start, means, None, 0, False, stats)
    trainer._optimizer.apply(1e-3, None)
    torch.testing.assert_close(seen["gradient"], expected, rtol=1e-3, atol=1e-6)
    assert stats.policy_loss == pytest.approx(float(loss), rel=1e-4, abs=1e-6)
