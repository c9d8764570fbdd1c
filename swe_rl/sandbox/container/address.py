"""Where a container engine answers.

Invariants:
- `sandbox.host` decides, then DOCKER_HOST (CONTAINER_HOST for podman); only without both the usual sockets are tried.
- Addresses that need a key exchange (ssh, TLS) are refused by name: a socket forwarded here is the way.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from swe_rl.config.choices import SandboxKind
from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import UserError


def engine_address(config: SandboxConfig, environment: Mapping[str, str]) -> str:
    """unix:///PATH or tcp://HOST:PORT. Raises UserError when there is none, or one of a kind that is not spoken."""
    given = config.host or _from_environment(config.kind, environment)
    if given:
        return _checked(given, environment)
    tried = [Path(path) for path in usual_sockets(config.kind, environment)]
    for path in tried:
        if path.is_socket():
            return f"unix://{path}"
    raise UserError(
        f"sandbox.kind={config.kind}: no engine's socket at {', '.join(map(str, tried))}. Start one "
        f"({_how_to_start(config.kind)}), or name it: sandbox.host=unix:///PATH or DOCKER_HOST"
    )


def usual_sockets(kind: SandboxKind, environment: Mapping[str, str]) -> list[str]:
    runtime = environment.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    home = environment.get("HOME", "/root")
    if kind is SandboxKind.podman:
        own, system = f"{runtime}/podman/podman.sock", "/run/podman/podman.sock"
        return [system, own] if os.getuid() == 0 else [own, system]
    return [f"{runtime}/docker.sock", "/var/run/docker.sock", f"{home}/.docker/run/docker.sock"]


def _from_environment(kind: SandboxKind, environment: Mapping[str, str]) -> str:
    names = ("CONTAINER_HOST", "DOCKER_HOST") if kind is SandboxKind.podman else ("DOCKER_HOST",)
    return next((environment[name] for name in names if environment.get(name)), "")


def _checked(address: str, environment: Mapping[str, str]) -> str:
    url = urlsplit(address)
    if url.scheme not in ("unix", "tcp", "http") or environment.get("DOCKER_TLS_VERIFY"):
        raise UserError(
            f"the engine's address {address!r}: only unix:///PATH and tcp://HOST:PORT without TLS are spoken here; "
            "forward the socket (ssh -L /tmp/engine.sock:/var/run/docker.sock HOST) and set sandbox.host"
        )
    return address


def _how_to_start(kind: SandboxKind) -> str:
    return "podman system service --time=0" if kind is SandboxKind.podman else "systemctl start docker"
