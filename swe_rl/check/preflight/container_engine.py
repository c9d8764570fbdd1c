"""Probes the container engine: it answers, has room for images and ids for rootless containers, and limits hold.

Invariants:
- The engine is asked only where this machine's sandboxes are containers, and not with a runtime elsewhere.
- Both engines are asked through Docker's API, which podman's service speaks as well.
- A remote engine's disk is not this machine's; nothing is said about it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from swe_rl.check.findings import Finding, error, warning
from swe_rl.check.preflight.system import AskedEngine, System, job_environment
from swe_rl.config.choices import RuntimeKind, SandboxKind
from swe_rl.config.engine_address import engine_address, given_address
from swe_rl.config.schema import Config
from swe_rl.errors import UserError
from swe_rl.files.lines import lines_of
from swe_rl.host.program import Unanswered

MIN_FREE_GB = 10.0
MIN_SUBORDINATE_IDS = 65536  # images have files of users up to nobody, 65534
_APPTAINER = ("apptainer", "singularity")


class EngineSilentError(Exception):
    """Says that no engine answers. The text gives the reason."""


@dataclass(frozen=True, slots=True)
class Answering:
    """Holds an engine that answers. `facts` are its own."""

    address: str
    facts: Mapping[str, Any]
    engine: AskedEngine

    @property
    def local(self) -> bool:
        return self.address.startswith("unix:")

    @property
    def root(self) -> str | None:
        """Returns the folder where the engine keeps images and containers."""
        return self.facts.get("DockerRootDir")

    @property
    def rootless(self) -> bool:
        """Tells whether the engine is rootless.

        Docker says so among its security options, and podman's service in its own way.
        """
        options = self.facts.get("SecurityOptions") or ()
        return bool(self.facts.get("Rootless")) or any("rootless" in str(option) for option in options)

    def missing_limits(self) -> list[str]:
        """Returns the limits of a container that this engine cannot enforce.

        A rootless engine can enforce none with version 1 of control groups, whatever podman says of itself.
        """
        names = {"MemoryLimit": "memory", "PidsLimit": "processes", "CpuCfsQuota": "CPUs"}
        if self.rootless and str(self.facts.get("CgroupVersion")).removeprefix("v") == "1":
            return list(names.values())
        return [name for fact, name in names.items() if self.facts.get(fact) is False]


def connect_engine(config: Config, system: System) -> Answering:
    """Returns the engine that the run would use. Raises EngineSilentError where it does not answer."""
    try:
        address = engine_address(config.sandbox, job_environment(config, system), system.is_socket)
    except UserError as error:
        raise EngineSilentError(str(error)) from error
    engine = system.engine(address)
    try:
        return Answering(address, engine.info(), engine)
    except Unanswered as reason:
        raise EngineSilentError(f"{address}: {reason}") from reason


def uses_engine(config: Config) -> bool:
    """Tells whether containers are started by an engine of this machine."""
    return config.sandbox.kind in (SandboxKind.docker, SandboxKind.podman) and config.runtime.kind is RuntimeKind.none


def probe_container_engine(config: Config, system: System) -> Iterator[Finding]:
    if config.sandbox.kind is SandboxKind.apptainer and config.runtime.kind is RuntimeKind.none:
        yield from _probe_apptainer(config, system)
    if not uses_engine(config):
        return
    try:
        engine = connect_engine(config, system)
    except EngineSilentError as reason:
        yield _unreachable_finding(config, system, str(reason))
        return
    yield from _subordinate_ids(config, system, engine)
    yield from _check_disk_room(config, system, engine)
    yield from _check_limits(config, engine)


def _probe_apptainer(config: Config, system: System) -> Iterator[Finding]:
    if not any(system.find_program(name) for name in _APPTAINER):
        yield error(
            "preflight_engine",
            "sandbox.kind",
            "there is neither `apptainer` nor `singularity` on PATH",
            "module load apptainer, or sandbox=podman",
        )


def _unreachable_finding(config: Config, system: System, reason: str) -> Finding:
    if "permission denied" in reason:
        fix = "sudo usermod -aG docker $USER, then log in again; or sandbox=podman, which needs no rights"
    elif given_address(config.sandbox, job_environment(config, system)):
        fix = "sandbox.host=unix:///PATH of a running engine's socket, or unset DOCKER_HOST for the usual one"
    elif config.sandbox.kind is SandboxKind.podman:
        fix = "podman system service --time=0 unix:///tmp/podman.sock & export DOCKER_HOST=unix:///tmp/podman.sock"
    else:
        fix = "sudo systemctl start docker, or export DOCKER_HOST=unix:///PATH of the engine's socket"
    return error("preflight_engine", "sandbox.kind", f"no container engine answers ({reason})", fix)


def _subordinate_ids(config: Config, system: System, engine: Answering) -> Iterator[Finding]:
    name, uid = system.user
    if not (engine.rootless and engine.local) or uid == 0 or "sss" in _id_sources(system):
        return
    for file, option in (("/etc/subuid", "uids"), ("/etc/subgid", "gids")):
        count = _count_ids(system.read_text(file) or "", (name, str(uid)))
        if count < MIN_SUBORDINATE_IDS:
            yield error(
                "preflight_subuid",
                "sandbox.kind",
                f"rootless containers need {MIN_SUBORDINATE_IDS} subordinate {option}; {file} gives {name} {count}",
                f"sudo usermod --add-sub{option} 100000-165535 {name} && podman system migrate",
            )


def _id_sources(system: System) -> list[str]:
    """Returns where subordinate ids come from. Those of a directory service (`sss`) are not in the files."""
    for line in lines_of(system.read_text("/etc/nsswitch.conf") or "", ends=False):
        key, _, sources = line.partition(":")
        if key.strip() == "subid":
            return sources.split()
    return ["files"]


def _count_ids(text: str, users: tuple[str, ...]) -> int:
    """Returns the sum of a user's ranges, whose lines are `user:first:count`."""
    counts = [line.strip().split(":") for line in lines_of(text, ends=False)]
    return sum(int(parts[2]) for parts in counts if len(parts) == 3 and parts[0] in users and parts[2].isdigit())


def _check_disk_room(config: Config, system: System, engine: Answering) -> Iterator[Finding]:
    if not engine.local or engine.root is None:
        return
    free_gb = system.disk_free_bytes(engine.root) / 1e9
    if free_gb < MIN_FREE_GB:
        yield warning(
            "preflight_engine_disk",
            "sandbox.kind",
            f"{free_gb:.1f} GB are free in {engine.root}, where images and containers are kept",
            f"{config.sandbox.kind} system prune, or move the engine's data to another disk",
        )


def _check_limits(config: Config, engine: Answering) -> Iterator[Finding]:
    if missing := engine.missing_limits():
        yield warning(
            "preflight_engine_limits",
            "sandbox.kind",
            f"the engine cannot limit a container's {', '.join(missing)}: one sandbox can take the whole machine",
            "boot with systemd.unified_cgroup_hierarchy=1 and delegate its controllers to users, or use a root engine",
        )
