"""bench/full_disk: a disk that takes no more, at files that a real run was seen to write."""

import errno
import os
import shutil
import subprocess
import sys

import pytest

from bench.full_disk import MIRRORS, Seen, Trial, _of_the_end, built, kinds, main, trials

needs_a_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


def test_files_are_told_apart_by_what_they_are(tmp_path):
    run = tmp_path / "outputs" / "train" / "2026-11-25_09-41-11-718998"
    paths = [
        str(run / "steps.jsonl"),
        str(run / ".status.json.77.0123456789ab.tmp"),
        str(run / "trajectories" / "step_000001.jsonl"),
        str(run / "trajectories" / "step_000002.jsonl"),
        str(run / "checkpoints" / ".step_000002.aside-77" / "state.json"),
        str(tmp_path / "tmp" / "other"),
    ]
    assert kinds(paths, tmp_path) == {
        "steps.jsonl": 1,
        "status.json": 1,
        "trajectories/step_*.jsonl": 2,
        "checkpoints/step_*/state.json": 1,
    }


def test_each_file_is_tried_in_each_way():
    made = trials("embedded", {"steps.jsonl": 6, "traces.db": 2}, "*", ("full", "read_only"))
    assert [(trial.file, trial.fault, trial.after) for trial in made] == [
        ("steps.jsonl", "full", 3),
        ("steps.jsonl", "read_only", 0),
        ("traces.db", "full", 1),
        ("traces.db", "read_only", 0),
    ]
    assert len(trials("embedded", {"steps.jsonl": 6, "traces.db": 2}, "t*", ("full",))) == 1


@pytest.mark.parametrize(
    ("file", "status", "said", "violated"),
    [
        ("steps.jsonl", 1, "run failed: cannot write steps.jsonl: No space left on device", False),
        ("steps.jsonl", 0, "done", True),
        (MIRRORS[0], 0, "done", False),
        ("trainer/rank0.log", 0, "done", False),
        ("steps.jsonl", 1, "Traceback (most recent call last): No space left on device", True),
        ("steps.jsonl", 1, "run failed: something", True),
        ("steps.jsonl", None, "", True),
        ("steps.jsonl", -9, "No space left on device", True),
    ],
)
def test_how_a_start_may_end(file, status, said, violated):
    seen = Seen(Trial("embedded", file, "full"), hit=True, status=status, said=said)
    assert bool(list(_of_the_end(seen, file))) is violated


@needs_a_compiler
def test_what_is_preloaded_fails_one_file_or_all(tmp_path):
    code = (
        "import errno, os, sys\n"
        "def outcome(path, data=b'12345678'):\n"
        "    try:\n"
        "        with open(path, 'wb', buffering=0) as file:\n"
        "            done = 0\n"
        "            while done < len(data): done += file.write(data[done:])\n"
        "    except OSError as error: return errno.errorcode[error.errno]\n"
        "    return 'whole'\n"
        "print(*[outcome(os.path.join(sys.argv[1], name)) for name in ('a', 'b', 'b', 'a')])\n"
    )

    def run(fault, **more):
        (tmp_path / "said").unlink(missing_ok=True)
        given = {
            "FULL_DISK_AT": f"{tmp_path}/b",
            "FULL_DISK_SAID": f"{tmp_path}/said",
            "FULL_DISK_BELOW": f"{tmp_path}",
        }
        environ = {**os.environ, "LD_PRELOAD": str(built(tmp_path)), "FULL_DISK_ERROR": str(fault), **given, **more}
        command = [sys.executable, "-c", code, str(tmp_path)]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout.split()

    assert run(errno.ENOSPC) == ["whole", "ENOSPC", "ENOSPC", "whole"]
    assert (tmp_path / "said").read_text() == f"{tmp_path}/b\n"
    assert run(errno.ENOSPC, FULL_DISK_AFTER="1") == ["whole", "whole", "ENOSPC", "whole"]
    assert run(errno.ENOSPC, FULL_DISK_ALL="1") == ["whole", "ENOSPC", "ENOSPC", "ENOSPC"]
    assert run(errno.EROFS) == ["whole", "EROFS", "EROFS", "whole"]
    frozen = {"FULL_DISK_ALL": "1", "FULL_DISK_AFTER": "1"}
    assert run(errno.EROFS, **frozen) == ["whole", "whole", "EROFS", "EROFS"]
    assert run(errno.EACCES, **frozen) == ["whole", "whole", "whole", "EACCES"]  # what was open is still written


@needs_a_compiler
@pytest.mark.parametrize("fault", [errno.EROFS, errno.EACCES])
def test_a_frozen_folder_takes_no_change(tmp_path, fault):
    code = (
        "import errno, os, shutil, sys\n"
        "def outcome(act, *paths):\n"
        "    try: act(*(os.path.join(sys.argv[1], path) for path in paths))\n"
        "    except OSError as error: return errno.errorcode[error.errno]\n"
        "    return 'done'\n"
        "def all_of_it(last):\n"
        "    yield outcome(os.mkdir, f'made{last}')\n"
        "    yield outcome(os.rename, 'old', f'old{last}')\n"
        "    yield outcome(os.unlink, f'gone{last}')\n"
        "    yield outcome(os.rmdir, f'empty{last}')\n"
        "    yield outcome(shutil.rmtree, f'tree{last}')\n"
        "before = list(all_of_it(1))\n"
        "with open(os.path.join(sys.argv[1], 'b'), 'wb', buffering=0) as file:\n"
        "    try: file.write(b'12')\n"
        "    except OSError: pass\n"
        "print(*before, *all_of_it(2))\n"
    )
    for folder in ("empty1", "empty2", "tree1/a", "tree2/a"):
        (tmp_path / "disk" / folder).mkdir(parents=True)
    for file in ("old", "gone1", "gone2", "tree1/a/file", "tree2/a/file"):
        (tmp_path / "disk" / file).touch()
    given = {"FULL_DISK_AT": f"{tmp_path}/disk/b", "FULL_DISK_BELOW": f"{tmp_path}/disk", "FULL_DISK_ALL": "1"}
    given |= {"FULL_DISK_SAID": f"{tmp_path}/said", "FULL_DISK_ERROR": str(fault)}
    environ = {**os.environ, "LD_PRELOAD": str(built(tmp_path)), **given}
    command = [sys.executable, "-c", code, str(tmp_path / "disk")]
    said = subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout.split()
    assert said == ["done"] * 5 + [errno.errorcode[fault]] * 5
    assert (tmp_path / "disk" / "tree2" / "a" / "file").exists()


@pytest.mark.slow
@needs_a_compiler
def test_a_short_form_loses_nothing(tmp_path, monkeypatch):
    """An evaluation without a model: the disk is full in the middle of its results; with room it goes on."""
    monkeypatch.setenv("LD_PRELOAD", "")
    words = ["--jobs", "short", "--faults", "full", "--only", "trajectories/*", "--side-by-side", "1"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    assert len((tmp_path / "disks.jsonl").read_text().splitlines()) == 1
