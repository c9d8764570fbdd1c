"""This module describes the machines of conf/hardware/, and this machine in the same words.

Invariants:
- A kind of GPU has its published rates in conf/hardware/ alone; a machine of a kind that is not there has none.
- A file with references is left out: what it says depends on the run.
"""

from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from itertools import pairwise
from pathlib import Path
from re import findall
from typing import Any

from swe_rl.config.folders import conf_dir
from swe_rl.config.schema import HardwareConfig
from swe_rl.config.yaml_text import read_yaml
from swe_rl.host.machine import Machine, this_machine

_GROUP = "hardware"


def known_hardware(folders: Sequence[Path] = ()) -> tuple[HardwareConfig, ...]:
    """Returns the options of the group, sorted by name. `folders` hold groups, as Hydra searches them (none: conf/)."""
    names = {field.name for field in fields(HardwareConfig)}
    described: dict[str, HardwareConfig] = {}
    for folder in folders or (conf_dir(),):
        for path in sorted((folder / _GROUP).glob("*.yaml")):
            values = _merge_values(path, folder)
            if values.keys() <= names and "${" not in str(values):
                tuples = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
                described.setdefault(path.stem, HardwareConfig(**{**values, **tuples}))
    return tuple(described[name] for name in sorted(described))


def _merge_values(path: Path, folder: Path) -> dict[str, Any]:
    """Merges a file over the files of its own group that its defaults list names."""
    content = dict(read_yaml(path))
    merged: dict[str, Any] = {}
    for parent in content.pop("defaults", []):
        base = folder / _GROUP / f"{parent}.yaml"
        if isinstance(parent, str) and parent != "_self_" and base.is_file():
            merged |= _merge_values(base, folder)
    return merged | content


def value_here(key: str) -> Any:
    """Resolves `${swe_rl.here:gpus_per_node}` in conf/: a value of `hardware` as this machine has it."""
    return describe_hardware(this_machine())[key]


def describe_hardware(machine: Machine) -> dict[str, Any]:
    """Maps keys of `hardware` to what `machine` has. A MIG slice has its share of the GPU's rates."""
    kind, tflops, bandwidth = _gpu_rates(machine.gpu_name) if machine.gpus else ("none", 0.0, 0.0)
    return {
        "nodes": machine.nodes,
        "gpus_per_node": machine.gpus,
        "gpu_memory_gb": machine.gpu_memory_gb,
        "gpu_kind": f"{kind}_mig" if machine.mig and machine.gpus else kind,
        "gpu_bf16_tflops": round(tflops * machine.gpu_share, 1),
        "gpu_bandwidth_gb_per_s": round(bandwidth * machine.gpu_share, 1),
        "mig": machine.mig and machine.gpus > 0,
        "cpus_per_node": machine.cpus,
        "memory_gb": machine.memory_gb,
        "compiler": machine.compiler,
        "time_limit_min": machine.time_limit_min,
    }


def _gpu_rates(name: str) -> tuple[str, float, float]:
    """Returns kind, bfloat16 TFLOPS and bandwidth in GB/s of the GPU that the driver calls `name`.

    `NVIDIA GeForce RTX 4090` is an rtx4090: words of the name, or two of them in a row, are a kind.
    """
    words = findall(r"[a-z0-9]+", name.lower())
    spelled = {*words, *(first + second for first, second in pairwise(words))}
    for kind, rates in _published_rates().items():
        if kind in spelled:
            return kind, *rates
    return "_".join(words), 0.0, 0.0


@cache
def _published_rates() -> dict[str, tuple[float, float]]:
    """Maps kinds of whole GPUs to their published rates."""
    return {
        option.gpu_kind: (option.gpu_bf16_tflops, option.gpu_bandwidth_gb_per_s)
        for option in known_hardware()
        if option.gpus_per_node and not option.mig
    }
