"""A sweep's scripts, ids and folders, with a made-up sbatch."""

import json
import shlex
import shutil
import signal
import sys
from pathlib import Path

import pytest

from swe_rl.check.findings import Severity
from swe_rl.check.sweep import job_folders
from swe_rl.cli import dispatch, launch
from swe_rl.cli.dispatch import checks_pass
from swe_rl.cli.launch import _without_this_machine
from swe_rl.cli.slurm_task import job_id, main
from swe_rl.config.compose import compose, expand_sweep
from swe_rl.config.explain import ConfigError
from swe_rl.config.folders import launchers_dir
from swe_rl.hardware.slurm.batch_script import server_overrides
from swe_rl.hardware.slurm.jobs import array_problem
from swe_rl.host.program import Completed, NoAnswerInTime
from swe_rl.logger import summary
from swe_rl.submission import freeze as freezing
from swe_rl.submission.freeze import TIMES_VARIABLE, code_of, freeze_jobs, other_packages, verify_frozen
from swe_rl.submission.record import read_submission
from swe_rl.submission.submit import SubmissionError, prepare_submission, submit_prepared, ways_on

SERVERS = (
    "runtime=job",
    "runtime.containers=process",
    "runtime.nodes=2",
    "sandbox.concurrency=2",
    "sandbox.memory_gb=1",
    "job.detach=true",
)


class Slurm:
    """Gives out ids from 100 on; refuses what `refuse` is part of."""

    def __init__(self, refuse="nothing"):
        self.refuse, self.submitted, self.cancelled, self.most = refuse, [], [], 1001

    def __call__(self, command, timeout_s, environ):
        program, *arguments = command
        if program == "scancel":
            self.cancelled += arguments
            return Completed(0, "", "")
        if program == "scontrol":
            return Completed(0, f"MaxArraySize            = {self.most}\n", "")
        assert program == "sbatch" and "SLURM_JOB_ID" not in environ
        if self.refuse in arguments[-1]:
            return Completed(1, "", "sbatch: error: invalid partition specified: x\n")
        self.submitted.append(arguments)
        return Completed(0, f"{99 + len(self.submitted)};cluster\n", "")


@pytest.fixture(autouse=True)
def on_a_cluster(monkeypatch):
    monkeypatch.setattr("swe_rl.submission.submit.has_slurm", lambda: True)
    monkeypatch.setenv("SLURM_JOB_ID", "of the shell that submits")


def prepared(folder, count, *given):
    jobs = [compose(["hydra/launcher=submitit_slurm", f"trainer.seed={seed}", *given]) for seed in range(count)]
    frozen = freeze_jobs(folder, jobs, None, code=False)
    return prepare_submission(folder, jobs, frozen, given)


def test_several_jobs_are_one_array(tmp_path):
    slurm = Slurm()
    submission = submit_prepared(prepared(tmp_path, 3, "hydra.launcher.array_parallelism=2"), slurm)
    [arguments] = slurm.submitted
    assert "#SBATCH --array=0-2%2" in Path(arguments[-1]).read_text()
    assert [job.slurm_id for job in submission.jobs] == ["100_0", "100_1", "100_2"]
    assert submission.slurm_ids == ["100"]
    assert read_submission(tmp_path) == submission
    assert "cancel:  scancel 100" in ways_on(tmp_path, submission)


def test_code_of_ones_own_goes_along_to_the_jobs_and_their_servers(tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "theirs.py").write_text("class Mine: ...")
    sweep = tmp_path / "sweep"
    ready = prepared(sweep, 2, f"job.code=[{mine}]", *SERVERS)
    (mine / "theirs.py").write_text("changed while the jobs wait")
    copy = sweep / "frozen" / "code" / "0"
    assert (copy / "theirs.py").read_text() == "class Mine: ..."
    assert len(ready.scripts) == 1 + 2 * 2
    for script in ready.scripts:
        assert f"PYTHONPATH={sweep / 'frozen'}:{copy}" in script.read_text().replace("'", ""), script
    assert code_of(sweep / "1", 1, [str(mine)]) == [copy]
    assert code_of(tmp_path / "alone", None, [str(mine)]) == [mine], "of no sweep"


TIMED = ["name='r_${now:%f}'", "logger.project='${now:%H-%M-%S-%f}'"]


@pytest.fixture
def started(monkeypatch):
    """Jobs that do nothing but note their configurations."""
    done = []

    def start(composed, folder, tree, hydra):
        done.append(composed.config)
        return 0, composed.config

    monkeypatch.setattr(dispatch, "_start_job", start)
    monkeypatch.setattr(dispatch, "read_objective", lambda config, folder: None)
    monkeypatch.setattr(launch, "_print_comparison", lambda jobs, folder: None)
    monkeypatch.setattr(sys, "argv", ["swe_rl"])
    return done


