import copy
import itertools
import random
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swe_rl.config.choices import Correction, KlEstimator, KlPlace, LossAggregation, MaskLevel, PolicyLoss
from swe_rl.config.schema import AlgoConfig, TrainerConfig
from swe_rl.trainer import policy, trajectories
from swe_rl.trainer.policy import Trainer
from swe_rl.trainer.rank_trainer import RankTrainer
from swe_rl.trainer.trainer import TrainerError

CONFIG = TrainerConfig(lr=1e-2, num_threads=1, grad_clip=0.0)


def trainer(model, algo=None, config=CONFIG, **changes):
    return Trainer(model, config, algo or AlgoConfig(), pad_token_id=0, **changes)


def gradient_of(model, rows, algo, monkeypatch, **changes):
    """The gradient of one step, read off just before the optimizer takes it, and the step's metrics."""
    one, seen = trainer(model, algo, **changes), {}
    apply = one._optimizer.apply

    def spy(lr, again):
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
        seen["gradient"] = torch.cat([g.flatten() for g in grads]).clone()
        return apply(lr, again)

    monkeypatch.setattr(one._optimizer, "apply", spy)
    metrics = one.train_step(rows, 0)
    return seen["gradient"], metrics


def logprobs_by_hand(model, row, temperature=1.0):
    """Each trained token's log-probability from the whole model on the unpadded row."""
    logits = model(torch.tensor([row.token_ids.tolist()])).logits[0].double() / temperature
    table = torch.log_softmax(logits, -1)
    return torch.stack([table[t - 1, row.token_ids[t]] for t, masked in enumerate(row.loss_mask) if masked])


def rollout_of(row):
    return np.array([p for p, masked in zip(row.rollout_logprobs, row.loss_mask, strict=True) if masked])


def weights_by_hand(rows, mode, norm):
    if mode is LossAggregation.token_sum:
        return [1.0 for _ in rows]
    if mode is LossAggregation.prompt_mean:
        groups = {row.group_id: [other for other in rows if other.group_id == row.group_id] for row in rows}
        return [1 / len(groups) / sum(sum(other.loss_mask) for other in groups[row.group_id]) for row in rows]
    tokens = {}
    for row in rows:
        tokens[row.trajectory_id] = tokens.get(row.trajectory_id, 0) + sum(row.loss_mask)
    if mode is LossAggregation.token_mean:
        return [1 / sum(tokens.values()) for _ in rows]
    if mode is LossAggregation.sequence_mean:
        return [1 / len(tokens) / tokens[row.trajectory_id] for row in rows]
    return [1 / len(tokens) / norm for _ in rows]


def correction_by_hand(rows, values, algo):
    if algo.correction is Correction.none:
        return [np.ones(len(v)) for v in values]
    logs = [v - rollout_of(row) for row, v in zip(rows, values, strict=True)]
    if algo.correction is Correction.token_tis:
        return [np.minimum(np.exp(log), algo.correction_cap) for log in logs]
    sums = {}
    for row, log in zip(rows, logs, strict=True):
        sums[row.trajectory_id] = sums.get(row.trajectory_id, 0.0) + log.sum()
    capped = {name: min(np.exp(np.clip(total, -20, 20)), algo.correction_cap) for name, total in sums.items()}
    return [np.full(len(log), capped[row.trajectory_id]) for row, log in zip(rows, logs, strict=True)]


def loss_by_hand(rows, values, algo, reference):
    """On policy (ratio 1), row by row, from NumPy values."""
    total = 0.0
    rows_and_weights = zip(rows, weights_by_hand(rows, algo.loss_aggregation, algo.loss_norm_tokens), strict=True)
    corrections = correction_by_hand(rows, values, algo)
    for (row, weight), v, r, correction in zip(rows_and_weights, values, reference, corrections, strict=True):
        d = r - v
        k3 = np.minimum(np.exp(d) - 1 - d, algo.kl_cap or np.inf)
        kl = {"k1": -d, "k2": d**2 / 2, "k3": k3, "k3_grad_k2": k3}[algo.kl_estimator.value]
        total += weight * (-row.advantage * correction + algo.kl_coef * kl).sum()
    return total


