"""Rules of the algorithm (those of its loss: `rules_loss`), the sampling and the table of outcomes.

Invariants:
- The range of each number alone is in the schema; here is what several keys mean together.
"""

from collections.abc import Iterator

from swe_rl.check.findings import Finding, Host, about, error, warning
from swe_rl.check.rules import loss as rules_loss
from swe_rl.config.choices import Advantage, DynamicSampling, OutcomeReward, TrickPolicy
from swe_rl.config.parts import Part
from swe_rl.config.schema import Config

STATUSES = (
    "resolved",
    "unresolved",
    "empty_patch",
    "step_limit",
    "context_overflow",
    "agent_timeout",
    "format_errors",
    "agent_crashed",
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


@about(Part.trainer)
def learning_rate(config: Config, _: Host) -> Iterator[Finding]:
    if config.model.params_b >= 1 and config.trainer.lr > 1e-4:
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
def greedy_evaluation(config: Config, _: Host) -> Iterator[Finding]:
    rollout = config.rollout
    if rollout.eval_temperature == 0 and rollout.eval_n > 1:
        yield warning(
            "eval_greedy",
            "rollout.eval_n",
            rollout.eval_n,
            "greedy answers (rollout.eval_temperature=0) are all the same: each further sample costs and tells nothing",
            "rollout.eval_n=1",
        )


@about(Part.trainer)
def tricks_are_paid(config: Config, _: Host) -> Iterator[Finding]:
    if config.rollout.tricks is TrickPolicy.count:
        yield warning(
            "tricks",
            "rollout.tricks",
            config.rollout.tricks,
            "a patch whose code could have changed its verdict is paid what its tests say, and so is trained towards",
            "rollout.tricks=zero, or mask",
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


RULES = (
    *rules_loss.RULES,
    dynamic_sampling,
    learning_rate,
    something_to_compare,
    greedy_evaluation,
    tricks_are_paid,
    outcomes_complete,
    infra_has_no_reward,
)
