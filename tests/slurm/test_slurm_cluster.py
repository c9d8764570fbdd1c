"""The cluster of these tests is a real one: it queues, gives GPUs, preempts, and loses nodes."""

import pytest

pytestmark = pytest.mark.slurm


def test_jobs_get_disjoint_gpus(cluster):
    both = [
        cluster.script(f"gpus{n}", "echo $CUDA_VISIBLE_DEVICES; sleep 1", partition="gpu", gres="gpu:2", nodelist="n1")
        for n in (0, 1)
    ]
    for job in both:
        cluster.wait_for_state(job, "COMPLETED", timeout_s=30)
    seen = [set((cluster.root / f"gpus{n}.sh.out").read_text().strip().split(",")) for n in (0, 1)]
    assert seen[0] | seen[1] == {"0", "1", "2", "3"} and not seen[0] & seen[1]


def test_a_job_waits_with_a_reason_until_its_partition_is_up(cluster):
    job = cluster.script("waits", "true", partition="busy")
    assert cluster.wait_for_state(job, "PENDING") == "PENDING"
    cluster.wait_until(lambda: cluster.reason(job) == "PartitionDown", "the reason", 10)
    cluster.set_partition("busy", "UP")
    cluster.wait_for_state(job, "COMPLETED", timeout_s=30)


def test_what_a_job_started_ends_with_it(cluster):
    marker = cluster.root / "pid"
    job = cluster.script("child", f"sleep 300 & echo $! > {marker}; wait", partition="cpu")
    cluster.wait_until(lambda: marker.exists() and marker.read_text().strip(), "the child", 30)
    cluster.run("scancel", job)
    cluster.wait_for_state(job, "CANCELLED", timeout_s=30)


def test_srun_spans_two_nodes(cluster):
    names = cluster.run("srun", "-N2", "-p", "cpu", "sh", "-c", "echo $SLURMD_NODENAME")
    assert sorted(names.split()) == ["n1", "n2"]


def test_a_job_of_partition_low_is_requeued_when_its_place_is_needed(cluster):
    low = cluster.script(
        "low",
        "trap 'echo told' TERM; for i in $(seq 300); do sleep 0.1; done",
        partition="low",
        nodelist="n1",
        cpus_per_task="8",
        open_mode="append",
    )
    cluster.wait_for_state(low, "RUNNING")
    taker = cluster.script("taker", "sleep 1", partition="cpu", nodelist="n1", cpus_per_task="8")
    cluster.wait_for_state(taker, "RUNNING", "COMPLETED", timeout_s=60)  # 5 s of grace, and then KillWait
    assert cluster.state(low) == "PENDING"


def test_a_node_that_dies_takes_its_jobs_along_and_comes_back(cluster):
    job = cluster.script("dies", "sleep 300", partition="cpu", nodelist="n2")
    cluster.wait_for_state(job, "RUNNING")
    cluster.kill_node("n2")
    cluster.wait_for_state(job, "PENDING", timeout_s=60)  # requeued
    cluster.start_node("n2")
    cluster.start_now(job)
    cluster.wait_for_state(job, "RUNNING", timeout_s=60)


def test_a_node_set_down_has_its_jobs_requeued(cluster):
    job = cluster.script("down", "sleep 300", partition="cpu", nodelist="n2")
    cluster.wait_for_state(job, "RUNNING")
    cluster.set_node("n2", "down")
    cluster.wait_for_state(job, "PENDING", timeout_s=60)
    cluster.set_node("n2", "resume")
    cluster.start_now(job)
    cluster.wait_for_state(job, "RUNNING", timeout_s=60)