@pytest.mark.parametrize(
    ("mode", "correction", "estimator", "kl_cap"),
    list(itertools.product(LossAggregation, [Correction.none], [KlEstimator.k3], [None, 10.0]))
    + list(itertools.product([LossAggregation.sequence_mean], Correction, [KlEstimator.k1, KlEstimator.k2], [10.0]))
    + [(LossAggregation.token_mean, Correction.none, KlEstimator.k3_grad_k2, 10.0)],
)
def test_the_loss_is_the_one_computed_by_hand(build, make_rows, mode, correction, estimator, kl_cap):
    algo = AlgoConfig(
        loss_aggregation=mode,
        loss_norm_tokens=50,
        correction=correction,
        kl_coef=0.2,
        kl_estimator=estimator,
        kl_cap=kl_cap,
    )
    rows = make_rows()
    rows[1] = replace(rows[1], trajectory_id=rows[0].trajectory_id)  # one split trajectory
    model, reference = build(0).eval(), build(1).eval()
    with torch.no_grad():
        values = [logprobs_by_hand(model, row, 0.8).numpy() for row in rows]
        others = [logprobs_by_hand(reference, row, 0.8).numpy() for row in rows]
    metrics = trainer(model, algo, reference=reference, temperature=0.8).train_step(rows, 0)
    assert metrics.loss == pytest.approx(loss_by_hand(rows, values, algo, others), rel=1e-4, abs=1e-5)
    if estimator is KlEstimator.k3 and kl_cap is not None:
        d = np.concatenate(others) - np.concatenate(values)
        assert metrics.kl_capped_fraction == pytest.approx(np.mean(np.exp(d) - 1 - d > kl_cap))
        assert metrics.kl_capped_fraction > 0
    elif estimator in (KlEstimator.k1, KlEstimator.k2):
        assert metrics.kl_capped_fraction is None
    rollout = np.concatenate([rollout_of(row) for row in rows])
    d = np.concatenate(values) - rollout
    assert metrics.kl_rollout == pytest.approx((np.exp(d) - 1 - d).mean(), rel=1e-4)
    assert metrics.logprob_diff_mean == pytest.approx(np.abs(d).mean(), rel=1e-4)
    assert metrics.logprob_diff_max == pytest.approx(np.abs(d).max(), rel=1e-4)


def test_each_token_has_its_own_advantage(build, make_rows):
    rng, algo = np.random.default_rng(3), AlgoConfig()
    rows = [replace(row, advantage=rng.normal(size=row.sampled_tokens)) for row in make_rows()]
    model = build().eval()
    with torch.no_grad():
        values = [logprobs_by_hand(model, row).numpy() for row in rows]
    assert trainer(model, algo).train_step(rows, 0).loss == pytest.approx(
        loss_by_hand(rows, values, algo, values), rel=1e-5
    )


def test_one_token_with_an_advantage_is_enough(build, make_rows):
    """Of a row whose other tokens have none; a row of zeros alone is measured and not trained."""
    rows = [replace(row, advantage=np.zeros(row.sampled_tokens)) for row in make_rows()]
    advantage = np.zeros(rows[5].sampled_tokens)
    advantage[-1] = 1.0
    metrics = trainer(build(), AlgoConfig()).train_step(
        [*rows[:5], replace(rows[5], advantage=advantage), *rows[6:]], 0
    )
    assert (metrics.trained_rows, metrics.updates) == (1, 1)


