"""CPUs, memory and the gateway's port of this machine, against what the configuration says of them."""

from collections.abc import Iterator

from swe_rl.check.findings import Finding, error, warning
from swe_rl.check.preflight.system import System
from swe_rl.config.schema import Config

_ALMOST = 0.95  # the kernel keeps some of what a machine is sold with


def ask(config: Config, system: System) -> Iterator[Finding]:
    hardware, cpus, memory_gb = config.hardware, system.cpus(), system.memory_bytes() / 1e9
    if cpus < hardware.cpus_per_node:
        yield warning(
            "preflight_cpus",
            "hardware.cpus_per_node",
            hardware.cpus_per_node,
            f"this process may use {cpus} CPUs; the slots for sandboxes are reckoned from {hardware.cpus_per_node}",
            f"hardware.cpus_per_node={cpus}",
        )
    if memory_gb < hardware.memory_gb * _ALMOST:
        yield warning(
            "preflight_memory",
            "hardware.memory_gb",
            hardware.memory_gb,
            f"this process may use {memory_gb:.1f} GB of memory",
            f"hardware.memory_gb={memory_gb:.1f}",
        )


def port(config: Config, system: System) -> Iterator[Finding]:
    host, number = config.gateway.host, config.gateway.port
    reason = system.bind_refused(host, number)
    if reason is None:
        return
    if number == 0:
        yield error(
            "preflight_port",
            "gateway.host",
            host,
            f"cannot be listened on: {reason}",
            "gateway.host=127.0.0.1, or another address of this machine",
        )
    else:
        yield error(
            "preflight_port",
            "gateway.port",
            number,
            f"cannot be listened on at {host}: {reason}",
            "gateway.port=0 (any free port)",
        )
