"""Rules of the batch arithmetic: prompts, trajectories, mini-batches, ranks.

Invariants:
- Each rule yields at most one finding for one cause.
"""

from collections.abc import Iterator

from swe_rl.config.choices import Advantage
from swe_rl.config.findings import Finding, Host, about, error
from swe_rl.config.parts import Part, reads
from swe_rl.config.schema import Config
from swe_rl.config.sizes import data_parallel, divisors, nearest_multiples, trajectories_per_mini_batch


@about()
def positive_counts(config: Config, _: Host) -> Iterator[Finding]:
    counts = {
        "rollout.prompts_per_step": config.rollout.prompts_per_step,
        "rollout.n": config.rollout.n,
        "rollout.eval_n": config.rollout.eval_n,
        "rollout.max_turns": config.rollout.max_turns,
        "rollout.concurrency": config.rollout.concurrency,
        "sandbox.concurrency": config.sandbox.concurrency,
        "trainer.steps": config.trainer.steps,
        "trainer.prompts_per_mini_batch": config.trainer.prompts_per_mini_batch,
        "trainer.keep_checkpoints": config.trainer.keep_checkpoints,
        "engine.max_num_seqs": config.engine.max_num_seqs,
        "layout.engines": config.layout.engines,
        "layout.engine_tp": config.layout.engine_tp,
        "layout.sequence_parallel": config.layout.sequence_parallel,
        "hardware.nodes": config.hardware.nodes,
        "paths.sync_every_s": config.paths.sync_every_s,
        "model.num_layers": config.model.num_layers,
        "model.num_heads": config.model.num_heads,
        "model.num_kv_heads": config.model.num_kv_heads,
    }
    for key, value in counts.items():
        if value < 1 and reads(config, key):
            yield error("positive", key, value, "must be at least 1", f"{key}=1 or more")
    for key, value in {
        "layout.trainer_gpus": config.layout.trainer_gpus,
        "hardware.gpus_per_node": config.hardware.gpus_per_node,
        "hardware.max_requeues": config.hardware.max_requeues,
        "rollout.infra_retries": config.rollout.infra_retries,
        "trainer.warmup_steps": config.trainer.warmup_steps,
        "trainer.checkpoint_every_steps": config.trainer.checkpoint_every_steps,
        "trainer.eval_every_steps": config.trainer.eval_every_steps,
        "trainer.max_restarts": config.trainer.max_restarts,
    }.items():
        if value < 0 and reads(config, key):
            yield error("positive", key, value, "must be 0 or more", f"{key}=0 or more")


@about(Part.trainer)
def group_size(config: Config, _: Host) -> Iterator[Finding]:
    if config.rollout.n == 1 and config.algo.advantage != Advantage.reinforce_pp:
        yield error(
            "group_size",
            "rollout.n",
            1,
            "advantages compare the trajectories of one instance; with one of them every advantage is zero",
            "rollout.n=4",
        )


@about(Part.rollouts)
def one_group_size(config: Config, _: Host) -> Iterator[Finding]:
    given, n = config.env.num_trajectories, config.rollout.n
    if given != n:
        yield error(
            "num_trajectories",
            "env.num_trajectories",
            given,
            f"rollout.n={n} says otherwise; both mean trajectories of one instance",
            "set rollout.n only; env.num_trajectories follows it",
        )


@about(Part.trainer)
def mini_batch(config: Config, _: Host) -> Iterator[Finding]:
    prompts, mini = config.rollout.prompts_per_step, config.trainer.prompts_per_mini_batch
    if mini >= 1 and prompts >= 1 and prompts % mini:
        near = [size for size in divisors(prompts) if size <= mini][-1]
        yield error(
            "mini_batch",
            "trainer.prompts_per_mini_batch",
            mini,
            f"does not divide rollout.prompts_per_step={prompts}: the last update of a step would be smaller",
            f"trainer.prompts_per_mini_batch={near}, or rollout.prompts_per_step={nearest_multiples(prompts, mini)}",
        )


@about(Part.trainer)
def mini_batch_over_ranks(config: Config, _: Host) -> Iterator[Finding]:
    trajectories, ranks = trajectories_per_mini_batch(config), data_parallel(config.layout)
    if trajectories % ranks:
        yield error(
            "mini_batch_ranks",
            "trainer.prompts_per_mini_batch",
            config.trainer.prompts_per_mini_batch,
            f"{trajectories} trajectories of a mini-batch cannot be shared evenly by {ranks} data-parallel ranks",
            f"make trainer.prompts_per_mini_batch * rollout.n a multiple of {ranks}",
        )


RULES = (positive_counts, group_size, one_group_size, mini_batch, mini_batch_over_ranks)
