"""What engines that round see of an adapter's updates: merged into the base, or served beside it.

    python -m bench.lora_serving [--rank 32] [--lr 1e-5] [--rows 64] [--seeds 0 1 2]

The embedded engine samples replies to issues from the tiny model, and the trainer takes steps on them. After 1, 10 and
50 updates the trainer's log-probabilities of those tokens are compared with those of two engines whose weights are
bfloat16: one has the merged model, the other the base and the adapter. Everything is computed in float32, so nothing
but the rounding of weights differs. `lost`: how far the engine is from the trainer, as a share of how far the updates
have moved the trainer. It prints the table of docs/lora.md.
"""

import argparse
import asyncio
import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bench.routing_replay import prompts, sampled
from swe_rl.algo.row import Row
from swe_rl.config.compose import compose
from swe_rl.model.load import load_model
from swe_rl.trainer.lora import MergedWeights, is_adapter, with_adapter
from swe_rl.trainer.rank_trainer import RankTrainer

LOOKS = (1, 10, 50)  # updates


def rounded(tensor: Tensor) -> Tensor:
    return tensor.to(torch.bfloat16).float()


@torch.no_grad()
def logprobs(model: Any, rows: Sequence[Row]) -> Tensor:
    """Of the sampled tokens of all rows, float64, [tokens]."""
    parts = []
    for row in rows:
        shares = torch.log_softmax(model(torch.tensor([row.token_ids[:-1].tolist()])).logits[0].double(), -1)
        parts.append(shares.gather(1, torch.tensor(row.token_ids[1:, None]).long())[row.loss_mask[1:], 0])
    return torch.cat(parts)


@torch.no_grad()
def engines(policy: Any, base: Any, scale: float) -> dict[str, tuple[Any, int]]:
    """Both, with the bytes that each update sends."""
    merged, served = copy.deepcopy(base), copy.deepcopy(policy)
    weights = MergedWeights(dict(policy.named_parameters()), scale)
    for name, parameter in merged.named_parameters():
        parameter.copy_(rounded(weights[name]))
    adapter = [parameter for name, parameter in served.named_parameters() if is_adapter(name)]
    for parameter in adapter:
        parameter.copy_(rounded(parameter))
    return {
        "merged": (merged, 2 * sum(parameter.numel() for parameter in merged.parameters())),
        "adapter": (served, 4 * sum(parameter.numel() for parameter in adapter)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config = compose([f"trainer.lora_rank={arguments.rank}", f"trainer.lr={arguments.lr}"]).config
    base: Any = load_model(config.model)
    with torch.no_grad():
        for parameter in base.parameters():  # as a GPU's trainer holds it, too
            parameter.copy_(rounded(parameter))
    print("| seed | updates | engine has | mean difference, nats | lost | bytes an update |")
    print("|---|---|---|---|---|---|")
    for seed in arguments.seeds:
        rows = asyncio.run(sampled(base, config, prompts(config, arguments.rows, seed), seed))
        settings = replace(config.trainer, prompts_per_mini_batch=len(rows), seed=seed)
        policy, adapter = with_adapter(base, settings)
        algo = replace(config.algo, max_staleness_steps=None)  # the same rows again and again
        trainer = RankTrainer(policy, settings, algo, pad_token_id=0, adapter=adapter)
        before = logprobs(base, rows)
        for update in range(1, LOOKS[-1] + 1):
            trainer.train_step(rows, update)
            if update not in LOOKS:
                continue
            trained = logprobs(policy, rows)
            for name, (engine, sent_bytes) in engines(policy, base, adapter.scale).items():
                seen = logprobs(engine, rows)
                lost = float((seen - trained).norm() / (trained - before).norm())
                mean = float((seen - trained).abs().mean())
                print(f"| {seed} | {update} | {name} | {mean:.1e} | {lost:.1%} | {sent_bytes:,} |", flush=True)


if __name__ == "__main__":
    main()
