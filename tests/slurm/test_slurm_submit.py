"""Submitting and watching on a real SLURM: what a user sees, and what is left behind whatever happens."""

import json
import os
import signal

import pytest
import yaml

from swe_rl.hardware.slurm.batch_script import batch_script
from tests.slurm.sweep import HOME, SLURM, TINY
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slurm
WAITING = tuple(one.replace("partition=cpu", "partition=busy") for one in SLURM)


def test_ctrl_c_ends_the_watching_not_the_jobs(sweep, cluster):
    """Jobs of a partition that is down wait; the reason is shown, and later what is left and what to do about it."""
    process = sweep.start(*WAITING, *TINY, "trainer.seed=0,1")
    first, second = sweep.wait_for_ids(process)
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "pending (PartitionDown)" in line:
            break
    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=20)
    assert process.returncode == 130, stdout + stderr
    text = "".join(lines) + stdout
    assert f"job 0: SLURM {first}" in text and f"job 1: SLURM {second}" in text
    assert "interrupted: the watching, not the jobs. 2 of 2 are still queued or running." in text
    assert f"watch:   python -m swe_rl job=status job.runs={sweep.folder}" in text
    assert f"cancel:  scancel {first.partition('_')[0]}" in text
    assert "Traceback" not in text + stderr
    assert [cluster.state(one) for one in (first, second)] == ["PENDING", "PENDING"]


def test_detached_jobs_are_watched_read_and_cancelled_later(sweep, cluster):
    done = sweep.run(*WAITING, *TINY, "trainer.seed=0,1,2", "hydra.launcher.array_parallelism=2", "job.detach=true")
    assert done.exit_status == 0, done.text
    array = sweep.ids[0].partition("_")[0]
    assert sweep.ids == [f"{array}_{number}" for number in range(3)]
    assert f"cancel:  scancel {array}\n" in done.stdout and "3 jobs submitted by submitit_slurm" in done.stdout
    assert "ArrayTaskThrottle=2" in cluster.run("scontrol", "show", "job", array)

    status = sweep.run("job=status")
    assert status.exit_status == 0 and "3 pending (PartitionDown)" in status.stdout, status.text
    assert "trainer.seed=1" not in status.stdout, "the reason is more than the label"
    rows = json.loads(sweep.run("job=status", "job.format=json", f"job.runs={sweep.folder}").stdout)
    assert [(row["slurm_id"], row["outcome"], row["steps"]) for row in rows] == [
        (one, "pending", 1) for one in sweep.ids
    ]

    cluster.run("scancel", array)
    cluster.wait_for_state(sweep.ids[2], "CANCELLED", timeout_s=20)
    status = sweep.run("job=status")
    assert "3 died" in status.stdout and "died: SLURM: CANCELLED" in status.stdout


def test_what_slurm_refuses_leaves_nothing_in_the_queue(sweep, cluster):
    before = len(cluster.jobs())
    arguments = [one.replace("partition=cpu", "partition=nowhere") for one in SLURM]
    done = sweep.run(*arguments, *TINY, "trainer.seed=0,1")
    assert done.exit_status == 2, done.text
    assert "SLURM refused" in done.stderr and "invalid partition" in done.stderr and "Traceback" not in done.text
    assert len(cluster.jobs()) == before


def test_a_dry_run_writes_the_scripts_of_a_real_cluster_and_submits_nothing(sweep, cluster):
    before = len(cluster.jobs())
    done = sweep.run("+sweep=dp4_default_vs_tr", "job.dry_run=true", SLURM_CONF="/nowhere", PATH="/nowhere")
    assert done.exit_status == 0, done.text
    script = sweep.folder / "slurm" / "jobs.sh"
    assert script.read_text() in done.stdout
    for line in ("--array=0-1%2", "--gpus-per-node=8", "--mem=1000G", "--job-name=dp4_default"):
        assert f"#SBATCH {line}\n" in script.read_text()
    assert "Nothing was submitted: an array of 2 jobs, 2 at once." in done.stdout
    assert f"sbatch {script}" in done.stdout
    assert len(cluster.jobs()) == before
    asked = sweep.run("job=status")
    assert asked.exit_status == 2 and "There is no sweep below" in asked.stderr
    named = sweep.run("job=status", f"job.runs={sweep.folder}")
    words = " ".join(named.stderr.split())
    assert named.exit_status == 2 and "nothing was submitted" in words and str(script.parent) in words, named.text
    assert f"rm -r {sweep.folder}" in done.stdout


