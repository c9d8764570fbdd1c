"""A GPU's memory runs out in a step: what is said, and that no rank is started anew for it."""

from dataclasses import replace

import pytest
import torch

from swe_rl.config.schema import AlgoConfig, TrainerConfig
from swe_rl.trainer import policy
from swe_rl.trainer.compute import out_of_memory_named
from swe_rl.trainer.policy import Trainer
from swe_rl.trainer.trainer import RankLost, TrainerError

FULL = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1 GiB is free."
CONFIG = TrainerConfig(num_threads=1, max_tokens_per_micro_batch=40, prompts_per_mini_batch=1)
CHECKPOINTING, OFFLOAD, MORE = (
    "trainer.activation_checkpointing=true",
    "trainer.offload_optimizer=true",
    "layout.trainer_gpus",
)


def full(*_, **__):
    raise torch.OutOfMemoryError(FULL)


def test_a_step_that_runs_out_names_the_step_and_three_ways_out(build, make_rows, monkeypatch):
    model = build()
    trainer, original, calls = Trainer(model, CONFIG, AlgoConfig(), pad_token_id=0), policy.token_loss, []

    def third(*given, **named):
        calls.append(given)
        return full() if len(calls) == 3 else original(*given, **named)

    monkeypatch.setattr(policy, "token_loss", third)
    with pytest.raises(TrainerError, match=r"ran out of memory in the update of step 7: CUDA out of memory") as caught:
        trainer.train_step(make_rows(), 7)
    told = str(caught.value)
    assert "trainer.max_tokens_per_micro_batch=20 (it is 40)" in told and "trainer.resume=auto" in told
    assert CHECKPOINTING in told and OFFLOAD in told and MORE not in told
    assert not isinstance(caught.value, RankLost) and isinstance(caught.value.__cause__, torch.OutOfMemoryError)


@pytest.mark.parametrize("asks", ["sequence_kl", "token_logprobs"])
def test_a_pass_without_an_update_says_so_too(build, make_rows, monkeypatch, asks):
    trainer = Trainer(build(), CONFIG, AlgoConfig(kl_coef=0.1), pad_token_id=0, reference=build(1))
    monkeypatch.setattr(trainer._compute, "logprobs", full)
    with pytest.raises(TrainerError, match="ran out of memory in a pass for log-probabilities"):
        getattr(trainer, asks)(make_rows(), *([1.0] if asks == "token_logprobs" else []))


@pytest.mark.parametrize(
    ("changes", "named", "not_named"),
    [
        ({}, {CHECKPOINTING, OFFLOAD}, {MORE}),
        ({"activation_checkpointing": True}, {OFFLOAD, MORE}, {CHECKPOINTING}),
        ({"activation_checkpointing": True, "offload_optimizer": True}, {MORE}, {CHECKPOINTING, OFFLOAD}),
        ({"max_tokens_per_micro_batch": 1}, {"per_micro_batch=1 (it is 1)"}, {MORE}),
    ],
)
def test_what_is_on_already_is_no_way_out(changes, named, not_named):
    with pytest.raises(TrainerError) as caught, out_of_memory_named(replace(CONFIG, **changes), "a step"):
        full()
    assert all(one in str(caught.value) for one in named) and not any(one in str(caught.value) for one in not_named)


def test_other_errors_pass_as_they_are():
    with pytest.raises(RuntimeError, match="shape") as caught, out_of_memory_named(CONFIG, "a step"):
        raise RuntimeError("shape")
    assert not isinstance(caught.value, TrainerError)