def test_the_gradient_is_that_of_reinforce(build, make_rows, monkeypatch):
    rows, model = make_rows(), build().eval()
    twin = copy.deepcopy(model)
    tokens = sum(row.trained_tokens for row in rows)
    loss = -sum((torch.from_numpy(row.advantage) * logprobs_by_hand(twin, row)).sum() for row in rows) / tokens
    loss.backward()
    expected = torch.cat([p.grad.flatten() for p in twin.parameters()])
    got, metrics = gradient_of(model, rows, AlgoConfig(), monkeypatch)
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-5)
    assert metrics.grad_norm == pytest.approx(float(expected.norm()), rel=1e-4)
    assert (metrics.ratio_min, metrics.ratio_max, metrics.clip_fraction) == (1.0, 1.0, 0.0)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    max_tokens=st.integers(1, 400),
    mode=st.sampled_from(list(LossAggregation)),
    correction=st.sampled_from(list(Correction)),
    seed=st.integers(0, 99),
)
def test_micro_batches_and_arrival_order_change_neither_loss_nor_gradient(
    build, make_rows, max_tokens, mode, correction, seed
):
    algo = AlgoConfig(loss_aggregation=mode, correction=correction)
    rows = make_rows()
    rows[5] = replace(rows[5], trajectory_id=rows[4].trajectory_id)
    shuffled = rows.copy()
    random.Random(seed).shuffle(shuffled)
    small = replace(CONFIG, max_tokens_per_micro_batch=max_tokens)
    with pytest.MonkeyPatch.context() as patch:
        whole, one = gradient_of(build(), rows, algo, patch)
        split, other = gradient_of(build(), shuffled, algo, patch, config=small)
    torch.testing.assert_close(split, whole, rtol=1e-3, atol=1e-5)
    assert other.loss == pytest.approx(one.loss, rel=1e-4, abs=1e-6)
    assert other.trained_tokens == one.trained_tokens


@pytest.mark.parametrize("mode", list(LossAggregation))
def test_rows_with_advantage_zero_may_be_left_out(build, make_rows, monkeypatch, mode):
    rows, algo = make_rows(), AlgoConfig(loss_aggregation=mode)
    lean, left_out = gradient_of(build(), rows, algo, monkeypatch)
    full, kept = gradient_of(build(), rows, algo, monkeypatch, keep_all_rows=True)
    torch.testing.assert_close(lean, full, rtol=1e-4, atol=1e-7)
    assert left_out.loss == pytest.approx(kept.loss, abs=1e-7)
    assert (left_out.trained_rows, left_out.skipped_rows) == (12, 4)
    assert (kept.trained_rows, kept.skipped_rows) == (16, 0)
    for name in ("entropy", "kl_rollout", "logprob_diff_mean", "logprob_diff_max"):  # means over all sampled tokens
        assert getattr(left_out, name) == pytest.approx(getattr(kept, name), rel=1e-5)
    assert left_out.trained_tokens < kept.trained_tokens and left_out.measured_token_share == 1.0


@pytest.mark.parametrize(
    "algo",
    [
        AlgoConfig(correction=Correction.sequence_tis, correction_cap=1e9),
        AlgoConfig(mask_level=MaskLevel.geometric, mask_low=0.4, mask_high=2.5),
        AlgoConfig(policy_loss=PolicyLoss.gspo_token),
    ],
)
def test_rows_of_advantage_zero_stay_where_their_trajectory_is_weighed_as_a_whole(build, make_rows, monkeypatch, algo):
    """As rewards of turns make them, of a trajectory that was split; the gradient is the second update's."""
    rows, config = make_rows(groups=2), replace(CONFIG, prompts_per_mini_batch=1)
    for first in (0, 4):
        rows[first + 1] = replace(rows[first + 1], trajectory_id=rows[first].trajectory_id, advantage=0.0)
    lean, left_out = gradient_of(build(), rows, algo, monkeypatch, config=config)
    full, kept = gradient_of(build(), rows, algo, monkeypatch, config=config, keep_all_rows=True)
    torch.testing.assert_close(lean, full)
    assert left_out.trained_rows == kept.trained_rows and left_out.correction_mean == kept.correction_mean


def test_rows_that_are_not_trained_count_in_what_is_said_of_all_sampled_tokens(build, make_rows, make_row):
    """Advantage 0, masked and stale rows alike; by hand, over every token of the step."""
    rows = [*make_rows(), make_row("g9", "masked", 1.0, trained=False)]
    model = build(0).eval()
    with torch.no_grad():
        values = np.concatenate([logprobs_by_hand(model, row).numpy() for row in rows])
    d = values - np.concatenate([rollout_of(row) for row in rows])
    metrics = trainer(model).train_step(rows, 0)
    assert metrics.kl_rollout == pytest.approx((np.exp(d) - 1 - d).mean(), rel=1e-4)
    assert metrics.logprob_diff_mean == pytest.approx(np.abs(d).mean(), rel=1e-4)
    assert metrics.logprob_diff_max == pytest.approx(np.abs(d).max(), rel=1e-4)


