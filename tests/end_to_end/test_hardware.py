"""The card's command as typed: answered on any machine, refused with both ways out where the GPUs are missing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from swe_rl.config.folders import list_options
from tests.support.command import LIGHT, warm

CARD = ("model=qwen3_14b", "layout=dp4", "router=tr")
DRIVER = """#!/bin/sh
case "$*" in
*-L*) for i in 0 1 2 3 4 5 6 7; do echo "GPU $i: NVIDIA H200 (UUID: GPU-$i)"; done ;;
*) for i in 0 1 2 3 4 5 6 7; do echo "$i, GPU-$i, NVIDIA H200, 143771, 0, Disabled"; done ;;
esac
"""
HIDDEN = ("CUDA_VISIBLE_DEVICES", "SWE_RL_VLLM_COMMAND", "SLURM_JOB_ID", "WANDB_API_KEY", "HF_TOKEN")


class Machine:
    """Runs the real command where `nvidia-smi` is the given script, or is missing."""

    def __init__(self, folder: Path, driver: str | None) -> None:
        self.folder = folder
        programs = folder / "bin"
        programs.mkdir()
        if driver is not None:
            (programs / "nvidia-smi").write_text(driver)
            (programs / "nvidia-smi").chmod(0o755)
        rest = [part for part in os.environ["PATH"].split(":") if not os.access(f"{part}/nvidia-smi", os.F_OK)]
        self.environment = {name: value for name, value in os.environ.items() if name not in HIDDEN}
        self.environment |= {"PATH": ":".join([str(programs), *rest]), "COLUMNS": "80"}

    def run(self, *overrides: str, cold: bool = False) -> subprocess.CompletedProcess:
        """Forked from a process that has the imports done, unless `cold`."""
        if not cold and (forked := warm(LIGHT).start(list(overrides), self.folder, self.environment)):
            return forked.completed(120)
        command = [sys.executable, "-m", "swe_rl", *overrides]
        return subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)


@pytest.fixture
def laptop(tmp_path):
    return Machine(tmp_path, None)


@pytest.fixture
def eight_h200(tmp_path):
    machine = Machine(tmp_path, DRIVER)
    machine.environment["SWE_RL_VLLM_COMMAND"] = "python"  # stands for an installed vLLM
    return machine


def assumptions(done) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("assumed ")]


@pytest.mark.parametrize("job", ["check", "plan"])
def test_without_gpus_the_answer_is_for_the_smallest_machine(laptop, job):
    done = laptop.run(*CARD, f"job={job}")
    assert done.returncode == 0, done.stderr
    assert assumptions(done) == ["assumed hardware=a100x8: 8 x a100 of 80 GB (this machine has no GPU)"]
    assert "hardware=a100x8: a100, 80 GB each" in done.stdout or job == "check"


def test_json_stays_json(laptop):
    done = laptop.run(*CARD, "job=check", "job.format=json")
    assert json.loads(done.stdout)["ok"] and assumptions(done)


def test_without_gpus_train_names_what_is_missing_and_both_ways_out(laptop):
    done = laptop.run(*CARD, cold=True)
    said = " ".join(done.stderr.split())
    assert done.returncode == 2 and not assumptions(done) and "Traceback" not in done.stderr
    assert "needs 8 GPUs (4 for engines, 4 for the trainer); this machine has no GPU" in said
    assert "hardware=a100x8 with a launcher (--multirun hydra/launcher=submitit_slurm)" in said
    assert "a smaller layout: layout=local model=tiny" in said
    assert not (laptop.folder / "outputs").exists()


def test_with_the_gpus_nothing_is_assumed(eight_h200):
    done = eight_h200.run(*CARD, "job=plan", cold=True)
    assert done.returncode == 0 and not assumptions(done)
    assert "hardware=auto: h200, 150.8 GB each" in done.stdout


def test_a_driver_that_fails_is_named(tmp_path):
    broken = Machine(tmp_path, "#!/bin/sh\necho 'Driver/library version mismatch' >&2\nexit 18\n")
    done = broken.run(*CARD)
    assert done.returncode == 2
    assert "nvidia-smi fails: Driver/library version mismatch" in " ".join(done.stderr.split())


def test_hidden_gpus_do_not_count(eight_h200):
    eight_h200.environment["CUDA_VISIBLE_DEVICES"] = "0,1"
    said = " ".join(eight_h200.run(*CARD).stderr.split())
    assert "this machine has 2 GPUs" in said
    assert "layout.engines=1 layout.trainer_gpus=1 layout.sequence_parallel=1" in said


@pytest.mark.parametrize(
    "wrong",
    [
        "rollout.n=0",
        *(
            pytest.param(wrong, marks=pytest.mark.slow)
            for wrong in ("layout.engine_tp=0", "model.num_heads=0", "layout.engines=-1")
        ),
    ],
)
def test_plan_prints_also_when_there_are_errors(laptop, wrong):
    done = laptop.run(*CARD, "job=plan", wrong)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "Nothing was started." in done.stderr and "memory" in done.stdout and "disk" in done.stdout


def test_slurm_is_not_asked_for_this_machine(laptop):
    """A batch script describes the cluster's node, not the machine that submits."""
    done = laptop.run("--multirun", "trainer.seed=0,1", "hydra/launcher=submitit_slurm", "job.dry_run=true")
    assert done.returncode == 0, done.stderr
    assert "--cpus-per-task=2" in done.stdout and "--mem=4" in done.stdout
    refused = laptop.run("--multirun", *CARD, "trainer.seed=0,1", "hydra/launcher=submitit_slurm", "job.dry_run=true")
    assert refused.returncode == 2
    assert "hardware=auto describes this machine, and SLURM starts the jobs elsewhere" in " ".join(
        refused.stderr.split()
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(option.name, marks=[pytest.mark.long] if number % 3 else [])
        for number, option in enumerate(list_options()["experiment"])
    ],
)
def test_every_experiment_is_planned_here(laptop, name):
    done = laptop.run(f"+experiment={name}", "job=plan")
    assert "Traceback" not in done.stderr and "memory" in done.stdout and "not known" not in done.stdout
