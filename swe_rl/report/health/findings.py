"""Says what is wrong with a training, from its steps and evaluations: what a person would see in the curves.

The terminal, the report, `job=status` and `events.jsonl` show the same findings, the most serious one first.

Invariants:
- It is pure: the lines of `steps.jsonl`, the evaluations and a few facts of the configuration go in, findings come out.
- A figure that is missing, null or not finite gives no finding; steps without a trainer (`job=rollout`) and
  demonstrations (`job=sft`) give none.
- Each threshold stands here alone, with the reason for it. What chance alone would move as far in one of forty runs is
  no finding: held-out rates are judged by the 95 % interval of their difference, instance by instance, and trends by
  the distance between the ends of a curve.
- "Nothing was learned" is said of a training that is over. The next step of one that goes on may learn.
- A finding names keys that its algorithm reads.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from swe_rl.config.choices import PolicyLoss
from swe_rl.logger.progress_text import format_number, format_percent, reason_for_no_update
from swe_rl.report.health.curves import gap_interval, length_trend, recent_figures, trained_steps, trend_of
from swe_rl.report.health.facts import TrainingFacts

if TYPE_CHECKING:
    from swe_rl.report.resolved import RateChange

Record = Mapping[str, Any]
NO_PARTS: Mapping[str, "RateChange | None"] = MappingProxyType({})

# Only groups of unlike rewards move a policy. Above three quarters most of the sampling is paid for nothing, and the
# same few instances teach all. In one training of a real model with 88 % of such groups the held-out rate fell.
LARGEST_SHARE_WITHOUT_SIGNAL = 0.75
# Entropy falls in each training that works. At a quarter of its beginning attempts of one instance are nearly the same.
SMALLEST_ENTROPY_LEFT = 0.25
# Training sees its instances again and again, so that it gains more; twenty points more are learned by heart.
LARGEST_GAIN_GAP = 0.2
# Responses grow with harder work. Twice or half the length is another behaviour: talk, loops, or giving up.
LARGEST_LENGTH_RATIO = 2.0
# A cut reply is seldom a whole command. One in ten means that a turn in each longer trajectory is lost.
LARGEST_SHARE_CUT = 0.1
# Clipping begins at a ratio near 1.3. A token that became ten times as likely within one step was moved too far.
LARGEST_RATIO = 10.0
# Above a fifth of the tokens the step is larger than its trust region.
LARGEST_SHARE_CLIPPED = 0.2
# A trajectory is clipped with all of its tokens, and the range is a thousandth as wide: many more are clipped in
# trainings that work. Where half of them are, every second trajectory teaches nothing.
LARGEST_SHARE_CLIPPED_WHOLE = 0.5


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """One thing that is wrong: what it is about, its value, the threshold that it passed, why that matters, and the
    keys of the configuration that change it.
    """

    about: str
    value: str
    threshold: str
    reason: str
    keys: tuple[str, ...]


def judge_training(
    steps: Sequence[Record],
    gain: "RateChange | None",
    facts: TrainingFacts,
    *,
    is_over: bool,
    gains_of_parts: Mapping[str, "RateChange | None"] = NO_PARTS,
) -> list[HealthFinding]:
    """Returns the findings, none for a healthy or short training.

    `gain` is that of the held-out rate between the first evaluation and the latest one; `gains_of_parts` has those of
    the parts of a mix.
    """
    trained = trained_steps(steps)
    idle = None
    if is_over:
        idle = _find_nothing_learned(trained, facts)
    findings = (
        idle or _find_missing_signal(trained, facts),
        _find_held_out_loss(gain, facts),
        _find_gain_gap(trained, gain, facts),
        _find_entropy_collapse(trained, gain, facts),
        _find_cut_replies(trained),
        _find_length_drift(trained, facts),
        _find_large_ratios(trained, facts),
        _find_clipping(trained, facts),
    )
    of_whole = [finding for finding in findings if finding]
    said = {finding.about for finding in of_whole}
    return [
        *of_whole,
        *(finding for finding in _find_in_parts(trained, gains_of_parts, facts) if finding.about not in said),
    ]


def _find_in_parts(
    steps: Sequence[Record], gains: Mapping[str, "RateChange | None"], facts: TrainingFacts
) -> Iterator[HealthFinding]:
    """Yields what is wrong with single parts of a mix, which the figures of the whole may hide."""
    tables = [row["parts"] for row in steps if isinstance(row.get("parts"), Mapping)]
    for name in sorted({*gains, *(name for table in tables for name in table)}):
        rows = [table[name] for table in tables if isinstance(table.get(name), Mapping)]
        keys = (f"env.mix.{name}.weight", f"env.mix.{name}.instances")
        for finding in (_find_missing_signal(rows, facts), _find_held_out_loss(gains.get(name), facts)):
            if finding:
                yield replace(finding, value=f"part {name}: {finding.value}", keys=(*keys, *finding.keys))


def describe_finding(finding: HealthFinding) -> str:
    """Returns a finding as one line of plain text."""
    keys = " or ".join(finding.keys)
    return f"{finding.about}: {finding.value} ({finding.threshold}): {finding.reason}. Change {keys}."


def _is_idle(row: Record) -> bool:
    """Tells whether a step left the policy as it was: no update, or updates whose gradients were all 0."""
    return row["updates"] == 0 or row.get("grad_norm") == 0.0


def _is_dropped(row: Record) -> bool:
    """Tells whether updates were tried, and none of their gradients was finite."""
    return bool(row.get("nonfinite_updates"))


def _find_nothing_learned(steps: Sequence[Record], facts: TrainingFacts) -> HealthFinding | None:
    idle = [row for row in steps if _is_idle(row)]
    if not idle or len(idle) < len(steps):
        return None
    reasons = Counter(_reason_of_idle_step(row) for row in idle)
    reason = reasons.most_common(1)[0][0]
    return HealthFinding(
        about="Nothing was learned",
        value=f"{len(idle)} of {len(steps)} steps left the policy as it was",
        threshold="all of them",
        reason=reason,
        # A reason that names keys is about these.
        keys=tuple(re.findall(r"\b(?:algo|rollout|trainer)\.\w+", reason)) or _keys_of_no_update(idle[-1], facts),
    )


def _keys_of_no_update(row: Record, facts: TrainingFacts) -> tuple[str, ...]:
    if _is_dropped(row):
        return ("trainer.lr", "trainer.attention")
    if facts.has_teacher:
        return ("algo.teacher",)
    return ("rollout.n", "rollout.instances", "env")


def _reason_of_idle_step(row: Record) -> str:
    if _is_dropped(row):
        return "no gradient was finite, so that each update was dropped"
    if row["updates"]:
        return "the gradients of all updates were 0"
    return reason_for_no_update(row)


def _find_missing_signal(steps: Sequence[Record], facts: TrainingFacts) -> HealthFinding | None:
    if not facts.compares_within_groups:
        return None
    # Turns that are paid teach within groups of equal rewards, too. So do a critic and a teacher.
    others = ("turn_reward_mean", "value_loss", "teacher_kl")
    compared = [row for row in steps if all(row.get(key) is None for key in others)]
    return _find_high_share(
        [1.0 - rate for rate in recent_figures(compared, "signal_rate")],
        LARGEST_SHARE_WITHOUT_SIGNAL,
        about="Groups without signal",
        reason="all attempts of such a group have the same reward, so that few instances teach everything",
        keys=("rollout.instances", "rollout.n", "algo.dynamic_sampling"),
    )


def _find_high_share(
    shares: Sequence[float], bound: float, *, about: str, reason: str, keys: tuple[str, ...]
) -> HealthFinding | None:
    """Returns a finding where the mean of recent steps is above a bound."""
    if not shares or fmean(shares) <= bound:
        return None
    return HealthFinding(
        about=about,
        value=f"{format_percent(fmean(shares))} in the last {len(shares)} steps",
        threshold=f"above {format_percent(bound)}",
        reason=reason,
        keys=keys,
    )


def _find_held_out_loss(gain: "RateChange | None", facts: TrainingFacts) -> HealthFinding | None:
    if gain is None or gain.high >= 0.0:
        return None
    return HealthFinding(
        about="Held-out rate fell",
        value=f"{format_percent(gain.before)} to {format_percent(gain.after)} of {gain.num_instances} instances",
        threshold=f"a loss for certain: the 95 % interval of the gain is {100 * gain.low:+.1f} to "
        f"{100 * gain.high:+.1f} points",
        reason="the policy solves fewer instances that it never trained on than before the training",
        keys=("trainer.lr", _anchor_of(facts), "trainer.steps"),
    )


def _anchor_of(facts: TrainingFacts) -> str:
    """Returns the key of what holds a policy back. With a teacher this is the teacher."""
    if facts.has_teacher:
        return "algo.teacher"
    return "algo.kl_coef"


def _find_gain_gap(steps: Sequence[Record], gain: "RateChange | None", facts: TrainingFacts) -> HealthFinding | None:
    trend = trend_of(steps, "resolved_rate")
    if trend is None or gain is None:
        return None
    trained_gain = trend.after - trend.before
    gap = trained_gain - gain.delta
    is_certain = gap_interval(trend, (gain.low, gain.high))[0] > 0.0
    if gap <= LARGEST_GAIN_GAP or trained_gain <= 0.0 or not is_certain:
        return None
    return HealthFinding(
        about="Training gains more than held-out",
        value=f"{100 * trained_gain:+.1f} against {100 * gain.delta:+.1f} points",
        threshold=f"a gap above {100 * LARGEST_GAIN_GAP:.0f} points whose 95 % interval is above 0",
        reason="what was learned is of the training's instances and does not carry over to others",
        keys=("env.num_instances", "trainer.steps", _anchor_of(facts)),
    )


def _find_entropy_collapse(
    steps: Sequence[Record], gain: "RateChange | None", facts: TrainingFacts
) -> HealthFinding | None:
    # A policy that follows its teacher becomes as sure as the teacher.
    trend = None if facts.has_teacher else trend_of(steps, "entropy")
    # While the held-out rate rises, a policy that is surer of itself is what was wanted.
    has_gained = gain is not None and gain.low > 0.0
    if trend is None or has_gained or trend.after >= SMALLEST_ENTROPY_LEFT * trend.before or not trend.is_apart:
        return None
    return HealthFinding(
        about="Entropy collapsed",
        value=f"{format_number(trend.before)} to {format_number(trend.after)} nats",
        threshold=f"below {format_percent(SMALLEST_ENTROPY_LEFT)} of its beginning",
        reason="attempts of one instance are nearly the same, so that there is little left to compare",
        keys=("algo.entropy_coef", "algo.clip_high", "trainer.lr"),
    )


def _find_cut_replies(steps: Sequence[Record]) -> HealthFinding | None:
    return _find_high_share(
        recent_figures(steps, "cut_reply_rate"),
        LARGEST_SHARE_CUT,
        about="Replies cut",
        reason="a reply that a limit of its length cuts is seldom a whole command, and its turn is lost",
        keys=("rollout.max_turn_tokens", "rollout.max_trajectory_tokens"),
    )


def _find_length_drift(steps: Sequence[Record], facts: TrainingFacts) -> HealthFinding | None:
    trend = length_trend(steps)
    if trend is None or not trend.before or not trend.is_apart:
        return None
    ratio = trend.after / trend.before
    if 1 / LARGEST_LENGTH_RATIO <= ratio <= LARGEST_LENGTH_RATIO:
        return None
    keys = ("algo.overlong_share", "algo.loss_aggregation", "rollout.max_turns")
    if facts.has_teacher:
        # What a reward is charged for length does not reach the policy then.
        keys = ("algo.loss_aggregation", "algo.teacher", "rollout.max_turns")
    return HealthFinding(
        about="Length drifted",
        value=f"{trend.before:.0f} to {trend.after:.0f} tokens",
        threshold=f"a factor above {LARGEST_LENGTH_RATIO:g} or below {1 / LARGEST_LENGTH_RATIO:g}",
        reason="the agent works in another way than at the beginning: look at a few trajectories of both ends",
        keys=keys,
    )


def _find_large_ratios(steps: Sequence[Record], facts: TrainingFacts) -> HealthFinding | None:
    largest = recent_figures(steps, "ratio_max")
    if not largest or median(largest) <= LARGEST_RATIO:
        return None
    keys: tuple[str, ...] = ("trainer.lr", "trainer.prompts_per_mini_batch")
    if facts.policy_loss is PolicyLoss.clip:
        # The clipping leaves tokens with a negative advantage free to become many times as likely.
        keys = (*keys, "algo.clip_c")
    return HealthFinding(
        about="Ratios have a long tail",
        value=f"the largest of a step is {format_number(median(largest))} (median of {len(largest)} steps)",
        threshold=f"above {LARGEST_RATIO:g}",
        reason="single tokens became many times as likely within one step",
        keys=keys,
    )


# What is clipped: whole trajectories by their mean ratio, weights, or else tokens.
_CLIPPED_WHOLE = frozenset({PolicyLoss.gspo, PolicyLoss.gspo_token})
_WHY_NOT_CLIPPED = {
    PolicyLoss.clip: "a clipped token teaches nothing",
    PolicyLoss.cispo: "a clipped token teaches with a weight that is held at the limit, and not with its own",
    PolicyLoss.gspo: "the tokens of a clipped trajectory teach nothing",
    PolicyLoss.gspo_token: "the tokens of a clipped trajectory teach nothing",
}


def _find_clipping(steps: Sequence[Record], facts: TrainingFacts) -> HealthFinding | None:
    why = _WHY_NOT_CLIPPED.get(facts.policy_loss)
    if why is None:
        # This loss clips nothing.
        return None
    largest = LARGEST_SHARE_CLIPPED
    if facts.policy_loss in _CLIPPED_WHOLE:
        largest = LARGEST_SHARE_CLIPPED_WHOLE
    return _find_high_share(
        recent_figures(steps, "clip_fraction"),
        largest,
        about="Many tokens clipped",
        reason=f"{why}; the updates of a step go further than the clipping allows",
        keys=("trainer.lr", "trainer.prompts_per_mini_batch", "algo.clip_high"),
    )
