"""A start goes on with its own run or in a folder of its own; nothing of anybody else is touched."""

import json
import os
import shutil
import sys
import threading
import types
from contextlib import nullcontext

import pytest

from swe_rl.cli import launch
from swe_rl.config.composition.values import config_hash
from swe_rl.errors import RunError, UserError
from swe_rl.hardware.slurm.jobs import current_allocation
from swe_rl.logger.folder import FolderInUse, RunFolder, RunState
from swe_rl.logger.jsonl import read_events
from swe_rl.run import which_folder
from swe_rl.run.which_folder import choose_folder, earlier_of
from tests.support.ended_runs import leave, status, warn


def test_auto_continues_the_newest_unfinished_run_in_its_own_folder(make, fresh):
    config = make("trainer.resume=auto")
    old = fresh("old")
    with pytest.raises(KeyboardInterrupt):
        leave(config, old, KeyboardInterrupt())
    new = fresh("new")
    one = leave(config, new)
    assert one.resumed and one.folder.path == old and not new.exists()
    assert status(old).status is RunState.done and status(old).resumes == 1
    names = [event["event"] for event in read_events(old / "events.jsonl")]
    assert names == ["started", "stopped", "resumed", "stopped"]
    again = fresh("again")
    assert not leave(config, again).resumed and again.exists()  # the old one is done


def test_a_resumed_run_removes_what_a_killed_writer_left_aside(make, fresh):
    config, path = make("trainer.resume=auto"), fresh()
    with pytest.raises(RunError):
        leave(config, path, RunError("broke"))
    left = [path / ".status.json.77.0123456789ab.tmp", path / "trajectories" / ".eval.json.1.ba9876543210.tmp"]
    foreign = [path / ".weights.tmp", path / ".other.tmp", path / "0123456789ab.tmp"]
    for file in (*left, *foreign):
        file.touch()
    assert leave(config, fresh("again")).folder.path == path
    assert not any(file.exists() for file in left) and all(file.exists() for file in foreign)


def test_auto_does_not_continue_another_configuration_or_a_live_run(make, fresh):
    config, old = make("trainer.resume=auto"), fresh("old")
    with pytest.raises(RunError):
        leave(config, old, RunError("broke"))
    other = make("trainer.resume=auto", "trainer.lr=0.1")
    assert not choose_folder(other, fresh("a"))[1]
    with RunFolder(old).create().acquire():
        assert not choose_folder(config, fresh("b"))[1]
    assert choose_folder(config, fresh("c"))[1]


def test_a_folder_that_is_named_again_is_continued_or_refused(make, fresh):
    """`hydra.run.dir` may be anywhere: what `paths.outputs` holds is not all there is."""
    config, path = make("trainer.resume=auto"), fresh("named")
    with pytest.raises(RunError):
        leave(config, path, RunError("broke"))
    folder, resumed = choose_folder(config, path)
    assert folder.path == path and resumed
    assert choose_folder(make(f"trainer.resume={path}"), path)[1]
    for other in (make(), make("trainer.resume=auto", "trainer.lr=0.1")):
        with pytest.raises(UserError, match=r"named has the files of an earlier run \(failed, step 0\)"):
            choose_folder(other, path)
    leave(config, path)
    with pytest.raises(UserError, match=r"earlier run \(done"):
        choose_folder(config, path)
    with RunFolder(path).acquire(), pytest.raises(FolderInUse, match="live run"):
        choose_folder(make(), path)


def test_none_starts_anew(make, fresh):
    config, old = make("trainer.resume=none"), fresh("old")
    with pytest.raises(RunError):
        leave(config, old, RunError("broke"))
    folder, resumed = choose_folder(config, fresh("new"))
    assert folder.path.name == "new" and not resumed


