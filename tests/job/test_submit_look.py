"""`job=status` and `job=logs` where SLURM cannot be asked: the disk is enough to answer."""

import json

import pytest

from swe_rl.config.compose import compose
from swe_rl.errors import UserError
from swe_rl.job import logs, status
from swe_rl.submission.record import NoSubmission, Submission, SubmittedJob, write_submission
from swe_rl.submission.rows import last_lines, last_words


@pytest.fixture(autouse=True)
def without_slurm(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.fixture
def sweep(tmp_path):
    """Two jobs, one done, one failed, below outputs/multirun/rollout/then."""
    folder = tmp_path / "outputs" / "multirun" / "rollout" / "then"
    (folder / "slurm").mkdir(parents=True)
    jobs = tuple(
        SubmittedJob(number, str(number), (f"trainer.seed={number}", "n=1"), f"7_{number}") for number in (0, 1)
    )
    write_submission(folder, Submission("submitit_slurm", jobs))
    for number, values in enumerate(({"status": "done"}, {"status": "failed", "reason": "DataError: torn"})):
        (folder / str(number)).mkdir()
        (folder / str(number) / "status.json").write_text(json.dumps({**values, "step": 3, "heartbeat": 1.0}))
        (folder / "slurm" / f"slurm-7_{number}.out").write_text(
            "".join(f"line {line} of {number}\n" for line in range(9))
        )
        (folder / "slurm" / f"slurm-7_{number}.err").write_text("Started: 'step'\n")
    return folder


def config(tmp_path, *given):
    return compose([f"paths.outputs={tmp_path / 'outputs'}", *given]).config


def test_status_of_the_newest_sweep(sweep, tmp_path, capsys):
    older = sweep.parent.parent / "train" / "before"
    older.mkdir(parents=True)
    assert status.run(config(tmp_path, "job=status"), None) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{sweep}\n") and "1 done, 1 failed" in text
    assert "job 1 (trainer.seed=1), SLURM 7_1: failed: DataError: torn" in text


def test_status_for_programs(sweep, tmp_path, capsys):
    status.run(config(tmp_path, "job=status", "job.format=json", f"job.runs={sweep}"), None)
    rows = json.loads(capsys.readouterr().out)
    assert [(row["number"], row["outcome"], row["step"], row["note"]) for row in rows] == [
        (0, "done", 3, ""),
        (1, "failed", 3, "DataError: torn"),
    ]


def test_status_says_what_is_wrong_with_a_training(sweep, tmp_path, capsys):
    rows = [{"step": step, "updates": 1, "signal_rate": 0.5, "cut_reply_rate": 0.4} for step in (1, 2, 3)]
    (sweep / "1" / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    status.run(config(tmp_path, "job=status"), None)
    assert "health of job 1: Replies cut: 40.0% in the last 3 steps" in capsys.readouterr().out
    status.run(config(tmp_path, "job=status", "job.format=json"), None)
    health = [row["health"] for row in json.loads(capsys.readouterr().out)]
    assert health[0] == [] and [finding["about"] for finding in health[1]] == ["Replies cut"]


def test_status_follows_to_the_end(sweep, tmp_path, capsys):
    status.run(config(tmp_path, "job=status", "job.follow=true"), None)
    assert capsys.readouterr().out.endswith("1 of 2 jobs done\n")


def test_status_of_a_sweep_that_nobody_submitted(sweep, tmp_path, capsys):
    (sweep / "submission.json").unlink()
    status.run(config(tmp_path, "job=status", f"job.runs={sweep}"), None)
    assert "1 done, 1 failed" in capsys.readouterr().out
    status.run(config(tmp_path, "job=status", f"job.runs={sweep / '0'}"), None)
    assert "1 done" in capsys.readouterr().out


def test_what_a_dry_run_wrote_has_no_jobs(sweep, tmp_path, capsys):
    dry = sweep.parent / "later"
    (dry / "slurm").mkdir(parents=True)
    write_submission(dry, Submission("submitit_slurm", (SubmittedJob(0, "0", ()),), ("slurm/jobs.sh",)))
    status.run(config(tmp_path, "job=status"), None)
    assert capsys.readouterr().out.startswith(f"{sweep}\n")
    for job in (status, logs):
        with pytest.raises(NoSubmission, match="has only what a dry run wrote: nothing was submitted"):
            job.run(config(tmp_path, "job=status", f"job.runs={dry}"), None)
    # Somebody submits the script by hand, and the job begins.
    (dry / "0").mkdir()
    (dry / "0" / "status.json").write_text(json.dumps({"status": "done", "step": 1, "heartbeat": 1.0}))
    status.run(config(tmp_path, "job=status"), None)
    assert capsys.readouterr().out.startswith(f"{dry}\n")


def test_a_folder_that_is_none_is_named(tmp_path):
    with pytest.raises(NoSubmission, match="There is no sweep below"):
        status.run(config(tmp_path, "job=status"), None)
    with pytest.raises(NoSubmission, match="is no sweep's folder and no run's"):
        status.run(config(tmp_path, "job=status", f"job.runs={tmp_path}"), None)


def test_logs_of_all_and_of_one(sweep, tmp_path, capsys):
    logs.run(config(tmp_path, "job=logs", "job.lines=2"), None)
    text = capsys.readouterr().out
    assert "== job 0 (done) " in text and "== job 1 (failed) " in text
    assert "line 6 of 0" not in text and "line 7 of 0\nline 8 of 0\n" in text and "Started: 'step'" in text
    logs.run(config(tmp_path, "job=logs", "job.lines=1", "job.number=1"), None)
    assert capsys.readouterr().out == "line 8 of 1\nStarted: 'step'\n"


@pytest.mark.parametrize(("given", "told"), [("job.number=2", "the jobs 0 to 1"), ("job.lines=-1", "negative")])
def test_logs_that_there_are_not(sweep, tmp_path, given, told):
    with pytest.raises(UserError, match=told):
        logs.run(config(tmp_path, "job=logs", given), None)


def test_logs_go_on_until_the_jobs_have_ended(sweep, tmp_path, capsys, monkeypatch):
    record, out = sweep / "0" / "status.json", sweep / "slurm" / "slurm-7_0.out"
    record.write_text(json.dumps({"status": "running"}))
    written = iter(["one more\nhalf", " a line\n"])

    def work(_):
        with out.open("a") as file:
            file.write(next(written))
        if out.read_text().endswith("line\n"):
            record.write_text(json.dumps({"status": "done"}))

    monkeypatch.setattr("time.sleep", work)
    logs.run(config(tmp_path, "job=logs", "job.lines=1", "job.follow=true"), None)
    assert capsys.readouterr().out.endswith("Started: 'step'\n[0] one more\n[0] half a line\n")


def test_the_end_of_a_file_is_read_and_no_more(tmp_path):
    path = tmp_path / "log"
    path.write_text("x" * 100_000 + "\nlast but one\nlast\n")
    assert (
        last_lines(path, 2) == ["last but one", "last"]
        and last_lines(path, 0) == []
        and last_lines(tmp_path / "none", 5) == []
    )
    assert last_lines(path, 10) == ["last but one", "last"], "half a line is none"


def test_last_words_are_the_last_error_and_what_follows(sweep):
    (sweep / "slurm" / "slurm-7_0.err").write_text("error: first\nfine\nerror: the second\n  goes on\n")
    assert last_words(sweep, "7_0") == "error: the second goes on"
    assert last_words(sweep, "7_1") == "Started: 'step'"
    assert last_words(sweep, "9") == ""
