"""Engines and trainer that take turns on the GPUs of two nodes: a server and a rank on each, in one job."""

import contextlib
import json
import sys

import pytest

from swe_rl.gateway.store.traces import TraceStore
from swe_rl.logger.jsonl import read_events
from tests.end_to_end.conftest import children_of_runs
from tests.slurm.on_cpu import ASLEEP
from tests.slurm.test_slurm_two_nodes import Fake, steps_of

pytestmark = pytest.mark.slurm
LAYOUT = (
    "layout=colocated4",
    "layout.engines=2",
    "layout.trainer_gpus=2",
    "layout.sequence_parallel=1",
    "hardware.nodes=2",
    "hardware.gpus_per_node=1",
    "trainer.check_weights=false",  # the fake servers invent their log-probabilities
)


class OnCpu(Fake):
    def command(self, *overrides):
        [_, module, name, *rest] = super().command(*overrides)
        assert (module, name) == ("-m", "swe_rl")
        return [sys.executable, "-m", "tests.slurm.on_cpu", *rest]

    def train(self, *overrides):
        return self.submit(*LAYOUT, f"hardware.shared_paths=[{self.root}]", *overrides)  # else /tmp is one node's own

    def events_of(self, name):
        return list(read_events(self.folder / "events.jsonl", name))

    def said(self):
        return (self.folder / "run.log").read_text()

    def asleep(self):
        return [json.loads(line) for line in (self.root / ASLEEP).read_text().splitlines()]

    def versions(self):
        """Those of the weights that each engine sampled with."""
        found = {}
        with contextlib.closing(TraceStore(self.folder / "traces.db")) as store:
            for one in (trace for name in store.sessions() for trace in store.traces(name)):
                found.setdefault(one.engine, set()).update(one.weight_versions.tolist())
        return found


@pytest.fixture
def run(cluster, tmp_path):
    return OnCpu(tmp_path, cluster)


def test_three_steps_to_the_end(run, cluster):
    job = run.train("trainer.steps=3")
    expected = {"engine1": "n2", "trainer1": "n2"}
    cluster.wait_until(lambda: expected.items() <= steps_of(cluster, job).items(), "the steps on n2", 120)
    assert not {"engine0", "trainer0"} & set(steps_of(cluster, job))  # of the run's own node, by the run itself
    run.wait_for_end()
    steps = run.steps()
    assert [(one["step"], one["weight_version"]) for one in steps] == [(1, 1), (2, 2), (3, 3)]
    assert run.asleep() == [{"engine0": True, "engine1": True}] * 3
    weights = run.events_of("weights")
    assert [event["step"] for event in weights] == [0, 1, 2, 3]
    assert ["sleep_s" in event and event["wake_s"] > 0 for event in weights] == [False, True, True, True]
    assert not any("sent_gb" in event for event in weights)  # they passed through the folder
    assert {name: seen >= {0, 1, 2} for name, seen in run.versions().items()} == {"engine0": True, "engine1": True}
    assert "rank 1 on GPU 0 of node n2" in run.said() and "2 ranks on 2 GPUs of 2 nodes" in run.said()
    assert "rank 1 has GPU 0" in (run.folder / "trainer" / "rank1.log").read_text()
    assert not run.events_of("engine_lost")
    for log in [*(run.folder / "engines").iterdir(), *(run.folder / "trainer").iterdir()]:
        assert "Traceback" not in log.read_text()
    assert steps_of(cluster, job) == {} and not children_of_runs(run.root)
    assert not list(run.folder.glob("weights*")) and not list((run.root / "scratch").glob("*/engines-*"))
