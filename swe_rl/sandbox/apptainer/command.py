"""The apptainer command line of one sandbox: a pure function of the configuration.

Invariants:
- The guard is the first process of a pid namespace of its own (`--no-init`): when apptainer ends, so does all of it.
- Nothing of this host is seen but what is named: no home, no environment, no network unless `sandbox.network`.
- Writes go to memory (`--writable-tmpfs`), or to a folder of the sandbox's own where its size is limited by none.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from swe_rl.config.schema import SandboxConfig
from swe_rl.sandbox.container.guard import guard_argv
from swe_rl.sandbox.container.spec import Mount, environment

EXCHANGE = "/run/swe_rl"


def image_reference(image: str) -> str:
    """A file or folder of this machine, or an address; a plain image name is one of a Docker registry."""
    if "://" in image or image.startswith(("/", "./")) or image.endswith(".sif"):
        return image
    return f"docker://{image}"


def exec_argv(
    program: str, image: str, config: SandboxConfig, mounts: Sequence[Mount], exchange: Path, overlay: Path
) -> list[str]:
    """`exchange` is the folder through which files pass; `overlay` takes what the sandbox writes."""
    argv = [program, "exec", "--containall", "--cleanenv", "--no-home", "--no-init", "--pid", "--fakeroot"]
    argv += ["--no-privs", "--hostname", "sandbox", "--pwd", "/", "--overlay", str(overlay)]
    if not config.network:
        argv += ["--net", "--network", "none"]
    argv += limits_argv(config)
    for mount in (*mounts, Mount(str(exchange), EXCHANGE, writable=True)):
        argv += ["--bind", f"{mount.source}:{mount.target}:{'rw' if mount.writable else 'ro'}"]
    for name, value in environment(config).items():
        argv += ["--env", f"{name}={_escaped(value)}"]
    return [*argv, image_reference(image), *guard_argv(config.lease_s)]


def limits_argv(config: SandboxConfig) -> list[str]:
    return [
        *("--cpus", f"{config.cpus:g}"),
        *("--memory", str(int(config.memory_gb * 1024**3))),
        *("--memory-swap", str(int(config.memory_gb * 1024**3))),
        *("--pids-limit", str(config.max_processes)),
    ]


def without_limits(argv: Sequence[str], config: SandboxConfig) -> list[str]:
    """For hosts whose cgroups are not this user's."""
    limits = limits_argv(config)
    at = next(i for i in range(len(argv)) if list(argv[i : i + len(limits)]) == limits)
    return [*argv[:at], *argv[at + len(limits) :]]


def child_environment(given: Mapping[str, str]) -> dict[str, str]:
    """What apptainer itself gets: its own variables and the search path, none of ours for the container."""
    kept = ("PATH", "HOME", "USER", "TMPDIR", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
    own = ("APPTAINER_CACHEDIR", "APPTAINER_TMPDIR", "APPTAINER_CONFIGDIR", "APPTAINER_DOCKER_USERNAME")
    return {name: given[name] for name in (*kept, *own) if name in given}


def _escaped(value: str) -> str:
    """Commas separate variables."""
    return value.replace("\\", "\\\\").replace(",", "\\,")
