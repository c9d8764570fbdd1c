"""Rules of the algorithm (those of its loss: `rules_loss`), the sampling and the table of outcomes.

Invariants:
- Ranges are those in which the formulas of swe_rl/algo mean something.
"""

from collections.abc import Iterator

from swe_rl.config import rules_loss
from swe_rl.config.choices import Advantage, DynamicSampling, OutcomeReward
from swe_rl.config.findings import Finding, Host, about, error, warning
from swe_rl.config.parts import Part, reads
from swe_rl.config.schema import Config

STATUSES = (
    "resolved",
    "unresolved",
    "empty_patch",
    "step_limit",
    "context_overflow",
    "agent_timeout",
    "format_errors",
    "infra_error",
    "grade_error",
    "engine_error",
)
INFRA_STATUSES = ("infra_error", "grade_error", "engine_error")


@about(Part.trainer)
def dynamic_sampling(config: Config, _: Host) -> Iterator[Finding]:
    algo = config.algo
    if algo.dynamic_sampling == DynamicSampling.resample and algo.max_resample_rounds < 1:
        yield error(
            "resample",
            "algo.max_resample_rounds",
            algo.max_resample_rounds,
            "algo.dynamic_sampling=resample samples others in at least one further round",
            "algo.max_resample_rounds=3, or algo.dynamic_sampling=filter",
        )
    if algo.dynamic_sampling != DynamicSampling.none and algo.advantage == Advantage.reinforce_pp:
        yield warning(
            "resample",
            "algo.dynamic_sampling",
            algo.dynamic_sampling,
            "REINFORCE++ has no baseline of the group, so a group of equal rewards still teaches and is thrown away",
            "algo.dynamic_sampling=none, or algo=reinforce_pp_baseline",
        )


@about(Part.trainer, Part.warm_start)
def coefficients(config: Config, _: Host) -> Iterator[Finding]:
    for key, value in {"algo.kl_coef": config.algo.kl_coef, "algo.entropy_coef": config.algo.entropy_coef}.items():
        if not 0 <= value <= 1 and reads(config, key):
            yield error("coefficient", key, value, "is a weight between 0 and 1", f"{key}=0.001")
    rates = {"trainer.lr": config.trainer.lr, "sft.lr": config.sft.lr, "trainer.grad_clip": config.trainer.grad_clip}
    for key, value in rates.items():
        if value <= 0 and reads(config, key):
            yield error("coefficient", key, value, "must be greater than 0", f"give {key} a positive value")
    if config.model.params_b >= 1 and config.trainer.lr > 1e-4 and reads(config, "trainer.lr"):
        yield warning(
            "learning_rate",
            "trainer.lr",
            config.trainer.lr,
            f"far above what models of {config.model.params_b:g} billion parameters bear in RL (about 1e-6)",
            "trainer=full",
        )


@about(Part.trainer)
def something_to_compare(config: Config, _: Host) -> Iterator[Finding]:
    if config.rollout.temperature == 0:
        yield error(
            "sampling",
            "rollout.temperature",
            config.rollout.temperature,
            "greedy trajectories of one instance are all equal: there is nothing to compare",
            "rollout.temperature=1.0",
        )


@about(Part.rollouts)
def sampling(config: Config, _: Host) -> Iterator[Finding]:
    rollout = config.rollout
    if rollout.temperature < 0:
        yield error(
            "sampling",
            "rollout.temperature",
            rollout.temperature,
            "is 0 (greedy) or positive",
            "rollout.temperature=1.0",
        )
    if rollout.eval_temperature < 0:
        yield error(
            "sampling",
            "rollout.eval_temperature",
            rollout.eval_temperature,
            "is 0 (greedy) or positive",
            "rollout.eval_temperature=0",
        )
    if not 0 < rollout.top_p <= 1:
        yield error(
            "sampling", "rollout.top_p", rollout.top_p, "is a probability: above 0, at most 1", "rollout.top_p=1.0"
        )
    if rollout.eval_temperature == 0 and rollout.eval_n > 1:
        yield warning(
            "eval_greedy",
            "rollout.eval_n",
            rollout.eval_n,
            "greedy answers (rollout.eval_temperature=0) are all the same: each further sample costs and tells nothing",
            "rollout.eval_n=1",
        )
    if rollout.top_k < 0:
        yield error("sampling", "rollout.top_k", rollout.top_k, "is 0 (off) or positive", "rollout.top_k=0")
    if not 0 <= rollout.max_infra_failure_rate <= 1:
        yield error(
            "sampling",
            "rollout.max_infra_failure_rate",
            rollout.max_infra_failure_rate,
            "is a share of a step, 0 to 1",
            "rollout.max_infra_failure_rate=0.2",
        )


@about(Part.rollouts)
def outcomes_complete(config: Config, _: Host) -> Iterator[Finding]:
    table = config.rollout.outcomes
    missing = [status for status in STATUSES if status not in table]
    extra = [status for status in table if status not in STATUSES]
    if missing:
        yield error(
            "outcomes",
            "rollout.outcomes",
            list(table),
            f"says nothing about {', '.join(missing)}",
            "rollout=default, which has every row",
        )
    if extra:
        yield error(
            "outcomes",
            "rollout.outcomes",
            list(table),
            f"{', '.join(extra)}: no trajectory ends like that",
            f"remove it; a trajectory is one of {', '.join(STATUSES)}",
        )


@about(Part.rollouts)
def infra_has_no_reward(config: Config, _: Host) -> Iterator[Finding]:
    for status, row in config.rollout.outcomes.items():
        key = f"rollout.outcomes.{status}"
        if status in INFRA_STATUSES and (row.reward != OutcomeReward.none or row.trained or row.in_baseline):
            yield error(
                "infra_reward",
                key,
                f"reward={row.reward} trained={row.trained} in_baseline={row.in_baseline}",
                "an infrastructure failure says nothing about the policy: no reward, not trained, not in the baseline",
                f"{key}.reward=none {key}.trained=false {key}.in_baseline=false",
            )
        elif row.reward == OutcomeReward.none and (row.trained or row.in_baseline):
            yield error(
                "outcome_reward",
                f"{key}.reward",
                row.reward,
                "a trajectory without a reward can neither be trained nor count in the baseline",
                f"{key}.reward=failure, or {key}.trained=false {key}.in_baseline=false",
            )
        if row.retries < 0:
            yield error("positive", f"{key}.retries", row.retries, "is 0 or more", f"{key}.retries=0")


RULES = (
    *rules_loss.RULES,
    dynamic_sampling,
    coefficients,
    something_to_compare,
    sampling,
    outcomes_complete,
    infra_has_no_reward,
)
