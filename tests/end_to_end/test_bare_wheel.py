"""The first minute of a user who installed the wheel alone: what is missing and the line that installs it.

The wheel is built and installed for real; of the packages of this environment it sees those that it requires.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distribution, requires
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """The interpreter of an environment with the wheel and its core requirements, links to this environment's."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    [site] = (folder / "venv" / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(wheel(folder / "dist")) as archive:
        archive.extractall(site)
    for name in required("swe_rl", set()):
        link(name, site)
    (folder / "empty").mkdir()
    return folder / "venv" / "bin" / "python"


@pytest.fixture(autouse=True)
def empty(bare):
    """Where each test stands, whatever came before it: workers take tests in any order."""
    folder = bare.parents[2] / "empty"
    shutil.rmtree(folder)
    folder.mkdir()
    return folder


def wheel(folder):
    """Built from this checkout by its own backend."""
    isolated = [] if importlib.util.find_spec("hatchling") is None else ["--no-isolation"]
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", *isolated, "--outdir", folder, ROOT], capture_output=True, text=True
    )
    if done.returncode and not isolated:
        pytest.skip("the build backend is neither installed nor to be fetched")
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = folder.glob("*.whl")
    return path


def required(name, seen):
    """Names of all distributions that `name` requires, without extras."""
    for text in requires(name) or []:
        other = re.match(r"[\w.-]+", text)[0]
        needed = "extra ==" not in text and ("sys_platform" not in text or "linux" in text)
        if needed and other not in seen and installed(other):
            seen.add(other)
            required(other, seen)
    return seen


def installed(name):
    try:
        return distribution(name)
    except ModuleNotFoundError:
        return None


def link(name, site):
    found = distribution(name)
    tops = {path.parts[0] for path in found.files if path.parts[0] not in ("..", "__pycache__")}
    for top in tops:
        if not (site / top).exists():
            (site / top).symlink_to(found.locate_file(top))


def ask(python, *arguments):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [python, "-m", "swe_rl", *arguments],
        cwd=python.parents[2] / "empty",
        env={**environment, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("arguments", "packages", "extras"),
    [
        ([], "torch and transformers", "cpu"),
        (["job=serve"], "torch and transformers", "cpu"),
        pytest.param(["job=eval"], "torch and transformers", "cpu", marks=pytest.mark.long),
        pytest.param(["job=sft"], "torch and transformers", "cpu", marks=pytest.mark.long),
        (["job=export", "job.checkpoint=run"], "torch and transformers", "cpu"),
        (["job=check"], "torch and transformers", "cpu"),
        (["--multirun", "trainer.seed=0,1"], "torch and transformers", "cpu"),
        (["job=runtime"], "docker", "docker"),
        (["logger.wandb=offline"], "torch, transformers and wandb (logger.wandb=offline)", "cpu,wandb"),
    ],
)
def test_one_paragraph_says_what_is_missing(bare, empty, arguments, packages, extras):
    done = ask(bare, *arguments)
    said = " ".join((done.stderr + done.stdout).split())
    assert done.returncode == 2
    assert f"needs {packages}, which " in said and "not installed here" in said, said
    assert f"{bare} -m pip install 'swe_rl[{extras}]'" in said
    assert "Traceback" not in said and said.count("error") == 1 + said.count("1 error, "), said
    assert list(empty.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["job=describe"],
        ["--cfg", "job"],
        pytest.param(["job=simulate"], marks=pytest.mark.long),  # the package of one's own below is simulated
    ],
)
def test_what_needs_nothing_works(bare, arguments):
    done = ask(bare, *arguments)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout


def test_a_package_of_ones_own_is_written_and_found(bare, tmp_path):
    """Of the examples that the wheel holds."""
    mine = tmp_path / "mine"
    done = ask(bare, "job=new", "job.kind=router", f"job.output={mine}")
    assert (done.returncode, done.stderr) == (0, "") and (mine / "mine.py").is_file()
    done = ask(bare, "--config-dir", mine / "conf", f"job.code=[{mine}]", "router=mine", "job=simulate")
    assert (done.returncode, done.stderr) == (0, "") and "mine" in done.stdout
    [site] = (bare.parents[1] / "lib").glob("python*/site-packages")
    info = site / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[swe_rl.router]\nmine = mine:Mine\n")
    (site / "mine.py").write_text((mine / "mine.py").read_text())
    done = ask(bare, "router=mine", "job=simulate")
    assert (done.returncode, done.stderr) == (0, "") and "mine" in done.stdout, "installed, it needs no folder"
    assert "  router=mine  mine.Mine, mine 1.0\n" in ask(bare, "--help").stdout


def test_a_plan_is_printed_all_the_same(bare):
    done = ask(bare, "job=plan")
    assert done.returncode == 2 and "optimizer_steps" in done.stdout and "swe_rl[cpu]" in done.stderr


def test_a_job_of_a_partition_that_is_started_here(bare, empty):
    """No rule can know; the import that fails is one paragraph all the same, and leaves no folder."""
    done = ask(bare, "hardware.partition=gpu")
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert said == f"error: torch is needed and is not installed here: {bare} -m pip install 'swe_rl[cpu]'"
    assert not list(empty.glob("outputs/*/*"))
