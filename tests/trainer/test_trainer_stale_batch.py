"""The gradient of a step whose rows older weights sampled, some of them within one row, against one by hand in NumPy.

The model is a table of embeddings and a head, whose gradient fits on a few lines; trainer, mini-batches, corrections,
clip and masks are the real ones. The reference is written from the papers, token by token, in float64.
"""

import numpy as np
import pytest
import torch
from torch import nn

from swe_rl.algo.row import Row
from swe_rl.config.choices import Correction, LossAggregation, MaskLevel
from swe_rl.config.schema import AlgoConfig, TrainerConfig
from swe_rl.trainer.policy import Trainer

VOCAB, HIDDEN, VERSION = 11, 6, 5  # the step trains weights of version 5
CAP, LOW, HIGH = 1.5, 0.2, 0.28
MASK_LOW, MASK_HIGH = 0.3, 3.0


class Embedded(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCAB, HIDDEN)

    def forward(self, input_ids, **_):
        return (self.table(input_ids),)


class Bigrams(nn.Module):
    """The next token depends on the last one alone."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.model, self.lm_head = Embedded(), nn.Linear(HIDDEN, VOCAB, bias=False)

    def tables(self):
        return [tensor.detach().double().numpy().copy() for tensor in (self.model.table.weight, self.lm_head.weight)]


def rows_of(seed, groups=4):
    """Trajectories of one or two rows; within a row the weights change once or twice, or not at all."""
    rng, rows = np.random.default_rng(seed), []
    for group in range(groups):
        for sample in range(3):
            for _ in range(1 + int(rng.random() < 0.3)):
                length = int(rng.integers(5, 12))
                mask = np.r_[[False, False, True], rng.random(length - 3) < 0.7]
                advantage = rng.normal(size=int(mask.sum()))  # each sampled token has its own
                versions = np.sort(rng.choice([VERSION - 2, VERSION - 1, VERSION], int(mask.sum())))
                versions = np.full_like(versions, VERSION) if rng.random() < 0.3 else versions
                logprobs = np.where(mask, np.log(rng.uniform(0.03, 0.3, length)), 0.0)
                ids = rng.integers(0, VOCAB, length)
                rows.append(Row(f"g{group}.{sample}", f"g{group}", ids, mask, logprobs, advantage, versions))
    return rows


def tokens_of(row):
    """(previous token, token, the engine's log-probability) of what was sampled."""
    return [
        (row.token_ids[at - 1], row.token_ids[at], float(row.rollout_logprobs[at]))
        for at in np.flatnonzero(row.loss_mask)
    ]


def log_softmax(tables, before, temperature):
    table, head = tables
    logits = head @ table[before] / temperature
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


def reference(rows, start, now, algo, temperature):
    """The gradient of both tables; `start`, `now`: the tables at the start of the step, and before this update."""
    ratios, weights = {}, {}  # by row: log policy at the start of the step - log engine
    for number, row in enumerate(rows):
        ratios[number] = np.array([log_softmax(start, b, temperature)[t] - engine for b, t, engine in tokens_of(row)])
    whole = {
        row.trajectory_id: np.concatenate(
            [ratios[i] for i, other in enumerate(rows) if other.trajectory_id == row.trajectory_id]
        )
        for row in rows
    }
    for number, row in enumerate(rows):
        is_stale = row.weight_versions.min() < VERSION
        kind = algo.stale_correction if is_stale and algo.stale_correction is not None else algo.correction
        by_token = np.minimum(np.exp(ratios[number]), CAP)
        of_whole = np.full_like(by_token, min(np.exp(whole[row.trajectory_id].sum()), CAP))
        weights[number] = {
            Correction.none: np.ones_like(by_token),
            Correction.token_tis: by_token,
            Correction.sequence_tis: of_whole,
        }[kind]
        if algo.mask_low is not None:
            inner = (
                np.exp(whole[row.trajectory_id].mean())
                if algo.mask_level is MaskLevel.geometric
                else np.exp(ratios[number])
            )
            weights[number] = weights[number] * ((inner >= MASK_LOW) & (inner <= MASK_HIGH))
    gradients = [np.zeros_like(table) for table in now]
    counts = {row.trajectory_id: len(whole[row.trajectory_id]) for row in rows}
    for number, row in enumerate(rows):
        share = 1 / sum(counts.values())
        if algo.loss_aggregation is LossAggregation.sequence_mean:
            share = 1 / len(counts) / counts[row.trajectory_id]
        sampled = zip(tokens_of(row), weights[number], row.advantage, strict=True)
        for (before, token, _), weight, advantage in sampled:
            logprobs = log_softmax(now, before, temperature)
            ratio = np.exp(logprobs[token] - log_softmax(start, before, temperature)[token])
            held = ratio > 1 + HIGH if advantage > 0 else ratio < 1 - LOW
            slope = 0.0 if held else -advantage * ratio * weight * share
            at_logits = slope * ((np.arange(VOCAB) == token) - np.exp(logprobs)) / temperature
            gradients[1] += np.outer(at_logits, now[0][before])
            gradients[0][before] += now[1].T @ at_logits
    return gradients


@pytest.mark.parametrize("aggregation", [LossAggregation.token_mean, LossAggregation.sequence_mean])
@pytest.mark.parametrize(
    ("correction", "stale", "masked"),
    [
        (Correction.token_tis, None, None),
        (Correction.sequence_tis, None, MaskLevel.token),
        (Correction.none, Correction.token_tis, None),
        (Correction.token_tis, Correction.sequence_tis, MaskLevel.geometric),
    ],
)
def test_the_gradient_of_a_stale_batch(monkeypatch, correction, stale, masked, aggregation):
    """Of each update of a step of two: in the second one the policy has moved, and the clip holds some tokens."""
    bounds = {"mask_low": MASK_LOW, "mask_high": MASK_HIGH, "mask_level": masked} if masked else {}
    algo = AlgoConfig(
        correction=correction,
        stale_correction=stale,
        correction_cap=CAP,
        clip_low=LOW,
        clip_high=HIGH,
        loss_aggregation=aggregation,
        **bounds,
    )
    model, rows, temperature = Bigrams(3), rows_of(7), 0.8
    config = TrainerConfig(
        lr=0.2, num_threads=1, grad_clip=0.0, prompts_per_mini_batch=2, max_tokens_per_micro_batch=30
    )
    trainer, seen = Trainer(model, config, algo, pad_token_id=0, temperature=temperature), []
    start, apply = model.tables(), trainer._optimizer.apply

    def spy(lr, again):
        gradients = [
            parameter.grad.double().numpy().copy() for parameter in (model.model.table.weight, model.lm_head.weight)
        ]
        seen.append((model.tables(), gradients))
        return apply(lr, again)

    monkeypatch.setattr(trainer._optimizer, "apply", spy)
    split = []
    batches = trainer._mini_batches
    monkeypatch.setattr(trainer, "_mini_batches", lambda *given: split.extend(batches(*given)) or batches(*given))
    metrics = trainer.train_step(rows, VERSION + 1)
    assert len(seen) == len(split) == 2 == metrics.updates and metrics.clip_fraction > 0
    mixed = [row for row in rows if len(set(row.weight_versions.tolist())) > 1]
    assert mixed and any(set(row.weight_versions.tolist()) == {VERSION} for row in rows)
    for mini, (now, gradients) in zip(split, seen, strict=True):
        for gradient, expected in zip(gradients, reference(mini.rows, start, now, algo, temperature), strict=True):
            assert np.abs(expected).max() > 1e-3
            np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-6)


def test_what_older_weights_sampled_changes_the_gradient(monkeypatch):
    """The counter-proof: the same rows, as if the present weights had sampled them."""
    algo = AlgoConfig(correction=Correction.none, stale_correction=Correction.token_tis, correction_cap=CAP)
    model, rows = Bigrams(3), rows_of(7)
    fresh = [Row(r.trajectory_id, r.group_id, r.token_ids, r.loss_mask, r.rollout_logprobs, r.advantage,
                 np.full_like(r.weight_versions, VERSION)) for r in rows]  # fmt: skip
    tables = model.tables()
    ours, others = (reference(batch, tables, tables, algo, 1.0) for batch in (rows, fresh))
    assert np.abs(ours[1] - others[1]).max() > 1e-3
