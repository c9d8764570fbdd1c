"""Rules of the algorithm check its loss with clip, weights and masks, the sampling and the table of outcomes.

Invariants:
- The range of each number alone is in the schema; here is what several keys mean together.
- A value outside of a formula's range is an error; one that merely has no effect, or another than meant, is a warning.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import partial

from swe_rl.check.findings import Finding, Host, error, rule_about, warning
from swe_rl.check.imitation import reward_shaping_keys
from swe_rl.check.rules.agent import PROGRAMS
from swe_rl.check.rules.model import BUILTIN, is_local, no_model
from swe_rl.config.choices import (
    COMPARES_NOTHING,
    FOUND_BY_TRAINER,
    INFRA_STATUSES,
    AdvantageKind,
    Capture,
    Correction,
    DynamicSampling,
    ExtensionKind,
    LossAggregation,
    LrSchedule,
    MaskLevel,
    OutcomeReward,
    PolicyLoss,
)
from swe_rl.config.folders import PACKAGE
from swe_rl.config.parts import Part, reads_key
from swe_rl.config.schema import Config
from swe_rl.extension.find import declared_attribute, is_foreign
from swe_rl.facts.vocabulary import vocabulary_problem


@rule_about(Part.trainer)
def clip_range(config: Config, _: Host) -> Iterator[Finding]:
    algo = config.algo
    weights_only = algo.policy_loss in (PolicyLoss.cispo, PolicyLoss.nll)  # 1 is no lower end of a weight
    if algo.clip_low == 1 and not weights_only:
        yield error(
            "clip",
            "algo.clip_low",
            "the lower bound of the ratio is 1 - clip_low; it lies in [0, 1)",
            "algo.clip_low=0.2",
        )
    elif algo.clip_high < algo.clip_low and not weights_only:
        yield error(
            "clip",
            "algo.clip_high",
            f"below algo.clip_low={algo.clip_low:g}: swapped?",
            f"algo.clip_high={algo.clip_low:g}",
        )
    if algo.clip_c != 0 and weights_only:
        yield warning("clip", "algo.clip_c", "CISPO drops no token, so there is nothing to bound", "algo.clip_c=0")


@rule_about(Part.trainer)
def check_gspo(config: Config, _: Host) -> Iterator[Finding]:
    algo = config.algo
    if algo.policy_loss not in (PolicyLoss.gspo, PolicyLoss.gspo_token):
        return
    masks_tokens = algo.mask_low is not None and algo.mask_high is not None and algo.mask_level is MaskLevel.token
    if algo.policy_loss is PolicyLoss.gspo and masks_tokens:
        yield error(
            "gspo",
            "algo.mask_level",
            "GSPO has one ratio for a trajectory, whose gradient moves all of its tokens: a masked one is trained, too",
            "algo.mask_level=geometric or algo.mask_level=sequence, or algo.policy_loss=gspo_token",
        )
    if max(algo.clip_low, algo.clip_high) > 0.05:
        yield warning(
            "gspo",
            "algo.clip_high",
            "the ratio of a trajectory, by the token, stays within about 0.001 of 1: a clip this wide never acts",
            "algo=gspo, which clips at 3e-4 and 4e-4",
        )
    if algo.loss_aggregation != LossAggregation.sequence_mean:
        yield warning(
            "gspo",
            "algo.loss_aggregation",
            "GSPO is a mean over trajectories; otherwise a long one weighs more than its one ratio should",
            "algo.loss_aggregation=sequence_mean",
        )


@rule_about(Part.trainer)
def stale_rows(config: Config, _: Host) -> Iterator[Finding]:
    algo = config.algo
    ahead = config.trainer.max_staleness_steps
    limit = algo.max_staleness_steps
    key = "algo.max_staleness_steps"
    if limit is not None and limit < ahead:
        yield warning(
            "stale_rows",
            key,
            f"trainer.max_staleness_steps={ahead} lets older trajectories be sampled, which are then thrown away",
            f"leave {key} out, or trainer.max_staleness_steps={limit}",
        )
    if algo.stale_correction is not None and ahead == 0:
        yield warning(
            "stale_rows",
            "algo.stale_correction",
            "has no effect with trainer.max_staleness_steps=0: every row is of the present weights",
            "leave algo.stale_correction out",
        )


@rule_about(Part.trainer)
def mask_level(config: Config, _: Host) -> Iterator[Finding]:
    algo = config.algo
    if algo.mask_level != MaskLevel.token and algo.mask_low is None and algo.mask_high is None:
        yield warning(
            "mask_level", "algo.mask_level", "has no effect without bounds", "algo.mask_low=0.5 algo.mask_high=2"
        )


@rule_about(Part.trainer)
def dr_grpo(config: Config, _: Host) -> Iterator[Finding]:
    algo = config.algo
    if algo.advantage == AdvantageKind.dr_grpo and algo.normalize_std:
        yield error(
            "dr_grpo",
            "algo.normalize_std",
            "Dr. GRPO does not divide by the standard deviation",
            "algo=dr_grpo, which sets algo.normalize_std=false",
        )
    if algo.advantage == AdvantageKind.dr_grpo and algo.loss_aggregation != LossAggregation.sequence_sum_norm:
        yield warning(
            "dr_grpo",
            "algo.loss_aggregation",
            "Dr. GRPO sums tokens over a fixed length",
            "algo.loss_aggregation=sequence_sum_norm",
        )


@rule_about(Part.trainer)
def check_correction(config: Config, _: Host) -> Iterator[Finding]:
    used = {"algo.correction": config.algo.correction, "algo.stale_correction": config.algo.stale_correction}
    for key in used if config.rollout.capture == Capture.retokenize else ():
        if used[key] not in (None, Correction.none):
            yield error(
                "correction",
                key,
                "needs the sampled log-probabilities, which rollout.capture=retokenize does not have",
                f"rollout.capture=traced, or {key}=none",
            )


@rule_about(Part.trainer)
def token_credit(config: Config, _: Host) -> Iterator[Finding]:
    """Refuses what does not fit advantages that the trainer finds, token by token."""
    algo = config.algo
    key = "algo.advantage"
    if algo.advantage in FOUND_BY_TRAINER and is_foreign(config, ExtensionKind.advantage):
        words = f"algo.advantage={algo.advantage} leaves advantages to the trainer: nobody would ask this code"
        yield error("token_credit", "advantage.name", words, "advantage=default, or algo=grpo")
    if algo.advantage in FOUND_BY_TRAINER and algo.policy_loss is PolicyLoss.gspo:
        words = "has one ratio and one weight for a trajectory, whose tokens have several advantages here"
        yield error("token_credit", "algo.policy_loss", words, "algo.policy_loss=gspo_token")
    if algo.advantage is AdvantageKind.gae and config.trainer.lora_rank > 0:
        words = "a critic learns all of its weights, which an adapter is there to avoid"
        yield error("token_credit", key, words, "trainer.lora_rank=0, or algo=grpo")
    if algo.advantage is AdvantageKind.gae and algo.critic_warmup_steps >= config.trainer.steps:
        words = f"the whole run has trainer.steps={config.trainer.steps}: the policy never learns"
        yield error("token_credit", "algo.critic_warmup_steps", words, "algo.critic_warmup_steps=0")
    if algo.critic_warmup_steps and algo.advantage is not AdvantageKind.gae:
        words = f"algo={algo.name} has no critic"
        yield warning("token_credit", "algo.critic_warmup_steps", words, "algo=ppo")


@rule_about(Part.trainer)
def check_teacher(config: Config, host: Host) -> Iterator[Finding]:
    key = "algo.teacher"
    path = config.algo.teacher
    if config.algo.advantage is not AdvantageKind.teacher:
        if path is not None:
            words = f"nothing reads it with algo.advantage={config.algo.advantage}"
            yield warning("teacher", key, words, "algo=distill")
        return
    fix = f"{key}=FOLDER of a model with the same tokenizer, which job=export writes of a run"
    if path is None:
        yield error("teacher", key, "algo.advantage=teacher has nobody to learn from", fix)
        return
    yield from no_model("teacher", key, path, host, fix)
    if host.exists(path) and not host.exists(f"{path.rstrip('/')}/config.json"):
        yield error("teacher", key, "is no folder with a config.json", fix)
    for unread in reward_shaping_keys(config):
        words = "has no effect: with algo.advantage=teacher no reward is looked at"
        yield warning("teacher", unread, words, f"leave {unread} out, or algo=ppo")
    with suppress(ValueError):  # a file that is no JSON is for whoever loads it to name
        problem = vocabulary_problem(*(partial(_file_of, place, host) for place in (config.model.path, path)))
        if problem:
            yield error("teacher", key, problem, fix)


def _file_of(path: str, host: Host, name: str) -> str | None:
    """Returns the text of a file of a model's folder, or None for a model that the hub has."""
    if path.startswith(BUILTIN):
        return host.read_text(str(PACKAGE / "model/checkpoints" / path.removeprefix(BUILTIN) / name))
    return host.read_text(f"{path.rstrip('/')}/{name}") if is_local(path, host) else None


