"""Which machine `check`, `plan` and `simulate` answer for where this one has too few GPUs for the layout.

Invariants:
- Only hardware=auto is replaced; what somebody chose or set is kept, key by key.
- The answer is the smallest machine of conf/hardware/ that holds the layout and the model; where none does, the one
  with the most memory a GPU, so that its errors are the last ones to solve.
- A cluster's own options (those that name a partition) are never assumed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path

from swe_rl.config.choices import JobName
from swe_rl.config.compose import Composed
from swe_rl.config.findings import Host, Severity
from swe_rl.config.known_hardware import known_hardware
from swe_rl.config.rules_layout import engine_within_node
from swe_rl.config.rules_memory import colocated_memory, engine_memory, host_memory, trainer_memory
from swe_rl.config.schema import Config, HardwareConfig
from swe_rl.config.sizes import gpus_needed, gpus_there

AUTO = "auto"
SPEAKING = frozenset({JobName.check, JobName.plan, JobName.simulate})  # jobs that start nothing on the machine
_HOLDING = (engine_within_node, trainer_memory, engine_memory, colocated_memory, host_memory)


def answered(composed: Composed) -> Composed:
    """The same for the smallest machine that holds it, where hardware=auto has too few GPUs and the job only speaks."""
    config = composed.config
    if config.job.name not in SPEAKING or composed.choices.get("hardware") != AUTO:
        return composed
    here = config.hardware
    if gpus_needed(config) <= gpus_there(here):
        return composed
    folders = [Path(source) for source in composed.origins.sources]
    machine = smallest(config, known_hardware(folders))
    if machine is None:
        return composed
    given = {name: getattr(here, name) for name in _set_by_hand(composed)}
    env_vars = {**machine.env_vars, **here.env_vars}
    hardware = replace(machine, **{**given, "env_vars": env_vars})
    choices = {**composed.choices, "hardware": machine.name}
    there = gpus_there(here)
    note = (
        f"assumed {spelled(machine, known_hardware(folders))}: {gpus_there(hardware)} x {hardware.gpu_kind} of "
        f"{hardware.gpu_memory_gb:g} GB (this machine has {there or 'no'} GPU{'s' if there > 1 else ''})"
    )
    return replace(
        composed,
        config=replace(config, hardware=hardware),
        choices=choices,
        origins=replace(composed.origins, choices=choices, assumed=note),
    )


def smallest(config: Config, machines: Sequence[HardwareConfig]) -> HardwareConfig | None:
    """The fewest GPUs first, then the least memory. None where no machine has enough GPUs."""
    candidates = sorted(_large_enough(gpus_needed(config), machines), key=_size)
    holding = [machine for machine in candidates if _holds(replace(config, hardware=machine))]
    return next(iter(holding), None) or max(candidates, key=lambda machine: machine.gpu_memory_gb, default=None)


def spelled(machine: HardwareConfig, machines: Sequence[HardwareConfig]) -> str:
    """As it is typed: `hardware=h100x8`, with `hardware.nodes=4` where it takes more nodes than the option has."""
    nodes = next((option.nodes for option in machines if option.name == machine.name), machine.nodes)
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
