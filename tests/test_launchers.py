"""What `launchers/` holds for a site to edit: each file does what its first lines say."""

import importlib.util
import os
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "launchers"
HERE = shlex.quote(str(FOLDER))  # in the words of a shell


def bash(text, *, cwd, **environ):
    done = subprocess.run(
        ["bash", "-c", text], cwd=cwd, env={**os.environ, **environ}, capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout + done.stderr


def test_every_file_is_in_the_readme():
    text = (FOLDER / "README.md").read_text()
    files = [
        path.relative_to(FOLDER)
        for path in FOLDER.rglob("*")
        if path.is_file() and path.name != "README.md" and path.suffix != ".pyc"
    ]
    assert files and all(f"({path})" in text for path in files)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.sh")), ids=lambda path: path.name)
def test_bash_can_read_it(path):
    assert bash(f"bash -n {HERE}/{path.name}", cwd=FOLDER) == (0, "")


@pytest.mark.docker
@pytest.mark.skipif(shutil.which("podman") is None or os.geteuid() != 0, reason="needs podman")
def test_containers_on_scratch(tmp_path):
    """Two jobs of one user at once: the second has storage of its own, and nothing but the first's layers stays."""
    script = f"source {HERE}/containers_on_scratch.sh; echo host $DOCKER_HOST; podman --remote info >/dev/null; "
    where = "grep -lsaz -- $DOCKER_HOST /proc/[0-9]*/cmdline | sed 's,cmdline,cwd,' | xargs readlink; "
    code, text = bash(
        f"{script} {where} (SLURM_JOB_ID=2 bash -c '{script} true'); exec true", cwd=tmp_path, SWE_RL_SCRATCH="."
    )
    assert code == 0, text
    assert text.count("host unix://") == 2 and "containers-2" in text
    home = next(tmp_path.iterdir())
    runs = [Path(word.removeprefix("unix://")).parent for word in text.split() if word.startswith("unix://")]
    assert str(runs[0]) in text.splitlines(), "the service is in no folder of the user: it leaves files there"
    until = time.monotonic() + 20
    while sorted(path.name for path in home.iterdir()) != ["containers", "containers.lock"] or any(
        map(Path.exists, runs)
    ):
        assert time.monotonic() < until, list(home.iterdir())
        time.sleep(0.2)


def test_pull_images_hands_its_arguments_on(tmp_path):
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho $*\n")
    fake.chmod(0o755)
    script = f"bash {HERE}/pull_images.sh env=swe_gym 'env.instances=a*'"
    assert bash(script, cwd=tmp_path, SWE_RL_PYTHON=str(fake)) == (
        0,
        "-m swe_rl job=images job.images_action=pull env=swe_gym env.instances=a*\n",
    )


def test_air_gapped_says_how_it_is_used(tmp_path):
    code, text = bash(f"bash {HERE}/air_gapped.sh", cwd=tmp_path)
    assert code == 1 and text.startswith("usage: ")


def test_air_gapped_packs_and_is_used(tmp_path):
    """The programs that would fetch are stand-ins; what is asked of them is real."""
    fake = tmp_path / "python"
    fake.write_text(
        f"#!/bin/sh\necho \"$HF_HOME|$*\" >> {tmp_path / 'asked'}\ncase $* in *--cfg*) echo 'name: x'; "
        "echo 'path: Qwen/Qwen3-0.6B';; esac\n"
    )
    fake.chmod(0o755)
    script = f"bash {HERE}/air_gapped.sh pack {shlex.quote(str(tmp_path))}/packed model=qwen3_0_6b"
    code, text = bash(script, cwd=tmp_path, SWE_RL_PYTHON=str(fake), HF_HOME="")
    assert code == 0, text
    asked = (tmp_path / "asked").read_text().splitlines()
    assert f"pip wheel --wheel-dir {tmp_path}/packed/wheels .[gpu,swe]" in asked[0]
    assert asked[2].startswith(f"{tmp_path}/packed/hub|") and asked[2].endswith("Qwen/Qwen3-0.6B")
    assert asked[3].endswith(f"job=prepare paths.cache={tmp_path}/packed/cache model=qwen3_0_6b")
    bin_folder = tmp_path / ".venv" / "bin"
    bin_folder.mkdir(parents=True)
    (bin_folder / "activate").write_text("")
    script = f"source {HERE}/air_gapped.sh use packed && env"
    code, text = bash(script, cwd=tmp_path)
    assert code == 0 and f"HF_HOME={tmp_path}/packed/hub" in text and "HF_HUB_OFFLINE=1" in text


def test_the_modal_server(monkeypatch):
    pytest.importorskip("modal")
    monkeypatch.setenv("SWE_RL_GPU", "H100:2")
    monkeypatch.setenv("SWE_RL_MODEL", "Qwen/Qwen3-14B")
    spec = importlib.util.spec_from_file_location("serve_vllm", FOLDER / "modal" / "serve_vllm.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    command = " ".join(module.command())
    assert "serve Qwen/Qwen3-14B --served-model-name Qwen/Qwen3-14B" in command
    assert "--tensor-parallel-size 2" in command and "key" not in command
    assert module.app.name == "swe-rl-engine"
