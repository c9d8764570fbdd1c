"""One cluster for all tests of a process; each test starts with an empty queue."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, missing
from tests.slurm.sweep import Sweep


@pytest.fixture(scope="session")
def running_cluster() -> Iterator[Cluster]:
    reason = missing()
    if reason:
        pytest.skip(reason)
    root = Path(tempfile.mkdtemp(prefix="slurm-"))
    root.chmod(0o755)
    try:
        with Cluster(root) as cluster:
            yield cluster
    finally:
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def cluster(running_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """This process and its children are clients of the cluster."""
    for name, value in running_cluster.environ.items():
        monkeypatch.setenv(name, value)
    try:
        yield running_cluster
    finally:
        running_cluster.cancel_all()
        running_cluster.heal()


@pytest.fixture
def sweep(tmp_path: Path, cluster: Cluster) -> Sweep:
    return Sweep(tmp_path, cluster)