def test_without_slurm_the_way_out_is_named(sweep):
    done = sweep.run(*SLURM, *TINY, PATH="/usr/nowhere")
    assert done.exit_status == 2, done.text
    assert "sbatch and squeue were not found here" in done.stderr


def test_detaching_needs_somebody_who_keeps_the_jobs(sweep):
    for more in ((), ("--multirun", "trainer.seed=0,1")):
        done = sweep.run(*TINY, "job.detach=true", *more)
        assert done.exit_status == 2 and "job.detach=true leaves jobs to SLURM" in done.stderr, done.text
    assert not sweep.outputs.exists()


def test_edits_while_a_job_is_queued_change_nothing(sweep, cluster):
    """Neither conf/ of the user's own nor code: the job runs what was checked. A script in the folder does not win."""
    own = sweep.root / "own" / "hardware"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text("name: mine\ncpus_per_node: 1\nmemory_gb: 3.0\n")
    process = sweep.start(
        *WAITING,
        "--config-dir",
        str(own.parent),
        "hardware=mine",
        *TINY,
        "+hardware.env_vars.MY_API_KEY=planted-e0d9-5c1f",
        PYTHONDONTWRITEBYTECODE="",
    )
    [job] = sweep.wait_for_ids(process)
    (own / "mine.yaml").write_text("name: mine\ncpus_per_node: nonsense\n")
    (sweep.root / "swe_rl").mkdir()
    (sweep.root / "swe_rl" / "__init__.py").write_text("raise SystemExit('the wrong package')")
    (sweep.root / "torch.py").write_text("raise SystemExit('the wrong package')")
    cluster.set_partition("busy", "UP")
    stdout, stderr = process.communicate(timeout=200)
    assert process.returncode == 0, stdout + stderr
    config = yaml.safe_load((sweep.folder / "0" / "config.yaml").read_text())
    assert (config["hardware"]["name"], config["hardware"]["memory_gb"]) == ("mine", 3.0)
    assert sweep.status(0)["status"] == "done"
    assert "pending (PartitionDown)" in stdout and "1 of 1 job done" in stdout
    assert (sweep.folder / "frozen" / "swe_rl" / "job" / "__pycache__").is_dir(), "another package was imported"
    assert list((sweep.folder / "slurm").glob(f"slurm-{job}.*"))
    for path in [path for path in sweep.root.rglob("*") if path.is_file()]:
        assert b"planted-e0d9-5c1f" not in path.read_bytes(), f"{path} holds the secret that the job was given"


