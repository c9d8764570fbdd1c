"""The command line as a user meets it: exit status, streams, folders, imports. Each case is one process.

Most are forked from a process that has the imports done. `cold` ones start from nothing, as a user's do: what is said
of imports and time, one mistake, one run with its folder.
"""

import importlib.util
import json
import os
import re
import resource
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from swe_rl.__main__ import _spelled_out
from swe_rl.host.packages import REQUIRED
from tests.support.command import LIGHT, warm

HEAVY = ("torch", "transformers", "ray", "aiohttp", "vllm", "datasets", "wandb", "numpy")
SECRET = "qz7-never-on-disk"
# Stands in for the training loop: the path from the command line to a job and back is what is tested here.
FAKE_JOB = """
import sys, types
from swe_rl.errors import RunError, UserError
def run(config, folder):
    kind = config.model.revision
    assert (folder / ".hydra" / "config.yaml").is_file() and (folder / "config.yaml").is_file()
    print("ran", config.trainer.seed, folder.name, len(config.hardware.env_vars.get("HF_TOKEN", "")))
    if kind == "user": raise UserError("refused by the job")
    if kind == "run": raise RunError("engine died") from OSError("gone")
    if kind == "bug": raise KeyError("odd")
    if kind == "interrupt": raise KeyboardInterrupt
    return 0
job = types.ModuleType("swe_rl.job.train")
job.run = run
sys.modules["swe_rl.job.train"] = job
from swe_rl.__main__ import main
sys.exit(main())
"""


