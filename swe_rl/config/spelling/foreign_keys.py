"""This module knows what keys of other systems are called here: SkyRL, verl and rLLM, slime, prime-rl, the scripts for
FASRC.

Invariants:
- SAME: the value can be taken as it is. NEAR: our key for the same purpose, in another unit or form.
- The tables only answer a key that does not exist; no value is taken over.
- Every key on the right is one of the schema, or a group.
- A key of ours is answered with what it counts: the same word is often another unit elsewhere.
"""

import difflib
from functools import cache

from swe_rl.config.keys import NEAR_SPELLING, comment_of, is_legal, key_types
from swe_rl.config.spelling.key_words import keys_with_words

_VERL = "actor_rollout_ref."
SAME = {
    # verl, rLLM
    f"{_VERL}rollout.n": "rollout.n",
    f"{_VERL}rollout.temperature": "rollout.temperature",
    f"{_VERL}rollout.top_p": "rollout.top_p",
    f"{_VERL}rollout.val_kwargs.n": "rollout.eval_n",
    f"{_VERL}rollout.val_kwargs.temperature": "rollout.eval_temperature",
    f"{_VERL}rollout.gpu_memory_utilization": "engine.gpu_memory_utilization",
    f"{_VERL}rollout.tensor_model_parallel_size": "layout.engine_tp",
    f"{_VERL}rollout.max_num_seqs": "engine.max_num_seqs",
    f"{_VERL}rollout.max_num_batched_tokens": "engine.max_num_batched_tokens",
    f"{_VERL}rollout.enforce_eager": "engine.enforce_eager",
    f"{_VERL}rollout.multi_turn.max_assistant_turns": "rollout.max_turns",
    f"{_VERL}actor.ppo_mini_batch_size": "trainer.prompts_per_mini_batch",
    f"{_VERL}actor.optim.lr": "trainer.lr",
    f"{_VERL}actor.optim.weight_decay": "trainer.weight_decay",
    f"{_VERL}actor.optim.min_lr_ratio": "trainer.lr_final_fraction",
    f"{_VERL}actor.grad_clip": "trainer.grad_clip",
    f"{_VERL}actor.clip_ratio_low": "algo.clip_low",
    f"{_VERL}actor.clip_ratio_high": "algo.clip_high",
    f"{_VERL}actor.clip_ratio_c": "algo.clip_c",
    f"{_VERL}actor.entropy_coeff": "algo.entropy_coef",
    f"{_VERL}actor.ulysses_sequence_parallel_size": "layout.sequence_parallel",
    f"{_VERL}model.enable_gradient_checkpointing": "trainer.activation_checkpointing",
    f"{_VERL}model.lora_rank": "trainer.lora_rank",
    f"{_VERL}model.lora_alpha": "trainer.lora_alpha",
    f"{_VERL}actor.fsdp_config.optimizer_offload": "trainer.offload_optimizer",
    "algorithm.norm_adv_by_std_in_grpo": "algo.normalize_std",
    "data.train_batch_size": "rollout.prompts_per_step",
    "data.max_prompt_length": "rollout.max_prompt_tokens",
    "trainer.total_training_steps": "trainer.steps",
    "trainer.nnodes": "hardware.nodes",
    "trainer.n_gpus_per_node": "hardware.gpus_per_node",
    # SkyRL, skyrl-agent
    "generator.n_samples_per_prompt": "rollout.n",
    "generator.num_trajectories": "rollout.n",
    "skyrl_agent.num_trajectories": "rollout.n",
    "generator.eval_n_samples_per_prompt": "rollout.eval_n",
    "generator.sampling_params.temperature": "rollout.temperature",
    "generator.sampling_params.top_p": "rollout.top_p",
    "generator.eval_sampling_params.temperature": "rollout.eval_temperature",
    "generator.max_turns": "rollout.max_turns",
    "generator.max_iterations": "rollout.max_turns",
    "generator.num_inference_engines": "layout.engines",
    "generator.inference_engine.num_engines": "layout.engines",
    "generator.inference_engine_tensor_parallel_size": "layout.engine_tp",
    "generator.inference_engine.tensor_parallel_size": "layout.engine_tp",
    "generator.gpu_memory_utilization": "engine.gpu_memory_utilization",
    "generator.inference_engine.gpu_memory_utilization": "engine.gpu_memory_utilization",
    "generator.max_num_seqs": "engine.max_num_seqs",
    "generator.max_num_batched_tokens": "engine.max_num_batched_tokens",
    "generator.enforce_eager": "engine.enforce_eager",
    "generator.enable_prefix_caching": "engine.prefix_caching",
    "trainer.train_batch_size": "rollout.prompts_per_step",
    "trainer.policy_mini_batch_size": "trainer.prompts_per_mini_batch",
    "trainer.max_prompt_length": "rollout.max_prompt_tokens",
    "trainer.policy.optimizer_config.lr": "trainer.lr",
    "trainer.policy.optimizer_config.weight_decay": "trainer.weight_decay",
    "trainer.policy.optimizer_config.max_grad_norm": "trainer.grad_clip",
    "trainer.policy.optimizer_config.num_warmup_steps": "trainer.warmup_steps",
    "trainer.policy.sequence_parallel_size": "layout.sequence_parallel",
    "trainer.policy.use_torch_compile": "trainer.compile",
    "trainer.gradient_checkpointing": "trainer.activation_checkpointing",
    "trainer.algorithm.eps_clip_low": "algo.clip_low",
    "trainer.algorithm.eps_clip_high": "algo.clip_high",
    "trainer.algorithm.clip_ratio_c": "algo.clip_c",
    "trainer.algorithm.grpo_norm_by_std": "algo.normalize_std",
    "trainer.placement.colocate_all": "layout.colocated",
    "dispatcher.max_parallel_agents": "rollout.concurrency",
    # slime
    "rollout_batch_size": "rollout.prompts_per_step",
    "n_samples_per_prompt": "rollout.n",
    "n_samples_per_eval_prompt": "rollout.eval_n",
    "num_rollout": "trainer.steps",
    "rollout_temperature": "rollout.temperature",
    "rollout_top_p": "rollout.top_p",
    "rollout_max_prompt_len": "rollout.max_prompt_tokens",
    "rollout_max_context_len": "rollout.max_trajectory_tokens",
    "rollout_num_gpus_per_engine": "layout.engine_tp",
    "sglang_mem_fraction_static": "engine.gpu_memory_utilization",
    "context_parallel_size": "layout.sequence_parallel",
    "max_tokens_per_gpu": "trainer.max_tokens_per_micro_batch",
    "eval_interval": "trainer.eval_every_steps",
    "save_interval": "trainer.checkpoint_every_steps",
    "eps_clip_high": "algo.clip_high",
    "clip_grad": "trainer.grad_clip",
    "adam_beta1": "trainer.beta1",
    "adam_beta2": "trainer.beta2",
    "optimizer_cpu_offload": "trainer.offload_optimizer",
    "colocate": "layout.colocated",
    # prime-rl
    "orchestrator.rollouts_per_example": "rollout.n",
    "orchestrator.sampling.temperature": "rollout.temperature",
    "orchestrator.sampling.max_tokens": "rollout.max_turn_tokens",
    "orchestrator.seq_len": "rollout.max_trajectory_tokens",
    "agent.max_steps": "rollout.max_turns",
    "orchestrator.max_steps": "trainer.steps",
    "trainer.max_steps": "trainer.steps",
    "trainer.optim.lr": "trainer.lr",
    "inference.parallel.tp": "layout.engine_tp",
    "inference.parallel.dp": "layout.engines",
    "inference.gpu_memory_utilization": "engine.gpu_memory_utilization",
    "inference.model.max_model_len": "engine.max_model_len",
    # environments of slime's and FASRC's scripts
    "ROLLOUT_N": "rollout.n",
    "N_SAMPLES": "rollout.n",
    "TRAIN_BATCH_SIZE": "rollout.prompts_per_step",
    "ROLLOUT_BATCH_SIZE": "rollout.prompts_per_step",
    "SP_SIZE": "layout.sequence_parallel",
    "TP_SIZE": "layout.engine_tp",
    "MAX_MODEL_LEN": "engine.max_model_len",
    "GPU_MEMORY_UTILIZATION": "engine.gpu_memory_utilization",
    "MAX_PARALLEL_AGENTS": "rollout.concurrency",
    "GPUS_PER_NODE": "hardware.gpus_per_node",
    "GPU_NODES": "hardware.nodes",
    "GPU_PARTITION": "hardware.partition",
    "CPU_PARTITION": "runtime.partition",
    "CPUS_FOR_RUNTIME": "runtime.cpus_per_node",
    "CPUS_PER_WORKER": "sandbox.cpus",
}
NEAR = {
    # verl, rLLM
    f"{_VERL}model.path": "model.path",
    f"{_VERL}rollout.name": "engine",
    f"{_VERL}rollout.top_k": "rollout.top_k",
    f"{_VERL}rollout.response_length": "rollout.max_trajectory_tokens",
    f"{_VERL}rollout.max_model_len": "engine.max_model_len",
    f"{_VERL}actor.ppo_max_token_len_per_gpu": "trainer.max_tokens_per_micro_batch",
    f"{_VERL}actor.ppo_micro_batch_size_per_gpu": "trainer.max_tokens_per_micro_batch",
    f"{_VERL}actor.optim.lr_warmup_steps": "trainer.warmup_steps",
    f"{_VERL}actor.clip_ratio": "algo.clip_low",
    f"{_VERL}actor.fsdp_config.fsdp_size": "layout.shard_ranks",
    f"{_VERL}actor.use_kl_loss": "algo.kl_coef",
    f"{_VERL}actor.kl_loss_coef": "algo.kl_coef",
    f"{_VERL}actor.kl_loss_type": "algo.kl_estimator",
    f"{_VERL}actor.optim.lr_scheduler_type": "trainer.lr_schedule",
    f"{_VERL}actor.loss_agg_mode": "algo.loss_aggregation",
    "algorithm.adv_estimator": "algo.advantage",
    "algorithm.kl_ctrl.kl_coef": "algo.kl_coef",
    "algorithm.use_kl_in_reward": "algo.kl_in",
    "algorithm.filter_groups.enable": "algo.dynamic_sampling",
    "data.train_files": "env.dataset",
    "data.val_files": "env.eval_dataset",
    "data.max_response_length": "rollout.max_trajectory_tokens",
    "trainer.total_epochs": "trainer.steps",
    "trainer.save_freq": "trainer.checkpoint_every_steps",
    "trainer.test_freq": "trainer.eval_every_steps",
    "trainer.project_name": "logger.project",
    "trainer.experiment_name": "name",
    "trainer.default_local_dir": "paths.outputs",
    "trainer.logger": "logger.wandb",
    "trainer.resume_mode": "trainer.resume",
    "trainer.resume_from_path": "trainer.resume",
    "trainer.max_actor_ckpt_to_keep": "trainer.keep_checkpoints",
    # SkyRL
    "trainer.policy.model.path": "model.path",
    "trainer.epochs": "trainer.steps",
    "trainer.ckpt_interval": "trainer.checkpoint_every_steps",
    "trainer.ckpt_path": "paths.outputs",
    "trainer.max_ckpts_to_keep": "trainer.keep_checkpoints",
    "trainer.eval_interval": "trainer.eval_every_steps",
    "trainer.run_name": "name",
    "trainer.micro_train_batch_size_per_gpu": "trainer.max_tokens_per_micro_batch",
    "trainer.placement.policy_num_gpus_per_node": "layout.trainer_gpus",
    "trainer.placement.policy_num_nodes": "hardware.nodes",
    "trainer.policy.optimizer_config.adam_betas": "trainer.beta1",
    "trainer.policy.fsdp_config.cpu_offload": "trainer.offload_optimizer",
    "trainer.policy.fsdp_config.fsdp_size": "layout.shard_ranks",
    "trainer.algorithm.advantage_estimator": "algo.advantage",
    "trainer.algorithm.policy_loss_type": "algo.policy_loss",
    "trainer.algorithm.loss_reduction": "algo.loss_aggregation",
    "trainer.policy.optimizer_config.scheduler": "trainer.lr_schedule",
    "trainer.algorithm.use_kl_loss": "algo.kl_coef",
    "trainer.algorithm.kl_loss_coef": "algo.kl_coef",
    "trainer.algorithm.use_kl_in_reward": "algo.kl_in",
    "trainer.algorithm.use_tis": "algo.correction",
    "trainer.algorithm.tis_imp_ratio_cap": "algo.correction_cap",
    "trainer.algorithm.dynamic_sampling.type": "algo.dynamic_sampling",
    "generator.backend": "engine",
    "generator.weight_sync_backend": "trainer.weight_sync",
    "generator.remote_inference_engine_urls": "engine.urls",
    "generator.max_input_length": "rollout.max_trajectory_tokens",
    "generator.sampling_params.max_generate_length": "rollout.max_turn_tokens",
    "generator.sampling_params.top_k": "rollout.top_k",
    "generator.apply_overlong_filtering": "algo.overlong_filter",
    "data.train_data": "env.dataset",
    "data.val_data": "env.eval_dataset",
    "environment.env_class": "env",
    # slime
    "hf_checkpoint": "model.path",
    "prompt_data": "env.dataset",
    "eval_prompt_data": "env.eval_dataset",
    "load": "trainer.resume",
    "save": "paths.outputs",
    "global_batch_size": "trainer.prompts_per_mini_batch",
    "rollout_max_response_len": "rollout.max_trajectory_tokens",
    "rollout_top_k": "rollout.top_k",
    "rollout_num_gpus": "layout.engines",
    "actor_num_gpus_per_node": "layout.trainer_gpus",
    "actor_num_nodes": "hardware.nodes",
    "tensor_model_parallel_size": "layout.engine_tp",
    "advantage_estimator": "algo.advantage",
    "eps_clip": "algo.clip_low",
    "use_kl_loss": "algo.kl_coef",
    "kl_loss_coef": "algo.kl_coef",
    "kl_loss_type": "algo.kl_estimator",
    "use_tis": "algo.correction",
    "tis_clip": "algo.correction_cap",
    "dynamic_sampling_filter_path": "algo.dynamic_sampling",
    "use_wandb": "logger.wandb",
    "wandb_project": "logger.project",
    # prime-rl
    "max_steps": "trainer.steps",
    "seq_len": "rollout.max_trajectory_tokens",
    "max_async_level": "trainer.max_staleness_steps",
    "orchestrator.batch_size": "rollout.prompts_per_step",
    "orchestrator.max_async_level": "trainer.max_staleness_steps",
    "orchestrator.model.name": "model.path",
    "trainer.model.name": "model.path",
    "trainer.model.seq_len": "rollout.max_trajectory_tokens",
    "trainer.model.lora.rank": "trainer.lora_rank",
    "trainer.model.ac": "trainer.activation_checkpointing",
    "trainer.optim.weight_decay": "trainer.weight_decay",
    "trainer.loss.type": "algo.policy_loss",
    "trainer.ckpt.interval": "trainer.checkpoint_every_steps",
    "inference.model.name": "model.path",
    "model.name_or_path": "model.path",
    "ckpt.interval": "trainer.checkpoint_every_steps",
    "wandb.project": "logger.project",
}


