"""The batch script of a sandbox server: what SLURM is told, what it runs, and what it must not inherit of its run."""

import shlex
import subprocess
from pathlib import Path

import pytest

from swe_rl.config.choices import JobName
from swe_rl.config.compose import compose
from swe_rl.config.launcher import slurm_settings
from swe_rl.hardware.slurm.batch_script import companion_jobs, server_overrides

PAIR = ["runtime=job", "runtime.partition=cpu", "hardware.partition=gpu", "hardware.account=lab"]


def script_of(overrides, meeting=Path("/n/meet"), **options):
    [one] = companion_jobs(compose(overrides).config, overrides, meeting, python="python", **options)
    return one.script


def test_runs_with_sandboxes_of_their_own_have_no_companion():
    for overrides in ([], ["runtime=external", "sandbox.runtime_url=http://a:1"]):
        assert companion_jobs(compose(overrides).config, overrides, Path("/n")) == []


def test_what_slurm_is_told():
    overrides = [
        *PAIR,
        "hardware.time_limit_min=90",
        "runtime.memory_gb=64.5",
        "hardware.modules=[podman]",
        "runtime.setup=[start podman]",
    ]
    lines = script_of(overrides).splitlines()
    options = {line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")}
    assert lines[0] == "#!/bin/bash"
    assert options >= {
        "job-name=train-runtime0",
        "partition=cpu",
        "account=lab",
        "time=90",
        "nodes=1",
        "cpus-per-task=32",
        "mem=64G",
        "output=/n/meet/runtime_0.log",
        "requeue",
    }
    assert lines.index("module load podman") < lines.index("start podman")
    assert not any(word in script_of(overrides) for word in ("dependency", "gres", "gpus"))


def test_partition_and_time_of_its_own():
    own = [*PAIR, "runtime.time_limit_min=120", "runtime.qos=long"]
    text = script_of(own)
    assert "#SBATCH --time=120\n" in text and "#SBATCH --qos=long\n" in text
    assert "#SBATCH --partition=gpu\n" in script_of([*PAIR, "runtime.partition=null"])


def test_a_server_alone_is_told_the_same_and_has_no_companion():
    overrides = [*PAIR, "job=runtime", "name=train"]
    config = compose(overrides).config
    assert companion_jobs(config, overrides, Path("/n")) == []
    [beside] = companion_jobs(compose(PAIR).config, PAIR, Path("/n"))
    assert slurm_settings(config) == {**beside.settings, "name": "train"}


def test_each_node_is_a_job_of_its_own():
    overrides = [*PAIR, "runtime.nodes=3"]
    jobs = companion_jobs(compose(overrides).config, overrides, Path("/n/meet"))
    assert [one.job_key for one in jobs] == ["runtime0", "runtime1", "runtime2"]
    assert [one.path.name for one in jobs] == ["runtime_0.sh", "runtime_1.sh", "runtime_2.sh"]
    assert all(f"runtime.node={number}" in one.script for number, one in enumerate(jobs))


def test_a_server_has_its_run_s_overrides_less_what_belongs_to_the_run():
    run = [
        "job=train",
        "job.strict=true",
        "++job.think_s=2",
        "hydra/launcher=submitit_slurm",
        "+hydra.launcher.additional_parameters.gres=gpu:1",
        "runtime.shared_dir=/elsewhere",
        "model=tiny",
        "sandbox.cpus=2",
        "jobless=1",
    ]
    kept = server_overrides(run, Path("/n/my meeting"), 1)
    assert kept == [
        "model=tiny",
        "sandbox.cpus=2",
        "jobless=1",
        "job=runtime",
        "runtime.shared_dir='/n/my meeting'",
        "runtime.node=1",
        "hydra/launcher=basic",
        "hydra.mode=RUN",
    ]


def test_the_server_composes_to_its_run_s_configuration():
    overrides = [*PAIR, "runtime.nodes=2", "sandbox.cpus=2", "hydra/launcher=submitit_slurm", "trainer.seed=3"]
    ours, run = compose(server_overrides(overrides, Path("/n/it's"), 1)), compose(overrides)
    assert ours.config.job.name is JobName.runtime and not ours.multirun and ours.launcher == "basic"
    assert (ours.config.runtime.shared_dir, ours.config.runtime.node) == ("/n/it's", 1)
    assert (ours.config.sandbox, ours.config.trainer) == (run.config.sandbox, run.config.trainer)


@pytest.mark.parametrize("folder", ["meet", "with space", 'a"b$HOME', "it's"])
def test_the_script_means_what_it_says_in_any_folder(tmp_path, folder):
    """Run by bash, with a `python` that writes down its arguments."""
    meeting = tmp_path / folder
    meeting.mkdir()
    fake = tmp_path / "python"
    fake.write_text('#!/bin/bash\nprintf "%s\\n" "$PYTHONPATH" "$@" > "$OUT"; exit ${STATUS:-0}\n')
    fake.chmod(0o755)
    text = script_of(PAIR, meeting, exports={"PYTHONPATH": f"{meeting}/frozen"}).replace("\npython ", f"\n{fake} ")
    (tmp_path / "script").write_text(text)
    out = tmp_path / "out"
    environ = {"PATH": "/usr/bin:/bin", "OUT": str(out), "SLURM_JOB_ID": "77"}
    assert subprocess.run(["bash", str(tmp_path / "script")], env=environ, timeout=20).returncode == 0
    exported, *words = out.read_text().splitlines()
    assert exported == f"{meeting}/frozen" and words[:2] == ["-m", "swe_rl"]
    assert subprocess.run(["bash", str(tmp_path / "script")], env={**environ, "STATUS": "3"}).returncode == 3
    folder_of_run = compose(words[2:-1])
    assert folder_of_run.config.runtime.shared_dir == str(meeting)
    from hydra.core.override_parser.overrides_parser import OverridesParser

    assert OverridesParser.create().parse_override(words[-1]).value() == f"{meeting}/server_0_77"


def test_a_signal_to_the_batch_shell_goes_on_to_the_server_and_a_killed_one_is_tidied(tmp_path):
    fake = tmp_path / "python"
    fake.write_text(
        '#!/bin/bash\nif [ "$1" = -c ]; then echo tidied "${@:3}"; exit; fi\n'
        "trap 'echo told; exit 0' TERM\necho ready\nif [ -n \"$DIE\" ]; then kill -KILL $$; fi\n"
        "while true; do sleep 0.05; done\n"
    )
    fake.chmod(0o755)
    overrides = [*PAIR, "paths.scratch=/s s"]
    text = script_of(overrides, tmp_path).replace("python -", f"{fake} -")
    (tmp_path / "script").write_text(text)
    command = ["bash", str(tmp_path / "script")]
    environ = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "77"}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.stdout.read() == "told\n"
    assert process.returncode == 0
    done = subprocess.run(command, env={**environ, "DIE": "1"}, capture_output=True, text=True, timeout=20)
    assert done.returncode == 137 and done.stdout == "ready\ntidied /s s\n"


def test_words_are_quoted_once():
    script = script_of([*PAIR, "env.instances='a b*'"])
    line = next(line for line in script.splitlines() if " -m swe_rl " in line)
    assert "env.instances='a b*'" in shlex.split(line.removesuffix(" &").replace("${SLURM_JOB_ID}", "1"))
