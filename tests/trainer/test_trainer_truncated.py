"""Truncated sampling with equal weights on both sides: what the engine reports and what the trainer computes agree."""

import asyncio
import copy
import itertools

import numpy as np
import pytest
import torch

from swe_rl.algo.row import Row
from swe_rl.config.choices import Correction, MaskLevel
from swe_rl.config.schema import AlgoConfig, EngineConfig, TrainerConfig
from swe_rl.engine.embedded.engine import EmbeddedEngine
from swe_rl.engine.engine import SamplingParams
from swe_rl.trainer.policy import Trainer
from tests.support.tiny_qwen3 import tiny_qwen3

TOKENS = 120
LIMITS = [
    {"top_p": 1.0},
    {"top_p": 0.7},
    {"top_k": 3},
    {"top_p": 0.8, "top_k": 10, "min_p": 0.05},
]
COMBINATIONS = list(itertools.product([0.6, 1.0, 1.7], LIMITS))
ALGOS = {
    "none": AlgoConfig(),
    "token": AlgoConfig(correction=Correction.token_tis),
    "trajectory": AlgoConfig(correction=Correction.sequence_tis),
    "token mask": AlgoConfig(mask_low=0.99, mask_high=1.01),
    "geometric mask": AlgoConfig(mask_low=0.999, mask_high=1.001, mask_level=MaskLevel.geometric),
    "trajectory mask": AlgoConfig(mask_low=0.9, mask_high=1.1, mask_level=MaskLevel.sequence),
}


@pytest.fixture(scope="module")
def model():
    return tiny_qwen3(0).eval()


async def sampled(model, params):
    """Completions of four prompts by the embedded engine, as rows of two groups."""
    engine = EmbeddedEngine(model, EngineConfig(max_model_len=256, max_num_seqs=4), name="e", pad_token_id=0)
    await engine.start()
    try:
        prompts = [[7, 8, 9, number] for number in range(4)]
        asked = (engine.generate(prompt, params, request_id=str(prompt)) for prompt in prompts)
        completions = await asyncio.gather(*asked)
    finally:
        await engine.close()
    answered = enumerate(zip(prompts, completions, strict=True))
    return [row_of(number, prompt, completion) for number, (prompt, completion) in answered]


def row_of(number, prompt, completion):
    ids = [*prompt, *completion.token_ids]
    mask = np.arange(len(ids)) >= len(prompt)
    logprobs = np.zeros(len(ids), np.float32)
    logprobs[mask] = completion.logprobs
    versions = np.zeros(TOKENS, np.int32)
    return Row(f"t{number}", f"g{number // 2}", ids, mask, logprobs, (-1.0) ** number, versions)


# Each combination without a correction and with one of the five, of which each has two or three combinations.
@pytest.mark.parametrize(
    ("temperature", "limits", "corrected"),
    [(*combination, list(ALGOS)[1 + number % 5]) for number, combination in enumerate(COMBINATIONS)],
)
async def test_equal_weights_have_a_ratio_of_1_and_mask_nothing(model, temperature, limits, corrected):
    rows = await sampled(model, SamplingParams(TOKENS, temperature=temperature, seed=5, **limits))
    gradients = {}
    for name in ("none", corrected):
        algo = ALGOS[name]
        config = TrainerConfig(lr=1e-3, num_threads=1, prompts_per_mini_batch=9)
        trainer = Trainer(copy.deepcopy(model), config, algo, pad_token_id=0, temperature=temperature)
        if name == "none":
            computed = np.concatenate(trainer.token_logprobs(rows, temperature))
            reported = np.concatenate([row.rollout_logprobs[row.loss_mask] for row in rows])
            np.testing.assert_allclose(np.exp(computed - reported), 1.0, atol=1e-5)
        metrics = trainer.train_step(rows, 1)
        gradients[name] = metrics.grad_norm
        assert metrics.updates == 1 and metrics.correction_mean == pytest.approx(1.0, abs=1e-4)
        assert metrics.masked_fraction == 0.0 and metrics.kl_rollout == pytest.approx(0.0, abs=1e-9)
        assert metrics.logprob_diff_max < 1e-5
    assert gradients[corrected] == pytest.approx(gradients["none"], rel=1e-4)


async def test_truncation_did_leave_something_out(model):
    """Else the test above would say nothing: the trainer's probability of what each limit keeps is well below 1."""
    for limits in LIMITS[1:]:
        [row, *_] = await sampled(model, SamplingParams(TOKENS, seed=5, **limits))
        with torch.no_grad():
            table = model(torch.tensor([row.token_ids.tolist()])).logits[0].softmax(-1)
        largest = table[3:-1].max(-1).values.mean()
        assert largest < 0.7, limits
