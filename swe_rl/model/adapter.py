"""This module describes the files of a LoRA adapter, as peft and vLLM read them.

Invariants:
- Names of tensors are peft's: `base_model.model.LAYER.lora_A.weight` and `...lora_B.weight`.
- Nothing of torch or peft is imported here.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"


@dataclass(frozen=True, slots=True)
class AdapterShape:
    rank: int
    alpha: int


def alpha_of(rank: int, alpha: int | None) -> int:
    """Returns `trainer.lora_alpha`, or twice the rank if it is not set."""
    if alpha is not None:
        return alpha
    return 2 * rank


def adapter_config(shape: AdapterShape, names: Iterable[str], base: str | None, revision: str | None) -> dict[str, Any]:
    """Returns the content of CONFIG_FILE. `names` are those of the tensors: they tell which layers carry a pair."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": shape.rank,
        "lora_alpha": shape.alpha,
        "target_modules": sorted({name.partition(".lora_")[0].rpartition(".")[2] for name in names}),
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
        "base_model_name_or_path": base,
        "revision": revision,
    }
