"""SLURM's words for where a job is, and what a submission inherits."""

import pytest

from swe_rl.hardware.slurm.jobs import (
    JobState,
    Queue,
    SlurmError,
    ask_slurm,
    cancel_job,
    environment_outside,
    job_state,
    queue_states,
    read_state,
    run_scontrol,
    submit_script,
    view_job,
)
from swe_rl.host.program import Completed, NoAnswerInTime, Unanswered


def answering(status=0, stdout="", stderr=""):
    asked = []

    def run(command, timeout_s, environ):
        asked.append((list(command), environ))
        return Completed(status, stdout, stderr)

    run.asked = asked
    return run


def missing(command, timeout_s, environ):
    return None


def raising(error):
    def run(command, timeout_s, environ):
        raise error

    return run


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("PENDING|Resources\n", Queue.WAITS, "PENDING (Resources)"),
        ("PENDING|(null)", Queue.WAITS, "PENDING ((null))"),
        ("CONFIGURING|None", Queue.WAITS, "CONFIGURING"),
        ("RESV_DEL_HOLD|None", Queue.WAITS, "RESV_DEL_HOLD"),
        ("RUNNING|None", Queue.RUNS, "RUNNING"),
        ("COMPLETING|None", Queue.RUNS, "COMPLETING"),
        ("FAILED|NonZeroExitCode", Queue.GONE, "FAILED (NonZeroExitCode)"),
        ("NODE_FAIL|None", Queue.GONE, "NODE_FAIL"),
        ("", Queue.GONE, "gone"),
        ("FAILED|None\nRUNNING|None\nPENDING|Priority\n", Queue.RUNS, "RUNNING"),
        ("COMPLETED|None\nPENDING|BeginTime\n", Queue.WAITS, "PENDING (BeginTime)"),
    ],
)
def test_states(text, where, words):
    state = read_state(text)
    assert (state.where, state.words) == (where, words)


def test_a_job_that_is_forgotten_is_gone_and_no_answer_is_none():
    assert job_state("7", answering(1, stderr="slurm_load_jobs error: Invalid job id specified")).where is Queue.GONE
    assert job_state("7", answering(1, stderr="Unable to contact slurm controller")).where is Queue.UNKNOWN
    assert job_state("7", raising(NoAnswerInTime("squeue"))) == JobState(Queue.UNKNOWN)
    assert job_state("7", missing) == JobState(Queue.UNKNOWN)


def test_what_is_asked():
    run = answering(stdout="RUNNING|None\n")
    assert job_state("12_3", run).where is Queue.RUNS
    [(command, _)] = run.asked
    assert command[0] == "squeue" and "--jobs=12_3" in command and "--states=all" in command


def test_a_submission_gives_the_id_and_inherits_nothing_of_this_job(tmp_path):
    run = answering(stdout="sbatch: lua: a greeting\n42;cluster\n")
    environ = {"PATH": "/bin", "SLURM_CONF": "/c", "SLURM_JOB_ID": "1", "CUDA_VISIBLE_DEVICES": "0", "SBATCH_QOS": "x"}
    assert submit_script(tmp_path / "a.sh", run, environ) == "42"
    assert run.asked == [(["sbatch", "--parsable", str(tmp_path / "a.sh")], {"PATH": "/bin", "SLURM_CONF": "/c"})]


def test_a_refusal_says_why(tmp_path):
    with pytest.raises(SlurmError, match="was refused: invalid partition"):
        submit_script(tmp_path / "a.sh", answering(1, stderr="invalid partition\n"), {})
    with pytest.raises(SlurmError, match="sbatch"):
        submit_script(tmp_path / "a.sh", missing, {})


def test_the_one_error_of_every_command():
    with pytest.raises(SlurmError, match="there is no `no-such-program-of-ours` on PATH"):
        ask_slurm(["no-such-program-of-ours"])
    with pytest.raises(SlurmError, match="gave no answer in 0 s") as late:
        ask_slurm(["sleep", "60"], timeout_s=0.1)
    assert late.value.perhaps
    with pytest.raises(SlurmError) as broken:
        ask_slurm(["squeue"], raising(Unanswered("does not start")))
    assert not broken.value.perhaps
    with pytest.raises(SlurmError, match="^no contact to it$"):
        run_scontrol("show", run=answering(1, stderr="no contact\n to it"))
    with pytest.raises(SlurmError, match="^scontrol ended with 3$"):
        run_scontrol("show", run=answering(3))


def test_outside_keeps_what_is_no_job_s():
    assert environment_outside({"SLURMD_NODENAME": "n1", "SRUN_DEBUG": "3", "HOME": "/h", "MY_SLURM": "1"}) == {
        "HOME": "/h",
        "MY_SLURM": "1",
    }


def test_what_a_user_sets_for_his_own_looks_changes_no_answer(monkeypatch):
    for name in (
        "SQUEUE_PARTITION",
        "SQUEUE_USERS",
        "SACCT_FORMAT",
        "SINFO_FORMAT",
        "SLURM_TIME_FORMAT",
        "SCANCEL_STATE",
    ):
        monkeypatch.setenv(name, "x")
    for name in ("SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS"):
        monkeypatch.setenv(name, "y")
    run = answering(0, "RUNNING|None")
    job_state("7", run)
    queue_states(["7"], run)
    cancel_job("7", run)
    view_job("7", run)
    assert {command[0] for command, _ in run.asked} == {"squeue", "sacct", "scancel", "scontrol"}
    for _, environ in run.asked:
        assert "x" not in environ.values() and environ["LC_ALL"] == "C"
        assert [environ[name] for name in ("SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS")] == ["y"] * 3
    assert environment_outside({"SLURM_JWT": "y", "SLURM_CLUSTERS": "y", "SLURM_JOB_ID": "1"}) == {
        "SLURM_JWT": "y",
        "SLURM_CLUSTERS": "y",
    }