def test_of_many_rows_without_advantage_a_part_stands_for_all(build, make_row):
    taught = [make_row("g0", f"t{i}", 1.0 - 2 * (i % 2), length=12) for i in range(4)]
    idle = [make_row(f"z{i}", f"z{i}", 0.0, length=12) for i in range(40)]
    one_update = replace(CONFIG, prompts_per_mini_batch=64)
    small = replace(one_update, max_tokens_per_micro_batch=60)
    whole = trainer(build(), config=one_update, keep_all_rows=True).train_step(taught + idle, 0)
    part = trainer(build(), config=small).train_step(taught + idle, 0)
    assert 0.1 < part.measured_token_share < 0.5
    assert part.entropy == pytest.approx(whole.entropy, rel=0.2)
    alone = trainer(build()).train_step(taught, 0)
    sampled = [sum(row.loss_mask) for row in (*taught, *idle)]
    assert alone.trained_tokens == part.trained_tokens == sum(sampled[:4])
    looked_at = round(part.measured_token_share * sum(sampled))
    assert looked_at - part.trained_tokens <= 60


def test_masked_rows_have_no_influence(build, make_rows, make_row, monkeypatch):
    rows = make_rows()
    noise = [make_row(f"g{i}", "masked", 50.0, trained=False) for i in range(3)]
    without, _ = gradient_of(build(), rows, AlgoConfig(), monkeypatch)
    having, metrics = gradient_of(build(), rows + noise, AlgoConfig(), monkeypatch)
    assert torch.equal(without, having)
    assert metrics.skipped_rows == 7


def test_tokens_after_the_last_trained_one_have_no_influence(build, make_row, monkeypatch):
    short = make_row("g", "a", 1.0, length=12)
    tail = (9, 9, 9)
    longer = replace(
        short,
        token_ids=(*short.token_ids, *tail),
        loss_mask=(*short.loss_mask, 0, 0, 0),
        rollout_logprobs=(*short.rollout_logprobs, 0.0, 0.0, 0.0),
    )
    one, _ = gradient_of(build(), [short], AlgoConfig(), monkeypatch)
    other, _ = gradient_of(build(), [longer], AlgoConfig(), monkeypatch)
    assert torch.equal(one, other)


def test_a_step_without_anything_to_learn_changes_nothing(build, make_row):
    model = build()
    before = copy.deepcopy(model.state_dict())
    metrics = trainer(model, config=replace(CONFIG, weight_decay=0.1)).train_step([make_row("g", "a", 0.0)], 0)
    assert (metrics.updates, metrics.trained_rows, metrics.skipped_rows, metrics.loss) == (0, 0, 1, 0.0)
    assert metrics.ratio_mean is None and metrics.trained_tokens == 0
    assert metrics.entropy > 0 and metrics.kl_rollout is not None and metrics.measured_token_share == 1.0
    nothing = trainer(model).train_step([], 0)
    assert (nothing.entropy, nothing.kl_rollout, nothing.measured_token_share) == (None, None, None)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_without_engine_log_probabilities_the_gap_is_unknown(build, make_rows):
    metrics = trainer(build()).train_step(make_rows(logprobs=False), 0)
    assert metrics.updates == 1
    assert (metrics.kl_rollout, metrics.logprob_diff_mean, metrics.logprob_diff_max) == (None, None, None)


def test_several_updates_use_the_policy_of_the_start_of_the_step(build, make_rows):
    rows, model = make_rows(groups=4), build()
    config = replace(CONFIG, prompts_per_mini_batch=1)
    metrics = trainer(model, config=config).train_step(rows, 0)
    assert metrics.updates == 3  # the degenerate group makes none
    assert metrics.ratio_min < 0.99
    assert metrics.ratio_max > 1.01
    # Without a correction the engine's log-probabilities change the loss of no update.
    again = trainer(build(), config=config).train_step([replace(r, rollout_logprobs=None) for r in rows], 0)
    assert again.loss == metrics.loss


def test_the_warm_up_counts_steps_however_many_updates_they_have(build, make_rows):
    config = replace(CONFIG, prompts_per_mini_batch=1, warmup_steps=4)
    one = trainer(build(), config=config)
    done = [one.train_step(make_rows(groups=4), step) for step in range(5)]
    assert [metrics.updates for metrics in done] == [3] * 5
    assert [metrics.lr / config.lr for metrics in done] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


