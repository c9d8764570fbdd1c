"""Every command of the pages on SLURM is typed here, in their order, in one folder, against a real SLURM."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.sweep import HOME

pytestmark = pytest.mark.slurm
PAGES = ("slurm", "engineering/slurm_sandboxes", "engineering/slurm_survival", "engineering/slurm_nodes")
TEXT = "\n".join((HOME / "docs" / f"{page}.md").read_text() for page in PAGES)
BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall(TEXT)
SMALL = ("trainer.steps=2", "rollout.prompts_per_step=1", "rollout.n=2", "hardware.cpus_per_node=1")
STARTS = ("job.detach=true", "hydra.launcher.partition=cpu")  # of a command that starts jobs of the tiny model

# What is seen, by what the block has; every block is in exactly one line.
SEEN = {
    "+sweep=router_tiny hydra/launcher=submitit_slurm hydra.launcher.partition=cpu": (
        "job  SLURM  state",  # which states are seen depends on how soon SLURM begins
        "2 of 2 jobs done",
        "Rollout Tokens/sec Comparison (router=default vs router=tr)",
    ),
    "+sweep=dp4_default_vs_tr job.dry_run": (
        "#SBATCH --array=0-1%2",
        "#SBATCH --gpus-per-node=8",
        "Nothing was submitted",
    ),
    "job=check job.preflight": ("ok: ",),
    "job.detach=true": ("1 job submitted", "cancel:  scancel "),
    "job=status\n": ("job  SLURM  state", "outputs/multirun/rollout/"),
    "job=status job.follow": ("1 of 1 job done",),
    "job=logs": ("== job 0 (done)", "run folder: "),
    "squeue --me": ("JOBID",),
    "job=compare job.runs": ("Average (paired steps)",),
    "mine/hardware/ours.yaml": ("#SBATCH --gpus-per-node=4", "#SBATCH --partition=gpu", "\nulimit -n 8192\n"),
    "range(64)": ("#SBATCH --array=0-63%4", "Nothing was submitted: an array of 64 jobs, 4 at once."),
    "job=rollout runtime=job": (
        "#SBATCH --partition=gpu",
        "#SBATCH --partition=cpu",
        "job=runtime",
        "one job and 1 beside",
    ),
    "job=runtime runtime.partition=cpu": ("#SBATCH --cpus-per-task=4", "Nothing was submitted: one job."),
    "--wrap": ("Submitted batch job",),
    "layout.engines=12": ("#SBATCH --nodes=2", "#SBATCH --signal=USR2@300"),
    "+experiment=fasrc_prod": ("#SBATCH --nodes=4", "#SBATCH --gpus-per-node=8", "job=runtime"),
    "grep -h": ("time cost: ",),
}


@pytest.fixture(scope="module")
def desk(running_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder to stand in. Its `python` gives jobs of the tiny model two steps, and is else the interpreter here."""
    root = tmp_path_factory.mktemp("desk")
    write_shim(root, SMALL)
    yield root
    running_cluster.cancel_all()


def test_every_block_is_known():
    known = [[part for part in SEEN if part in block] for block in BLOCKS]
    assert all(len(parts) == 1 for parts in known), [
        block for block, parts in zip(BLOCKS, known, strict=True) if len(parts) != 1
    ]
    assert {parts[0] for parts in known} == set(SEEN)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_block(number, desk, running_cluster):
    done = type_in(desk, running_cluster, BLOCKS[number])
    assert done.returncode == 0, done.stdout + done.stderr
    [expected] = [seen for part, seen in SEEN.items() if part in BLOCKS[number]]
    for text in expected:
        assert text in done.stdout, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def write_shim(root: Path, few: tuple[str, ...]) -> None:
    shim = root / "bin" / "python"
    shim.parent.mkdir()
    cases = "|".join(f"*{one}*" for one in STARTS)
    program = shlex.quote(sys.executable)
    shim.write_text(f'#!/bin/bash\ncase "$*" in {cases}) set -- "$@" {shlex.join(few)};; esac\nexec {program} "$@"\n')
    shim.chmod(0o755)


def type_in(desk, cluster, text):
    own = {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(desk / "cache"), "PYTHONPATH": str(HOME)}
    own["PATH"] = f"{desk / 'bin'}{os.pathsep}{cluster.environ['PATH']}"
    environ = {**os.environ, **cluster.environ, **own}
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text], cwd=desk, env=environ, capture_output=True, text=True, timeout=280
    )


@pytest.mark.long
def test_the_first_sweep_as_it_is_written(tmp_path, cluster):
    """All of its steps."""
    write_shim(tmp_path, ())
    [block] = [block for block in BLOCKS if "+sweep=router_tiny" in block]
    done = type_in(tmp_path, cluster, block)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Average (paired steps)" in done.stdout and "2 of 2 jobs done" in done.stdout
