"""Rules of the GPUs compare what a layout takes with what a machine has, offer ways out, and check a Ray cluster.

Invariants:
- What is offered was tried: the machine holds this layout and this model, the smaller layout fits the machine.
- A Ray cluster itself is not asked here; job.preflight=true and the run's start do that.
- `check`, `plan` and `simulate` answer for the smallest machine of conf/hardware/ that holds layout and model where
  this one has too few GPUs, or SLURM takes the job elsewhere; where none does, for the one with the most memory a GPU,
  so that its errors are the last ones to solve. Only hardware=auto is replaced: what somebody chose or set is kept, key
  by key. A cluster's own options (those that name a partition) are never assumed.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from math import gcd
from pathlib import Path

from swe_rl.check.findings import Finding, Host, Severity, error, is_below, rule_about, warning
from swe_rl.check.rules.layout import engine_within_node
from swe_rl.check.rules.memory import colocated_memory, engine_memory, host_memory, trainer_memory
from swe_rl.config.choices import JobName
from swe_rl.config.compose import Composed
from swe_rl.config.environment import visible_gpus
from swe_rl.config.known_hardware import known_hardware
from swe_rl.config.parts import Part, started_parts
from swe_rl.config.ranges import replace_out_of_range
from swe_rl.config.schema import Config, HardwareConfig
from swe_rl.facts.sizes import asks_ray, engine_gpus, gpus_needed, gpus_there, is_elsewhere, trainer_elsewhere

AUTO = "auto"
WITHOUT_GPUS = "cpu"  # a SLURM job that needs no GPU asks for it where nobody said
SPEAKING = frozenset({JobName.check, JobName.plan, JobName.simulate})  # these jobs start nothing on the machine
_HOLDING = (engine_within_node, trainer_memory, engine_memory, colocated_memory, host_memory)
_GPUS_OF_GRES = re.compile(r"(?:^|,)\s*(?:gres[:/])?gpu(?::[^:,()]*[^\d:,()][^:,()]*)?(?::(\d+))?(?:\([^)]*\))?(?=,|$)")
_NO_DRIVER = "there is no `nvidia-smi`"  # a machine without GPUs says so, and any other reason is worth a word


@rule_about(Part.engines, Part.trainer, Part.warm_start)
def gpus_suffice(config: Config, host: Host) -> Iterator[Finding]:
    needed = gpus_needed(config)
    there = gpus_there(config.hardware)
    if needed > there:
        yield error(
            "gpus",
            "layout.name",
            f"needs {_count_gpus(needed)} ({_describe_shares(config)}); {_describe_machine(config, host)}",
            _ways_out(config, host),
        )
    # A simulation takes no GPU, so that none of them idles.
    elif 0 < needed < there and not host.elsewhere and config.job.name != JobName.simulate:
        yield warning(
            "idle_gpus",
            "layout.name",
            f"uses {needed} of {there} GPUs; the others idle for the whole run",
            "more layout.engines, or fewer hardware.gpus_per_node",
        )


def _count_gpus(gpus: int) -> str:
    return f"{gpus} GPU{'' if gpus == 1 else 's'}"


def _describe_shares(config: Config) -> str:
    ours = not is_elsewhere(config.engine.kind) and Part.engines in started_parts(config)
    engines = 0
    if ours:
        engines = engine_gpus(config.layout)
    trainer = config.layout.trainer_gpus
    return f"{engines} for engines, {trainer} for the trainer{', shared' if config.layout.colocated else ''}"


def _describe_machine(config: Config, host: Host) -> str:
    hardware = config.hardware
    there = "no GPU"
    if gpus_there(hardware):
        there = _count_gpus(gpus_there(hardware))
    if hardware.name != AUTO:
        return f"hardware={hardware.name} has {there}"
    why = host.driver()
    return f"this machine has {there}" + (f" ({why})" if why and not why.startswith(_NO_DRIVER) else "")


def _ways_out(config: Config, host: Host) -> str:
    machines = host.known_hardware()
    chosen = [machine for machine in machines if machine.name == config.hardware.name]
    machine = smallest_that_holds(config, chosen) or smallest_that_holds(config, machines)
    if machine is None:
        larger = "hardware with more GPUs (hardware.nodes, hardware.gpus_per_node)"
    elif config.hardware.name == AUTO:
        larger = f"{spell_options(machine, machines)} with a launcher (--multirun hydra/launcher=submitit_slurm)"
    elif config.hardware.name == machine.name:  # a key that was changed by hand is too small
        wanted = {key: getattr(machine, key) for key in ("nodes", "gpus_per_node")}
        changed = {key: value for key, value in wanted.items() if getattr(config.hardware, key) != value}
        larger = " ".join(f"hardware.{key}={value}" for key, value in changed.items())
    else:
        larger = spell_options(machine, machines)
    return f"{larger}; or a smaller layout: {_smaller_layout(config)}"


def _smaller_layout(config: Config) -> str:
    """Returns a layout of the same kind that fits the GPUs which are there."""
    layout = config.layout
    there = config.hardware.gpus_per_node
    if there < 1:
        return "layout=local model=tiny"
    if layout.colocated or there == 1:
        return f"layout=colocated{max(size for size in (1, 4, 8) if size <= max(1, there))}"
    trainer = min(layout.trainer_gpus, 1 << (there // 2).bit_length() - 1)
    width = min(max(1, layout.engine_tp), there - trainer)
    keys = {
        "engines": (there - trainer) // width,
        "engine_tp": width,
        "trainer_gpus": trainer,
        "sequence_parallel": min(layout.sequence_parallel, max(1, trainer)),
        "expert_parallel": min(layout.expert_parallel, max(1, trainer)),
        "shard_ranks": layout.shard_ranks and gcd(layout.shard_ranks, max(1, trainer)),
    }
    return " ".join(f"layout.{key}={value}" for key, value in keys.items() if getattr(layout, key) != value)


@rule_about(Part.engines, Part.trainer, Part.warm_start)
def check_visible_gpus(config: Config, host: Host) -> Iterator[Finding]:
    if host.elsewhere or host.submitted:
        return
    seen = visible_gpus(host.environment)
    wanted = min(gpus_needed(config), config.hardware.gpus_per_node)
    if seen is not None and config.hardware.partition is None and config.hardware.nodes == 1 and seen < wanted:
        yield error(
            "visible_gpus",
            "hardware.gpus_per_node",
            f"CUDA_VISIBLE_DEVICES lets this process see {seen} GPUs; layout={config.layout.name} uses {wanted}",
            f"unset CUDA_VISIBLE_DEVICES, or hardware.gpus_per_node={seen} with a smaller layout",
        )


@rule_about(Part.engines, Part.trainer, Part.warm_start)
def check_gres(config: Config, _: Host) -> Iterator[Finding]:
    """Refuses a hardware.gres with another number of GPUs than hardware.gpus_per_node.

    SLURM is told the one, and the layout goes by the other.
    """
    hardware = config.hardware
    if hardware.gres is None:
        return
    there = sum(int(count or 1) for count in _GPUS_OF_GRES.findall(hardware.gres))
    if there != hardware.gpus_per_node:
        yield error(
            "gres",
            "hardware.gres",
            f"asks SLURM for {_count_gpus(there)} on each node, and hardware.gpus_per_node={hardware.gpus_per_node}",
            f"gpu:{hardware.gpus_per_node} in hardware.gres, or hardware.gpus_per_node={there}",
        )


_RAY_ADDRESS = re.compile(r"auto|(?P<host>\[[0-9a-fA-F:.]+\]|[^\s:/]+):(?P<port>\d{1,5})")
_RAY = "hardware.ray_address"


@rule_about(Part.trainer, Part.warm_start)
def ray_address(config: Config, _: Host) -> Iterator[Finding]:
    address = config.hardware.ray_address
    layout = config.layout
    if address is None:
        return
    match = _RAY_ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match["port"] or 1) < 65536:
        yield error(
            "ray_address",
            _RAY,
            "is auto or host:port of a cluster's head that this machine is part of; Ray Client (ray://) is not used",
            f"{_RAY}=auto, after `ray start --head` or `ray start --address=HEAD:6379` on this machine",
        )
    elif not asks_ray(config):
        yield warning(
            "ray_unused",
            _RAY,
            f"has no effect with layout={layout.name}: the run's own process trains",
            f"{_RAY}=null, or a layout whose trainer has ranks (layout=dp4, layout=local2)",
        )


@rule_about(Part.trainer, Part.warm_start)
def ray_folders(config: Config, host: Host) -> Iterator[Finding]:
    """Refuses a run's folder that other nodes do not see, because their ranks write checkpoints into it."""
    paths = config.paths
    shared = config.hardware.shared_paths
    if not asks_ray(config) or not trainer_elsewhere(config):
        return
    if shared and not is_below(host.absolute(paths.outputs), shared):
        yield error(
            "ray_folders",
            "paths.outputs",
            "every rank of the trainer writes its part of a checkpoint here, also those on other nodes; not below "
            f"hardware.shared_paths={list(shared)}",
            f"paths.outputs={shared[0]}/...",
        )


