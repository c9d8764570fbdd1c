"""Whether ranks that share a model train it as one alone does: the same rows, the same weights, three steps.

    python -m bench.rank_equality --model-dir FOLDER 1 dp2 sp2 dp4 dp2:sp2        # as many GPUs as the largest takes
    python -m bench.rank_equality --model-dir FOLDER 1 dp4 dp4:shard2 dp2:sp2:shard2       # two replicas of two GPUs
    python -m bench.rank_equality --model-dir swe_rl/model/checkpoints/tiny 1 dp2 sp2      # processes on a CPU

The first mesh is what the others are compared with. On GPUs matrices are multiplied in bfloat16, so losses and
gradient norms differ by rounding; Adam turns the smallest gradients into whole steps, so weights are compared in
units of one step (`trainer.lr`).

Invariants:
- All meshes run at the same time, on the same GPUs; no rank of one talks to another's.
- Every mesh reads the same folder and the same rows.
"""

import argparse
import json
import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.train_bench import synthetic_rows
from swe_rl.host.addresses import free_port

STEPS = 3
LR = 1e-5


@dataclass(frozen=True)
class Shape:
    """`shard`: ranks of a replica; None: all."""

    dp: int = 1
    sp: int = 1
    shard: int | None = None


def parse(text: str) -> Shape:
    """`1`, `dp2`, `sp2`, `dp2:sp2`, `dp4:shard2`."""
    sizes = {}
    for word in text.split(":"):
        name, number = word.rstrip("0123456789"), word.lstrip("abcdefghijklmnopqrstuvwxyz")
        if name in ("dp", "sp", "shard") and number:
            sizes[name] = int(number)
        elif word != "1":
            raise SystemExit(f"{text}: a mesh is 1, or of dpN, spN and shardN: dp2:sp2, dp4:shard2")
    return Shape(**sizes)


def rows_for(vocabulary: int, rows: int, tokens: int) -> list[Any]:
    """As the throughput benchmark's, of uneven lengths."""
    from dataclasses import replace

    from bench.train_bench import Case

    case = Case("", "", 1, 1, rows, tokens, frozenset())
    made = []
    for number, row in enumerate(synthetic_rows(case, vocabulary)):
        length = tokens - number * (tokens // (2 * rows))
        made.append(
            replace(
                row,
                token_ids=row.token_ids[:length],
                loss_mask=row.loss_mask[:length],
                rollout_logprobs=row.rollout_logprobs[:length],
                advantage=row.advantage[: row.loss_mask[:length].sum()],
                weight_versions=row.weight_versions[: row.loss_mask[:length].sum()],
            )
        )
    return made


def facts(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return found


def model_of(folder: Path) -> Any:
    """The folder as the group `model` would describe it."""
    from swe_rl.config.schema import ModelConfig

    found = facts(folder)
    return ModelConfig(
        path=str(folder),
        num_layers=found["num_hidden_layers"],
        hidden_size=found["hidden_size"],
        intermediate_size=found["intermediate_size"],
        num_heads=found["num_attention_heads"],
        num_kv_heads=found["num_key_value_heads"],
        head_dim=found["head_dim"],
        vocab_size=found["vocab_size"],
        max_position_embeddings=found["max_position_embeddings"],
        tie_word_embeddings=found["tie_word_embeddings"],
        rope_theta=found.get("rope_theta") or found["rope_parameters"]["rope_theta"],
    )


def one_rank(mesh_text: str, rank: int, port: int, arguments: Any, results: Any) -> None:
    import torch

    from swe_rl.config.schema import AlgoConfig, TrainerConfig
    from swe_rl.trainer.sharded.assemble import sharded_trainer
    from swe_rl.trainer.sharded.mesh import make_mesh, process_group, whole

    shape = parse(mesh_text)
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    torch.set_num_threads(2 if on_gpu else 1)
    config = TrainerConfig(
        lr=LR,
        num_threads=1,
        max_tokens_per_micro_batch=arguments.tokens,
        prompts_per_mini_batch=arguments.rows,
        activation_checkpointing=True,
    )
    with process_group(rank, shape.dp * shape.sp, device, f"127.0.0.1:{port}", timeout_s=300.0):
        trainer = sharded_trainer(
            model_of(arguments.model_dir),
            config,
            AlgoConfig(),
            make_mesh(shape.sp, device, shard_ranks=shape.shard),
            pad_token_id=0,
            temperature=1.0,
        )
        rows = rows_for(facts(arguments.model_dir)["vocab_size"], arguments.rows, arguments.tokens)
        metrics = [trainer.train_step(rows, step) for step in range(STEPS)]
        weights = {}
        for name, tensor in trainer.policy_weights().items():  # a collective: every rank, every tensor
            full = whole(tensor.detach())
            if "layers.0." in name or "norm" in name:
                weights[name] = full.float().cpu().numpy()
        if rank == 0:
            found = [(one.loss, one.grad_norm, one.entropy) for one in metrics]
            results.put((mesh_text, found, weights))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train the same rows on several meshes and compare.")
    parser.add_argument("meshes", nargs="+")
    parser.add_argument("--model-dir", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--timeout-s", type=float, default=300.0)
    arguments = parser.parse_args(argv)
    for line in compare(arguments):
        print(line, flush=True)


def compare(arguments: argparse.Namespace) -> list[str]:
    """A table, the reference first."""
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    processes = []
    for text in arguments.meshes:
        port, shape = free_port(), parse(text)
        for rank in range(shape.dp * shape.sp):
            process = context.Process(target=one_rank, args=(text, rank, port, arguments, results), daemon=True)
            process.start()
            processes.append(process)
    found = {}
    for _ in arguments.meshes:
        text, metrics, weights = results.get(timeout=arguments.timeout_s)
        found[text] = (metrics, weights)
    for process in processes:
        process.join(30.0)
    lines = [
        f"{'mesh':<15} {'loss after 3':>13} {'d loss':>9} {'d norm/norm':>12} {'d weight, mean, steps':>22} {'max':>7}"
    ]
    return lines + [row(text, found[arguments.meshes[0]], found[text]) for text in arguments.meshes]


def row(text: str, reference: Any, found: Any) -> str:
    import numpy as np

    losses = max(abs(one[0] - other[0]) for one, other in zip(reference[0], found[0], strict=True))
    norms = max(abs(one[1] - other[1]) / one[1] for one, other in zip(reference[0], found[0], strict=True))
    apart = [np.abs(found[1][name] - one).ravel() / LR for name, one in reference[1].items()]
    together = np.concatenate(apart)
    mean, largest = float(together.mean()), float(together.max())
    return f"{text:<15} {found[0][-1][0]:>13.6f} {losses:>9.1e} {norms:>12.1e} {mean:>22.1e} {largest:>7.2f}"


if __name__ == "__main__":
    main()
