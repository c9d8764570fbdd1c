"""Every causal language model of transformers: what the engine samples is what its own forward pass says, and what the
trainer of one process learns from."""

import asyncio

import numpy as np
import pytest
import torch

from swe_rl.algo.row import Row
from swe_rl.config.schema import AlgoConfig, EngineConfig, TrainerConfig
from swe_rl.engine.embedded.engine import EmbeddedEngine
from swe_rl.engine.engine import EngineError, SamplingParams
from swe_rl.model.experts import HubNamed
from swe_rl.model.stored_names import stored_names
from swe_rl.trainer.batching import micro_batches
from swe_rl.trainer.logprobs import token_logprobs
from swe_rl.trainer.policy import Trainer
from tests.support.model_families import FAMILIES, tiny_of_family

# What differs most: capped and scaled logits, sinks, windows, experts, latent attention, recurrence, convolutions.
DIFFERENT = ("deepseek_v3", "gemma2", "gpt_oss", "granite", "lfm2", "qwen3_5_text")
FAMILY = [pytest.param(name, marks=() if name in DIFFERENT else pytest.mark.slow) for name in FAMILIES]
NEW_TOKENS = 8


def own_logprobs(model, prompt, token_ids):
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *token_ids]]), use_cache=False).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(-1, torch.tensor(token_ids)[:, None])[:, 0].tolist()


async def sample(model, prompts):
    """Completions of all prompts together, and of the second one alone after new weights that equal the old ones."""
    engine = EmbeddedEngine(model, EngineConfig(max_model_len=256, max_num_seqs=4), pad_token_id=0)
    await engine.start()
    try:
        params = [SamplingParams(NEW_TOKENS, seed=number) for number in range(len(prompts))]
        together = await asyncio.gather(
            *(engine.generate(prompts[one.seed], one, request_id=str(one.seed)) for one in params)
        )
        await engine.update_weights(dict(HubNamed(model.state_dict(), stored_names(model))), 1)
        alone = await engine.generate(prompts[1], params[1], request_id="alone", session_id="s")
    finally:
        await engine.close()
    return together, alone


@pytest.mark.parametrize("family", FAMILY)
async def test_engine_trainer_and_model_agree(family):
    model = tiny_of_family(family)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 256, tokens).tolist() for tokens in (30, 47, 9)]
    together, alone = await sample(model, prompts)
    assert (alone.token_ids, alone.logprobs) == (together[1].token_ids, together[1].logprobs)
    for prompt, done in zip(prompts, together, strict=True):
        assert done.logprobs == pytest.approx(own_logprobs(model, prompt, done.token_ids), abs=2e-5)

    rows = [
        Row(
            trajectory_id=str(number),
            group_id="group",
            weight_versions=[0] * NEW_TOKENS,
            token_ids=np.array([*prompt, *done.token_ids], np.int32),
            loss_mask=np.array([False] * len(prompt) + [True] * len(done.token_ids)),
            rollout_logprobs=np.array([0.0] * len(prompt) + list(done.logprobs), np.float32),
            advantage=1.0 - number,
        )
        for number, (prompt, done) in enumerate(zip(prompts, together, strict=True))
    ]
    sequences = [(row.token_ids, row.loss_mask) for row in rows]
    [batch] = micro_batches(sequences, 10_000, 0, torch.device("cpu"))
    expected = np.concatenate([together[member].logprobs for member in batch.members])
    assert token_logprobs(model, batch, 1.0)[0].tolist() == pytest.approx(expected, abs=2e-5)

    before = [parameter.detach().clone() for parameter in model.parameters()]
    metrics = Trainer(model, TrainerConfig(lr=1e-3, num_threads=1), AlgoConfig(), pad_token_id=0).train_step(rows, 1)
    assert metrics.grad_norm > 0
    moved = [not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)]
    assert sum(moved) >= len(moved) - 2  # a router that no token's loss depends on may stay


async def test_what_the_slow_path_refuses():
    config = EngineConfig(max_model_len=2048)
    with pytest.raises(EngineError, match=r"above the model's 1024 positions; lower engine\.max_model_len"):
        EmbeddedEngine(tiny_of_family("gpt_oss"), config, pad_token_id=0)
    with pytest.raises(EngineError, match="does not tell the experts of a `mixtral` model"):
        EmbeddedEngine(tiny_of_family("mixtral"), EngineConfig(max_model_len=64), pad_token_id=0, routes=True)
