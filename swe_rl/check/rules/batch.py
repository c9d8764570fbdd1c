"""Rules of the batch arithmetic: prompts, trajectories, mini-batches, ranks.

Invariants:
- Each rule yields at most one finding for one cause.
"""

from collections.abc import Iterator

from swe_rl.check.findings import Finding, Host, about, error
from swe_rl.config.choices import Advantage
from swe_rl.config.parts import Part
from swe_rl.config.schema import Config
from swe_rl.plan.sizes import data_parallel, divisors, nearest_multiples, trajectories_per_mini_batch


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


RULES = (group_size, one_group_size, mini_batch, mini_batch_over_ranks)