@rule_about(Part.trainer)
def turn_rewards(config: Config, _: Host) -> Iterator[Finding]:
    table = asdict(config.rollout.turn_rewards)
    algo = config.algo
    key = next((f"rollout.turn_rewards.{name}" for name, reward in table.items() if reward), None)
    if key is None and declared_attribute(config, ExtensionKind.reward, "pays_turns"):
        key = "reward.name"
    if key is None:
        if algo.discount != 1 and algo.advantage is not AdvantageKind.gae:
            words = "has no effect: only rewards of turns and algo.advantage=gae look at what comes later"
            yield warning("turn_rewards", "algo.discount", words, "leave algo.discount out")
        return
    if config.agent.name in PROGRAMS:
        words = f"agent={config.agent.name} keeps its turns to itself: nobody knows what became of its commands"
        yield error("turn_rewards", key, words, "agent=bash or agent=mini_swe")
    if config.rollout.capture is Capture.retokenize:
        words = "only a trace knows which turn sampled a token"
        yield error("turn_rewards", "rollout.capture", words, "rollout.capture=traced")
    over_batch = algo.advantage in (AdvantageKind.reinforce_pp, AdvantageKind.reinforce_pp_baseline)
    if over_batch and not is_foreign(config, ExtensionKind.advantage):
        words = f"turns are compared within their group, and algo.advantage={algo.advantage} normalizes over the batch"
        yield error("turn_rewards", "algo.advantage", words, "algo=grpo")
    if algo.policy_loss is PolicyLoss.gspo:
        words = "has one ratio and one weight for a trajectory, whose tokens have several advantages here"
        yield error("turn_rewards", "algo.policy_loss", words, "algo.policy_loss=gspo_token")


