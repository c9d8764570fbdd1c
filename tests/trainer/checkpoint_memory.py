"""What a checkpoint takes of this process's memory: `python checkpoint_memory.py FOLDER`.

Prints the bytes of weights and optimizer state, then by how many bytes the resident memory rose above what it was, at
most, while one process saved them, and while ranks did.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from swe_rl.algo.row import Row
from swe_rl.config.schema import AlgoConfig, TrainerConfig
from swe_rl.trainer.checkpoint.checkpoints import Checkpoints
from swe_rl.trainer.compute import ShardedCompute
from swe_rl.trainer.policy import Trainer
from swe_rl.trainer.rank_trainer import RankTrainer
from swe_rl.trainer.sharded.attention import by_row
from swe_rl.trainer.sharded.mesh import make_mesh, process_group
from swe_rl.trainer.sharded.model import ShardedModel

CONFIG = TrainerConfig(lr=1e-3, num_threads=1)
SAVED = {"step": 1, "weight_version": 1, "data_order": [], "config": {}, "hash_of_config": "x", "keep": 0}


def model():
    """About 100 MB, most of it one matrix."""
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=80_000,
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=64,
            tie_word_embeddings=True,
        )
    )


def rows():
    return [
        Row(str(i), "g", tuple(range(i, i + 8)), (0,) + (1,) * 7, (0.0,) + (-11.0,) * 7, 1.0 - 2 * i, (0,) * 7)
        for i in range(2)
    ]


def most_bytes(work):
    """By how much `work` raised the resident memory at most."""
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    work()
    return status("VmHWM") - before


def status(key):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(key)


def main(folder):
    torch.set_num_threads(1)
    local = RankTrainer(model(), CONFIG, AlgoConfig(), pad_token_id=0)
    local.train_step(rows(), 1)
    tensors = [*local.policy_weights().values(), *local.state_dict()["tensors"].values()]
    size = sum(one.numel() * one.element_size() for one in {one.data_ptr(): one for one in tensors}.values())
    found = {"size": size, "one_process": most_bytes(lambda: local.save(folder / "one", **SAVED))}
    with process_group(0, 1, torch.device("cpu")):
        mesh = make_mesh(1, torch.device("cpu"))
        spread = ShardedModel(model(), mesh, by_row, compute_dtype=torch.float32)
        trainer = Trainer(spread, CONFIG, AlgoConfig(), pad_token_id=0, compute=ShardedCompute(mesh))
        trainer.train_step(rows(), 1)
        checkpoints = Checkpoints(mesh)

        def save():
            checkpoints.save(folder / "ranks", trainer, **SAVED)
            checkpoints.wait()

        found["ranks"] = most_bytes(save)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
