"""The Ray cluster of hardware.ray_address as preflight sees it, and an address that is none."""

import json
import sys
from dataclasses import replace

import pytest

from swe_rl.check.preflight import servers
from swe_rl.check.preflight.run import Probe, run_probe
from swe_rl.config.choices import JobName
from swe_rl.config.schema import Config
from swe_rl.hardware.ray_cluster import RayClusterError, RayNode, connect_cluster
from swe_rl.hardware.ray_cluster import main as ray_question
from swe_rl.host.program import Completed
from tests.support.scripted_machine import ScriptedSystem

NODES = {"a (10.0.0.1, 1)": {"CPU": 3.0, "GPU": 8.0}, "b (10.0.0.2, 2)": {"CPU": 2.0, "GPU": 5.0}}


def configured(address="head:6379", job=JobName.train, **layout):
    base = Config()
    return replace(
        base,
        hardware=replace(base.hardware, ray_address=address),
        layout=replace(base.layout, **layout),
        job=replace(base.job, name=job),
    )


def answer(nodes, problem=None):
    return Completed(0, "a line of Ray's\n" + json.dumps({"nodes": nodes, "problem": problem}) + "\n")


def findings(config, done, versions=None):
    system = ScriptedSystem(
        programs={sys.executable: done}, versions={"ray": "2.60.0"} if versions is None else versions
    )
    return run_probe(Probe("Ray cluster", "hardware.ray_address", servers.probe_ray), config, system), system


@pytest.mark.parametrize(
    ("layout", "told"),
    [
        ({"trainer_gpus": 12, "sequence_parallel": 4}, None),
        ({"trainer_gpus": 13}, None),
        ({"trainer_ranks": 5}, None),
        ({"trainer_gpus": 14}, "need 14 GPUs of the Ray cluster; free are a (10.0.0.1, 1): 8; b"),
        ({"trainer_gpus": 16, "sequence_parallel": 4}, "need 16 GPUs of the Ray cluster, 4 at a time on one node"),
        ({"trainer_gpus": 8, "shard_ranks": 4}, None),
        ({"trainer_gpus": 12, "shard_ranks": 6}, "need 12 GPUs of the Ray cluster, 6 at a time on one node"),
        ({"trainer_ranks": 6}, "need 6 CPUs"),
    ],
)
def test_what_is_free_is_held_against_the_layout(layout, told):
    found, _ = findings(configured(**layout), answer(NODES))
    assert [one.rule_id for one in found] == ([] if told is None else ["preflight_ray"])
    assert told is None or told in found[0].message


def test_more_nodes_are_advised_only_where_they_help():
    [few] = findings(configured(trainer_gpus=16, sequence_parallel=4), answer(NODES))[0]
    [narrow] = findings(configured(trainer_gpus=12, sequence_parallel=12), answer(NODES))[0]
    assert few.fix.startswith("more nodes") and "more nodes" not in narrow.fix
    assert "nodes with 12 GPUs each" in narrow.fix and "8 ranks at a time at most" in narrow.fix
    [both] = findings(configured(trainer_gpus=32, shard_ranks=16), answer(NODES))[0]
    assert "nodes with 16 GPUs each" in both.fix and both.fix.endswith("and more nodes or a smaller layout")


def test_a_cluster_that_refuses_is_an_error_and_a_silent_one_unknown():
    [found], _ = findings(configured(trainer_ranks=2), answer({}, "nothing answers at head:6379"))
    assert found.rule_id == "preflight_ray" and found.message == "nothing answers at head:6379" and found.fix
    for broken in (Completed(1, "", "ModuleNotFoundError: ray"), Completed(0, "{}"), "no answer in 9 s"):
        [found], _ = findings(configured(trainer_ranks=2), broken)
        assert found.rule_id == "preflight_unknown"


def test_nobody_is_asked_where_nothing_runs_there():
    configs = (configured(None, trainer_ranks=2), configured(), configured(job=JobName.eval, trainer_ranks=2))
    for config in configs:
        found, system = findings(config, answer({}))
        assert found == [] and system.commands == []
    assert findings(configured(trainer_ranks=2), answer({}), versions={})[0] == []  # the packages' probe says so


def test_an_address_where_nothing_listens_is_told_at_once(monkeypatch, capsys):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(RayClusterError, match="nothing answers at 127.0.0.1:1, which RAY_ADDRESS names"):
        connect_cluster("auto")
    assert ray_question(["127.0.0.1:1"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["nodes"] == {} and "nothing answers at 127.0.0.1:1 (" in told["problem"]


def test_without_ray_the_way_out_is_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RayClusterError, match=r"Ray is not installed here: pip install 'swe_rl\[ray\]'"):
        connect_cluster("head:6379")


def test_a_node_is_named_so_that_two_on_one_host_differ():
    one, two = (RayNode(name * 20, "host", "10.0.0.1", {}, {}, False) for name in ("a", "b"))
    assert one.name == "host (10.0.0.1, aaaaaaaa)" and one.name != two.name