@rule_about(Part.trainer)
def mismatch_filter(config: Config, _: Host) -> Iterator[Finding]:
    if config.rollout.filter_token_mismatch and config.rollout.capture == Capture.traced:
        yield warning(
            "mismatch_filter",
            "rollout.filter_token_mismatch",
            "has nothing to mask: with rollout.capture=traced what is trained is what was sampled",
            "rollout.capture=retokenize, or rollout.filter_token_mismatch=false",
        )


STATUSES = (
    "resolved",
    "unresolved",
    "empty_patch",
    "step_limit",
    "context_overflow",
    "agent_timeout",
    "format_errors",
    "agent_crashed",
    "request_refused",
    "infra_error",
    "grade_error",
    "engine_error",
)


@rule_about(Part.trainer)
def dynamic_sampling(config: Config, _: Host) -> Iterator[Finding]:
    algo = config.algo
    foreign = is_foreign(config, ExtensionKind.advantage)
    if algo.dynamic_sampling == DynamicSampling.resample and algo.max_resample_rounds < 1:
        yield error(
            "resample",
            "algo.max_resample_rounds",
            "algo.dynamic_sampling=resample samples others in at least one further round",
            "algo.max_resample_rounds=3, or algo.dynamic_sampling=filter",
        )
    by_batch = algo.advantage in COMPARES_NOTHING
    if algo.dynamic_sampling != DynamicSampling.none and by_batch and not foreign:
        yield warning(
            "resample",
            "algo.dynamic_sampling",
            f"algo={algo.name} compares nothing in a group, so one of equal rewards still teaches and is thrown away",
            "algo.dynamic_sampling=none, or algo=reinforce_pp_baseline",
        )


