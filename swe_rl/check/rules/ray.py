"""Rules of hardware.ray_address: an address that can be one, something to run there, folders that its nodes share.

Invariants:
- The cluster itself is not asked here; job.preflight=true and the run's start do that.
"""

import re
from collections.abc import Iterator

from swe_rl.check.findings import Finding, Host, about, below, error, warning
from swe_rl.config.parts import Part, starts
from swe_rl.config.schema import Config
from swe_rl.plan.weight_sync import trainer_elsewhere

_ADDRESS = re.compile(r"auto|(?P<host>\[[0-9a-fA-F:.]+\]|[^\s:/]+):(?P<port>\d{1,5})")
_KEY = "hardware.ray_address"


def asks_ray(config: Config) -> bool:
    """Whether this job, or one that it checks or plans, has trainer ranks on a Ray cluster."""
    ranks = config.layout.trainer_gpus or config.layout.trainer_ranks
    return config.hardware.ray_address is not None and ranks > 0 and Part.trainer in starts(config)


@about(Part.trainer)
def ray_address(config: Config, _: Host) -> Iterator[Finding]:
    address, layout = config.hardware.ray_address, config.layout
    if address is None:
        return
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match["port"] or 1) < 65536:
        yield error(
            "ray_address",
            _KEY,
            address,
            "is auto or host:port of a cluster's head that this machine is part of; Ray Client (ray://) is not used",
            f"{_KEY}=auto, after `ray start --head` or `ray start --address=HEAD:6379` on this machine",
        )
    elif not asks_ray(config):
        yield warning(
            "ray_unused",
            _KEY,
            address,
            f"has no effect with layout={layout.name}: the run's own process trains",
            f"{_KEY}=null, or a layout whose trainer has ranks (layout=dp4, layout=local2)",
        )


@about(Part.trainer)
def ray_folders(config: Config, host: Host) -> Iterator[Finding]:
    """Ranks on other nodes write checkpoints into the run's folder."""
    paths, shared = config.paths, config.hardware.shared_paths
    if not asks_ray(config) or not trainer_elsewhere(config):
        return
    if shared and not below(host.absolute(paths.outputs), shared):
        yield error(
            "ray_folders",
            "paths.outputs",
            paths.outputs,
            "every rank of the trainer writes its part of a checkpoint here, also those on other nodes; not below "
            f"hardware.shared_paths={list(shared)}",
            f"paths.outputs={shared[0]}/...",
        )


RULES = (ray_address, ray_folders)
