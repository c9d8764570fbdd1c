"""Demonstrations in the trainer of training: the loss is the cross-entropy of what the assistant says."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from swe_rl.config.schema import TrainerConfig
from swe_rl.facts.warm_start import SUPERVISED
from swe_rl.model.load import load_model
from swe_rl.run.imitation import rows_of
from swe_rl.trainer.rank_trainer import RankTrainer
from swe_rl.trainer.sharded.assemble import sharded_trainer
from swe_rl.trainer.trainer import TrainerError

CONFIG = TrainerConfig(prompts_per_mini_batch=1, max_tokens_per_micro_batch=24)
LRS = (5e-3, 1e-2, 2e-3)


def drawn(seed=0):
    """Conversations of two turns each: what is read is masked 0, and something is read after the last word."""
    rng = np.random.default_rng(seed)
    made = []
    for length in (12, 14, 21, 30):
        mask = [0] * 3 + [1] * 3 + [0] * 2 + [1] * (length - 10) + [0] * 2
        made.append((rng.integers(0, 64, len(mask)).tolist(), mask))
    return made


def cross_entropy(model, conversations):
    """Of the masked tokens, by NumPy in float64 from one conversation's logits at a time."""
    losses = []
    for ids, mask in conversations:
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0].double().numpy()
        normalized = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        losses += [-normalized[at - 1, ids[at]] for at, masked in enumerate(mask) if masked]
    return float(np.mean(losses))


def plain(saved):
    return RankTrainer(load_model(saved), CONFIG, SUPERVISED, pad_token_id=0)


def test_the_loss_is_the_cross_entropy_of_what_the_assistant_says(saved):
    trainer = plain(saved)
    for step in (1, 2):
        expected = cross_entropy(trainer.model.eval(), drawn())
        metrics = trainer.train_step(rows_of(drawn(), step - 1), step, LRS[0])
        assert metrics.loss == pytest.approx(expected, abs=1e-5)
        assert metrics.trained_tokens == sum(sum(mask) for _, mask in drawn())
        assert (metrics.updates, metrics.lr, metrics.skipped_rows) == (1, LRS[0], 0)


def test_what_is_read_last_is_not_trained(saved):
    """Other tokens there, and nothing changes; others of the assistant's, and all does."""
    measured = []
    for place in (None, -1, -3):
        conversations = drawn()
        if place is not None:
            conversations[0][0][place] = (conversations[0][0][place] + 1) % 64
        metrics = plain(saved).train_step(rows_of(conversations, 0), 1, LRS[0])
        measured.append((metrics.loss, metrics.grad_norm))
    assert measured[0] == measured[1] != measured[2]


def test_packed_is_unpacked(saved, mesh):
    """With a second stage, whose moments are fresh."""
    packed = sharded_trainer(saved, CONFIG, SUPERVISED, mesh, pad_token_id=0, temperature=1.0)
    unpacked = plain(saved)
    for step, lr in enumerate(LRS, start=1):
        rows = rows_of(drawn(step), step - 1)
        if step == 3:
            packed.forget_moments()
            unpacked.forget_moments()
        ours, theirs = (trainer.train_step(rows, step, lr) for trainer in (packed, unpacked))
        assert ours.loss == pytest.approx(theirs.loss, abs=1e-5)
    theirs = unpacked.named_parameters()
    for name, weight in packed.named_parameters().items():
        torch.testing.assert_close(weight.full_tensor(), theirs[name], atol=1e-5, rtol=0)


def test_fresh_moments_are_those_of_a_new_trainer(saved):
    used = plain(saved)
    used.train_step(rows_of(drawn(), 0), 1, 0.0)  # moments, and no weight moved
    kept = {name: weight.clone() for name, weight in used.named_parameters().items()}
    used.forget_moments()
    fresh = plain(saved)
    assert all(torch.equal(kept[name], weight) for name, weight in fresh.named_parameters().items())
    for trainer in (used, fresh):
        trainer.train_step(rows_of(drawn(1), 1), 2, LRS[0])
    assert all(torch.equal(used.named_parameters()[name], weight) for name, weight in fresh.named_parameters().items())


def test_bad_demonstrations_are_refused(saved):
    with pytest.raises(TrainerError, match="first token is trained"):
        plain(saved).train_step(rows_of([([1, 2], [1, 0])], 0), 1, LRS[0])
    short = replace(rows_of([([1, 2, 3], [0, 1, 1])], 0)[0], loss_mask=[False, True])
    with pytest.raises(TrainerError, match="3 tokens, but 2 mask entries"):
        plain(saved).train_step([short], 1, LRS[0])
