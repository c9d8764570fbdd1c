"""How much faster vLLM samples with quantised weights, and by how much its log-probabilities move. Needs a GPU.

    python -m bench.quantised_vllm MODEL_FOLDER bf16
    python -m bench.quantised_vllm MODEL_FOLDER fp8_per_tensor --beside bf16.json

Invariants:
- All cases get the same prompts, without a cache of prefixes; every reply has the same length.
- The log-probabilities are those of one fixed random text, so that two cases differ by their weights alone.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

_PROMPT_TOKENS, _REPLY_TOKENS, _TEXT_TOKENS, _TEXTS = 1024, 256, 512, 16
_REQUESTS = (8, 64, 128)  # at once
_COMPILATION = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, *_REQUESTS]}


def _drawn(seed: int, rows: int, tokens: int) -> list[Any]:
    ids = torch.randint(1000, 100_000, (rows, tokens), generator=torch.Generator().manual_seed(seed))
    return [{"prompt_token_ids": row} for row in ids.tolist()]


def measured(folder: Path, method: str, repeats: int) -> dict[str, Any]:
    """Sampled tokens a second by requests at once, and the log-probabilities of the text, one list a row."""
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found, unused-ignore]

    model = LLM(
        model=str(folder),
        quantization=None if method == "bf16" else method,
        dtype="bfloat16",
        gpu_memory_utilization=0.8,
        max_model_len=4096,
        max_num_seqs=max(_REQUESTS),
        enable_prefix_caching=False,
        compilation_config=_COMPILATION,
        seed=0,
    )
    params = SamplingParams(temperature=1.0, max_tokens=_REPLY_TOKENS, ignore_eos=True)
    prompts, speeds = _drawn(1, max(_REQUESTS), _PROMPT_TOKENS), {}
    for requests in _REQUESTS:
        speeds[requests] = list[float]()
        for _ in range(repeats):
            began_s = time.perf_counter()
            model.generate(prompts[:requests], params, use_tqdm=False)
            speeds[requests].append(requests * _REPLY_TOKENS / (time.perf_counter() - began_s))
    replies = model.generate(_drawn(2, _TEXTS, _TEXT_TOKENS), SamplingParams(max_tokens=1, prompt_logprobs=0))
    rows = [[next(iter(token.values())).logprob for token in reply.prompt_logprobs[1:]] for reply in replies]
    return {"method": method, "tokens_per_s": speeds, "logprobs": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("method", help="bf16, or a method of vLLM's --quantization")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--beside", type=Path, help="what another case wrote")
    options = parser.parse_args()
    found = measured(options.folder, options.method, options.repeats)
    Path(f"{options.method}.json").write_text(json.dumps(found), encoding="utf-8")
    for requests, speeds in found["tokens_per_s"].items():
        print(
            f"{requests:>4} requests: {statistics.median(speeds):.0f} tokens/s ({min(speeds):.0f} to {max(speeds):.0f})"
        )
    if options.beside:
        other = json.loads(options.beside.read_text(encoding="utf-8"))["logprobs"]
        pairs = [pair for rows in zip(found["logprobs"], other, strict=True) for pair in zip(*rows, strict=True)]
        print(f"log-probabilities differ by {statistics.mean(abs(a - b) for a, b in pairs):.3g} nats on average")


if __name__ == "__main__":
    main()
