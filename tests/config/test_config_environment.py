"""Variables of other systems' scripts: honoured by their experiments, explained where they do not fit."""

import pytest

from swe_rl.config.compose import compose
from swe_rl.config.environment import read_dotenv
from swe_rl.config.explain import ConfigError
from swe_rl.errors import UserError

DJANGO = {"MODEL": "/m", "NUM_ROLLOUTS": "3", "ROLLOUT_BATCH_SIZE": "2", "N_SAMPLES": "6", "OUTPUT_DIR": "/o"}


@pytest.mark.parametrize("name", ["django_grpo_local", "django_grpo_modal"])
def test_the_variables_of_slime_decide(name, monkeypatch):
    for variable, value in DJANGO.items():
        monkeypatch.setenv(variable, value)
    composed = compose([f"+experiment={name}"])
    config = composed.config
    assert (config.model.path, config.trainer.steps, config.paths.outputs) == ("/m", 3, "/o")
    assert (config.rollout.prompts_per_step, config.rollout.n, config.env.num_trajectories) == (2, 6, 6)
    assert composed.origins.of("trainer.steps").startswith("environment: NUM_ROLLOUTS")
    assert compose([f"+experiment={name}", "trainer.steps=7"]).config.trainer.steps == 7


def test_the_variables_of_swe_pdb_decide(monkeypatch):
    told = {"N_PARALLEL": "4", "MAX_STEPS": "60", "SWE_PDB_MODEL_PATH": "/sft", "SWE_PDB_CHECKPOINT_BASE": "/base"}
    for variable, value in told.items():
        monkeypatch.setenv(variable, value)
    config = compose(["+experiment=swepdb_4b", "job=eval"]).config
    assert (config.rollout.n, config.rollout.concurrency) == (4, 32)
    assert (config.rollout.max_turns, config.model.path) == (60, "/sft")
    assert (config.paths.outputs, config.name) == ("/base/swepdb-rl", "swepdb_4b")
    assert compose(["+experiment=swepdb_4b", "logger.project=mine"]).config.paths.outputs == "/base/mine"


@pytest.mark.parametrize("path", ["/data/rl.parquet", "/data/kodcode.parquets"])
def test_data_of_one_s_own_are_not_sliced(path, monkeypatch):
    published = compose(["env=kodcode"]).config.env
    assert (published.split, published.eval_split) == ("train[1000:]", "train[:1000]")
    monkeypatch.setenv("KODCODE_DATA_PATH", path)
    mine = compose(["env=kodcode"]).config.env
    assert (mine.dataset, mine.split, mine.eval_split) == (path, "train", "test")
    assert compose(["env=kodcode", "env.split=rl", "env.dataset=/x"]).config.env.split == "rl"


def test_a_variable_set_to_nothing_is_not_set(monkeypatch):
    monkeypatch.setenv("NUM_ROLLOUTS", "")
    assert compose(["+experiment=django_grpo_local"]).config.trainer.steps == 10


def test_a_variable_that_does_not_fit_is_named(monkeypatch):
    monkeypatch.setenv("NUM_ROLLOUTS", "many")
    with pytest.raises(ConfigError, match=r"^NUM_ROLLOUTS in the environment decides trainer\.steps, which must be a"):
        compose(["+experiment=django_grpo_local"])


def test_a_dotenv_that_is_no_text_is_named(tmp_path):
    (tmp_path / ".env").write_bytes(b"A=\xff\n")
    with pytest.raises(UserError, match=r"\.env cannot be read: 'utf-8' codec"):
        read_dotenv(tmp_path, {})
