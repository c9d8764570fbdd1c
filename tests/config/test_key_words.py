"""Keys that nobody listed are read word by word: spellings of nobody in particular, and those of systems."""

import pytest

from swe_rl.config.keys import is_legal
from swe_rl.config.spelling.foreign_keys import our_key
from swe_rl.config.spelling.key_words import keys_with_words

SPELLED = {
    "sandbox.timeout": "rollout.command_timeout_s",
    "command_timeout": "rollout.command_timeout_s",
    "temp": "rollout.temperature",
    "save_interval": "trainer.checkpoint_every_steps",
    "ckpt_every": "trainer.checkpoint_every_steps",
    "val_freq": "trainer.eval_every_steps",
    "eval_frequency": "trainer.eval_every_steps",
    "max_context_length": "rollout.max_trajectory_tokens",
    "n_gpus": "hardware.gpus_per_node",
    "gpus_per_machine": "hardware.gpus_per_node",
    "rollouts_per_prompt": "rollout.n",
    "samples_per_prompt": "rollout.n",
    "grad_clip_norm": "trainer.grad_clip",
    "kl_penalty": "algo.kl_coef",
    "entropy_bonus": "algo.entropy_coef",
    "entropy_coeff": "algo.entropy_coef",
    "clip_range": "algo.clip_low",
    "top_p_value": "rollout.top_p",
    "trainer.gamma": "algo.discount",
    "algo.lam": "algo.gae_lambda",
    "lora.r": "trainer.lora_rank",
    "optimizer.lr": "trainer.lr",
    "optim.weight_decay": "trainer.weight_decay",
    "warmup_iters": "trainer.warmup_steps",
    "max_turns_per_episode": "rollout.max_turns",
    "num_engines": "layout.engines",
    "inference_replicas": "layout.engines",
    "eval_temp": "rollout.eval_temperature",
    "checkpoint_freq": "trainer.checkpoint_every_steps",
    "keep_checkpoints_num": "trainer.keep_checkpoints",
    "sandbox_memory": "sandbox.memory_gb",
    "cpu_per_sandbox": "sandbox.cpus",
    "wandb_mode": "logger.wandb",
    "tensor_parallelism": "layout.engine_tp",
    "vllm_memory_utilization": "engine.gpu_memory_utilization",
    "seed_value": "trainer.seed",
    "lr_decay": "trainer.lr_schedule",
    "attn_implementation": "trainer.attention",
    "max_response_tokens": "rollout.max_turn_tokens",
    "parallel_agents": "rollout.concurrency",
    "leraning_rate": "trainer.lr",
}


@pytest.mark.parametrize(("typed", "meant"), SPELLED.items())
def test_a_spelling_that_is_in_no_table_is_answered_with_the_right_key(typed, meant):
    assert meant in keys_with_words(typed)


def test_what_says_just_the_same_stands_alone():
    assert keys_with_words("trainer.learning_rate") == ["trainer.lr"]
    assert keys_with_words("lr") == ["trainer.lr", "sft.lr"]


@pytest.mark.parametrize("typed", ["foo", "n", "max", "number_of_things", "", "agents"])
def test_words_that_say_nothing_find_nothing(typed):
    assert keys_with_words(typed) == []


def test_a_group_with_a_wrong_letter_is_no_key():
    assert our_key("modl") is None and is_legal("model")
