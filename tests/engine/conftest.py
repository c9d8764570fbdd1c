"""A two-layer random Qwen3 whose logits are spread out enough for samples to differ, and engines over it."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import torch
from transformers import Qwen3ForCausalLM

from swe_rl.config.schema import EngineConfig
from swe_rl.engine.embedded.engine import EmbeddedEngine
from tests.support.tiny_qwen3 import tiny_qwen3

VOCAB = 128
EngineFactory = Callable[..., Awaitable[EmbeddedEngine]]


def _build_model(seed: int, *, tied: bool = True, **other: int) -> Qwen3ForCausalLM:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2} | other
    longer = {"head_dim": 16, "max_position_embeddings": 512}
    model = tiny_qwen3(seed, vocab_size=VOCAB, tie_word_embeddings=tied, **sizes, **longer).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    return model


def _prompt_of(seed: int, tokens: int) -> list[int]:
    return torch.randint(1, VOCAB, (tokens,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def build_model() -> Callable[..., Qwen3ForCausalLM]:
    return _build_model


@pytest.fixture(scope="session")
def prompt_of() -> Callable[[int, int], list[int]]:
    """A random prompt from a seed and a length in tokens."""
    return _prompt_of


@pytest.fixture(scope="session")
def model() -> Qwen3ForCausalLM:
    return _build_model(0)


@pytest.fixture
async def start_engine(model: Qwen3ForCausalLM) -> AsyncIterator[EngineFactory]:
    started: list[EmbeddedEngine] = []

    async def start(
        of: Qwen3ForCausalLM | None = None, *, max_model_len: int = 256, max_num_seqs: int = 8
    ) -> EmbeddedEngine:
        config = EngineConfig(max_model_len=max_model_len, max_num_seqs=max_num_seqs)
        engine = EmbeddedEngine(of or model, config, pad_token_id=0)
        started.append(engine)
        await engine.start()
        return engine

    yield start
    for engine in started:
        await engine.close()


@pytest.fixture
async def engine(start_engine: EngineFactory) -> EmbeddedEngine:
    return await start_engine()
