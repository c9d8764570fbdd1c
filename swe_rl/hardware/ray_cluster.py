"""This module uses an existing Ray cluster: who is there, what is free, and places on it. Whoever started the cluster
also stops it.

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
# Ray calls its resources so.
CPU = "CPU"
GPU = "GPU"
# A cluster that does not accept a connection in this time is not there.
_REACH_S = 3.0
# Ray reserves free places within a second or two. After so long somebody else has them.
_RESERVE_S = 30.0


class RayClusterError(UserError):
    """There is no cluster at hardware.ray_address, or not one that fits."""


@dataclass(frozen=True, slots=True)
class RayNode:
    """Describes a node of the cluster. `units` are all its CPUs and GPUs; `free` are those that nobody has reserved.
    `here` says that this process is on it."""

    node_id: str
    host: str
    address: str
    units: Mapping[str, float]
    free: Mapping[str, float]
    here: bool

    @property
    def name(self) -> str:
        """Returns the host's name with a piece of Ray's name for the node: a host may be several nodes."""
        return f"{self.host} ({self.address}, {self.node_id[:8]})"


class RayCluster:
    """Holds this process's only connection to Ray."""

    def __init__(self) -> None:
        self._groups: list[Any] = []

    def nodes(self) -> list[RayNode]:
        """Returns the nodes that are alive: this process's first, the others by name. Raises RayClusterError."""
        import ray
        from ray._private import state  # The public call adds all nodes up.

        free_of: Any = state.available_resources_per_node
        listed: Any = ray.nodes
        this_node = ray.get_runtime_context().get_node_id()
        with _unify_refusals("its nodes cannot be listed"):
            free = free_of()
            ray_nodes = [
                RayNode(
                    node_id=node["NodeID"],
                    host=node["NodeManagerHostname"],
                    address=node["NodeManagerAddress"],
                    units=_count_resources(node["Resources"]),
                    free=_count_resources(free.get(node["NodeID"], {})),
                    here=node["NodeID"] == this_node,
                )
                for node in listed()
                if node["Alive"]
            ]
        return sorted(ray_nodes, key=lambda node: (not node.here, node.host, node.address, node.node_id))

    def reserve(self, nodes: Sequence[RayNode], resource: str) -> Any:
        """Reserves a placement group of one bundle each on the named nodes, `resource` being CPU or GPU. Its bundles
        have the order of `nodes`. Raises RayClusterError."""
        from ray.util.placement_group import placement_group

        with _unify_refusals("it does not reserve what it has"):
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
        groups = self._groups
        self._groups = []
        try:
            for group in groups:
                remove_placement_group(group)
        finally:
            ray.shutdown()


def connect_cluster(address: str) -> RayCluster:
    """Connects to a cluster. `address` is `auto` (the cluster that this machine is part of) or host:port. Raises
    RayClusterError."""
    # Otherwise workers of a driver under `uv run` run uv themselves.
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    try:
        import ray
    except ImportError as error:
        raise RayClusterError(
            f"hardware.ray_address={address}: Ray is not installed here: pip install 'swe_rl[ray]'."
        ) from error
    _require_reachable(os.environ.get("RAY_ADDRESS", AUTO) if address == AUTO else address, address)
    _quiet_ray()
    with _unify_refusals(f"there is none to join at hardware.ray_address={address}"), _own_sigterm():
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    return RayCluster()


def _quiet_ray() -> None:
    """Keeps Ray from telling of lost actors and nodes on the terminal as well, at length. Our errors say enough of
    it."""
    from ray._private import worker

    logging.getLogger("ray").setLevel(logging.ERROR)
    if hasattr(worker, "print_to_stdstream"):
        vars(worker)["print_to_stdstream"] = lambda *_, **__: None


def _require_reachable(resolved: str, given: str) -> None:
    host, colon, port = resolved.rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()
    except OSError as error:
        if given == resolved:
            where = resolved
        else:
            where = f"{resolved}, which RAY_ADDRESS names"
        raise RayClusterError(
            f"hardware.ray_address={given}: nothing answers at {where} ({error}). Start the cluster's head with `ray "
            "start --head --port=6379` and every other node, this one too, with `ray start --address=HEAD:6379`; "
            "hardware.ray_address=null does without Ray."
        ) from error


@contextmanager
def _unify_refusals(what: str) -> Iterator[None]:
    """Turns Ray's own refusals, of many types, into one."""
    try:
        yield
    except Exception as error:
        raise RayClusterError(
            f"The Ray cluster cannot be used: {what} ({one_line(error)}). Every node, this one too, needs `ray start` "
            "with the same version of Ray and Python (and the same token, where there is one); `ray status` lists them."
        ) from error


def _count_resources(resources: Mapping[str, float]) -> dict[str, float]:
    return {kind: float(resources.get(kind, 0.0)) for kind in (CPU, GPU)}


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keeps the run's handler of SIGTERM, which Ray's would take the place of."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main(arguments: list[str]) -> int:
    """Prints what a cluster has free, as one line of JSON: `python -m swe_rl.hardware.ray_cluster ADDRESS`.

    It ends with status 0 and an answer, whatever the cluster is like: {"nodes": {name: {"CPU": 1.0, "GPU": 0.0}},
    "problem": null or a text}.
    """
    # Has what is free.
    nodes: dict[str, dict[str, float]] = {}
    problem: str | None = None
    try:
        cluster = connect_cluster(arguments[0])
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
