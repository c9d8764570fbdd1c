"""Rules over all jobs of a sweep, what a launcher is told, and the speed of checking many jobs."""

import dataclasses
import os
from functools import cache
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.check.findings import report_lines
from swe_rl.check.sweep import RULES, check_sweep
from swe_rl.config.compose import compose, compose_all, expand_sweep
from swe_rl.config.explain import ConfigError
from swe_rl.config.launcher import is_slurm, merge_slurm_settings, quote_value, slurm_settings, starts_processes

GOLDEN = Path(__file__).parent / "golden" / "sweep_messages.txt"
SLURM = ["hydra/launcher=submitit_slurm", "hardware=h100x8", "hardware.partition=gpu"]
# case: overrides of a sweep that is refused, overrides of one that passes
CASES = {
    "sweep_hardware": (
        [
            "hydra/launcher=slurm_h100",
            "hardware=h100x8,a100x8",
            "hardware.partition=gpu",
            "hardware.time_limit_min=60,90",
        ],
        ["hydra/launcher=slurm_h100", "hardware=h100x8,h200x8", "hardware.cpus_per_node=96", "hardware.memory_gb=1000"],
    ),
    "launcher_differs": (
        [*SLURM, "hydra.launcher.timeout_min=60", "trainer.seed=0,1"],
        [*SLURM, "hydra.launcher.timeout_min=1440", "trainer.seed=0,1"],
    ),
    "sweep_folder": (
        ["hydra.sweep.subdir=same", "trainer.seed=0,1"],
        ["hydra.sweep.subdir='seed_${hydra.job.num}'", "trainer.seed=0,1"],
    ),
    "sweep_folder/key": (
        ["hydra.sweep.subdir='r_${router.name}'", "trainer.seed=0,1"],
        ["hydra.sweep.subdir='r_${router.name}'", "router=default,tr"],
    ),
    "sweep_path/output": (["job=sft", "trainer.seed=0,1", "sft.seed=0,1"], ["job=sft", "sft.output=a,b", "sft.seed=0"]),
    "sweep_path/resume": (["trainer.resume=runs/a", "rollout.n=4,8"], ["trainer.resume=auto", "rollout.n=4,8"]),
    "sweep_path/port": (
        ["hydra/launcher=local_processes", "gateway.port=8000", "trainer.seed=0,1"],
        ["gateway.port=8000", "trainer.seed=0,1"],
    ),
    "sweep_path/meeting": (
        ["runtime=job", "runtime.shared_dir=/n/meet", "trainer.seed=0,1"],
        ["runtime=job", "trainer.seed=0,1"],
    ),
    "sweep_same": (["logger.project=a,b"], ["trainer.seed=0,1"]),
}


def jobs_of(overrides):
    return _jobs(tuple(overrides))


@cache
def _jobs(overrides):
    return compose_all(expand_sweep(overrides))


def test_a_wrong_number_breaks_no_rule_over_a_sweep():
    jobs = jobs_of([*SLURM, "trainer.seed=0,1", "hardware.memory_gb=nan", "hardware.nodes=0", "layout.engines=-3"])
    assert check_sweep(jobs) == []


@pytest.mark.parametrize("name", CASES)
def test_rule(name):
    refused, passed = CASES[name]
    rule_id = name.partition("/")[0]
    assert [one for one in check_sweep(jobs_of(refused)) if one.rule_id == rule_id]
    assert not [one for one in check_sweep(jobs_of(passed)) if one.rule_id == rule_id]


def test_two_launchers_are_one_too_many():
    """Hydra's own grammar refuses to sweep over a launcher; an experiment that brings one gets past it."""
    with pytest.raises(ConfigError, match="launcher"):
        expand_sweep(["hydra/launcher=basic,submitit_local", "trainer.seed=0,1"])
    one, other = compose(["trainer.seed=0"]), compose(["trainer.seed=1"])
    found = check_sweep([one, dataclasses.replace(other, launcher="submitit_slurm")])
    assert [finding.rule_id for finding in found] == ["sweep_launcher"]


