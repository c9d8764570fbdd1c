"""This module says what a container may use, as the engine's API wants it, as a pure function of the configuration.

Invariants:
- A container may make the system calls of `seccomp` alone, where the engine filters them.
- It has no network unless `sandbox.network` is set, no capability beyond what files, users and signals inside need,
  and gets no new privilege.
- Output is not logged by the engine: a command that prints without end fills no disk.
- The image's own user and variables stay, but for those that every sandbox sets in the same way (`sandbox_variables`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import UserError
from swe_rl.sandbox.base import clean_environment

# The sandbox sees the folder of its door under this path.
DOOR_FOLDER = "/run/swe_rl"
# Files, users and signals inside of a container need these capabilities.
_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID")
# These variables stay as the image has them.
_IMAGES_OWN = ("PATH", "HOME", "TMPDIR", "USER", "LOGNAME")
_OPEN_FILES = 16384
# This is below every engine's hard limit. The limit that counts is `pids_limit`.
_PROCESSES_OF_A_USER = 16384


@dataclass(frozen=True, slots=True)
class Mount:
    """This is a folder or file of the host that a sandbox sees at `target`."""

    source: str
    target: str
    writable: bool = False


def parse_mount(text: str) -> Mount:
    """Returns the mount of a text FOLDER:PATH, which is read-only, or FOLDER:PATH:rw. Raises UserError."""
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    if not source.startswith("/") or not target.startswith("/") or mode not in ("", "ro", "rw"):
        raise UserError(f"sandbox.mounts: {text!r} is not FOLDER:PATH or FOLDER:PATH:rw with absolute paths")
    return Mount(source, target, writable=mode == "rw")


def sandbox_variables(config: SandboxConfig) -> dict[str, str]:
    """Returns the variables that every sandbox sets, without those that stay as the image has them."""
    made = clean_environment("", "", config.cpus)
    return {name: value for name, value in made.items() if name not in _IMAGES_OWN}


def host_options(
    config: SandboxConfig, mounts: tuple[Mount, ...], door: Path | None, seccomp: str | None = None
) -> dict[str, Any]:
    """Returns keyword arguments of the SDK's `create_host_config`, with a disk limit only where it is asked for.

    `seccomp` is the filter of system calls as the engine wants it, or None for the engine's own.
    """
    memory_bytes = int(config.memory_gb * 1024**3)
    seen = [*mounts, *([Mount(str(door), DOOR_FOLDER)] if door else [])]
    options: dict[str, Any] = {
        "auto_remove": True,
        "binds": [f"{mount.source}:{mount.target}:{'rw' if mount.writable else 'ro'}" for mount in seen],
        "cap_drop": ["ALL"],
        "cap_add": list(_CAPABILITIES),
        "security_opt": ["no-new-privileges", *([f"seccomp={seccomp}"] if seccomp else [])],
        "log_config": {"Type": "none"},
        "mem_limit": memory_bytes,
        "memswap_limit": memory_bytes,
        "nano_cpus": int(config.cpus * 1e9),
        "pids_limit": config.max_processes,
        "ulimits": [
            _make_ulimit("nofile", _OPEN_FILES),
            _make_ulimit("nproc", _PROCESSES_OF_A_USER),
            _make_ulimit("fsize", config.max_file_mb * 1024**2),
            _make_ulimit("core", 0),
        ],
    }
    if not config.network:
        options["network_mode"] = "none"
    if config.disk_gb:
        options["storage_opt"] = {"size": f"{config.disk_gb:g}G"}
    return options


def _make_ulimit(name: str, value: int) -> dict[str, Any]:
    return {"Name": name, "Soft": value, "Hard": value}
