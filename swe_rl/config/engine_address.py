"""This module finds the address of a container engine, in one way for the preflight, the run and its helpers.

Invariants:
- `sandbox.host` decides, then DOCKER_HOST (CONTAINER_HOST for podman); only without both the usual sockets are tried.
- Addresses that need a key exchange (ssh, TLS) are refused by name: a socket forwarded here is the way.
"""

import os
import stat
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from swe_rl.config.choices import SandboxKind
from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import UserError


def is_socket(path: str) -> bool:
    """Tells whether a path is a socket; False if it may not be looked at."""
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)  # noqa: PTH116  (pathlib raises where a parent is closed)
    except OSError:
        return False


def engine_address(
    config: SandboxConfig, environment: Mapping[str, str], there: Callable[[str], bool] = is_socket
) -> str:
    """Returns unix:///PATH or tcp://HOST:PORT. Raises UserError when there is no address, or one of a kind that is not
    supported."""
    if given := given_address(config, environment):
        return _check_address(given, environment)
    tried = usual_sockets(config.kind, environment)
    for path in tried:
        if there(path):
            return f"unix://{path}"
    raise UserError(
        f"sandbox.kind={config.kind}: no engine's socket at {', '.join(tried)}. Start one "
        f"({_how_to_start(config.kind)}), or name it: sandbox.host=unix:///PATH or DOCKER_HOST"
    )


def usual_sockets(kind: SandboxKind, environment: Mapping[str, str]) -> list[str]:
    runtime = environment.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    home = environment.get("HOME", "/root")
    if kind is SandboxKind.podman:
        rootless = f"{runtime}/podman/podman.sock"
        system = "/run/podman/podman.sock"
        if os.getuid() == 0:
            return [system, rootless]
        return [rootless, system]
    return [f"{runtime}/docker.sock", "/var/run/docker.sock", f"{home}/.docker/run/docker.sock"]


def given_address(config: SandboxConfig, environment: Mapping[str, str]) -> str:
    """Returns the address that the configuration or the environment names, or an empty text if only the usual sockets
    are left."""
    names = ["DOCKER_HOST"]
    if config.kind is SandboxKind.podman:
        names.insert(0, "CONTAINER_HOST")
    return config.host or next((environment[name] for name in names if environment.get(name)), "")


def _check_address(address: str, environment: Mapping[str, str]) -> str:
    url = urlsplit(address)
    if url.scheme not in ("unix", "tcp", "http") or environment.get("DOCKER_TLS_VERIFY"):
        raise UserError(
            f"the engine's address {address!r}: only unix:///PATH and tcp://HOST:PORT without TLS are spoken here; "
            "forward the socket (ssh -L /tmp/engine.sock:/var/run/docker.sock HOST) and set sandbox.host"
        )
    return address


def _how_to_start(kind: SandboxKind) -> str:
    if kind is SandboxKind.podman:
        return "podman system service --time=0"
    return "systemctl start docker"