def test_messages_are_as_published():
    """SWE_RL_WRITE_GOLDEN=1 rewrites the file; its diff is then part of the change."""
    lines = []
    for name, (refused, _) in CASES.items():
        lines += [f"{name}: {' '.join(refused)}"]
        lines += [f"  {line}" for finding in check_sweep(jobs_of(refused)) for line in report_lines(finding, 80)]
    text = "\n".join(lines) + "\n"
    if os.environ.get("SWE_RL_WRITE_GOLDEN"):
        GOLDEN.write_text(text)
    assert GOLDEN.read_text() == text


def test_every_rule_has_a_case():
    spoken = {rule for refused, _ in CASES.values() for rule in RULES if any(True for _ in rule(jobs_of(refused)))}
    assert {rule.__name__ for rule in RULES} - {rule.__name__ for rule in spoken} == {"one_launcher"}


def test_slurm_is_told_what_hardware_says():
    config = compose(
        ["hardware=fasrc_gpu_test", "hardware.account=lab", "hardware.exclude='n1,n2'", "name=mine"]
    ).config
    assert slurm_settings(config) == {
        "name": "mine",
        "partition": "gpu_test",
        "account": "lab",
        "exclude": "n1,n2",
        "timeout_min": 720,
        "nodes": 1,
        "tasks_per_node": 1,
        "gpus_per_node": 2,
        "cpus_per_task": 8,
        "mem_gb": 32,
        "max_num_timeout": 4,
        "setup": ["module load cuda/12.4.0-fasrc01", "module load python/3.12.5-fasrc01"],
    }


@pytest.mark.parametrize("launcher", ["submitit_slurm", "slurm_h100", "slurm_fasrc_dev"])
def test_what_slurm_is_told_composes(launcher):
    given = [f"hydra/launcher={launcher}", "hardware=fasrc_gpu_test", "hydra.launcher.comment=x"]
    first = compose(given)
    assert is_slurm(first.launcher_settings) and starts_processes(first.launcher_settings)
    settings = merge_slurm_settings(first.config, first.launcher_settings, given)
    for key, value in slurm_settings(first.config).items():
        assert settings[key] == value
    assert settings["comment"] == "x"


def test_an_own_setting_stays():
    given = ["hydra/launcher=submitit_slurm", "hydra.launcher.timeout_min=7", "hydra.launcher.partition=mine"]
    first = compose(given)
    settings = merge_slurm_settings(first.config, first.launcher_settings, given)
    assert (settings["timeout_min"], settings["partition"]) == (7, "mine")
    assert settings["mem_gb"] == first.config.hardware.memory_gb


def test_setup_commands_add_up_and_a_kind_of_gpu_takes_the_place_of_their_count():
    given = ["hardware=fasrc_gpu_test", "hardware.setup=['ulimit -n 65536']", "hardware.gres='gpu:a100_1g.5gb:2'"]
    settings = merge_slurm_settings(compose(given).config, {"setup": ["echo mine"], "comment": "preset's"}, given)
    assert settings["setup"][-2:] == ["ulimit -n 65536", "echo mine"]
    assert settings["gres"] == "gpu:a100_1g.5gb:2" and "gpus_per_node" not in settings
    assert settings["comment"] == "preset's"


def test_quotes():
    assert quote_value("it's") == "'it\\'s'"
    assert quote_value(["a b", "c,d"]) == "['a b','c,d']"
    assert quote_value(3) == "3"


@given(st.text("a\\'\"$= ,{}[]:é", max_size=8))
def test_hydra_reads_what_was_quoted(text):
    """Backslashes, too: Hydra takes only those in front of a quote for more than themselves."""
    assert OverridesParser.create().parse_override(f"key={quote_value(text)}").value() == text


def test_many_jobs_are_composed_in_order_by_several_processes():
    jobs = [[f"trainer.seed={seed}", "+experiment=swepdb_4b"] for seed in range(20)]
    composed = compose_all(jobs)
    assert [job.config.trainer.seed for job in composed] == list(range(20))
    assert composed[3].config == compose(jobs[3]).config
    assert composed[3].origins.of("trainer.seed") == "command line: trainer.seed=3"


def test_a_mistake_in_one_of_many_jobs_is_explained():
    jobs = [[f"trainer.seed={seed}"] for seed in range(20)]
    jobs[17] = ["trainer.lr=fast"]
    with pytest.raises(ConfigError, match="trainer.lr must be a number, not 'fast'"):
        compose_all(jobs)
