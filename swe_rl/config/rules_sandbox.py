"""Rules of sandboxes: how many fit, where they run, and the two-job set-up.

Invariants:
- Slots are counted on the machines that run the sandboxes: the runtime job's where there is one.
"""

from collections.abc import Iterator

from swe_rl.config.findings import Finding, Host, error, warning
from swe_rl.config.schema import Config, RuntimeKind, SandboxKind
from swe_rl.config.sizes import holds_container, sandbox_slots, trajectories_per_step

CONTAINERS = ("docker", "podman")


def slots(config: Config, _: Host) -> Iterator[Finding]:
    wanted = config.sandbox.concurrency
    if not holds_container(config) or config.runtime.kind == RuntimeKind.external:
        return
    if wanted > (there := sandbox_slots(config)):
        where = "runtime" if config.runtime.kind == RuntimeKind.job else "hardware"
        waves = -(-trajectories_per_step(config) // max(1, there))
        make = error if where == "runtime" else warning
        yield make(
            "sandbox_slots",
            "sandbox.concurrency",
            wanted,
            f"{where}.* has room for {there} sandboxes of {config.sandbox.cpus:g} CPUs and "
            f"{config.sandbox.memory_gb:g} GB",
            f"sandbox.concurrency={there} (a step then takes {waves} waves)"
            if there
            else f"smaller sandbox.cpus and sandbox.memory_gb, or more of {where}.*",
        )


def places(config: Config, _: Host) -> Iterator[Finding]:
    under_way, sandboxes = config.rollout.concurrency, config.sandbox.concurrency
    if holds_container(config) and under_way > sandboxes:
        yield warning(
            "sandbox_places",
            "rollout.concurrency",
            under_way,
            f"each trajectory holds a sandbox, and there are {sandboxes} (sandbox.concurrency): the others wait",
            f"rollout.concurrency={sandboxes}",
        )
    elif sandboxes > under_way:
        yield warning(
            "sandbox_places",
            "sandbox.concurrency",
            sandboxes,
            f"more sandboxes than trajectories under way (rollout.concurrency={under_way}): some are never used",
            f"sandbox.concurrency={under_way}",
        )


def runtime_url(config: Config, _: Host) -> Iterator[Finding]:
    url, kind = config.sandbox.runtime_url, config.runtime.kind
    if config.sandbox.kind == SandboxKind.remote and not url and kind != RuntimeKind.job:
        yield error(
            "runtime_url",
            "sandbox.runtime_url",
            None,
            "sandbox.kind=remote needs the address of a sandbox server",
            "sandbox.runtime_url=http://HOST:PORT, or runtime=job",
        )
    elif url and (kind == RuntimeKind.job or config.sandbox.kind != SandboxKind.remote):
        yield error(
            "runtime_url",
            "sandbox.runtime_url",
            url,
            f"contradicts runtime.kind={kind} sandbox.kind={config.sandbox.kind}: nothing would ask that server",
            "runtime=external, or leave sandbox.runtime_url out",
        )
    if kind != RuntimeKind.none and config.sandbox.kind != SandboxKind.remote:
        yield error(
            "runtime_kind",
            "runtime.kind",
            kind,
            f"sandboxes would not be there: sandbox.kind={config.sandbox.kind}",
            "sandbox=remote, or runtime=none",
        )


def runtime_job(config: Config, host: Host) -> Iterator[Finding]:
    runtime, hardware = config.runtime, config.hardware
    if runtime.kind != RuntimeKind.job:
        return
    if 0 < runtime.time_limit_min < hardware.time_limit_min:
        yield error(
            "runtime_time",
            "runtime.time_limit_min",
            runtime.time_limit_min,
            f"the sandboxes would end before the training (hardware.time_limit_min={hardware.time_limit_min})",
            "runtime.time_limit_min=0, which follows hardware.time_limit_min",
        )
    if runtime.containers not in CONTAINERS:
        yield error(
            "runtime_containers",
            "runtime.containers",
            runtime.containers,
            f"the sandbox server starts containers by {' or '.join(CONTAINERS)}",
            "runtime.containers=docker",
        )
    shared = runtime.shared_dir or config.paths.outputs
    if hardware.shared_paths and not _below(host.absolute(shared), hardware.shared_paths):
        yield error(
            "runtime_shared",
            "runtime.shared_dir",
            shared,
            f"the two jobs meet there, and not every node sees it "
            f"(hardware.shared_paths={list(hardware.shared_paths)})",
            f"runtime.shared_dir={hardware.shared_paths[0]}/...",
        )
    elif shared.startswith("/tmp"):
        yield error(
            "runtime_shared",
            "runtime.shared_dir",
            shared,
            "the two jobs meet there, and /tmp is each node's own",
            "runtime.shared_dir=FOLDER on a shared disk",
        )


def _below(path: str, prefixes: tuple[str, ...]) -> bool:
    return any(path == prefix.rstrip("/") or path.startswith(f"{prefix.rstrip('/')}/") for prefix in prefixes)


RULES = (slots, places, runtime_url, runtime_job)
