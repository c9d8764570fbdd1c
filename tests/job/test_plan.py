"""`job=plan` and the arithmetic beneath it, checked against numbers done by hand."""

import json

import pytest

from swe_rl.config import memory, sizes
from swe_rl.config.compose import compose
from swe_rl.job import plan as job
from swe_rl.job.plan import plan


@pytest.fixture(scope="module")
def published():
    return compose(["+experiment=dp4_tr_atw01"]).config


def test_batch_arithmetic(published):
    batch = plan(published)["batch"]
    assert batch["trajectories_per_step"] == 396
    assert batch["optimizer_steps_per_step"] == 1
    assert batch["data_parallel_ranks"] == 1


def test_gpu_map(published):
    gpus = plan(published)["gpus"]
    assert gpus["node 0 gpu 3"] == "engine 3"
    assert gpus["node 0 gpu 4"] == "trainer 0"


def test_memory_of_qwen3_14b(published):
    # 2 (keys and values) * 40 layers * 8 heads * 128 * 2 bytes
    assert memory.kv_bytes_per_token(published.model) == 163840
    assert memory.weights_gb(published.model) == pytest.approx(29.6)
    assert memory.trainer_gb_per_gpu(published) == pytest.approx(14.8 * 16 / 4)
    assert memory.checkpoint_gb(published) == pytest.approx(14.8 * 12)
    free_gb = 80 * 0.85 - 29.6
    assert memory.kv_tokens_per_engine(published) == pytest.approx(free_gb * 1e9 / 163840, abs=1)


def test_reference_model_counts_only_with_kl(published):
    with_kl = compose(["+experiment=dp4_tr_atw01", "algo.kl_coef=0.01"]).config
    assert memory.trainer_gb(with_kl) - memory.trainer_gb(published) == pytest.approx(29.6)


def test_sizes():
    config = compose(["rollout.prompts_per_step=8", "trainer.prompts_per_mini_batch=4", "rollout.n=2"]).config
    assert sizes.optimizer_steps_per_step(config) == 2
    assert sizes.trajectories_per_mini_batch(config) == 8
    assert sizes.max_tokens_per_step(config) == 16 * config.rollout.max_trajectory_tokens
    assert sizes.divisors(12) == [1, 2, 3, 4, 6, 12]
    assert sizes.nearest_multiples(99, 16) == "96 or 112"
    assert sizes.nearest_multiples(3, 16) == "16"


def test_table_and_json(capsys):
    assert job.run(compose(["job=plan"]).config, None) == 0
    assert "trajectories_per_step" in capsys.readouterr().out
    assert job.run(compose(["job=plan", "job.format=json"]).config, None) == 0
    assert json.loads(capsys.readouterr().out)["gpus"] == {}