def test_a_path_that_cannot_be_continued(make, fresh, tmp_path):
    path = fresh("new")
    with pytest.raises(UserError, match=r"trainer\.resume=.*nowhere.*no readable status"):
        choose_folder(make(f"trainer.resume={tmp_path / 'nowhere'}"), path)
    old = fresh("old")
    leave(make(), old)
    with pytest.raises(UserError, match="another configuration"):
        choose_folder(make(f"trainer.resume={old}", "trainer.lr=0.1"), path)
    assert path.exists()
    folder, resumed = choose_folder(make(f"trainer.resume={old}"), path)
    assert folder.path == old and resumed


def test_a_given_folder_that_is_in_use_is_refused_and_the_fresh_one_stays(make, fresh):
    config, old = make(), fresh("old")
    leave(config, old)
    with RunFolder(old).create().acquire(), pytest.raises(UserError, match="live run"):
        leave(make(f"trainer.resume={old}"), fresh("new"))
    assert (old.parent / "new").exists()


@pytest.mark.parametrize("names", [("old", "old"), ("old", "new"), ("../multirun/train/1/0", "../multirun/train/2/0")])
@pytest.mark.parametrize("resume", ["none", "auto"])
def test_a_job_that_is_started_again_goes_on_whatever_resume_says(make, fresh, slurm, names, resume):
    config, old = make(f"trainer.resume={resume}"), fresh(names[0])
    warn(config, old)
    slurm(1)
    new = fresh(names[1]) if names[1] != names[0] else old
    one = leave(config, new)
    assert one.resumed and one.folder.path == old and (new == old or not new.exists())
    assert (status(old).status, status(old).resumes, status(old).step) == (RunState.done, 1, 3)
    slurm(2)
    assert leave(config, old).resumed  # queued again by hand though it was done: nothing is lost


def test_a_job_killed_without_a_word_goes_on_as_well(make, fresh, slurm):
    config, old = make(), fresh("old")
    with pytest.raises(RunError):
        leave(config, old, RunError("the node fails"))
    slurm(1)
    assert leave(config, fresh("new")).folder.path == old


def test_a_configuration_that_changed_in_the_queue_is_refused(make, fresh, slurm):
    warn(make(), fresh("old"))
    slurm(1)
    with pytest.raises(UserError, match=r"job 7 was queued again, and its configuration is not the one"):
        leave(make("trainer.lr=0.1"), fresh("new"))


def test_the_earlier_start_may_still_hold_the_folder(make, fresh, slurm, monkeypatch):
    monkeypatch.setattr("swe_rl.run.which_folder._LOOK_S", 0.05)
    config, old = make(), fresh("old")
    warn(config, old)
    slurm(1)
    held = RunFolder(old).acquire()
    threading.Timer(0.8, held.release).start()
    assert leave(config, old).resumed


def test_a_run_is_brought_back_from_its_copy_on_another_nodes_disk(make, fresh, slurm, tmp_path):
    config, old = make(f"paths.sync_to={tmp_path / 'there'}"), fresh("old")
    warn(config, old)
    copy = tmp_path / "there" / "job_7_train"
    assert json.loads((copy / "status.json").read_text())["status"] == "requeued"
    shutil.rmtree(old)
    slurm(1)
    new = fresh("new")
    one = leave(config, new)
    assert one.resumed and one.folder.path == new and status(new).resumes == 1
    assert json.loads((copy / "status.json").read_text())["status"] == "done"


def test_arms_of_one_configuration_keep_their_folders(make, fresh, slurm):
    """What tells them apart may be no part of the hash, as `logger` is none."""
    arms = [(name, make(f"logger.{key}")) for name, key in (("a", "tensorboard=true"), ("b", "tensorboard=false"))]
    for name, config in arms:
        (path := fresh(name)).joinpath(".hydra").mkdir()
        (path / ".hydra" / "overrides.yaml").write_text(f"- logger.tensorboard={config.logger.tensorboard}\n")
        warn(config, path)
    slurm(1)
    for name, config in arms:
        given = [f"logger.tensorboard={config.logger.tensorboard}"]
        assert choose_folder(config, fresh(f"{name}2"), current_allocation(os.environ), given)[0].path.name == name