# Most systems and libraries have these words, whatever stands before them. Those that say word by word what a key of
# ours says are not here: key_words.py reads them.
COMMON = {
    "group_size": "rollout.n",
    "max_length": "rollout.max_trajectory_tokens",
    "max_tokens": "rollout.max_turn_tokens",
    "beta": "algo.kl_coef",
    "model_name": "model.path",
    "model_name_or_path": "model.path",
    "output_dir": "paths.outputs",
    "num_gpus": "hardware.gpus_per_node",
    "gpus": "hardware.gpus_per_node",
    "clip_eps": "algo.clip_low",
    "data_path": "env.dataset",
    # TRL
    "epsilon": "algo.clip_low",
    "gradient_accumulation_steps": "trainer.prompts_per_mini_batch",
    "per_device_train_batch_size": "trainer.max_tokens_per_micro_batch",
    "loss_type": "algo.loss_aggregation",
    "scale_rewards": "algo.normalize_std",
    "mask_truncated_completions": "algo.overlong_filter",
    "warmup_ratio": "trainer.warmup_steps",
    "report_to": "logger.wandb",
    "run_name": "name",
    # OpenRLHF
    "micro_train_batch_size": "trainer.max_tokens_per_micro_batch",
    "init_kl_coef": "algo.kl_coef",
    "generate_max_len": "rollout.max_trajectory_tokens",
    "pretrain": "model.path",
    "save_path": "paths.outputs",
    "ckpt_path": "paths.outputs",
    "colocate_all_models": "layout.colocated",
    "adam_offload": "trainer.offload_optimizer",
    # NeMo-RL
    "checkpoint_dir": "paths.outputs",
    "keep_top_k": "trainer.keep_checkpoints",
    "reference_policy_kl_penalty": "algo.kl_coef",
    "ratio_clip_min": "algo.clip_low",
    "ratio_clip_max": "algo.clip_high",
    "ratio_clip_c": "algo.clip_c",
    "use_importance_sampling_correction": "algo.correction",
    "train_global_batch_size": "trainer.prompts_per_mini_batch",
    "max_input_seq_length": "rollout.max_prompt_tokens",
}