def on_smallest_machine(composed: Composed) -> Composed:
    """Returns the composition for the smallest machine that holds it, where hardware=auto and the job only speaks.

    That is so where this machine has too few GPUs, or SLURM takes the job elsewhere. Any other composition stays as it
    is.
    """
    config = replace_out_of_range(composed.config)
    if config.job.name not in SPEAKING or composed.choices.get("hardware") != AUTO:
        return composed
    elsewhere = config.hardware.partition is not None and "SLURM_JOB_ID" not in os.environ
    if not elsewhere and gpus_needed(config) <= gpus_there(config.hardware):
        return composed
    known = known_hardware([Path(source) for source in composed.origins.sources])
    if gpus_needed(config):
        machine = smallest_machine(config, known)
    else:
        machine = _machine_named(WITHOUT_GPUS, known)
    if machine is None:
        return composed
    return _on_machine(machine, spell_options(machine, known), composed, elsewhere=elsewhere)


def _on_machine(machine: HardwareConfig, name: str, composed: Composed, *, elsewhere: bool) -> Composed:
    here = composed.config.hardware
    given = {key: getattr(here, key) for key in _set_by_hand(composed)}
    hardware = replace(machine, **{**given, "env_vars": {**machine.env_vars, **here.env_vars}})
    choices = {**composed.choices, "hardware": machine.name}
    there = gpus_there(here)
    what = f"{gpus_there(hardware)} x {hardware.gpu_kind} of {hardware.gpu_memory_gb:g} GB"
    if not gpus_there(hardware):
        what = f"{hardware.cpus_per_node} CPUs, {hardware.memory_gb:g} GB"
    gpus = f"{there or 'no'} GPU{'s' if there > 1 else ''}"
    why = "SLURM takes the job elsewhere"
    if not elsewhere:
        why = f"this machine has {gpus}"
    note = f"assumed {name}: {what} ({why})"
    return replace(
        composed,
        config=replace(composed.config, hardware=hardware),
        choices=choices,
        origins=replace(composed.origins, choices=choices, assumed=note),
    )