@pytest.mark.parametrize("in_slurm", [True, False])
def test_runs_of_one_job_have_copies_of_their_own(make, fresh, slurm, monkeypatch, tmp_path, in_slurm):
    sync, there = f"paths.sync_to={tmp_path / 'there'}", tmp_path / "there"
    configs = [make(sync, f"trainer.seed={seed}") for seed in (0, 1)]
    arms = [f"../multirun/train/{sweep}/0" for sweep in "abcd"]
    if not in_slurm:
        monkeypatch.delenv("SLURM_JOB_ID")
        for arm, config in zip(arms, configs, strict=False):
            leave(config, fresh(arm))
        assert sorted(path.name for path in there.iterdir()) == ["job_a_0_train", "job_b_0_train"]
        return
    for arm, config in zip(arms, configs, strict=False):
        warn(config, fresh(arm))
    shutil.rmtree(tmp_path / "multirun")
    slurm(1)
    for arm, config in zip(arms[2:], configs, strict=True):
        one = leave(config, fresh(arm))
        assert one.resumed and one.folder.status().config_hash == config_hash(config)
    found = [json.loads((there / name / "status.json").read_text()) for name in ("job_7_train", "job_7_train_2")]
    assert [(status["config_hash"], status["resumes"]) for status in found] == [(config_hash(c), 1) for c in configs]
    assert len(list(there.iterdir())) == 2


def broken(config, path):
    with pytest.raises(RunError):
        leave(config, path, RunError("broke"))
    return path


@pytest.mark.parametrize("resume", ["auto", "old"])
@pytest.mark.parametrize("what", ["their file", "done run", "live run", "here"])
def test_a_named_folder_that_is_somebodys_stays(make, fresh, monkeypatch, tmp_path, resume, what):
    old, path = broken(make("trainer.resume=auto"), fresh("old")), fresh("named")
    config = make(f"trainer.resume={old if resume == 'old' else resume}")
    if what == "here":
        monkeypatch.chdir(path)
    elif what == "their file":
        (path / "notes.txt").touch()
    elif what == "done run":
        leave(make("trainer.lr=0.1"), path)
    with RunFolder(path) if what == "live run" else nullcontext():
        if "run" in what:
            with pytest.raises(UserError, match=r"earlier run \(done|live run"):
                leave(config, path)
        else:
            assert leave(config, path).folder.path == old
    assert (path / "config.yaml").is_file()


@pytest.mark.parametrize("older", [False, True])  # whose status.json does not name the job
def test_a_run_is_continued_by_its_own_job_only(make, fresh, older):
    old, named = fresh("old"), "name=train"
    broken(make(), old)
    if older:
        record = json.loads((old / "status.json").read_text())
        assert record.pop("job") == "train"
        (old / "status.json").write_text(json.dumps(record))
    assert choose_folder(make("job=eval", named, "trainer.resume=auto"), fresh("a"))[1] is older
    assert choose_folder(make("trainer.resume=auto"), fresh("b"))[1]
    if not older:
        with pytest.raises(UserError, match="is a run of job=train, and this is job=eval"):
            choose_folder(make("job=eval", named, f"trainer.resume={old}"), fresh("c"))
        with pytest.raises(UserError, match="earlier run"):
            choose_folder(make("job=eval", named, "trainer.resume=auto"), old)


