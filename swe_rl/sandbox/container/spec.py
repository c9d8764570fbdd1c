"""What a container may use, as the engine's API wants it: one pure function of the configuration.

Invariants:
- No network unless `sandbox.network`; no capability beyond what files, users and signals inside need; no new privilege.
- Output is not logged by the engine: a command that prints without end fills no disk.
- The image's own user and variables stay, but for those that every sandbox sets in the same way (`environment`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import UserError
from swe_rl.sandbox.base import clean_environment
from swe_rl.sandbox.protocol import ALONE

DOOR_FOLDER = "/run/swe_rl"
_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID")
_IMAGES_OWN = ("PATH", "HOME", "TMPDIR", "USER", "LOGNAME")
_OPEN_FILES = 16384
_PROCESSES_OF_A_USER = 16384  # below every engine's hard limit; `pids_limit` is the one that counts


@dataclass(frozen=True, slots=True)
class Mount:
    source: str
    target: str
    writable: bool = False


def parse_mount(text: str) -> Mount:
    """FOLDER:PATH, read-only, or FOLDER:PATH:rw. Raises UserError."""
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    if not source.startswith("/") or not target.startswith("/") or mode not in ("", "ro", "rw"):
        raise UserError(f"sandbox.mounts: {text!r} is not FOLDER:PATH or FOLDER:PATH:rw with absolute paths")
    return Mount(source, target, writable=mode == "rw")


def environment(config: SandboxConfig) -> dict[str, str]:
    made = clean_environment("", "", config.cpus)
    return {name: value for name, value in made.items() if name not in _IMAGES_OWN} | {ALONE: "yes"}


def host_options(config: SandboxConfig, mounts: tuple[Mount, ...], door: Path | None) -> dict[str, Any]:
    """Keyword arguments of the SDK's `create_host_config`; a disk limit is in them only where it is asked for."""
    memory_bytes = int(config.memory_gb * 1024**3)
    seen = [*mounts, *([Mount(str(door), DOOR_FOLDER)] if door else [])]
    options: dict[str, Any] = {
        "auto_remove": True,
        "binds": [f"{mount.source}:{mount.target}:{'rw' if mount.writable else 'ro'}" for mount in seen],
        "cap_drop": ["ALL"],
        "cap_add": list(_CAPABILITIES),
        "security_opt": ["no-new-privileges"],
        "log_config": {"Type": "none"},
        "mem_limit": memory_bytes,
        "memswap_limit": memory_bytes,
        "nano_cpus": int(config.cpus * 1e9),
        "pids_limit": config.max_processes,
        "ulimits": [
            _ulimit("nofile", _OPEN_FILES),
            _ulimit("nproc", _PROCESSES_OF_A_USER),
            _ulimit("fsize", config.max_file_mb * 1024**2),
            _ulimit("core", 0),
        ],
    }
    if not config.network:
        options["network_mode"] = "none"
    if config.disk_gb:
        options["storage_opt"] = {"size": f"{config.disk_gb:g}G"}
    return options


def _ulimit(name: str, value: int) -> dict[str, Any]:
    return {"Name": name, "Soft": value, "Hard": value}
