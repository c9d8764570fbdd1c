"""Random batches of trajectories as `reference` takes them, and their tokens as one tensor each."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from swe_rl.algo.sequences import Sequences


def module_at(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def reference():
    """The module of that name here."""
    return module_at(Path(__file__).parent / "reference.py")


@pytest.fixture(scope="session")
def rank_cases():
    """The trainer's module of that name."""
    from tests.trainer import rank_cases

    return rank_cases


@pytest.fixture(scope="session")
def make_batch():
    def make(seed, trajectories=6, longest=9, spread=0.3):
        rng = np.random.default_rng(seed)
        batch = []
        for _ in range(trajectories):
            length = int(rng.integers(1, longest + 1))
            new = rng.uniform(-4, -0.1, length)
            near = {name: new + rng.normal(0, spread, length) for name in ("old", "rollout", "reference")}
            batch.append({"new": new, **near, "A": float(rng.normal())})
        return batch

    return make


@pytest.fixture(scope="session")
def flat():
    """`flat(batch, "new")`: all tokens in order, float64; "A" is repeated for each token."""

    def join(batch, name):
        parts = [np.full(len(one["new"]), one["A"]) if name == "A" else one[name] for one in batch]
        return torch.tensor(np.concatenate(parts), dtype=torch.float64)

    return join


@pytest.fixture(scope="session")
def sequences_of():
    def make(batch):
        numbers = [i for i, one in enumerate(batch) for _ in one["new"]]
        return Sequences(torch.tensor(numbers), len(batch))

    return make