@rule_about(Part.trainer)
def learning_rate(config: Config, _: Host) -> Iterator[Finding]:
    if config.model.params_b >= 1 and config.trainer.lr > 1e-4:
        yield warning(
            "learning_rate",
            "trainer.lr",
            f"far above what models of {config.model.params_b:g} billion parameters bear in RL (about 1e-6)",
            "trainer=full",
        )


@rule_about(Part.trainer, Part.warm_start)
def lr_decay(config: Config, _: Host) -> Iterator[Finding]:
    group = "trainer" if reads_key(config, "trainer.lr_schedule") else "sft"
    of_group = config.trainer if group == "trainer" else config.sft
    if of_group.lr_schedule is LrSchedule.constant and of_group.lr_final_fraction != 0:
        yield warning(
            "lr_decay",
            f"{group}.lr_final_fraction",
            f"has no effect with {group}.lr_schedule=constant: the learning rate stays at its peak",
            f"{group}.lr_schedule=cosine, or leave {group}.lr_final_fraction out",
        )


@rule_about(Part.trainer)
def something_to_compare(config: Config, _: Host) -> Iterator[Finding]:
    if config.rollout.temperature == 0:
        yield error(
            "sampling",
            "rollout.temperature",
            "greedy trajectories of one instance are all equal: there is nothing to compare",
            "rollout.temperature=1.0",
        )


@rule_about(Part.rollouts)
def greedy_evaluation(config: Config, _: Host) -> Iterator[Finding]:
    rollout = config.rollout
    if rollout.eval_temperature == 0 and rollout.eval_n > 1:
        yield warning(
            "eval_greedy",
            "rollout.eval_n",
            "greedy answers (rollout.eval_temperature=0) are all the same: each further sample costs and tells nothing",
            "rollout.eval_n=1",
        )


@rule_about(Part.rollouts)
def outcomes_complete(config: Config, _: Host) -> Iterator[Finding]:
    table = config.rollout.outcomes
    missing = [status for status in STATUSES if status not in table]
    extra = [status for status in table if status not in STATUSES]
    if missing:
        yield error(
            "outcomes",
            "rollout.outcomes",
            f"says nothing about {', '.join(missing)}",
            "rollout=default, which has every row",
            value=list(table),
        )
    if extra:
        yield error(
            "outcomes",
            "rollout.outcomes",
            f"{', '.join(extra)}: no trajectory ends like that",
            f"remove it; a trajectory is one of {', '.join(STATUSES)}",
            value=list(table),
        )


@rule_about(Part.rollouts)
def infra_has_no_reward(config: Config, _: Host) -> Iterator[Finding]:
    for status, row in config.rollout.outcomes.items():
        key = f"rollout.outcomes.{status}"
        if status in INFRA_STATUSES and (row.reward != OutcomeReward.none or row.trained or row.in_baseline):
            yield error(
                "infra_reward",
                key,
                "an infrastructure failure says nothing about the policy: no reward, not trained, not in the baseline",
                f"{key}.reward=none {key}.trained=false {key}.in_baseline=false",
                value=f"reward={row.reward} trained={row.trained} in_baseline={row.in_baseline}",
            )
        elif row.reward == OutcomeReward.none and (row.trained or row.in_baseline):
            yield error(
                "outcome_reward",
                f"{key}.reward",
                "a trajectory without a reward can neither be trained nor count in the baseline",
                f"{key}.reward=failure, or {key}.trained=false {key}.in_baseline=false",
            )


@rule_about(Part.trainer)
def trained_has_advantage(config: Config, _: Host) -> Iterator[Finding]:
    if config.algo.advantage in FOUND_BY_TRAINER:
        return  # there is no baseline, and each token has an advantage
    for status, row in config.rollout.outcomes.items():
        key = f"rollout.outcomes.{status}"
        if row.trained and not row.in_baseline and row.reward != OutcomeReward.none and status not in INFRA_STATUSES:
            yield warning(
                "outcome_advantage",
                f"{key}.in_baseline",
                "outside of the baseline an advantage is 0: these trajectories teach nothing, and their tokens count "
                "in the mean of the loss",
                f"{key}.in_baseline=true, or {key}.trained=false",
            )
