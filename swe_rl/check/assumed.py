"""Which machine `check`, `plan` and `simulate` answer for where this one will not do.

It has too few GPUs for the layout, or SLURM takes the job elsewhere (hardware.partition).

Invariants:
- Only hardware=auto is replaced; what somebody chose or set is kept, key by key.
- The answer is the smallest machine of conf/hardware/ that holds the layout and the model; where none does, the one
  with the most memory a GPU, so that its errors are the last ones to solve.
- A cluster's own options (those that name a partition) are never assumed.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path

from swe_rl.check.findings import Host, Severity
from swe_rl.check.rules.layout import engine_within_node
from swe_rl.check.rules.memory import colocated_memory, engine_memory, host_memory, trainer_memory
from swe_rl.config.choices import JobName
from swe_rl.config.compose import Composed
from swe_rl.config.known_hardware import known_hardware
from swe_rl.config.ranges import within
from swe_rl.config.schema import Config, HardwareConfig
from swe_rl.plan.sizes import gpus_needed, gpus_there

AUTO = "auto"
WITHOUT_GPUS = "cpu"  # what a job of SLURM's asks for where nobody said, and no GPU is needed
SPEAKING = frozenset({JobName.check, JobName.plan, JobName.simulate})  # jobs that start nothing on the machine
_HOLDING = (engine_within_node, trainer_memory, engine_memory, colocated_memory, host_memory)


def answered(composed: Composed) -> Composed:
    """The same for the smallest machine that holds it, where hardware=auto has too few GPUs and the job only speaks."""
    config = within(composed.config)
    if config.job.name not in SPEAKING or composed.choices.get("hardware") != AUTO:
        return composed
    elsewhere = config.hardware.partition is not None and "SLURM_JOB_ID" not in os.environ
    if not elsewhere and gpus_needed(config) <= gpus_there(config.hardware):
        return composed
    known = known_hardware([Path(source) for source in composed.origins.sources])
    machine = smallest(config, known) if gpus_needed(config) else _named(WITHOUT_GPUS, known)
    return composed if machine is None else _on(machine, spelled(machine, known), composed, elsewhere=elsewhere)


def _on(machine: HardwareConfig, name: str, composed: Composed, *, elsewhere: bool) -> Composed:
    here = composed.config.hardware
    given = {key: getattr(here, key) for key in _set_by_hand(composed)}
    hardware = replace(machine, **{**given, "env_vars": {**machine.env_vars, **here.env_vars}})
    choices = {**composed.choices, "hardware": machine.name}
    there = gpus_there(here)
    what = f"{gpus_there(hardware)} x {hardware.gpu_kind} of {hardware.gpu_memory_gb:g} GB"
    if not gpus_there(hardware):
        what = f"{hardware.cpus_per_node} CPUs, {hardware.memory_gb:g} GB"
    gpus = f"{there or 'no'} GPU{'s' if there > 1 else ''}"
    why = "SLURM takes the job elsewhere" if elsewhere else f"this machine has {gpus}"
    note = f"assumed {name}: {what} ({why})"
    return replace(
        composed,
        config=replace(composed.config, hardware=hardware),
        choices=choices,
        origins=replace(composed.origins, choices=choices, assumed=note),
    )


def _named(name: str, machines: Sequence[HardwareConfig]) -> HardwareConfig | None:
    return next((machine for machine in machines if machine.name == name), None)


def smallest(config: Config, machines: Sequence[HardwareConfig]) -> HardwareConfig | None:
    """As `holding`, or else the one with the most memory. None where no machine has enough GPUs."""
    candidates = list(_large_enough(gpus_needed(config), machines))
    return holding(config, machines) or max(candidates, key=lambda machine: machine.gpu_memory_gb, default=None)


def holding(config: Config, machines: Sequence[HardwareConfig]) -> HardwareConfig | None:
    """The smallest machine that holds layout and model: the fewest GPUs first, then the least memory."""
    candidates = sorted(_large_enough(gpus_needed(config), machines), key=_size)
    return next((machine for machine in candidates if _holds(replace(config, hardware=machine))), None)


def spelled(machine: HardwareConfig, machines: Sequence[HardwareConfig]) -> str:
    """As it is typed: `hardware=h100x8`, with `hardware.nodes=4` where it takes more nodes than the option has."""
    nodes = (_named(machine.name, machines) or machine).nodes
    return f"hardware={machine.name}" + (f" hardware.nodes={machine.nodes}" if nodes != machine.nodes else "")


def _large_enough(gpus: int, machines: Sequence[HardwareConfig]) -> Iterator[HardwareConfig]:
    """Servers are taken several times where one node is too small; workstations are not."""
    options = [machine for machine in machines if machine.gpus_per_node and not machine.partition and not machine.mig]
    server = max((machine.gpus_per_node for machine in options), default=0)
    for machine in options:
        if gpus_there(machine) >= gpus:
            yield machine
        elif machine.gpus_per_node == server:
            yield replace(machine, nodes=-(-gpus // server))


def _size(machine: HardwareConfig) -> tuple[int, float, float, str]:
    return gpus_there(machine), machine.gpu_memory_gb, machine.gpu_bf16_tflops, machine.name


def _holds(config: Config) -> bool:
    findings = (finding for rule in _HOLDING for finding in rule(config, Host()))
    return not any(finding.severity is Severity.error for finding in findings)


def _set_by_hand(composed: Composed) -> list[str]:
    """Keys of `hardware` that neither the option nor the schema set."""
    automatic = (f"conf/hardware/{AUTO}.yaml", "schema")
    names = [field.name for field in fields(HardwareConfig) if field.name not in ("name", "env_vars")]
    return [name for name in names if not composed.origins.of(f"hardware.{name}").startswith(automatic)]