def test_code_that_changes_while_a_job_is_queued_is_not_what_runs(sweep, cluster, tmp_path):
    """A copy of the package is edited after the submission: the job still imports what was frozen."""
    import shutil

    copy = tmp_path / "checkout"
    for name in ("swe_rl", "conf", "sweeps", "launchers"):
        shutil.copytree(HOME / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    process = sweep.start(*WAITING, *TINY, PYTHONPATH=str(copy))
    sweep.wait_for_ids(process)
    (copy / "swe_rl" / "job" / "rollout.py").write_text("raise SystemExit('edited while queued')\n")
    (copy / "conf" / "config.yaml").write_text("nonsense: [")
    (copy / "launchers" / "containers_on_scratch.sh").write_text("exit 1\n")
    cluster.set_partition("busy", "UP")
    stdout, stderr = process.communicate(timeout=200)
    assert process.returncode == 0, stdout + stderr
    assert sweep.status(0)["status"] == "done"


def test_a_killed_job_is_found_to_be_dead_and_its_last_words_are_told(sweep, cluster):
    process = sweep.start(*SLURM, "job=rollout", "trainer.steps=500", "trainer.seed=3")
    [job] = sweep.wait_for_ids(process)
    cluster.wait_until(lambda: (sweep.folder / "0" / "status.json").exists(), "the run's status", 90)
    os.kill(sweep.status(0)["pid"], signal.SIGKILL)
    stdout, stderr = process.communicate(timeout=90)
    assert process.returncode == 1, stdout + stderr
    assert f"job 0, SLURM {job}: died: SLURM: FAILED (NonZeroExitCode). srun: error: " in stdout, stdout
    assert "Killed" in stdout and "0 of 1 job done" in stdout
    assert sweep.status(0)["status"] == "running", "nobody was left to write another"


def test_a_cancelled_job_says_so_itself(sweep, cluster):
    process = sweep.start(*SLURM, "job=rollout", "trainer.steps=500")
    [job] = sweep.wait_for_ids(process)
    cluster.wait_until(lambda: (sweep.folder / "0" / "steps.jsonl").exists(), "a step", 90)
    cluster.run("scancel", job)
    stdout, stderr = process.communicate(timeout=90)
    assert process.returncode == 1, stdout + stderr
    assert "interrupted" in stdout and sweep.status(0)["status"] == "interrupted"


def test_a_job_that_is_queued_again_goes_on_in_its_folder_and_the_table_says_so(sweep, cluster):
    few = ("rollout.prompts_per_step=3", "rollout.n=4", "rollout.eval_n=1", "trainer.checkpoint_every_steps=1")
    process = sweep.start(*SLURM, "job=train", "trainer.steps=6", *few)
    [job] = sweep.wait_for_ids(process)
    steps = sweep.folder / "0" / "steps.jsonl"
    cluster.wait_until(lambda: steps.exists() and steps.read_text().count("\n") >= 2, "two steps", 120)
    before = (sweep.folder / "0" / "config.yaml").read_text()
    cluster.run("scontrol", "requeue", job)
    cluster.wait_for_state(job, "PENDING", timeout_s=60)
    status = sweep.run("job=status", "job.format=json")
    cluster.start_now(job)
    stdout, stderr = process.communicate(timeout=200)
    assert process.returncode == 0, stdout + stderr
    assert json.loads(status.stdout)[0]["outcome"] == "requeued"
    assert "1 of 1 job done" in stdout
    assert [step["step"] for step in sweep.steps(0)] == [1, 2, 3, 4, 5, 6]
    assert sweep.status(0)["resumes"] == 1
    assert (sweep.folder / "0" / "config.yaml").read_text() == before
    assert [path.name for path in sweep.folder.iterdir() if path.name.isdecimal()] == ["0"]


@pytest.mark.parametrize("name", ["a\\=0", "back\\", 'q"=0"', "b c", "p%j#x"])
def test_folders_of_any_name(cluster, tmp_path, name):
    """The job begins where it was submitted, and its log is where the sweep looks for it."""
    here, logs = tmp_path / name, tmp_path / name / "logs"
    logs.mkdir(parents=True)
    for use_srun in (False, True):
        settings = {"partition": "cpu", "use_srun": use_srun, "stderr_to_stdout": True}
        script = logs / "job.sh"
        script.write_text(batch_script(settings, ["pwd"], logs=logs, chdir=here, exports={}))
        number = cluster.run("sbatch", "--parsable", str(script)).strip()
        cluster.wait_for_state(number, "COMPLETED", timeout_s=60)
        wait_until(lambda number=number: (logs / f"slurm-{number}.out").read_text() == f"{here}\n", 20)
