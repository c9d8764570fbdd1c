"""Which model an adapter is of: where it came from, and samples of its weights' bytes.

Invariants:
- Reading is bounded, whatever the model's size: it notices other weights, and training that went on, not a single
  changed value.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swe_rl.config.schema import ModelConfig

_BLOCKS, _BLOCK_BYTES = 256, 4096


def base_of(model: ModelConfig, folder: Path) -> dict[str, Any]:
    """What identifies the weights of `folder`, as JSON data. Raises OSError."""
    return {"path": model.path, "revision": model.revision, "fingerprint": fingerprint(folder)}


def base_problem(saved: Mapping[str, Any] | None, here: Mapping[str, Any] | None) -> str | None:
    """Half a sentence where two of `base_of` are of different weights; what is not known is not compared."""
    if not saved or not here or saved["fingerprint"] == here["fingerprint"]:
        return None
    return f"its adapter is of other weights than {here['path']} has now (it was trained on {saved['path']})"


def fingerprint(folder: Path) -> str:
    """sha256 of each safetensors file's name, size, and evenly spaced blocks. Raises OSError."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name}/{size}/".encode())
        step = max(_BLOCK_BYTES, size // _BLOCKS)
        with path.open("rb") as file:
            for start in range(0, size, step):
                file.seek(start)
                digest.update(file.read(_BLOCK_BYTES))
    return digest.hexdigest()
