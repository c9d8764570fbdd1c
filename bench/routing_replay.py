"""What an engine that rounds costs a mixture of experts, with and without routing replay.

    python -m bench.routing_replay [--rows 64] [--seeds 0 1 2]

The embedded engine samples replies to issues from the tiny mixture. A copy of it in bfloat16 stands for an engine on a
GPU: it says how likely the tokens are and which experts they go to. The trainer, in float32, makes a step of it, once
with `trainer.routing_replay=measure` and once with `replay`. It prints a table for docs/benchmarks/learning.md.
"""

import argparse
import asyncio
import copy
import random
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from swe_rl.agent.prompts import system_prompt
from swe_rl.algo.row import Row
from swe_rl.config.choices import RoutingReplay
from swe_rl.config.compose import compose
from swe_rl.engine.embedded.engine import EmbeddedEngine
from swe_rl.engine.protocol import SamplingParams
from swe_rl.env.bugs.demonstration import Demonstrator
from swe_rl.env.bugs.workspace import PACKAGES
from swe_rl.model.chat import ChatRenderer
from swe_rl.model.experts import route_type
from swe_rl.model.load import load_model, load_tokenizer
from swe_rl.trainer.rank_trainer import RankTrainer

SAMPLED_TOKENS = 96


def prompts(config: Any, rows: int, seed: int) -> list[list[int]]:
    """Issues of the training packages, as an agent begins with them."""
    tokenizer = load_tokenizer(config.model)
    renderer = ChatRenderer(tokenizer, template=config.model.chat_template, thinking=False)
    demonstrator, rng = Demonstrator(PACKAGES / "train", 1.0), random.Random(seed)
    system = {"role": "system", "content": system_prompt(config.agent.system_prompt)}
    return [
        renderer.start([system, {"role": "user", "content": demonstrator.demonstrate(rng).statement}])
        for _ in range(rows)
    ]


async def sampled(model: Any, config: Any, asked: list[list[int]], seed: int) -> list[Row]:
    engine = EmbeddedEngine(model, config.engine, pad_token_id=0)
    await engine.start()
    params = SamplingParams(SAMPLED_TOKENS, seed=seed)
    replies = await asyncio.gather(
        *(engine.generate(ids, params, request_id=str(number)) for number, ids in enumerate(asked))
    )
    await engine.close()
    rows = []
    for number, (ids, reply) in enumerate(zip(asked, replies, strict=True)):
        tokens = [*ids, *reply.token_ids]
        mask, versions = np.arange(len(tokens)) >= len(ids), reply.weight_versions
        rows.append(Row(f"t{number}", f"g{number // 4}", tokens, mask, None, 1.0 - number % 4, versions))
    return rows


@torch.no_grad()
def told(row: Row, engine: Any) -> Row:
    """With what an engine of another precision says of the same tokens."""
    output = engine(torch.tensor([row.token_ids[:-1].tolist()]), output_router_logits=True)
    shares = torch.log_softmax(output.logits[0].float(), -1)
    logprobs = np.zeros(len(row.token_ids), np.float32)
    logprobs[1:] = shares.gather(1, torch.tensor(row.token_ids[1:, None]).long())[:, 0]
    active = engine.config.num_experts_per_tok
    routes = torch.stack([logits.topk(active).indices for logits in output.router_logits], 1).numpy()
    kind = route_type(engine.config.num_experts)
    return replace(row, rollout_logprobs=logprobs * row.loss_mask, routes=routes.astype(kind))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config = compose(["model=tiny_moe"]).config
    model: Any = load_model(config.model)
    rounded = copy.deepcopy(model).to(torch.bfloat16)
    print("| seed | tokens | routing | `routing_disagreement` | `kl_rollout` | `logprob_diff_mean` |")
    print("|---|---|---|---|---|---|")
    for seed in arguments.seeds:
        asked = prompts(config, arguments.rows, seed)
        rows = [told(row, rounded) for row in asyncio.run(sampled(model, config, asked, seed))]
        for mode in (RoutingReplay.measure, RoutingReplay.replay):
            settings = replace(config.trainer, routing_replay=mode, prompts_per_mini_batch=len(rows))
            trainer = RankTrainer(copy.deepcopy(model), settings, config.algo, pad_token_id=0)
            got = trainer.train_step(rows, 1)
            own = "the engine's" if mode is RoutingReplay.replay else "its own"
            print(
                f"| {seed} | {got.trained_tokens:,} | {own} | {got.routing_disagreement:.2%} | {got.kl_rollout:.2e} "
                f"| {got.logprob_diff_mean:.4f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