def _machine_named(name: str, machines: Sequence[HardwareConfig]) -> HardwareConfig | None:
    return next((machine for machine in machines if machine.name == name), None)


def smallest_machine(config: Config, machines: Sequence[HardwareConfig]) -> HardwareConfig | None:
    """Returns the machine of `smallest_that_holds`, or else the one with the most memory.

    Returns None where no machine has enough GPUs.
    """
    candidates = list(_large_enough(gpus_needed(config), machines))
    return smallest_that_holds(config, machines) or max(
        candidates, key=lambda machine: machine.gpu_memory_gb, default=None
    )


def smallest_that_holds(config: Config, machines: Sequence[HardwareConfig]) -> HardwareConfig | None:
    """Returns the smallest machine that holds layout and model: the fewest GPUs first, then the least memory."""
    candidates = sorted(_large_enough(gpus_needed(config), machines), key=_size_key)
    return next((machine for machine in candidates if _holds_job(replace(config, hardware=machine))), None)


def spell_options(machine: HardwareConfig, machines: Sequence[HardwareConfig]) -> str:
    """Returns the options as they are typed, with `hardware.nodes=4` where more nodes are taken than the option has."""
    nodes = (_machine_named(machine.name, machines) or machine).nodes
    return f"hardware={machine.name}" + (f" hardware.nodes={machine.nodes}" if nodes != machine.nodes else "")


def _large_enough(gpus: int, machines: Sequence[HardwareConfig]) -> Iterator[HardwareConfig]:
    """Yields the machines with enough GPUs.

    Servers are taken several times where one node is too small, and workstations are not.
    """
    options = [machine for machine in machines if machine.gpus_per_node and not machine.partition and not machine.mig]
    server = max((machine.gpus_per_node for machine in options), default=0)
    for machine in options:
        if gpus_there(machine) >= gpus:
            yield machine
        elif machine.gpus_per_node == server:
            yield replace(machine, nodes=-(-gpus // server))


def _size_key(machine: HardwareConfig) -> tuple[int, float, float, str]:
    return gpus_there(machine), machine.gpu_memory_gb, machine.gpu_bf16_tflops, machine.name


def _holds_job(config: Config) -> bool:
    findings = (finding for rule in _HOLDING for finding in rule(config, Host()))
    return not any(finding.severity is Severity.error for finding in findings)


def _set_by_hand(composed: Composed) -> list[str]:
    """Returns the keys of `hardware` that neither the option nor the schema set."""
    automatic = (f"conf/hardware/{AUTO}.yaml", "schema")
    names = [field.name for field in fields(HardwareConfig) if field.name not in ("name", "env_vars")]
    return [name for name in names if not composed.origins.of(f"hardware.{name}").startswith(automatic)]