def test_a_mini_batch_that_is_masked_as_a_whole_moves_nothing(build, make_rows, monkeypatch):
    """Its correction is 0 for every token; after an update AdamW's momentum alone would move the weights."""
    model, rows = build(), make_rows()
    one = trainer(model)
    assert one.train_step(rows, 0).updates == 1
    before = copy.deepcopy(model.state_dict())
    original = trajectories.correction_weights
    monkeypatch.setattr(trajectories, "correction_weights", lambda *args: torch.zeros_like(original(*args)))
    metrics = one.train_step(rows, 1)
    assert (metrics.updates, metrics.nonfinite_updates, metrics.idle_updates) == (0, 0, 1)
    assert metrics.masked_fraction == 1.0
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    monkeypatch.undo()
    metrics = one.train_step(rows, 2)
    assert (metrics.updates, metrics.idle_updates, one.updates_done) == (1, 0, 2)


def test_the_policy_learns_what_is_rewarded(build, make_row):
    good = make_row("g", "good", 1.0, length=20)
    bad = make_row("g", "bad", -1.0, length=20)
    model = build()
    one = trainer(model, AlgoConfig(), replace(CONFIG, grad_clip=1.0))

    def preference():
        with torch.no_grad():
            return float(logprobs_by_hand(model, good).mean() - logprobs_by_hand(model, bad).mean())

    before = preference()
    for step in range(5):
        one.train_step([good, bad], step)
    assert preference() > before + 1.0


def test_non_finite_gradients_are_skipped_counted_and_then_stop_the_run(build, make_rows, monkeypatch):
    model, rows = build(), make_rows()
    before = copy.deepcopy(model.state_dict())
    one, original = trainer(model), policy.token_loss
    monkeypatch.setattr(
        policy, "token_loss", lambda *a, **k: replace(original(*a, **k), total=original(*a, **k).total * float("nan"))
    )
    for step in range(2):
        metrics = one.train_step(rows, step)
        assert (metrics.updates, metrics.nonfinite_updates, metrics.grad_norm) == (0, 1, 0.0)
    with pytest.raises(TrainerError, match="not finite"):
        one.train_step(rows, 2)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("kernel_is_at_fault", [True, False])
def test_a_non_finite_gradient_is_computed_again_without_cudnns_attention(
    build, make_rows, monkeypatch, kernel_is_at_fault
):
    one, other, original, asked = trainer(build()), trainer(build()), policy.token_loss, []

    def bad_kernel(*args, **more):
        loss = original(*args, **more)
        return replace(loss, total=loss.total * (1.0 if asked and kernel_is_at_fault else float("nan")))

    def without_cudnn(device):
        asked.append(device)
        return len(asked) == 1

    expected = other.train_step(make_rows(), 0)
    monkeypatch.setattr(policy, "token_loss", bad_kernel)
    monkeypatch.setattr(policy.attention, "without_cudnn", without_cudnn)
    metrics = one.train_step(make_rows(), 0)
    assert metrics.repeated_updates == 1 and asked == [torch.device("cpu")]
    assert (metrics.updates, metrics.nonfinite_updates) == ((1, 0) if kernel_is_at_fault else (0, 1))
    if kernel_is_at_fault:
        assert metrics.grad_norm == expected.grad_norm and metrics.trained_tokens == expected.trained_tokens
        weights = other.model.state_dict()
        assert all(torch.equal(tensor, weights[name]) for name, tensor in one.model.state_dict().items())


def test_dropout_is_off_while_training(build, make_rows):
    model = build().train()
    trainer(model).train_step(make_rows(), 0)
    assert not any(module.training for module in model.modules())


def test_the_learning_rate_warms_up_by_steps(build, make_rows):
    one = trainer(build(), config=replace(CONFIG, warmup_steps=4, prompts_per_mini_batch=1))
    assert [one.train_step(make_rows(), step).lr for step in range(5)] == pytest.approx(
        [0.0025, 0.005, 0.0075, 0.01, 0.01]
    )


