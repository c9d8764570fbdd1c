"""The embedded engine against `model.generate`: 32 sessions of 350-token prompts, three turns of 30 sampled tokens.

Run: OMP_NUM_THREADS=1 python tests/engine/bench_embedded.py
"""

import asyncio
import statistics
import time

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from swe_rl.config.schema import EngineConfig
from swe_rl.engine.embedded.engine import EmbeddedEngine
from swe_rl.engine.engine import SamplingParams

SESSIONS, PROMPT_TOKENS, TURNS, SAMPLED_TOKENS, OBSERVED_TOKENS, REPEATS = 32, 350, 3, 30, 30, 3


def build() -> Qwen3ForCausalLM:
    config = Qwen3Config(
        hidden_size=192,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=512,
        vocab_size=1024,
        tie_word_embeddings=True,
        max_position_embeddings=2048,
        initializer_range=0.1,
    )
    torch.manual_seed(0)
    return Qwen3ForCausalLM(config).eval()


def prompts(seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 1024, (SESSIONS, PROMPT_TOKENS), generator=generator).tolist()


def plain_s(model: Qwen3ForCausalLM, batch: list[list[int]]) -> float:
    """One turn from an empty cache with `generate`: no log-probabilities, all rows equally long, one global seed."""
    started = time.perf_counter()
    model.generate(
        torch.tensor(batch), max_new_tokens=SAMPLED_TOKENS, do_sample=True, top_k=0, eos_token_id=None, pad_token_id=0
    )
    return time.perf_counter() - started


async def turn_s(engine: EmbeddedEngine, histories: list[list[int]], tokens: int, tag: str) -> tuple[float, float]:
    """Wall time of a turn, and of its part in which every session decodes; histories grow by what was sampled."""
    started = time.perf_counter()
    done = await asyncio.gather(
        *(
            engine.generate(history, SamplingParams(tokens, seed=i), request_id=f"{tag}{i}", session_id=f"{tag}{i}")
            for i, history in enumerate(histories)
        )
    )
    wall_s = time.perf_counter() - started
    for history, completion in zip(histories, done, strict=True):
        history += [*completion.token_ids, *range(OBSERVED_TOKENS)]
    return wall_s, min(completion.decode_s for completion in done)


async def repeat(engine: EmbeddedEngine, model: Qwen3ForCausalLM, number: int) -> tuple[float, float, float]:
    prefill_s, _ = await turn_s(engine, prompts(100 + number), 1, f"p{number}-")
    plain = plain_s(model, prompts(number))
    histories = prompts(number)
    turns = [await turn_s(engine, histories, SAMPLED_TOKENS, f"r{number}-") for _ in range(TURNS)]
    decode_s = sum(decode for _, decode in turns)
    prefill = SESSIONS * PROMPT_TOKENS / prefill_s
    decode = SESSIONS * (SAMPLED_TOKENS - 1) * TURNS / decode_s
    ratio = plain / turns[0][0]
    walls = " ".join(f"{wall:.3f}" for wall, _ in turns)
    rates = " ".join(f"{SESSIONS * (SAMPLED_TOKENS - 1) / decode_s:.0f}" for _, decode_s in turns)
    print(f"prefill {prefill:.0f} tokens/s, decode {decode:.0f} tokens/s (by turn {rates}); turns {walls} s")
    print(f"  generate, first turn: {plain:.3f} s, {ratio:.2f} times the engine's")
    return prefill, decode, ratio


async def main() -> None:
    torch.set_num_threads(1)
    model = build()
    engine = EmbeddedEngine(model, EngineConfig(max_model_len=1024, max_num_seqs=64), pad_token_id=0)
    await engine.start()
    plain_s(model, prompts(0))
    results = [await repeat(engine, model, number) for number in range(REPEATS)]
    await engine.close()
    medians = [statistics.median(column) for column in zip(*results, strict=True)]
    print(
        "median: prefill {:.0f} tokens/s, decode {:.0f} tokens/s, generate takes {:.2f} times as long".format(*medians)
    )


if __name__ == "__main__":
    asyncio.run(main())
