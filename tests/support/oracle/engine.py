"""The container engine that the oracle uses, and what lies on it."""

import os
import time
from collections.abc import Iterable
from typing import Any

from swe_rl.config.choices import SandboxKind
from swe_rl.config.engine_address import engine_address
from swe_rl.config.schema import SandboxConfig
from swe_rl.sandbox.container.engine import RUN

_GONE_WITHIN_S = 20.0


def address_of(kind: str) -> str:
    """Of Docker's or podman's engine. Raises UserError without one."""
    return engine_address(SandboxConfig(kind=SandboxKind(kind)), os.environ)


def connect(kind: str) -> Any:
    """A docker.DockerClient. Raises UserError without an engine."""
    import docker

    return docker.DockerClient(base_url=address_of(kind), timeout=120)


def containers_left(client: Any, run: str, within_s: float = _GONE_WITHIN_S) -> list[str]:
    """Ids of containers that the run `run` made and that are there still after `within_s`."""
    until = time.monotonic() + within_s
    while True:
        found = [one["Id"] for one in client.api.containers(all=True, filters={"label": f"{RUN}={run}"})]
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.5)


def size_gb(client: Any, images: Iterable[str]) -> tuple[float, float]:
    """GB of the images one by one added up, and on the disk: layers that several share counted once."""
    single, layers = 0.0, dict[str, float]()
    for name in images:
        image = client.images.get(name)
        sizes = [entry["Size"] for entry in reversed(image.history())]
        single += sum(sizes) / 1e9
        below = ""
        for number, layer in enumerate(image.attrs["RootFS"]["Layers"]):
            below += layer
            layers.setdefault(below, _nonempty(sizes)[number] / 1e9 if number < len(_nonempty(sizes)) else 0.0)
    return single, sum(layers.values())


def _nonempty(sizes: list[int]) -> list[int]:
    return [size for size in sizes if size]
