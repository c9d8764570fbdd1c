"""Rules of the policy loss: its clip, its weights and its masks.

Invariants:
- A value outside of a formula's range is an error; one that merely has no effect, or another than meant, is a warning.
"""

from collections.abc import Iterator

from swe_rl.check.findings import Finding, Host, about, error, warning
from swe_rl.config.choices import Advantage, Capture, Correction, LossAggregation, MaskLevel, PolicyLoss
from swe_rl.config.parts import Part
from swe_rl.config.schema import Config


@about(Part.trainer)
def clip_range(config: Config, _: Host) -> Iterator[Finding]:
    algo = config.algo
    weights_only = algo.policy_loss == PolicyLoss.cispo  # its ends bound a weight, each for itself; 1 is no lower end
    if algo.clip_low == 1 and not weights_only:
        yield error(
            "clip",
            "algo.clip_low",
            algo.clip_low,
            "the lower bound of the ratio is 1 - clip_low; it lies in [0, 1)",
            "algo.clip_low=0.2",
        )
    elif algo.clip_high < algo.clip_low and not weights_only:
        yield error(
            "clip",
            "algo.clip_high",
            algo.clip_high,
            f"below algo.clip_low={algo.clip_low:g}: swapped?",
            f"algo.clip_high={algo.clip_low:g}",
        )
    if algo.clip_c != 0 and weights_only:
        yield warning(
            "clip", "algo.clip_c", algo.clip_c, "CISPO drops no token, so there is nothing to bound", "algo.clip_c=0"
        )


@about(Part.trainer)
def gspo(config: Config, _: Host) -> Iterator[Finding]:
    algo = config.algo
    if algo.policy_loss not in (PolicyLoss.gspo, PolicyLoss.gspo_token):
        return
    if max(algo.clip_low, algo.clip_high) > 0.05:
        yield warning(
            "gspo",
            "algo.clip_high",
            algo.clip_high,
            "the ratio of a trajectory, by the token, stays within about 0.001 of 1: a clip this wide never acts",
            "algo=gspo, which clips at 3e-4 and 4e-4",
        )
    if algo.loss_aggregation != LossAggregation.sequence_mean:
        yield warning(
            "gspo",
            "algo.loss_aggregation",
            algo.loss_aggregation,
            "GSPO is a mean over trajectories; otherwise a long one weighs more than its one ratio should",
            "algo.loss_aggregation=sequence_mean",
        )


@about(Part.trainer)
def stale_rows(config: Config, _: Host) -> Iterator[Finding]:
    algo, ahead = config.algo, config.trainer.max_staleness_steps
    limit, key = algo.max_staleness_steps, "algo.max_staleness_steps"
    if limit is not None and limit < ahead:
        yield warning(
            "stale_rows",
            key,
            limit,
            f"trainer.max_staleness_steps={ahead} lets older trajectories be sampled, which are then thrown away",
            f"leave {key} out, or trainer.max_staleness_steps={limit}",
        )
    if algo.stale_correction is not None and ahead == 0:
        yield warning(
            "stale_rows",
            "algo.stale_correction",
            algo.stale_correction,
            "has no effect with trainer.max_staleness_steps=0: every row is of the present weights",
            "leave algo.stale_correction out",
        )


@about(Part.trainer)
def mask_level(config: Config, _: Host) -> Iterator[Finding]:
    algo = config.algo
    if algo.mask_level != MaskLevel.token and algo.mask_low is None and algo.mask_high is None:
        yield warning(
            "mask_level",
            "algo.mask_level",
            algo.mask_level,
            "has no effect without bounds",
            "algo.mask_low=0.5 algo.mask_high=2",
        )


@about(Part.trainer)
def dr_grpo(config: Config, _: Host) -> Iterator[Finding]:
    algo = config.algo
    if algo.advantage == Advantage.dr_grpo and algo.normalize_std:
        yield error(
            "dr_grpo",
            "algo.normalize_std",
            True,
            "Dr. GRPO does not divide by the standard deviation",
            "algo=dr_grpo, which sets algo.normalize_std=false",
        )
    if algo.advantage == Advantage.dr_grpo and algo.loss_aggregation != LossAggregation.sequence_sum_norm:
        yield warning(
            "dr_grpo",
            "algo.loss_aggregation",
            algo.loss_aggregation,
            "Dr. GRPO sums tokens over a fixed length",
            "algo.loss_aggregation=sequence_sum_norm",
        )


@about(Part.trainer)
def correction(config: Config, _: Host) -> Iterator[Finding]:
    used = {
        "algo.correction": config.algo.correction,
        "algo.stale_correction": config.algo.stale_correction or Correction.none,
    }
    used = {key: value for key, value in used.items() if value != Correction.none}
    for key, value in used.items() if config.rollout.capture == Capture.retokenize else ():
        yield error(
            "correction",
            key,
            value,
            "needs the sampled log-probabilities, which rollout.capture=retokenize does not have",
            f"rollout.capture=traced, or {key}=none",
        )


@about(Part.trainer)
def mismatch_filter(config: Config, _: Host) -> Iterator[Finding]:
    if config.rollout.filter_token_mismatch and config.rollout.capture == Capture.traced:
        yield warning(
            "mismatch_filter",
            "rollout.filter_token_mismatch",
            True,
            "has nothing to mask: with rollout.capture=traced what is trained is what was sampled",
            "rollout.capture=retokenize, or rollout.filter_token_mismatch=false",
        )


RULES = (clip_range, gspo, stale_rows, mask_level, dr_grpo, correction, mismatch_filter)
