"""An adapter's checkpoint as what others load: merged weights, and a folder in peft's own format.

Invariants:
- The base is read from its own folder, which must be the one that the adapter was trained on.
- One weight at a time is merged; no model is built, and peft is not needed.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from swe_rl.trainer.checkpoint.manifest import sync_folder, write_file
from swe_rl.trainer.checkpoint.stored import MODEL, StoredTensors
from swe_rl.trainer.checkpoint.tensor_file import safetensors_chunks
from swe_rl.trainer.lora.adapter import TARGETS, in_files, pair
from swe_rl.trainer.lora.merged import merged
from swe_rl.trainer.sharded.materialize import open_files

FOLDER = "adapter"
_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


class MergedFiles:
    """Base files and a stored adapter, by transformers' names."""

    def __init__(self, base: Mapping[str, Any], stored: StoredTensors, scale: float) -> None:
        """`base`: the open safetensors file of each name."""
        self._base, self._stored, self._scale = base, stored, scale
        self._adapted = {name.removeprefix(MODEL) for name in stored.names()}
        self.shapes = {name: tuple(base[name].get_slice(name).get_shape()) for name in base}

    def read(self, name: str) -> Tensor:
        weight: Tensor = self._base[name].get_tensor(name)
        first, second = pair(name)
        if first not in self._adapted:
            return weight
        return merged(weight, self._stored.whole(MODEL + first), self._stored.whole(MODEL + second), self._scale)


@contextmanager
def merged_files(base: Path, stored: StoredTensors, adapter: Mapping[str, Any]) -> Iterator[MergedFiles]:
    """`adapter` is what `Adapter.described` gave. Raises ValueError, OSError and SafetensorError as they come."""
    with ExitStack() as stack:
        yield MergedFiles(open_files(base, stack), stored, adapter["alpha"] / adapter["rank"])


def write_adapter(stored: StoredTensors, adapter: Mapping[str, Any], folder: Path) -> None:
    """adapter_config.json and adapter_model.safetensors, float32, as `peft.PeftModel.from_pretrained` reads them."""
    folder.mkdir()
    names = [name for name in stored.names() if name.startswith(MODEL)]
    tensors = {in_files(name.removeprefix(MODEL)): stored.whole(name) for name in names}
    write_file(folder / _WEIGHTS, safetensors_chunks(tensors))
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": adapter["rank"],
        "lora_alpha": adapter["alpha"],
        "target_modules": [target for target in TARGETS if any(f".{target}." in name for name in names)],
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
        "base_model_name_or_path": (adapter["base"] or {}).get("path"),
        "revision": (adapter["base"] or {}).get("revision"),
    }
    write_file(folder / _CONFIG, [json.dumps(config, indent=2, sort_keys=True).encode()])
    sync_folder(folder)
