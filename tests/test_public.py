"""What other programs import: `swe_rl.compose`, and that importing it costs nothing."""

import os
import subprocess
import sys

import pytest

import swe_rl
from swe_rl.config.compose import compose
from swe_rl.config.explain import ConfigError
from swe_rl.config.schema import Config


def test_it_composes_what_the_command_line_would():
    config = swe_rl.compose(["rollout.n=3", "algo=rloo"])
    assert isinstance(config, Config) and config.rollout.n == 3
    assert config == compose(["rollout.n=3", "algo=rloo"]).config
    assert swe_rl.compose().router.name == "default"


@pytest.mark.parametrize("kind", [str, lambda path: path])
def test_a_folder_of_the_users_own(kind, tmp_path):
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware" / "mine.yaml").write_text("name: mine\ncpus_per_node: 64\n")
    assert swe_rl.compose(["hardware=mine"], kind(tmp_path)).hardware.cpus_per_node == 64
    with pytest.raises(ConfigError, match="no such folder"):
        swe_rl.compose(config_dir=kind(tmp_path / "nowhere"))


@pytest.mark.parametrize("override", ["rollout.nn=3", "model=nope", "rollout.n=many", "rollout.n=1,2"])
def test_a_mistake_is_one_paragraph(override):
    with pytest.raises(ConfigError) as raised:
        swe_rl.compose([override])
    assert override.partition("=")[0] in str(raised.value) and "\n" not in str(raised.value)


def test_secrets_are_hidden(monkeypatch):
    monkeypatch.setattr(os, "environ", os.environ.copy())
    secret = "+hardware.env_vars.HF_TOKEN=planted-5c1f-77aa"
    assert swe_rl.compose([secret]).hardware.env_vars["HF_TOKEN"] == "planted-5c1f-77aa"
    with pytest.raises(ConfigError) as raised:
        swe_rl.compose([secret, "rollout.n=planted-5c1f-77aa"])
    assert "planted" not in str(raised.value)


def test_importing_it_is_light():
    code = (
        "import sys, swe_rl; print(swe_rl.__version__, [m for m in sys.modules if m.startswith(('swe_rl.', 'hydra'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{swe_rl.__version__} ['swe_rl.version']"
