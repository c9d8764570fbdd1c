"""The batch script of a job, from the launcher's settings."""

from pathlib import Path

import pytest

from swe_rl.config.compose import compose
from swe_rl.config.explain import ConfigError
from swe_rl.config.launcher import merge_slurm_settings
from swe_rl.hardware.slurm.batch_script import Array, batch_script


def script(*given, array=None, preset=None, exports=None):
    first = compose(["hydra/launcher=submitit_slurm", *given])
    settings = merge_slurm_settings(first.config, {**first.launcher_settings, **(preset or {})}, given)
    return batch_script(
        settings,
        ["/py thon", "-m", "job", "$SLURM_ARRAY_TASK_ID"],
        logs=Path("/n/sweep/slurm"),
        chdir=Path("/home/me"),
        exports=exports or {},
        array=array,
    )


def options(text):
    lines = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH")]
    return {key: value for key, _, value in (line.partition("=") for line in lines)}


def test_hardware_is_the_source_of_every_option():
    given = ("hardware=fasrc_gpu_test", "hardware.account=lab", "hardware.qos=high", "hardware.exclude='n[1-3]'")
    found = options(script(*given, "hardware.constraint=a100", "name=mine"))
    assert found["partition"] == "gpu_test" and found["account"] == "lab" and found["qos"] == "high"
    assert found["exclude"] == "'n[1-3]'" and found["constraint"] == "a100" and found["job-name"] == "mine"
    assert (found["gpus-per-node"], found["cpus-per-task"], found["mem"], found["time"]) == ("2", "8", "32G", "720")
    assert found["chdir"] == "/home/me" and found["open-mode"] == "append" and found["requeue"] == ""


def test_setup_may_name_a_launcher():
    lines = script("hardware=h100x8_scratch").splitlines()
    named = next(index for index, line in enumerate(lines) if line.startswith("export SWE_RL_LAUNCHERS="))
    assert Path(lines[named].partition("=")[2].strip("'"), "containers_on_scratch.sh").is_file()
    assert lines[named + 1] == 'source "$SWE_RL_LAUNCHERS/containers_on_scratch.sh"'
    assert "SWE_RL_LAUNCHERS" not in script("hardware=h100x8")


def test_modules_and_setup_come_before_what_the_job_imports():
    text = script("hardware=fasrc_gpu_test", "hardware.setup=['ulimit -n 65536']", exports={"PYTHONPATH": "/n/fro zen"})
    lines = text.splitlines()
    order = ["module load cuda/12.4.0-fasrc01", "ulimit -n 65536", "export PYTHONPATH='/n/fro zen'"]
    assert [line for line in lines if line in order] == order
    assert lines[-1].startswith("exec srun --nodes=1 --ntasks=1 --export=ALL --cpus-per-task=8 '/py thon' -m job ")


def test_an_array_has_a_limit_and_a_log_for_each_job():
    found = options(script(array=Array(64, 4)))
    assert found["array"] == "0-63%4"
    assert found["output"] == "/n/sweep/slurm/slurm-%A_%a.out" and found["error"] == "/n/sweep/slurm/slurm-%A_%a.err"
    assert Array(2, 256).option == "0-1%2" and Array(3, 0).option == "0-2%1"
    assert options(script())["output"] == "/n/sweep/slurm/slurm-%j.out" and "array" not in options(script())


def test_the_jobs_number_is_left_to_the_shell():
    assert script(array=Array(2, 2)).splitlines()[-1].endswith('"$SLURM_ARRAY_TASK_ID"')


def test_gpus_and_memory_are_asked_for_once():
    assert "gpus-per-node" not in options(script("hardware=h100x8", "hardware.gres='gpu:h100:8'"))
    assert "gpus-per-node" not in options(script("hardware=h100x8", "hydra.launcher.gres='gpu:h100:8'"))
    assert "gpus-per-node" in options(script("hardware=h100x8", "hydra.launcher.gres='license:1'"))
    assert "mem" not in options(script("hydra.launcher.mem_per_cpu=2G"))
    assert options(script("hydra.launcher.mem_per_cpu=2G"))["mem-per-cpu"] == "2G"


def test_keys_of_a_preset_that_we_do_not_know_are_options_of_sbatch():
    found = options(script(preset={"nodelist": "n7", "exclusive": True, "wckey": None, "reservation": False}))
    assert found["nodelist"] == "n7" and found["exclusive"] == ""
    assert "wckey" not in found and "reservation" not in found
    own = options(script(preset={"additional_parameters": {"mail-type": "END", "requeue": False}}))
    assert own["mail-type"] == "END" and "requeue" not in own


def test_what_is_told_to_srun():
    text = script('+hydra.launcher.srun_args=["--cpu-bind=none","--mpi=none"]')
    assert "--cpu-bind=none --mpi=none '/py thon'" in text
    assert script("+hydra.launcher.use_srun=false").splitlines()[-1].startswith("exec '/py thon' -m job")


def test_a_warning_comes_when_the_launcher_says():
    assert options(script())["signal"] == "USR2@120"
    assert options(script(preset={"signal_delay_s": 300}))["signal"] == "USR2@300"
    assert (
        options(script("+hydra.launcher.use_srun=false"))["signal"] == "B:USR2@120"
    )  # the batch shell becomes the job


def test_one_log_where_errors_go_to_standard_output():
    assert "error" not in options(script(preset={"stderr_to_stdout": True}))


def test_a_reference_that_nobody_resolves_is_refused():
    with pytest.raises(ConfigError, match="comment"):
        script(preset={"comment": "${name}"})


def test_paths_with_a_backslash_are_for_the_shell_alone():
    """SLURM takes a backslash for a mark, however it is quoted."""
    logs, here = Path("/out/a\\=0/logs"), Path("/home/me and you")
    text = batch_script({"partition": "cpu"}, ["pwd"], logs=logs, chdir=here, exports={}, array=Array(2, 2))
    assert "#SBATCH --chdir=/\n" in text and "#SBATCH --output=/dev/null\n" in text
    assert not any("\\" in line for line in text.splitlines() if line.startswith("#SBATCH"))
    log = "'/out/a\\=0/logs/slurm-'${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"
    assert f"\nexec >> {log}.out 2>> {log}.err\ncd '/home/me and you' || exit\n" in text