def test_a_submitted_job_has_the_time_at_which_it_was_checked(tmp_path, started):
    ready = prepared(tmp_path, 2, *TIMED)
    recorded = [json.loads((tmp_path / "frozen" / "jobs" / f"{number}.json").read_text()) for number in range(2)]
    for job, then in zip(ready.submission.jobs, recorded, strict=True):
        assert launch.start_submitted(tmp_path, job.number, "12") == 0
        assert started[-1].name == then["name"]
        assert started[-1].logger.project == then["logger.project"]
    assert recorded[0]["name"] != recorded[1]["name"]
    times = tmp_path / "frozen" / "times.json"
    times.unlink()
    assert launch.start_submitted(tmp_path, 0, "13") == 2


def test_the_servers_beside_a_job_have_its_times(tmp_path, monkeypatch, started):
    """What a server composes is what its run has, also what is called by the time."""
    ready = prepared(tmp_path, 1, *TIMED, *SERVERS)
    record = json.loads((tmp_path / "frozen" / "jobs" / "0.json").read_text())
    script = ready.beside[0][0].path.read_text()
    [line] = [line for line in script.splitlines() if line.startswith(f"export {TIMES_VARIABLE}=")]
    [assigned] = shlex.split(line.removeprefix("export "))
    monkeypatch.setenv(TIMES_VARIABLE, assigned.partition("=")[2])
    monkeypatch.setattr(dispatch, "may_start", lambda composed, again: True)
    [job] = ready.submission.jobs
    assert launch.run_command([*server_overrides(job.overrides, tmp_path, 0), f"hydra.run.dir={tmp_path}/server"]) == 0
    assert started[-1].job.name == "runtime"
    assert (started[-1].name, started[-1].logger.project) == (record["name"], record["logger.project"])


@pytest.mark.parametrize("more", [["trainer.seed=0,1"], ["trainer.seed=0,1", "rollout.n=2,4"]])
def test_a_sweep_may_be_called_by_the_time(tmp_path, monkeypatch, started, more):
    """Hydra starts its jobs, and where arms are repeated we do."""
    monkeypatch.chdir(tmp_path)
    assert launch.run_command(["--multirun", "job=rollout", *TIMED, *more]) == 0
    assert len(started) == 2 ** len(more)


def test_only_jobs_that_describe_this_machine_get_other_hardware(tmp_path):
    """Wherever a job's hardware was chosen: on the command line, or in the file of an experiment."""
    for group in ("experiment", "hardware"):
        (tmp_path / group).mkdir()
    (tmp_path / "hardware" / "mine.yaml").write_text("name: mine\npartition: big\ncpus_per_node: 8\nmemory_gb: 8\n")
    (tmp_path / "experiment" / "plain.yaml").write_text("# @package _global_\nname: plain\n")
    for name in ("mine", "auto"):
        text = f"# @package _global_\ndefaults: [_self_, {{override /hardware: {name}}}]\nname: {name}\n"
        (tmp_path / "experiment" / f"{name}.yaml").write_text(text)
    given = ["+experiment=mine,plain,auto", "job=rollout", "hydra/launcher=submitit_slurm"]
    jobs = [*expand_sweep(given, tmp_path), *expand_sweep([*given[1:], "hardware=mine,auto"], tmp_path)]
    ready = _without_this_machine([compose(job, tmp_path) for job in jobs], tmp_path)
    assert [job.config.hardware.name for job in ready] == ["mine", "cpu", "cpu", "mine", "cpu"]
    assert [job.config.hardware.partition for job in ready] == ["big", None, None, "big", None]
    assert [job.config.name for job in ready[:3]] == ["mine", "plain", "auto"]
    assert ready[0].overrides == tuple(jobs[0])
    assert ready[1].overrides == (*jobs[1], "hardware=cpu")


