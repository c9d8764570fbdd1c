"""The Ray cluster of hardware.ray_address: it answers, and has what the trainer's ranks need.

Invariants:
- Asked by a process of its own, which is gone afterwards: Ray is not imported here.
- An address that nothing listens at is told at once; Ray alone would try for minutes.
"""

import json
import sys
from collections.abc import Iterator

from swe_rl.check.findings import Finding, error
from swe_rl.check.preflight.system import System
from swe_rl.check.rules.ray import asks_ray
from swe_rl.config.schema import Config
from swe_rl.host.program import Unanswered
from swe_rl.layout.rank_nodes import rank_places

_ASK_S = 9.0
_KEY = "hardware.ray_address"
_MODULE = "swe_rl.hardware.ray.question"


def ask(config: Config, system: System) -> Iterator[Finding]:
    """Raises Unanswered where the question itself breaks off."""
    address, layout = config.hardware.ray_address, config.layout
    ranks = layout.trainer_gpus or layout.trainer_ranks
    if address is None or not asks_ray(config):
        return
    if system.version("ray") is None:
        return  # said by a rule, config/rules_packages.py
    done = system.run([sys.executable, "-m", _MODULE, address], timeout_s=_ASK_S)
    try:
        told = json.loads(done.stdout.splitlines()[-1]) if done is not None else {}
        nodes, problem = told["nodes"], told["problem"]
    except (ValueError, KeyError, IndexError) as reason:
        raise Unanswered(f"Ray did not list the cluster's nodes: {done.reason if done else 'no Python'}") from reason
    if problem is not None:
        yield error("preflight_ray", _KEY, address, problem, f"start the cluster (docs/ray.md), or {_KEY}=null")
        return
    resource = "GPU" if layout.trainer_gpus else "CPU"
    free = {name: units[resource] for name, units in nodes.items()}
    if rank_places(free.values(), layout.sequence_parallel) < ranks:
        there = ", ".join(f"{name}: {units:g}" for name, units in free.items())
        yield error(
            "preflight_ray",
            _KEY,
            address,
            f"the trainer's {ranks} ranks need a {resource} each, {layout.sequence_parallel} of them on one node at a "
            f"time; free are {there}",
            "more nodes with `ray start --address=...`, or a smaller layout",
        )
