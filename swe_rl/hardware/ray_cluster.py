"""An existing Ray cluster: who is there, what is free, and places on it. Whoever started it also stops it.

Invariants:
- Nothing here starts or stops Ray itself. What was reserved is given back by `close`, and with this process's end.
- A cluster that cannot be used is a RayClusterError, soon, with the way out; Ray alone would ask for minutes.
"""

import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from swe_rl.errors import UserError, one_line

AUTO = "auto"
CPU, GPU = "CPU", "GPU"  # as Ray calls them
_REACH_S = 3.0
_RESERVE_S = 30.0


class RayClusterError(UserError):
    """There is no cluster at hardware.ray_address, or not one that fits."""


@dataclass(frozen=True, slots=True)
class RayNode:
    """`units`: of CPU and GPU, all of them; `free`: those that nobody has reserved. `here`: this process is on it."""

    node_id: str
    host: str
    address: str
    units: Mapping[str, float]
    free: Mapping[str, float]
    here: bool

    @property
    def name(self) -> str:
        """With a piece of Ray's name for it: a host may be several nodes."""
        return f"{self.host} ({self.address}, {self.node_id[:8]})"


class RayCluster:
    """A connection, which is this process's only one to Ray."""

    def __init__(self) -> None:
        self._groups: list[Any] = []

    def nodes(self) -> list[RayNode]:
        """Those that are alive; this process's first, the others by name. Raises RayClusterError."""
        import ray
        from ray._private import state  # the public call adds all nodes up

        free_of: Any = state.available_resources_per_node
        listed: Any = ray.nodes
        this_node = ray.get_runtime_context().get_node_id()
        with _refused("its nodes cannot be listed"):
            free = free_of()
            ray_nodes = [
                RayNode(
                    node_id=node["NodeID"],
                    host=node["NodeManagerHostname"],
                    address=node["NodeManagerAddress"],
                    units=_counted(node["Resources"]),
                    free=_counted(free.get(node["NodeID"], {})),
                    here=node["NodeID"] == this_node,
                )
                for node in listed()
                if node["Alive"]
            ]
        return sorted(ray_nodes, key=lambda node: (not node.here, node.host, node.address, node.node_id))

    def reserve(self, nodes: Sequence[RayNode], resource: str) -> Any:
        """A placement group of one bundle each on the named nodes, `resource` being CPU or GPU. Raises RayClusterError.

        Its bundles have the order of `nodes`.
        """
        from ray.util.placement_group import placement_group

        with _refused("it does not reserve what it has"):
            group = placement_group(
                [{resource: 1.0}] * len(nodes),
                strategy="PACK",
                bundle_label_selector=[{"ray.io/node-id": node.node_id} for node in nodes],
            )
            self._groups.append(group)
            there = group.wait(_RESERVE_S)
        if not there:
            raise RayClusterError(
                f"Ray did not reserve {len(nodes)} {resource}s on {', '.join(sorted({node.name for node in nodes}))} "
                f"within {_RESERVE_S:.0f} s: somebody else took them. Look at `ray status`, and start again."
            )
        return group

    def close(self) -> None:
        """Gives back what was reserved, which ends whatever still runs on it, and disconnects."""
        import ray
        from ray.util.placement_group import remove_placement_group

        if not ray.is_initialized():
            return
        groups, self._groups = self._groups, []
        try:
            for group in groups:
                remove_placement_group(group)
        finally:
            ray.shutdown()


def connect(address: str) -> RayCluster:
    """`address` is `auto` (the cluster that this machine is part of) or host:port. Raises RayClusterError."""
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"  # else workers of a driver under `uv run` run uv themselves
    try:
        import ray
    except ImportError as error:
        raise RayClusterError(
            f"hardware.ray_address={address}: Ray is not installed here: pip install 'swe_rl[ray]'."
        ) from error
    _reachable(os.environ.get("RAY_ADDRESS", AUTO) if address == AUTO else address, address)
    _hush()
    with _refused(f"there is none to join at hardware.ray_address={address}"), _own_sigterm():
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    return RayCluster()


def _hush() -> None:
    """Ray tells of lost actors and nodes on the terminal as well, at length; what our errors say of it is enough."""
    from ray._private import worker

    logging.getLogger("ray").setLevel(logging.ERROR)
    if hasattr(worker, "print_to_stdstream"):
        vars(worker)["print_to_stdstream"] = lambda *_, **__: None


def _reachable(resolved: str, given: str) -> None:
    host, colon, port = resolved.rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()
    except OSError as error:
        where = resolved if given == resolved else f"{resolved}, which RAY_ADDRESS names"
        raise RayClusterError(
            f"hardware.ray_address={given}: nothing answers at {where} ({error}). Start the cluster's head with `ray "
            "start --head --port=6379` and every other node, this one too, with `ray start --address=HEAD:6379`; "
            "hardware.ray_address=null does without Ray."
        ) from error


@contextmanager
def _refused(what: str) -> Iterator[None]:
    """Ray's own refusals, of many types, as one."""
    try:
        yield
    except Exception as error:
        raise RayClusterError(
            f"The Ray cluster cannot be used: {what} ({one_line(error)}). Every node, this one too, needs `ray start` "
            "with the same version of Ray and Python (and the same token, where there is one); `ray status` lists them."
        ) from error


def _counted(resources: Mapping[str, float]) -> dict[str, float]:
    return {kind: float(resources.get(kind, 0.0)) for kind in (CPU, GPU)}


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Ray's handler of SIGTERM would take the place of the run's."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main(arguments: list[str]) -> int:
    """`python -m swe_rl.hardware.ray_cluster ADDRESS`: what a cluster has free, as one line of JSON.

    Ends with status 0 and an answer, whatever the cluster is like: {"nodes": {name: {"CPU": 1.0, "GPU": 0.0}},
    "problem": null or a text}.
    """
    nodes: dict[str, dict[str, float]] = {}  # what is free
    problem: str | None = None
    try:
        cluster = connect(arguments[0])
        try:
            nodes = {node.name: dict(node.free) for node in cluster.nodes()}
        finally:
            cluster.close()
    except RayClusterError as error:
        problem = str(error)
    print(json.dumps({"nodes": nodes, "problem": problem}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