def test_options_may_be_in_the_folder_of_a_project(tmp_path, monkeypatch):
    """Its outputs are below it, the new sweep too, and links may lead back: none of that goes along, and all options
    do."""
    monkeypatch.chdir(tmp_path)
    text = "name: mine\ncpus_per_node: 2\n"
    options = [
        "hardware/mine.yaml",
        "hardware/mine/deep.yaml",
        "hydra/launcher/mine.yaml",
        "own/x.yaml",
        "own2/a/x.yaml",
    ]
    run = ["outputs/train/old/config.yaml", "outputs/train/old/checkpoint.bin", ".venv/x.yaml", "hardware/notes.txt"]
    for name in (*options, *run, "base.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "hardware" / "gone.yaml").symlink_to(tmp_path / "no_such_file")
    (tmp_path / "hardware" / "back").symlink_to(tmp_path)
    (tmp_path / "hardware" / "again").symlink_to(tmp_path / "own")
    (tmp_path / "own" / "round").symlink_to(tmp_path / "hardware")
    job = compose(["hardware=mine", "trainer.seed=0"], Path())
    for sweep in (Path(job.sweep_dir).absolute(), tmp_path / "hardware" / "sweep", tmp_path / "own3"):
        frozen = freeze_jobs(sweep, [job], Path(), code=False)
        copies = {str(path.relative_to(frozen.config_dir)) for path in frozen.config_dir.rglob("*") if path.is_file()}
        links = {"hardware/again/x.yaml", "own/round/mine.yaml", "own/round/mine/deep.yaml"}
        assert copies == {*options, "base.yaml", *links}
        assert compose(["hardware=mine"], frozen.config_dir).config.hardware == job.config.hardware
        shutil.rmtree(sweep)


def test_scripts_of_launchers_go_along_to_the_jobs_and_their_servers(tmp_path):
    """They are those of the submission, whatever becomes of the checkout's."""
    named = 'source "$SWE_RL_LAUNCHERS/containers_on_scratch.sh"'
    ready = prepared(tmp_path, 2, *SERVERS, f"hardware.setup=['{named}']", f"runtime.setup=['{named}']")
    folder = tmp_path / "frozen" / "launchers"
    assert len(ready.scripts) == 5
    for script in ready.scripts:
        lines = script.read_text().splitlines()
        exported = lines.index(f"export SWE_RL_LAUNCHERS={folder}")
        assert named in lines[exported:]
        assert str(launchers_dir()) not in script.read_text()
    copy = folder / "containers_on_scratch.sh"
    assert copy.read_bytes() == (launchers_dir() / copy.name).read_bytes()


def test_one_job_is_no_array(tmp_path):
    slurm = Slurm()
    submission = submit_prepared(prepared(tmp_path, 1), slurm)
    assert "--array" not in Path(slurm.submitted[0][-1]).read_text()
    assert [(job.slurm_id, job.folder) for job in submission.jobs] == [("100", "0")]


def test_servers_are_submitted_beside_and_wait_only_for_jobs_that_wait(tmp_path):
    slurm = Slurm()
    ready = prepared(tmp_path, 3, "hydra.launcher.array_parallelism=2", *SERVERS)
    submission = submit_prepared(ready, slurm)
    assert len(slurm.submitted) == 1 + 3 * 2
    waits = [arguments[1] for arguments in slurm.submitted if arguments[1].startswith("--dependency")]
    assert waits == ["--dependency=after:100_2"] * 2, "never afterok: a server does not end well"
    assert submission.jobs[1].beside == {"runtime0": "103", "runtime1": "104"}
    assert submission.slurm_ids == ["100", *map(str, range(101, 107))]
    assert ready.beside[1][0].meeting.jobs() == {"trainer": "100_1", "runtime0": "103", "runtime1": "104"}
    ready.beside[1][0].meeting.note_jobs(runtime1="200")
    assert submission.jobs[1].servers() == {"runtime0": "103", "runtime1": "200"}, "it was submitted again"
    ready.beside[1][0].meeting.log(1).write_text("served")
    assert list(submission.jobs[1].server_logs()) == ["runtime1"]
    for one in (one for companions in ready.beside for one in companions):
        assert one.path.is_file() and "job.detach" not in one.path.read_text()


@pytest.mark.parametrize("refused", ["jobs.sh", "runtime_1.sh"])
def test_a_refusal_takes_back_what_was_submitted(tmp_path, refused):
    slurm = Slurm(refused)
    with pytest.raises(SubmissionError, match=r"SLURM refused .*invalid partition"):
        submit_prepared(prepared(tmp_path, 1, *SERVERS), slurm)
    assert slurm.cancelled == [str(99 + number) for number in range(len(slurm.submitted), 0, -1)]
    assert all(job.slurm_id is None for job in read_submission(tmp_path).jobs)


@pytest.mark.parametrize("at", [1, 2])
def test_ctrl_c_while_sbatch_answers_takes_back_what_it_has_submitted(tmp_path, capsys, at):
    slurm = Slurm()

    def interrupted(command, timeout_s, environ):
        if command[0] == "sbatch" and len(slurm.submitted) == at - 1:
            signal.raise_signal(signal.SIGINT)
        return slurm(command, timeout_s, environ)

    with pytest.raises(KeyboardInterrupt):
        submit_prepared(prepared(tmp_path, 1, *SERVERS), interrupted)
    assert slurm.cancelled == ["101", "100"][-at:]
    assert "sbatch has to answer first" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_controller_that_is_too_slow_may_have_taken_the_job(tmp_path):
    def slow(command, timeout_s, environ):
        raise NoAnswerInTime(command)

    def told(command, timeout_s, environ):
        return Completed(1, "", "sbatch: error: Socket timed out on send/recv operation")

    for run in (slow, told):
        folder = tmp_path / run.__name__
        with pytest.raises(SubmissionError, match="squeue --me"):
            submit_prepared(prepared(folder, 1), run)


def test_a_job_is_compared_with_what_was_checked_however_deep_its_folder_is(tmp_path):
    prepared(tmp_path, 2)
    job = tmp_path / "seed_1" / "1"
    verify_frozen(job, 1, compose(["hydra/launcher=submitit_slurm", "trainer.seed=1"]))
    with pytest.raises(ConfigError, match=r"trainer\.seed=7, then 1"):
        verify_frozen(job, 1, compose(["trainer.seed=7"]))


def test_a_job_that_meets_other_packages_is_warned_of(tmp_path, monkeypatch):
    prepared(tmp_path, 2)
    assert other_packages(tmp_path / "1", 1) == []
    then = summary.package_versions()
    monkeypatch.setattr(freezing, "package_versions", lambda: {**then, "torch_version": "9.9.9", "vllm_version": None})
    [found] = other_packages(tmp_path / "seed_1" / "1", 1)
    assert found.severity is Severity.warning and f"torch 9.9.9, then {then['torch_version']}" in found.message
    assert "python" not in found.message  # which is the same
    assert other_packages(tmp_path / "1", None) == [] == other_packages(tmp_path.parent / "alone", 1)


def test_without_sbatch(tmp_path, monkeypatch):
    monkeypatch.setattr("swe_rl.submission.submit.has_slurm", lambda: False)
    with pytest.raises(SubmissionError, match="login node"):
        submit_prepared(prepared(tmp_path, 1), Slurm())


def test_no_script_holds_a_secret(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "planted-secret-77aa")
    ready = prepared(tmp_path, 2, "+hardware.env_vars.MY_API_KEY=planted-secret-e0d9", *SERVERS)
    for path in [path for path in tmp_path.rglob("*") if path.is_file()]:
        assert b"planted-secret" not in path.read_bytes(), path
    assert len(ready.scripts) == 5


def folders(*given, count=2):
    return job_folders([compose([*given, f"trainer.seed={seed}"]) for seed in range(count)])


def test_folders_are_those_that_hydra_would_make():
    assert folders() == ["0", "1"]
    assert folders("hydra.sweep.subdir='seed_${trainer.seed}/${hydra.job.num}'") == ["seed_0/0", "seed_1/1"]


def test_folders_that_nobody_knows_before_are_refused():
    with pytest.raises(ConfigError, match="is not known before the job runs"):
        folders("hydra.sweep.subdir='${hydra.job.id}_${hydra.job.num}'")
    with pytest.raises(ConfigError, match="the same folder"):
        folders("hydra.sweep.subdir='${name}'")


def test_a_job_knows_its_id():
    assert job_id({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}) == "7_2"
    assert job_id({}) == ""


def test_a_task_that_is_started_wrongly_says_how(capsys):
    assert main(["/n/sweep"]) == 2 and main(["/n/sweep", "x"]) == 2
    assert "usage: python -m swe_rl.cli.slurm_task FOLDER NUMBER" in capsys.readouterr().err


def test_an_array_that_the_cluster_does_not_take_is_refused_by_the_start_and_by_its_check(
    tmp_path, monkeypatch, capsys
):
    slurm = Slurm()
    slurm.most = 2
    assert submit_prepared(prepared(tmp_path / "a", 2), slurm).slurm_ids
    with pytest.raises(SubmissionError, match=r"(?i)(the sweep has 3 jobs, .*\(MaxArraySize[^)]*\))") as refused:
        submit_prepared(prepared(tmp_path / "b", 3), slurm)
    assert len(slurm.submitted) == 1
    monkeypatch.setattr("swe_rl.cli.dispatch.array_problem", lambda size: array_problem(size, slurm))
    settings = ["hydra/launcher=submitit_slurm", "job=check"]
    for preflight, passes in (("true", False), ("false", True)):
        words = [*settings, f"job.preflight={preflight}"]
        assert checks_pass([compose([*words, f"trainer.seed={seed}"]) for seed in range(3)]) is passes
    said = " ".join(capsys.readouterr().err.split())
    assert str(refused.value).partition(".")[0].removeprefix("The sweep") in said


@pytest.mark.parametrize("name", ["a b", "a=0", "a\\=0", "it's", 'say "x"', "$HOME", "plain"])
def test_ways_on_can_be_pasted(tmp_path, name):
    """A shell and Hydra read the folder that is meant."""
    done = submit_prepared(prepared(tmp_path / name, 1), Slurm())
    lines = [shlex.split(line.partition(":")[2]) for line in ways_on(tmp_path / name, done)]
    ours = [words for words in lines if "scancel" not in words]
    assert ours
    for words in ours:
        assert compose([word for word in words if "=" in word]).config.job.runs == str(tmp_path / name)