def cli(*arguments, cwd, fake=False, cold=False):
    program = ["-c", FAKE_JOB] if fake else ["-m", "swe_rl"]
    root = str(Path(__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": root, "COLUMNS": "120"}
    environment.pop("WANDB_API_KEY", None)
    if not cold and (forked := warm(LIGHT).start(list(arguments), cwd, environment, FAKE_JOB if fake else "")):
        return forked.completed(60)
    return subprocess.run(
        [sys.executable, *program, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=60
    )


def takes_at_most(bound_s, *arguments, cwd, times=3):
    """CPU seconds of the quickest of some runs: a busy machine makes each wait, and slower as well."""
    for _ in range(times):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert cli(*arguments, cwd=cwd, cold=True).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < bound_s:
            return True
    return False


def test_help_and_check_are_fast(tmp_path):
    assert takes_at_most(0.6, "--help", cwd=tmp_path)
    assert takes_at_most(1.5, "job=check", cwd=tmp_path)


@pytest.mark.parametrize("arguments", [["--help"], ["job=check"], ["job=plan"], ["job=describe", "job.topic=rollout"]])
def test_light_jobs_import_nothing_heavy_and_leave_nothing(arguments, tmp_path):
    code = (
        "import sys; from swe_rl.__main__ import main; status = main(); "
        f"print('HEAVY', [name for name in {HEAVY!r} if name in sys.modules], status)"
    )
    root = str(Path(__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.splitlines()[-1] == "HEAVY [] 0", done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["rollout.nn=3"], "Unknown key 'rollout.nn'"),
        (["model=nope"], "no option 'nope'"),
        (["rollout.n=("], "Cannot read the override"),
        (["--bogus"], "Unrecognized arguments: --bogus"),
        (["hydra/launcher=submitit_slurm"], "hydra/launcher"),
        (["rollout.n=0", "trainer.lr=-1"], "Nothing was started."),
        (["--multirun", "trainer.offload_optimizer=false,true"], "not available yet"),
        (["--cfg", "job", "rollout.nn=3"], "Unknown key"),
    ],
)
def test_a_users_mistake_is_status_2_without_traceback_or_folder(arguments, part, tmp_path):
    done = cli(*arguments, cwd=tmp_path, cold="trainer.lr=-1" in arguments)
    assert done.returncode == 2
    assert part in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr and done.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key", ["hydra.run.dir", "paths.outputs"])
@pytest.mark.parametrize("folder", ["file/below", "/proc/none"])
def test_a_folder_that_cannot_be_made_is_the_users_mistake(key, folder, tmp_path):
    (tmp_path / "file").touch()
    done = cli(f"{key}={tmp_path / folder}", cwd=tmp_path, fake=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot be made" in done.stderr and "paths.outputs=FOLDER" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("kind", "status", "part"),
    [
        ("user", 2, "error: refused by the job"),
        ("run", 1, "because: OSError: gone"),
        ("bug", 1, "KeyError"),
        ("interrupt", 130, "interrupted"),
    ],
)
def test_how_a_job_ends(kind, status, part, tmp_path):
    done = cli(f"model.revision={kind}", cwd=tmp_path, fake=True)
    assert done.returncode == status
    assert part in done.stderr
    assert ("Traceback" in done.stderr) == (kind == "bug")
    assert bool(list(tmp_path.glob("outputs/train/*"))) == (kind != "user")
    assert "Error executing job" not in done.stderr and "HYDRA" not in done.stderr


def test_a_runs_folder_and_its_secrets(tmp_path):
    """And a forked command, which composes from files that the tests share, writes the same bytes."""
    arguments = ("trainer.seed=7", f"+hardware.env_vars.HF_TOKEN={SECRET}", "name=mine", "layout=local2")
    done = cli(*arguments, cwd=tmp_path, fake=True, cold=True)
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob("outputs/mine/*")
    assert done.stdout.split() == ["ran", "7", folder.name, str(len(SECRET))]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d-\d{6}", folder.name)
    assert {entry.name for entry in folder.iterdir()} == {".hydra", "config.yaml", "plan.json"}
    assert {entry.name for entry in (folder / ".hydra").iterdir()} == {"config.yaml", "hydra.yaml", "overrides.yaml"}
    assert "# command line: trainer.seed=7" in (folder / "config.yaml").read_text()
    assert SECRET not in "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert cli(*arguments, cwd=tmp_path, fake=True).returncode == 0
    one, two = sorted(tmp_path.glob("outputs/mine/*"))
    for name in ("config.yaml", "plan.json", ".hydra/config.yaml", ".hydra/overrides.yaml"):
        assert (one / name).read_bytes() == (two / name).read_bytes(), name


def test_a_sweep_runs_each_job_and_keeps_secrets(tmp_path):
    arguments = ["--multirun", "model.revision=run,fine", f"+hardware.env_vars.HF_TOKEN={SECRET}"]
    done = cli(*arguments, cwd=tmp_path, fake=True)
    assert done.returncode == 1
    assert sorted(line.split()[1] for line in done.stdout.splitlines()) == ["0", "0"]
    assert {path.name for path in tmp_path.glob("outputs/multirun/train/*/[0-9]")} == set("01")
    assert list(tmp_path.glob("outputs/multirun/train/*/multirun.yaml"))
    assert SECRET not in "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())


def test_inspection_masks(tmp_path):
    done = cli("--cfg", "job", "--resolve", "-p", "hardware", f"+hardware.env_vars.HF_TOKEN={SECRET}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "cpus_per_node: 2" in done.stdout and SECRET not in done.stdout


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("train model=tiny", "job=train model=tiny"),
        ("job=train check", "job=train check"),
        ("help", "--help"),
        ("help --config-dir x", "--help --config-dir x"),
        ("help rollout.n", "job=describe job.topic=rollout.n"),
        ("", ""),
    ],
)
def test_a_jobs_name_and_help_as_first_words(typed, meant):
    assert _spelled_out(typed.split()) == meant.split()


def test_completion_and_json_pipe(tmp_path):
    environment_line = "swe_rl router="
    root = str(Path(__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-m", "swe_rl", "-sc", "query=bash"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root, "COMP_LINE": environment_line, "COMP_POINT": str(len(environment_line))},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert set(done.stdout.split()) >= {"router=default", "router=tr"}, done.stderr
    told = json.loads(cli("job=check", "job.format=json", cwd=tmp_path).stdout)
    assert told["ok"] is True


@pytest.mark.parametrize("arguments", [[], ["job=check"]])
def test_a_checkout_that_nobody_installed(arguments, tmp_path):
    """For a Python without the packages that it requires: one paragraph, no traceback."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python, root = tmp_path / "venv" / "bin" / "python", Path(__file__).parent.parent
    environment = {"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [python, "-m", "swe_rl", *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr
    is_the_way_out(done.stderr, "venv/bin/python")


@pytest.mark.parametrize(("module", "package"), REQUIRED.items())
def test_a_package_that_swe_rl_requires_is_missing(module, package):
    """Where the first module that needs it is imported, early or late."""
    code = (
        "import sys; from swe_rl.logger.failure import report_failure; "
        "sys.exit(report_failure(ModuleNotFoundError(name=sys.argv[1])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, f"{module}.part"], cwd="/usr", capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and "fault of swe_rl" not in done.stderr
    is_the_way_out(done.stderr, sys.executable)
    assert f"needs {package}," in " ".join(done.stderr.split())


def test_each_package_that_swe_rl_requires_is_known():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    named = {re.split(r"[<>=]", line)[0] for line in project["dependencies"]}
    assert named == {*REQUIRED.values(), "hydra-submitit-launcher"}  # which Hydra alone imports
    assert all(importlib.util.find_spec(module) for module in REQUIRED)


def is_the_way_out(text, python):
    words = " ".join(text.split())
    assert words.startswith("error: swe_rl needs ") and python in words
    assert "source .venv/bin/activate" in words and "install -e '.[cpu]'" in words
