"""The container engine: reachable, with room for images, ids for rootless containers, and limits that it enforces.

Invariants:
- Asked only where this machine's sandboxes are containers: not with a runtime elsewhere.
- A remote engine's disk is not this machine's; nothing is said about it.
"""

from collections.abc import Iterator

from swe_rl.check.findings import Finding, error, warning
from swe_rl.check.preflight.engine_client import Engine, EngineSilentError, connect
from swe_rl.check.preflight.system import System
from swe_rl.config.choices import RuntimeKind, SandboxKind
from swe_rl.config.schema import Config

MIN_FREE_GB = 10.0
MIN_SUBORDINATE_IDS = 65536  # images have files of users up to nobody, 65534
_APPTAINER = ("apptainer", "singularity")


def uses_engine(config: Config) -> bool:
    """True if containers are started by an engine of this machine."""
    return config.sandbox.kind in (SandboxKind.docker, SandboxKind.podman) and config.runtime.kind is RuntimeKind.none


def ask(config: Config, system: System) -> Iterator[Finding]:
    if config.sandbox.kind is SandboxKind.apptainer and config.runtime.kind is RuntimeKind.none:
        yield from _apptainer(config, system)
    if not uses_engine(config):
        return
    try:
        engine = connect(config, system)
    except EngineSilentError as reason:
        yield _unreachable(config, reason)
        return
    yield from _unserved(config, engine)
    yield from _subordinate_ids(config, system, engine)
    yield from _room(config, system, engine)
    yield from _limits(config, engine)


def _apptainer(config: Config, system: System) -> Iterator[Finding]:
    if not any(system.find_program(name) for name in _APPTAINER):
        yield error(
            "preflight_engine",
            "sandbox.kind",
            config.sandbox.kind,
            "there is neither `apptainer` nor `singularity` on PATH",
            "module load apptainer, or sandbox=podman",
        )


def _unreachable(config: Config, reason: EngineSilentError) -> Finding:
    if "permission denied" in str(reason):
        fix = "sudo usermod -aG docker $USER, then log in again; or sandbox=podman, which needs no rights"
    elif reason.given:
        fix = "export DOCKER_HOST=unix:///PATH of a running engine's socket, or unset it for the engine's own default"
    elif config.sandbox.kind is SandboxKind.podman:
        fix = "podman system service --time=0 unix:///tmp/podman.sock & export DOCKER_HOST=unix:///tmp/podman.sock"
    else:
        fix = "sudo systemctl start docker, or export DOCKER_HOST=unix:///PATH of the engine's socket"
    return error(
        "preflight_engine",
        "sandbox.kind",
        config.sandbox.kind,
        f"no container engine answers ({reason})",
        fix,
    )


def _unserved(config: Config, engine: Engine) -> Iterator[Finding]:
    if not engine.served:
        yield warning(
            "preflight_engine",
            "sandbox.kind",
            config.sandbox.kind,
            f"`{engine.program}` works, but it does not listen on a socket for other programs",
            "podman system service --time=0 unix:///tmp/podman.sock & export DOCKER_HOST=unix:///tmp/podman.sock",
        )


def _subordinate_ids(config: Config, system: System, engine: Engine) -> Iterator[Finding]:
    name, uid = system.user
    if not (engine.rootless and engine.local) or uid == 0 or "sss" in _sources(system):
        return
    for file, option in (("/etc/subuid", "uids"), ("/etc/subgid", "gids")):
        count = _ids(system.read_text(file) or "", (name, str(uid)))
        if count < MIN_SUBORDINATE_IDS:
            yield error(
                "preflight_subuid",
                "sandbox.kind",
                config.sandbox.kind,
                f"rootless containers need {MIN_SUBORDINATE_IDS} subordinate {option}; {file} gives {name} {count}",
                f"sudo usermod --add-sub{option} 100000-165535 {name} && podman system migrate",
            )


def _sources(system: System) -> list[str]:
    """Where subordinate ids come from; a directory service (`sss`) is not in the files."""
    for line in (system.read_text("/etc/nsswitch.conf") or "").splitlines():
        key, _, sources = line.partition(":")
        if key.strip() == "subid":
            return sources.split()
    return ["files"]


def _ids(text: str, users: tuple[str, ...]) -> int:
    """The sum of a user's ranges; lines are `user:first:count`."""
    counts = [line.strip().split(":") for line in text.splitlines()]
    return sum(int(parts[2]) for parts in counts if len(parts) == 3 and parts[0] in users and parts[2].isdigit())


def _room(config: Config, system: System, engine: Engine) -> Iterator[Finding]:
    if not engine.local or engine.root is None:
        return
    free_gb = system.disk_free_bytes(engine.root) / 1e9
    if free_gb < MIN_FREE_GB:
        yield warning(
            "preflight_engine_disk",
            "sandbox.kind",
            config.sandbox.kind,
            f"{free_gb:.1f} GB are free in {engine.root}, where images and containers are kept",
            f"{engine.program} system prune, or move the engine's data to another disk",
        )


def _limits(config: Config, engine: Engine) -> Iterator[Finding]:
    if missing := engine.missing_limits():
        yield warning(
            "preflight_engine_limits",
            "sandbox.kind",
            config.sandbox.kind,
            f"the engine cannot limit a container's {', '.join(missing)}: one sandbox can take the whole machine",
            "boot with systemd.unified_cgroup_hierarchy=1 and delegate its controllers to users, or use a root engine",
        )
