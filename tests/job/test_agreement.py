"""Engines against a trainer on the same tokens: equal weights pass, others are named."""

import asyncio

import pytest
import torch

from swe_rl.config.compose import compose
from swe_rl.config.schema import AlgoConfig, EngineConfig, TrainerConfig
from swe_rl.engine.embedded.engine import EmbeddedEngine
from swe_rl.engine.engine import EngineError, EngineState, WeightSyncError
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.run.agreement import EXACT, ROUNDED, explained_difference, require_agreement
from swe_rl.trainer.rank_trainer import RankTrainer
from tests.support.tiny_qwen3 import tiny_qwen3

VOCAB = 64


@pytest.fixture
def trainer():
    torch.set_num_threads(1)
    config = TrainerConfig(num_threads=1, max_tokens_per_micro_batch=64)
    return RankTrainer(tiny_qwen3(0, vocab_size=VOCAB), config, AlgoConfig(), pad_token_id=0, temperature=0.7)


async def check(engines, trainer, limit=EXACT):
    for engine in engines:
        await engine.start()
    try:
        return await require_agreement(engines, trainer, 3, vocab_size=VOCAB, limit=limit)
    finally:
        await asyncio.gather(*(engine.close() for engine in engines))


def engine(seed, name):
    return EmbeddedEngine(
        tiny_qwen3(seed, vocab_size=VOCAB), EngineConfig(max_model_len=128), name=name, pad_token_id=0
    )


async def test_equal_weights_agree_to_rounding(trainer):
    found = await check([engine(0, "engine0"), engine(0, "engine1")], trainer)
    assert 0 <= found.mean <= found.largest < 1e-4 and found.check_s > 0


async def test_the_engine_with_other_weights_is_named(trainer):
    with pytest.raises(WeightSyncError, match=r"step 3, 1 of 2 engines .*engine1: .* nats apart") as caught:
        await check([engine(0, "engine0"), engine(1, "engine1")], trainer)
    assert set(caught.value.failures) == {"engine1"}


async def test_one_scaled_matrix_is_seen(trainer):
    other = tiny_qwen3(0, vocab_size=VOCAB)
    with torch.no_grad():
        other.model.layers[1].mlp.down_proj.weight.mul_(1.2)
    with pytest.raises(WeightSyncError, match="engine0"):
        await check([EmbeddedEngine(other, EngineConfig(max_model_len=128), pad_token_id=0)], trainer)


async def test_an_engine_that_fails_once_is_asked_again_and_one_that_is_gone_is_not_needed(trainer):
    failing, gone = engine(0, "engine0"), ScriptedEngine(lambda _: [1], name="engine1")
    gone.state = EngineState.gone
    gone.fail_next(EngineError("dead"), EngineError("dead"))
    generate, failures = failing.generate, [EngineError("it restarts")]

    async def once(*arguments, **named):
        if failures:
            raise failures.pop()
        return await generate(*arguments, **named)

    failing.generate = once
    assert (await check([failing, gone], trainer)).mean < 1e-4


async def test_an_engine_that_cannot_answer_is_told_with_its_reason(trainer):
    broken = ScriptedEngine(lambda _: [1], name="engine0")
    broken.fail_next(EngineError("out of memory"), EngineError("out of memory"))
    with pytest.raises(WeightSyncError, match="engine0: out of memory"):
        await check([broken], trainer)


def test_rounding_is_that_of_the_arithmetic():
    assert explained_difference(compose().config) == EXACT
    assert explained_difference(compose(["layout=dp4", "hardware=h100x8", "model=qwen3_14b"]).config) == ROUNDED