@pytest.mark.parametrize("resume", ["auto", "named", "none"])
def test_exports_are_looked_for_in_all_places_that_a_start_looks_at(make, fresh, slurm, tmp_path, monkeypatch, resume):
    """`earlier_of` asks for a run of each export only where it saw one: a place that it misses would hide a run."""
    sync, looked = f"paths.sync_to={tmp_path / 'there'}", set()
    arms = ["first", "sweep/0", "../multirun/train/sweep/0"]
    for seed, arm in enumerate(arms):
        warn(make(sync, f"trainer.seed={seed}"), fresh(arm))
    named = leave(make("trainer.seed=3"), fresh("../elsewhere/run")).folder.path
    seed = 3 if resume == "named" else 9
    word = f"trainer.resume={named if resume == 'named' else resume}"
    config, other = (make(sync, word, f"trainer.seed={number}") for number in (seed, 8))
    slurm(1)
    here, new = current_allocation(os.environ), fresh("new")
    status_of, record_of = RunFolder.status, which_folder.read_record
    monkeypatch.setattr(RunFolder, "status", lambda self: looked.add(self.path.resolve()) or status_of(self))
    monkeypatch.setattr(which_folder, "read_record", lambda path: looked.add(path.parent.resolve()) or record_of(path))
    choose_folder(config, new, here, ["trainer.seed=9"])
    of_a_start = set(looked)
    looked.clear()
    assert earlier_of([other], new, here, []) is None
    copies = {path.resolve() for path in (tmp_path / "there").iterdir()}
    runs = {(tmp_path / "train" / arm).resolve() for arm in arms}
    assert len(copies) == 3 and {new, *copies, *runs} <= of_a_start <= looked
    assert (named.resolve() in of_a_start) == (resume == "named")


def test_a_script_with_several_runs_starts_those_that_it_had_not_begun(make, fresh, slurm, tmp_path):
    def given(name, text):
        path = fresh(name)
        (path / ".hydra").mkdir()
        (path / ".hydra" / "overrides.yaml").write_text(f"- {text}\n")
        return path

    sync = f"paths.sync_to={tmp_path / 'there'}"
    warn(make(sync), given("first", "trainer.seed=0"))
    slurm(1)
    second = make("trainer.seed=1", sync)
    assert leave(second, given("second", "trainer.seed=1")).folder.name == "second"
    shutil.rmtree(tmp_path / "train" / "first")
    slurm(2)
    assert not choose_folder(
        make("job=eval", "name=train", sync), given("third", "job=eval"), current_allocation(os.environ)
    )[1]
    assert {entry.name for entry in (tmp_path / "train" / "third").iterdir()} == {".hydra", "config.yaml"}
    with pytest.raises(UserError, match=r"second.config\.yaml\): conf/ or the environment has changed"):
        leave(make("trainer.lr=0.1", sync), given("fourth", "trainer.seed=1"))


@pytest.fixture
def typed(monkeypatch, tmp_path, capsys):
    """typed(words): what the command said; its job begins and ends."""
    module = types.ModuleType("swe_rl.job.train")
    module.run = lambda config, folder: 0 if leave(config, folder) else 1
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.chdir(tmp_path)

    def command(*words):
        status = launch.run_command([f"paths.outputs={tmp_path}", *words])
        return status, " ".join(capsys.readouterr().err.split())

    return command


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_start_that_is_refused_writes_nothing_over_what_is_there(typed, tmp_path):
    assert typed("hydra.run.dir=X")[0] == 0
    before = contents(tmp_path / "X")
    for locked in (False, True):
        with RunFolder(tmp_path / "X") if locked else nullcontext():
            status, said = typed("hydra.run.dir=X", "trainer.lr=0.1")
        assert status == 2 and ("live run" if locked else "earlier run (done, step 0)") in said
        assert {path: text for path, text in contents(tmp_path / "X").items() if path.name != ".lock"} == {
            path: text for path, text in before.items() if path.name != ".lock"
        }


@pytest.mark.parametrize("folder", [".", "theirs"])
@pytest.mark.parametrize("word", ["trainer.lr=0.1", "trainer.resume=nowhere"])
def test_somebodys_own_config_yaml_stays(typed, tmp_path, folder, word):
    path = tmp_path / folder
    path.mkdir(exist_ok=True)
    (path / "config.yaml").write_text("theirs: 1\n")
    status, _ = typed(f"hydra.run.dir={folder}", word)
    assert status == 2 and (path / "config.yaml").read_text() == "theirs: 1\n"
