"""Counts a model's parameters by the code of its family, in a child process: nothing here imports torch.

The child makes the model of a config.json without memory. It takes seconds, so what was counted once is kept.
"""

import hashlib
import json
import os
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

from swe_rl.host.packages import installed_version

# The largest models take transformers half a minute to describe.
_COUNTING_S = 120.0
_CHILD = """
import json, sys, torch
from transformers import AutoConfig, AutoModelForCausalLM
config = AutoConfig.from_pretrained(sys.argv[1], trust_remote_code=False)
with torch.device("meta"):
    model = AutoModelForCausalLM.from_config(config)
sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
experts = sum(size for name, size in sizes.items() if ".experts." in name)
print(json.dumps([sum(sizes.values()) / 1e9, experts / 1e9]))
"""


@cache
def count_parameters(config_file: Path) -> tuple[float, float] | None:
    """Returns billions of parameters, and those of experts that tokens choose; None where the child cannot make it."""
    try:
        said = config_file.read_bytes()
    except OSError:
        return None
    digest = hashlib.sha256(said + str(installed_version("transformers")).encode()).hexdigest()[:32]
    kept = _folder() / f"{digest}.json"
    with suppress(OSError, ValueError):
        return _pair(kept.read_text(encoding="utf-8"))
    command = [sys.executable, "-c", _CHILD, str(config_file.parent)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COUNTING_S, check=True)
        counted = _pair(done.stdout)
    except (subprocess.SubprocessError, OSError, ValueError):
        return None
    # A count that cannot be kept is still a count.
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        aside = kept.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps(counted), encoding="utf-8")
        aside.rename(kept)
    return counted


def _pair(text: str) -> tuple[float, float]:
    """Returns the two numbers of the child's answer. Raises ValueError."""
    both, experts = json.loads(text)
    return float(both), float(experts)


def _folder() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return home / "swe_rl/parameters"
