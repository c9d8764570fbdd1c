"""Writes the folder of a Qwen3 without weights: `vllm serve FOLDER --load-format dummy` makes them up.

    python -m bench.random_qwen3 14b /tmp/qwen3_14b

Sizes are read from conf/model, so that the model served is the one that the estimates and the simulator mean.

Invariants:
- The vocabulary has as many words as the model has embeddings: every id that random weights sample is a word.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from bench.words import END_OF_TEXT, SPECIAL, write_tokenizer
from swe_rl.config.schema import ModelConfig

CONF = Path(__file__).resolve().parent.parent / "conf"
SIZES = {"14b": "qwen3_14b", "8b": "qwen3_8b", "4b": "qwen3_4b", "0_6b": "qwen3_0_6b", "tiny": ""}
# For CPUs: a few million parameters, sequences as long as those of the others.
_TINY = {
    "num_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_dim": 32,
    "vocab_size": 16384,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
    "rope_theta": 1000000.0,
}


def facts(size: str) -> dict[str, Any]:
    """Of conf/model; what an option file leaves out is the schema's. Without Hydra, which GPU hosts may lack."""
    if size == "tiny":
        return dict(_TINY)
    own: dict[str, Any] = yaml.safe_load((CONF / "model" / f"{SIZES[size]}.yaml").read_text(encoding="utf-8"))
    return asdict(ModelConfig()) | own


def config(model: dict[str, Any]) -> dict[str, Any]:
    """config.json."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": SPECIAL.index(END_OF_TEXT),
        "eos_token_id": len(SPECIAL) - 1,
        "head_dim": model["head_dim"],
        "hidden_act": "silu",
        "hidden_size": model["hidden_size"],
        "initializer_range": 0.02,
        "intermediate_size": model["intermediate_size"],
        "max_position_embeddings": model["max_position_embeddings"],
        "num_attention_heads": model["num_heads"],
        "num_hidden_layers": model["num_layers"],
        "num_key_value_heads": model["num_kv_heads"],
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": model["rope_theta"],
        "sliding_window": None,
        "tie_word_embeddings": model["tie_word_embeddings"],
        "torch_dtype": "bfloat16",
        "transformers_version": "4.57.3",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": model["vocab_size"],
    }


def write_model(folder: Path, size: str) -> None:
    model = facts(size)
    write_tokenizer(folder, int(model["vocab_size"]))
    (folder / "config.json").write_text(json.dumps(config(model), indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the folder of a Qwen3 without weights.")
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    write_model(arguments.folder, arguments.size)
    print(f"{arguments.folder}: Qwen3 {arguments.size}; vllm serve {arguments.folder} --load-format dummy")


if __name__ == "__main__":
    main()
