"""Instances, trajectories and traces out of thin air."""

import dataclasses

import pytest

from swe_rl.config.choices import INFRA_STATUSES
from swe_rl.config.compose import compose
from swe_rl.dataset.instance import Instance
from swe_rl.gateway.trace import Trace
from swe_rl.rollout.trajectory import Status, Trajectory


@pytest.fixture(scope="session")
def config():
    return compose([]).config


@pytest.fixture(scope="session")
def rollout(config):
    return config.rollout


@pytest.fixture
def instance():
    def make(name: str = "one") -> Instance:
        return Instance(name, "a/b", "abc", f"fix {name}", "gold", "tests", ("t::a",), ("t::b",))

    return make


@pytest.fixture
def trajectory_of():
    """The trajectory that an attempt at an order ends in."""

    def make(order, status: Status = Status.unresolved, **changes) -> Trajectory:
        broken = status in INFRA_STATUSES
        one = Trajectory(
            trajectory_id=order.trajectory_id,
            group_id=order.id.group_id,
            **dataclasses.asdict(order.id),
            status=status,
            reward=None if broken else float(status is Status.resolved),
            trained=not broken,
            in_baseline=not broken,
            error="it broke" if broken else None,
        )
        return dataclasses.replace(one, **changes)

    return make


@pytest.fixture
def trajectory():
    def make(group: str, sample: int, status: Status = Status.unresolved, **changes) -> Trajectory:
        broken = status in INFRA_STATUSES
        fields = {
            "trajectory_id": f"{group}.{sample}.0",
            "instance_id": group.split(".")[-1],
            "group_id": group,
            "split": "train",
            "step": 1,
            "sample": sample,
            "attempt": 0,
            "status": status,
            "reward": None if broken else float(status is Status.resolved),
            "trained": not broken,
            "in_baseline": not broken,
        }
        return Trajectory(**(fields | changes))

    return make


@pytest.fixture
def trace():
    def make(turn: int, prompt, sampled, **changes) -> Trace:
        fields = {
            "chain": 0,
            "logprobs": (-0.5,) * len(sampled),
            "weight_versions": (3,) * len(sampled),
            "finish_reason": "stop",
        }
        return Trace("s", turn, delta_ids=tuple(prompt), sampled_ids=tuple(sampled), **(fields | changes))

    return make
