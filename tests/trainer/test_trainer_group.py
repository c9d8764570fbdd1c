"""The ranks as processes: one slow start, then everything that is asked of them."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from swe_rl.config.schema import AlgoConfig, ModelConfig, TrainerConfig
from swe_rl.engine.server.weights import export_weights
from swe_rl.model.tiny import build_model
from swe_rl.trainer.rank_trainer import RankTrainer
from swe_rl.trainer.ranks.group import TrainerGroup
from swe_rl.trainer.ranks.rank import RankSetup
from swe_rl.trainer.trainer import RankLost, TrainerError


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    model = ModelConfig(path=str(folder), num_layers=2, hidden_size=32, intermediate_size=48, vocab_size=64, head_dim=8)
    build_model(model, 0).save_pretrained(folder)
    trainer = TrainerConfig(lr=1e-3, num_threads=1, collective_timeout_s=60.0)
    return RankSetup(model, trainer, AlgoConfig(), 0, 1.0, 0, 2, 2, "", "cpu", logs=folder / "logs")


def local(setup):
    model = AutoModelForCausalLM.from_pretrained(setup.model.path, dtype="float32")
    return RankTrainer(model, setup.trainer, AlgoConfig(), pad_token_id=0)


@pytest.mark.slow
def test_two_processes_train_save_and_hand_their_weights_over(setup, rank_cases, tmp_path):
    group = TrainerGroup(setup)
    group.start()
    try:
        metrics, plain = group.train_step(rank_cases.rows(), 1), local(setup)
        expected = plain.train_step(rank_cases.rows(), 1)
        assert metrics.loss == pytest.approx(expected.loss, abs=1e-5)
        assert metrics.grad_norm == pytest.approx(expected.grad_norm, abs=1e-5)
        ours, theirs = group.row_logprobs(rank_cases.rows()), plain.row_logprobs(rank_cases.rows())
        assert [len(one) for one in ours] == [row.trained_tokens for row in rank_cases.rows()]
        for one, other in zip(ours, theirs, strict=True):
            assert one == pytest.approx(other, abs=1e-4)
        saved = group.save(tmp_path, **rank_cases.save_arguments(1))
        group.wait()
        assert group.load(saved).step == 1
        weights = group.weights()
        assert set(weights) == {name for name, _ in plain.model.named_parameters()}
        for name, tensor in plain.model.named_parameters():
            torch.testing.assert_close(weights[name], tensor.detach(), rtol=0, atol=1e-5)
        export_weights(Path(setup.model.path), tmp_path, weights, untied=True)
        written = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
        assert all(torch.equal(written[name], tensor) for name, tensor in weights.items())
        assert torch.equal(written["lm_head.weight"], weights["model.embed_tokens.weight"])
        assert len(list(tmp_path.glob("model-*-of-00002.safetensors"))) == 2
        pids = group.pids
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(RankLost, match=r"Rank 1 of 2 of the trainer failed: it ended .* by SIGKILL") as lost:
            group.train_step(rank_cases.rows(), 2)
        assert lost.value.rank == 1 and "by SIGKILL" in lost.value.reason
        assert not any(_alive(pid) for pid in pids)
        with pytest.raises(TrainerError, match="Rank 1 of 2"):  # also later
            group.wait()
        assert "Rank 1 of 2" in str(group.failure())
    finally:
        group.close()


@pytest.mark.slow
def test_an_error_on_one_rank_is_the_reason_and_a_quiet_end_says_nothing(setup, rank_cases, tmp_path):
    quiet = replace(setup, logs=tmp_path / "quiet")
    group = TrainerGroup(quiet)
    group.start()
    group.train_step(rank_cases.rows(), 1)
    pids = group.pids
    group.close()
    group.close()
    assert not any(_alive(pid) for pid in pids) and group.failure() is None
    assert [quiet.log(rank).read_text() for rank in (0, 1)] == ["", ""]

    group = TrainerGroup(setup)
    group.start()
    try:
        with pytest.raises(
            TrainerError, match=r"Rank \d of 2 .* failed: TrainerError: .*trajectory 0\.0 cannot"
        ) as ours:
            group.train_step([replace(rank_cases.rows()[0], loss_mask=(1,) * 3)], 1)
        assert not isinstance(ours.value, RankLost)  # it would repeat
    finally:
        group.close()
    assert "Traceback" in setup.log(0).read_text()


@pytest.mark.slow
def test_a_step_may_take_longer_than_the_patience_and_a_stopped_rank_may_not(setup, rank_cases, long_step):
    group, patience_s = long_step(setup)
    try:
        pids = group.pids
        os.kill(pids[1], signal.SIGSTOP)
        began_s = time.monotonic()
        with pytest.raises(RankLost, match=r"Rank 1 of 2 .*: no sign of life for \d+ s during `train_step`"):
            group.train_step(rank_cases.rows(), 3)
        assert patience_s < time.monotonic() - began_s < patience_s + 8
        assert not any(_alive(pid) for pid in pids)
    finally:
        group.close()


@pytest.mark.slow
def test_closing_in_the_middle_of_a_start_ends_both(setup, closed_while_it_starts):
    pids = closed_while_it_starts(TrainerGroup(setup))
    assert len(pids) == 2 and not any(_alive(pid) for pid in pids)


def test_closing_before_the_ranks_are_there_leaves_no_process(setup, closed_while_it_starts, ranks_from_nothing):
    before = set(psutil.Process().children())
    began_s = time.monotonic()
    assert closed_while_it_starts(TrainerGroup(setup), lambda pids: len(pids) == 2) == []
    assert time.monotonic() - began_s < 3  # their imports take longer
    assert set(psutil.Process().children()) <= before


@pytest.mark.long  # the lane `tests` has a start that fails for another reason
@pytest.mark.slow
def test_a_model_that_is_not_there_ends_all_ranks_with_the_reason(setup):
    group = TrainerGroup(replace(setup, model=replace(setup.model, path="/nowhere/at/all")))
    with pytest.raises(TrainerError, match="ModelError: model.path=/nowhere/at/all cannot be loaded"):
        group.start()
    group.close()


def test_libraries_that_cannot_be_imported_are_the_reason(setup, tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    group = TrainerGroup(replace(setup, logs=tmp_path / "logs"))
    with pytest.raises(TrainerError, match=r"Rank \d of 2 .*: ImportError: libcudart\.so\.12: cannot open"):
        group.start()
    assert "each rank imports for itself: ImportError: libcudart" in (tmp_path / "logs" / "rank0.log").read_text()


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
