"""On-policy distillation: a token's advantage is what a teacher thinks of it less what the policy does."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from swe_rl.config.choices import AdvantageKind
from swe_rl.config.schema import AlgoConfig, ModelConfig, TrainerConfig
from swe_rl.facts.vocabulary import vocabulary_problem
from swe_rl.model.load import ModelError, teacher_model
from swe_rl.trainer.policy import Trainer
from swe_rl.trainer.trainer import TrainerError

DISTILL = AlgoConfig(advantage=AdvantageKind.teacher, teacher="/models/teacher")
CONFIG = TrainerConfig(lr=1e-3, num_threads=1, max_tokens_per_micro_batch=48)


def logprobs_by_hand(model, row, temperature):
    logits = model(torch.tensor([row.token_ids.tolist()])).logits[0].double() / temperature
    places = np.flatnonzero(row.loss_mask)
    table = torch.log_softmax(logits, -1).detach().numpy()
    return table[places - 1, row.token_ids[places]]


def test_the_loss_is_the_reverse_kl_of_the_sampled_tokens(rank_cases):
    rows, policy, teacher = rank_cases.rows(), rank_cases.build(0).eval(), rank_cases.build(1).eval()
    gaps = [logprobs_by_hand(teacher, row, 0.8) - logprobs_by_hand(policy, row, 0.8) for row in rows]
    trainer = Trainer(policy, CONFIG, DISTILL, pad_token_id=0, temperature=0.8, teacher=teacher)
    taught = trainer._taught(list(rows), type("Stats", (), {})())
    for row, gap in zip(taught, gaps, strict=True):
        np.testing.assert_allclose(row.advantage, gap, atol=1e-5)
    metrics = trainer.train_step(rows, 1)
    mean = np.concatenate(gaps).mean()
    assert metrics.teacher_kl == pytest.approx(-mean, abs=1e-6)
    assert metrics.policy_loss == pytest.approx(-mean, abs=1e-6)


def test_the_policy_comes_nearer_to_its_teacher_and_the_teacher_stays(rank_cases):
    rows, policy, teacher = rank_cases.rows()[:4], rank_cases.build(0), rank_cases.build(1)
    before = [parameter.clone() for parameter in teacher.parameters()]
    trainer = Trainer(policy, CONFIG, DISTILL, pad_token_id=0, teacher=teacher)
    gaps = [
        np.concatenate([logprobs_by_hand(teacher, row, 1.0) - logprobs_by_hand(policy, row, 1.0) for row in rows])
        for step in range(1, 8)
        if trainer.train_step(rows, step)
    ]
    # of fixed tokens the ones that the teacher likes more become likelier, the others less so
    assert np.abs(gaps[-1]).mean() < np.abs(gaps[0]).mean()
    assert all(torch.equal(one, two) for one, two in zip(before, teacher.parameters(), strict=True))


def test_its_own_teacher_teaches_nothing(rank_cases):
    trainer = Trainer(rank_cases.build(0), CONFIG, DISTILL, pad_token_id=0, teacher=rank_cases.build(0))
    metrics = trainer.train_step(rank_cases.rows(), 1)
    assert metrics.teacher_kl == 0.0 and metrics.updates == 0


def test_a_teacher_is_asked_for_by_name(rank_cases):
    with pytest.raises(TrainerError, match="needs a teacher"):
        Trainer(rank_cases.build(), CONFIG, DISTILL, pad_token_id=0)


def reader(vocab_size=4, vocab=None, added=()):
    files = {
        "config.json": json.dumps({"vocab_size": vocab_size}),
        "tokenizer.json": json.dumps({"model": {"vocab": vocab or {"a": 0, "b": 1}}, "added_tokens": list(added)}),
    }
    return files.get


@pytest.mark.parametrize(
    ("teacher", "problem"),
    [
        (reader(), None),
        (reader(vocab_size=5), "has a vocabulary of 5, the policy of 4"),
        (reader(vocab={"a": 1, "b": 0}), "gives 'a' another id (2 tokens differ)"),
        (reader(added=[{"id": 2, "content": "<end>"}]), "gives '<end>' another id (1 tokens differ)"),
        ({}.get, None),
    ],
)
def test_a_teacher_speaks_of_the_same_tokens(teacher, problem):
    assert vocabulary_problem(reader(), teacher) == problem


def test_a_teacher_of_another_size_is_described_by_its_own_files(tmp_path):
    student = ModelConfig(path=str(tmp_path / "student"))
    for name, layers, tokens in (("student", 2, {"a": 0}), ("teacher", 5, {"a": 0}), ("other", 5, {"a": 3})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"num_hidden_layers": layers, "vocab_size": 4}))
        (tmp_path / name / "tokenizer.json").write_text(json.dumps({"model": {"vocab": tokens}}))
    described = teacher_model(student, replace(DISTILL, teacher=str(tmp_path / "teacher")))
    assert (described.num_layers, described.path) == (5, str(tmp_path / "teacher"))
    with pytest.raises(ModelError, match="another id"):
        teacher_model(student, replace(DISTILL, teacher=str(tmp_path / "other")))
    with pytest.raises(ModelError, match="cannot be read"):
        teacher_model(student, replace(DISTILL, teacher=str(tmp_path / "gone")))
    (tmp_path / "other" / "tokenizer.json").unlink()  # as the rule: what is not there is not compared
    assert teacher_model(student, replace(DISTILL, teacher=str(tmp_path / "other"))).num_layers == 5