def our_key(key: str) -> str | None:
    """Returns our key for one of another system's, as it is typed there: `--rollout-batch-size` or
    `rollout_batch_size`. What no table has is read word by word."""
    known = listed_key(key)
    plain = key.lstrip("+~-").replace("-", "_")
    if known is None and not is_legal(plain) and not _is_nearly_a_group(plain):
        known = next(iter(keys_with_words(plain)), None)
    return known


def listed_key(key: str) -> str | None:
    """Returns our key for one that a table has, or None."""
    plain = key.lstrip("+~-").replace("-", "_")
    for spelled in (key, plain):
        if known := SAME.get(spelled) or NEAR.get(spelled):
            return known
    group, _, word = plain.rpartition(".")
    known = _words_elsewhere().get(word)
    if known is None:
        return None
    # Several groups have a key of the same name: who types `sft.learning_rate` means that of `sft`.
    in_same_group = f"{group}.{known.rpartition('.')[2]}"
    if is_legal(in_same_group):
        return in_same_group
    return known


def _is_nearly_a_group(key: str) -> bool:
    groups = [name for name in key_types() if "." not in name]
    return "_" not in key and bool(difflib.get_close_matches(key, groups, n=1, cutoff=NEAR_SPELLING))


def misspelt_key(key: str) -> str | None:
    """Returns our key for a misspelt one of another system, or None where a key of ours is as near by its spelling."""
    word = key.lstrip("+~-").replace("-", "_").rpartition(".")[2]
    ours = {name.rpartition(".")[2] for name in key_types()}
    nearest = difflib.get_close_matches(word, [*ours, *_words_elsewhere()], n=1, cutoff=NEAR_SPELLING)
    if not nearest or nearest[0] in ours:
        return None
    return our_key(key[: len(key) - len(word)] + nearest[0])


@cache
def _words_elsewhere() -> dict[str, str]:
    """Maps the last word of each key of another system to our key, as its group is often left out.

    A word that is the last one of a key of ours is left out: who types it means that key.
    """
    ours = {name.rpartition(".")[2] for name in key_types()}
    words: dict[str, str] = {}
    for key, known in [*SAME.items(), *NEAR.items()]:
        words.setdefault(key.rpartition(".")[2], known)
    return {word: known for word, known in words.items() if word not in ours} | COMMON


def describe_unit(key: str) -> str:
    """Returns what a key of ours counts, in brackets, as its documentation says it; nothing for a group."""
    comment = comment_of(key)
    if comment:
        return f" ({key}: {comment}.)"
    return ""