def test_activation_checkpointing_changes_nothing(build, make_rows, monkeypatch):
    plain, _ = gradient_of(build(), make_rows(), AlgoConfig(), monkeypatch)
    config = replace(CONFIG, activation_checkpointing=True)
    checkpointed, _ = gradient_of(build(), make_rows(), AlgoConfig(), monkeypatch, config=config)
    torch.testing.assert_close(checkpointed, plain, rtol=1e-4, atol=1e-6)


def test_the_same_step_twice_is_the_same_bit_for_bit(build, make_rows):
    models = build(), build()
    for model in models:
        one = trainer(model, config=replace(CONFIG, prompts_per_mini_batch=2))
        for step in range(2):
            one.train_step(make_rows(), step)
    assert all(map(torch.equal, models[0].state_dict().values(), models[1].state_dict().values()))


def test_policy_weights_are_views_with_every_name(build):
    model = build()
    weights = trainer(model).policy_weights()
    assert set(weights) == set(model.state_dict())
    assert weights["lm_head.weight"].data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert not any(tensor.requires_grad for tensor in weights.values())


def test_sequence_kl_is_summed_over_each_trajectory(build, make_rows):
    rows = make_rows()
    rows[1] = replace(rows[1], trajectory_id=rows[0].trajectory_id)
    rows[2] = replace(rows[2], trained=False)  # may be in a baseline all the same
    model, reference = build(0), build(1).eval()
    one = trainer(model, AlgoConfig(kl_coef=0.1, kl_in=KlPlace.reward), reference=reference)
    got = one.sequence_kl(rows)
    with torch.no_grad():
        parts = [float((logprobs_by_hand(model, r) - logprobs_by_hand(reference, r)).sum()) for r in rows]
    assert got[rows[0].trajectory_id] == pytest.approx(parts[0] + parts[1], rel=1e-4)
    assert got[rows[2].trajectory_id] == pytest.approx(parts[2], rel=1e-4)


def test_what_cannot_work_is_refused_at_the_start(build):
    with pytest.raises(TrainerError, match="reference"):
        trainer(build(), AlgoConfig(kl_coef=0.1))
    with pytest.raises(TrainerError, match="temperature"):
        trainer(build(), temperature=0.0)
    with pytest.raises(TrainerError, match="no reference"):
        trainer(build()).sequence_kl([])


@pytest.mark.parametrize("recompute", [False, True])
def test_no_dropout_of_a_model_is_left_where_it_is_trained(build, make_rows, recompute):
    """Two passes over one row are equal, or no ratio is 1; the model's own attention, and modules that others have."""
    model = build()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.3
        layer.mlp.act_fn = torch.nn.Sequential(layer.mlp.act_fn, torch.nn.Dropout(0.3))
    plain = trainer(build()).token_logprobs(make_rows(), 1.0)
    one = trainer(model, config=replace(CONFIG, activation_checkpointing=recompute))
    for mine, expected in zip(one.token_logprobs(make_rows(), 1.0), plain, strict=True):
        assert mine == pytest.approx(expected, abs=1e-5)
    metrics = one.train_step(make_rows(), 0)
    assert metrics.ratio_min == pytest.approx(1.0, abs=1e-5) == metrics.ratio_max


def test_a_scheduled_temperature_is_that_of_a_trainer_with_this_temperature(build, make_rows):
    def scheduled(**changes):
        changes = {"temperature": 1.0, "temperatures": {3: 0.7, 4: 1.3}, **changes}
        return RankTrainer(build(), CONFIG, AlgoConfig(), pad_token_id=0, **changes)

    first = scheduled()
    for step, temperature in ((1, 1.0), (2, 1.0), (3, 0.7), (4, 1.3), (9, 1.3)):
        weights = copy.deepcopy(first.model.state_dict())
        alone = trainer(build(), temperature=temperature)
        alone.model.load_state_dict(weights)
        fresh = scheduled()
        fresh.model.load_state_dict(weights)
        rows = make_rows()
        assert asdict(fresh.train_step(rows, step)) | {"train_s": 0} == asdict(alone.train_step(rows, step)) | {
            "train_s": 0
        }
        for ours, theirs in zip(fresh.model.parameters(), alone.model.parameters(), strict=True):
            assert torch.equal(ours, theirs)
    with pytest.raises(TrainerError, match="temperature"):
        scheduled(temperatures={2: 0.0})
