"""SLURM's partitions, nodes and accounts against what the configuration asks for."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.check.findings import Severity
from swe_rl.check.preflight import slurm
from swe_rl.check.preflight.slurm import parse_minutes, read_groups
from swe_rl.config.choices import RuntimeKind
from swe_rl.config.schema import Config
from swe_rl.host.program import Completed, Unanswered
from tests.support.scripted_machine import ScriptedSystem

SINFO = """cpu* infinite 2 (null) 8 16000 idle
gpu_test 4:00:00 1 gpu:a100:8(S:0-1),lustre:1 64 500000 mix
gpu_test 4:00:00 2 gpu:a100:8(S:0-1),lustre:1 64 500000 drain*
gpu_test 4:00:00 4 gpu:v100:4 32 200000 idle
long 7-00:00:00 1 gpu:2 16 64000 idle
"""
PARTITION = ("preflight_partition", Severity.error)
TIME = ("preflight_slurm_time", Severity.error)
NODES = ("preflight_slurm_nodes", Severity.error)
DOWN = ("preflight_slurm_nodes", Severity.warning)


def configured(trainer_gpus=0, **hardware):
    base = Config()
    return replace(
        base,
        hardware=replace(base.hardware, **hardware),
        layout=replace(base.layout, trainer_gpus=trainer_gpus),
    )


def cluster(text=SINFO, **programs):
    return ScriptedSystem(programs={"sinfo": Completed(0, text), **programs})


def rules(config, system=None):
    return [(one.rule_id, one.severity) for one in slurm.probe_partitions(config, system or cluster())]


@pytest.mark.parametrize(
    ("hardware", "expected"),
    [
        ({"partition": "cpu", "time_limit_min": 10_000_000}, []),
        ({"partition": "gpu_test", "time_limit_min": 240}, []),
        ({"partition": "gpu_test", "time_limit_min": 241}, [TIME]),
        ({"partition": "gpu_test,cpu", "time_limit_min": 241}, []),
        ({"partition": "long", "time_limit_min": 10080}, []),
        ({"partition": "gpu_tset"}, [PARTITION]),
        ({"partition": "cpu,nope"}, [PARTITION]),
        ({"partition": "cpu", "nodes": 3}, [NODES]),
        ({"partition": "cpu,long", "nodes": 3}, [NODES]),  # a job runs in one of them
        ({"partition": "cpu,gpu_test", "nodes": 3}, []),
        ({"partition": "gpu_test,long", "trainer_gpus": 8, "gpus_per_node": 8, "time_limit_min": 241}, [TIME]),
        ({"partition": "cpu", "cpus_per_node": 9}, [NODES]),
        ({"partition": "cpu", "memory_gb": 16.0}, []),
        ({"partition": "cpu", "memory_gb": 32.0}, [NODES]),
        ({"partition": "gpu_test", "trainer_gpus": 8, "gpus_per_node": 8}, []),
        ({"partition": "gpu_test", "trainer_gpus": 8, "gpus_per_node": 8, "nodes": 2}, [DOWN]),
        ({"partition": "gpu_test", "trainer_gpus": 8, "gpus_per_node": 4, "nodes": 5}, []),
        ({"partition": "gpu_test", "trainer_gpus": 8, "gpus_per_node": 9}, [NODES]),
        ({"partition": "gpu_test", "trainer_gpus": 8, "gpus_per_node": 8, "nodes": 4}, [NODES]),
        ({"partition": "cpu", "trainer_gpus": 1, "gpus_per_node": 1}, [NODES]),
        ({"partition": "cpu", "gpus_per_node": 1}, []),  # nothing of this run uses a GPU
        ({}, []),
    ],
)
def test_partitions(hardware, expected):
    assert rules(configured(**hardware)) == expected


def test_the_nearest_name_can_be_typed():
    (found,) = slurm.probe_partitions(configured(partition="gpu_tset"), cluster())
    assert "hardware.partition=gpu_test" in found.fix
    assert "cpu, gpu_test, long" in found.message


def test_the_key_to_blame_is_the_need_that_no_node_meets():
    hardware = {"partition": "gpu_test", "trainer_gpus": 8, "gpus_per_node": 8}
    keys = [
        next(slurm.probe_partitions(configured(**hardware, **more), cluster())).key
        for more in ({"cpus_per_node": 65}, {"memory_gb": 900.0}, {"nodes": 9})
    ]
    assert keys == ["hardware.cpus_per_node", "hardware.memory_gb", "hardware.nodes"]


def test_a_runtime_job_is_checked_as_well():
    base = configured()
    runtime = replace(base.runtime, kind=RuntimeKind.job, partition="gpu_test", cpus_per_node=65, time_limit_min=300)
    found = list(slurm.probe_partitions(replace(base, runtime=runtime), cluster()))
    assert [one.key for one in found] == ["runtime.time_limit_min", "runtime.cpus_per_node"]


def test_without_sinfo_the_partition_is_unknown():
    (found,) = slurm.probe_partitions(configured(partition="cpu"), ScriptedSystem())
    assert (found.rule_id, found.severity) == ("preflight_unknown", Severity.warning)


def test_inside_a_job_a_missing_sinfo_is_no_matter():
    system = ScriptedSystem(environment={"SLURM_JOB_ID": "7"})
    assert rules(configured(partition="cpu"), system) == []


@pytest.mark.parametrize("done", [Completed(1, "", "slurm_load_partitions: cannot contact controller"), "hangs"])
def test_a_controller_that_is_down_leaves_the_question_open(done):
    with pytest.raises(Unanswered, match="cannot contact|hangs"):
        rules(configured(partition="cpu"), ScriptedSystem(programs={"sinfo": done}))


def test_a_line_of_another_shape_leaves_the_question_open():
    with pytest.raises(Unanswered, match="unknown shape"):
        read_groups("cpu up infinite\n")


def test_lines_of_sinfo():
    first, second, *_ = read_groups(SINFO)
    assert (first.partition, first.limit_min, first.nodes, first.gpus, first.cpus) == ("cpu", None, 2, 0, 8)
    assert (second.gpus, second.in_service, round(second.memory_gb)) == (8, True, 524)
    assert [group.gpus for group in read_groups("p 1:00 1 gpu:1g.5gb:7,gpu:a100:1(S:0,2),gpu 8 100+ idle")] == [9]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("30", 30), ("30:00", 30), ("4:00:00", 240), ("1-00", 1440), ("1-12:30:00", 2190), ("infinite", None)],
)
def test_time_limits(text, expected):
    assert parse_minutes(text) == expected


@given(st.integers(0, 400), st.integers(0, 23), st.integers(0, 59))
def test_time_limits_of_days(days, hours, mins):
    assert parse_minutes(f"{days}-{hours:02}:{mins:02}:00") == days * 1440 + hours * 60 + mins


ASSOCIATIONS = Completed(0, "lab_a|normal,high\nlab_b|normal\n")


@pytest.mark.parametrize(
    ("hardware", "done", "expected"),
    [
        ({"account": "lab_a"}, ASSOCIATIONS, None),
        ({"account": "lab_c"}, ASSOCIATIONS, "hardware.account"),
        ({"account": "Lab_A", "qos": "High"}, ASSOCIATIONS, None),
        ({"account": "Lab_B", "qos": "High"}, ASSOCIATIONS, "hardware.qos"),
        ({"account": "lab_a", "qos": "high"}, ASSOCIATIONS, None),
        ({"account": "lab_b", "qos": "high"}, ASSOCIATIONS, "hardware.qos"),
        ({"qos": "higg"}, ASSOCIATIONS, "hardware.qos"),
        ({"account": "lab_c"}, Completed(1, "", "accounting storage is disabled"), None),
        ({"account": "lab_c"}, Completed(0, ""), None),
        ({"account": "lab_c"}, None, None),
        ({"account": "lab_c", "partition": None}, ASSOCIATIONS, None),
    ],
)
def test_accounts(hardware, done, expected):
    config = configured(**{"partition": "cpu", **hardware})
    programs = {} if done is None else {"sacctmgr -n -P show assoc user=ann": done}
    found = list(slurm.probe_account(config, cluster(**programs)))
    assert [one.key for one in found] == ([expected] if expected else [])
    assert all(one.severity is Severity.error and one.fix.startswith(f"{expected}=") for one in found)
