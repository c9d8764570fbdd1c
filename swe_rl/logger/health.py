"""Says what is wrong with a training, from its steps and evaluations: what a person would see in the curves.

The terminal, the report and `events.jsonl` show the same findings, the most serious one first.

Invariants:
- It is pure: the lines of `steps.jsonl` and the evaluations go in, findings come out.
- A figure that is missing, null or not finite gives no finding; steps without a trainer (`job=rollout`) and
  demonstrations (`job=sft`) give none.
- Each threshold stands here alone, with the reason for it. Trends are not judged in a short run, because chance alone
  moves its curves. "Nothing was learned" and the held-out rate are judged in any run.
- The thresholds are judgements. None was fitted to trainings.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from swe_rl.logger.progress_text import LARGEST_FLOAT, format_number, format_percent, reason_for_no_update

Record = Mapping[str, Any]

# A mean over fewer steps follows single batches; one over more hides what has begun of late.
RECENT_STEPS = 10
# Shares of groups or replies in one or two steps are of a handful of instances.
FEWEST_STEPS = 3
# Beginning and end are means over three steps each, which must not overlap and need steps between them.
EDGE_STEPS = 3
FEWEST_STEPS_OF_A_TREND = 8
# Only groups of unlike rewards move a policy. Above three quarters most of the sampling is paid for nothing, and the
# same few instances teach all. In one training of a real model with 88 % of such groups the held-out rate fell.
LARGEST_SHARE_WITHOUT_SIGNAL = 0.75
# Entropy falls in each training that works. At a quarter of its beginning attempts of one instance are nearly the same.
SMALLEST_ENTROPY_LEFT = 0.25
# Two evaluations of a hundred attempts differ by about five points by chance alone. So this finding is sometimes
# chance: the interval of the gain, which stands beside it in the report, decides.
LARGEST_HELD_OUT_LOSS = 0.05
# Training sees its instances again and again, so that it gains more; twenty points more are learned by heart.
LARGEST_GAIN_GAP = 0.2
# Responses grow with harder work. Twice or half the length is another behaviour: talk, loops, or giving up.
LARGEST_LENGTH_RATIO = 2.0
# A cut reply is seldom a whole command. One in ten means that a turn in each longer trajectory is lost.
LARGEST_SHARE_CUT = 0.1
# Clipping begins at a ratio near 1.3. A token that became ten times as likely within one step was moved too far.
LARGEST_RATIO = 10.0
# Clipped tokens teach nothing: above a fifth the step is larger than its trust region.
LARGEST_SHARE_CLIPPED = 0.2


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


def judge_training(steps: Sequence[Record], evals: Sequence[Record] = ()) -> list[HealthFinding]:
    """Returns the findings, none for a healthy or short training. `evals` are of one split, from `evals.jsonl`."""
    trained = _trained_steps(steps)
    rates = _held_out_rates(evals)
    nothing = _find_nothing_learned(trained)
    findings = (
        nothing,
        None if nothing else _find_missing_signal(trained),
        _find_held_out_loss(rates),
        _find_gain_gap(trained, rates),
        _find_entropy_collapse(trained, rates),
        _find_cut_replies(trained),
        _find_length_drift(trained),
        _find_large_ratios(trained),
        _find_clipping(trained),
    )
    return [finding for finding in findings if finding]


def describe_finding(finding: HealthFinding) -> str:
    """Returns a finding as one line of plain text."""
    keys = " or ".join(finding.keys)
    return f"{finding.about}: {finding.value} ({finding.threshold}): {finding.reason}. Change {keys}."


def _trained_steps(steps: Sequence[Record]) -> list[Record]:
    """Returns the last line of each step that sampled and trained, in order."""
    by_step = {row["step"]: row for row in steps if isinstance(row.get("step"), int)}
    return [by_step[step] for step in sorted(by_step) if "updates" in by_step[step] and "signal_rate" in by_step[step]]


def _held_out_rates(evals: Sequence[Record]) -> list[float]:
    """Returns the resolved rates of the split that was evaluated first, in the order of steps."""
    split = evals[0].get("split") if evals else None
    by_step = {row["step"]: row for row in evals if row.get("split") == split and isinstance(row.get("step"), int)}
    return _figures([by_step[step] for step in sorted(by_step)], "resolved_rate")


def _figures(rows: Sequence[Record], key: str) -> list[float]:
    values = [row.get(key) for row in rows]
    return [
        float(value)
        for value in values
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST_FLOAT
    ]


def _recent_figures(steps: Sequence[Record], key: str) -> list[float]:
    """Returns the figures of the latest steps; none where too few steps have one."""
    values = _figures(steps, key)
    return values[-RECENT_STEPS:] if len(values) >= FEWEST_STEPS else []


def _ends_of_trend(steps: Sequence[Record], key: str) -> tuple[float, float] | None:
    """Returns the means of the first and of the last steps; None for a run that is too short for a trend."""
    values = _figures(steps, key)
    if len(values) < FEWEST_STEPS_OF_A_TREND:
        return None
    return _mean(values[:EDGE_STEPS]), _mean(values[-EDGE_STEPS:])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _is_idle(row: Record) -> bool:
    """Tells whether a step left the policy as it was: no update, or updates whose gradients were all 0."""
    return row["updates"] == 0 or row.get("grad_norm") == 0.0


def _is_dropped(row: Record) -> bool:
    """Tells whether updates were tried, and none of their gradients was finite."""
    return bool(row.get("nonfinite_updates"))


# Whether the updates were dropped decides what helps.
_KEYS_OF_NO_UPDATE = {True: ("trainer.lr", "trainer.attention"), False: ("rollout.n", "rollout.instances", "env")}


def _find_nothing_learned(steps: Sequence[Record]) -> HealthFinding | None:
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
        keys=tuple(re.findall(r"\b(?:algo|rollout|trainer)\.\w+", reason)) or _KEYS_OF_NO_UPDATE[_is_dropped(idle[-1])],
    )


def _reason_of_idle_step(row: Record) -> str:
    if _is_dropped(row):
        return "no gradient was finite, so that each update was dropped"
    if row["updates"]:
        return "the gradients of all updates were 0"
    return reason_for_no_update(row)


def _find_missing_signal(steps: Sequence[Record]) -> HealthFinding | None:
    # A critic and a teacher learn from groups of equal rewards, too.
    compared = [row for row in steps if row.get("value_loss") is None and row.get("teacher_kl") is None]
    rates = _recent_figures(compared, "signal_rate")
    share = 1.0 - _mean(rates) if rates else 0.0
    if share <= LARGEST_SHARE_WITHOUT_SIGNAL:
        return None
    return HealthFinding(
        about="Groups without signal",
        value=f"{format_percent(share)} in the last {len(rates)} steps",
        threshold=f"above {format_percent(LARGEST_SHARE_WITHOUT_SIGNAL)}",
        reason="all attempts of such a group have the same reward, so that few instances teach everything",
        keys=("rollout.instances", "rollout.n", "algo.dynamic_sampling"),
    )


def _find_held_out_loss(rates: Sequence[float]) -> HealthFinding | None:
    if len(rates) < 2 or rates[0] - rates[-1] <= LARGEST_HELD_OUT_LOSS:
        return None
    return HealthFinding(
        about="Held-out rate fell",
        value=f"{format_percent(rates[0])} to {format_percent(rates[-1])}",
        threshold=f"a loss above {100 * LARGEST_HELD_OUT_LOSS:.0f} points",
        reason="the policy solves fewer instances that it never trained on than before the training",
        keys=("trainer.lr", "algo.kl_coef", "trainer.steps"),
    )


def _find_gain_gap(steps: Sequence[Record], rates: Sequence[float]) -> HealthFinding | None:
    ends = _ends_of_trend(steps, "resolved_rate")
    if ends is None or len(rates) < 2:
        return None
    trained_gain = ends[1] - ends[0]
    held_out_gain = rates[-1] - rates[0]
    if trained_gain - held_out_gain <= LARGEST_GAIN_GAP or trained_gain <= 0.0:
        return None
    return HealthFinding(
        about="Training gains more than held-out",
        value=f"{100 * trained_gain:+.1f} against {100 * held_out_gain:+.1f} points",
        threshold=f"a gap above {100 * LARGEST_GAIN_GAP:.0f} points",
        reason="what was learned is of the training's instances and does not carry over to others",
        keys=("env.num_instances", "trainer.steps", "algo.kl_coef"),
    )


def _find_entropy_collapse(steps: Sequence[Record], rates: Sequence[float]) -> HealthFinding | None:
    ends = _ends_of_trend(steps, "entropy")
    # While the held-out rate is at its best, a policy that is surer of itself is what was wanted.
    is_at_best = len(rates) > 1 and rates[-1] == max(rates) > rates[0]
    if ends is None or is_at_best or ends[1] >= SMALLEST_ENTROPY_LEFT * ends[0]:
        return None
    return HealthFinding(
        about="Entropy collapsed",
        value=f"{format_number(ends[0])} to {format_number(ends[1])} nats",
        threshold=f"below {format_percent(SMALLEST_ENTROPY_LEFT)} of its beginning",
        reason="attempts of one instance are nearly the same, so that there is little left to compare",
        keys=("algo.entropy_coef", "algo.clip_high", "trainer.lr"),
    )


def _find_cut_replies(steps: Sequence[Record]) -> HealthFinding | None:
    rates = _recent_figures(steps, "cut_reply_rate")
    if not rates or _mean(rates) <= LARGEST_SHARE_CUT:
        return None
    return HealthFinding(
        about="Replies cut",
        value=f"{format_percent(_mean(rates))} in the last {len(rates)} steps",
        threshold=f"above {format_percent(LARGEST_SHARE_CUT)}",
        reason="a reply that a limit of its length cuts is seldom a whole command, and its turn is lost",
        keys=("rollout.max_turn_tokens", "rollout.max_trajectory_tokens"),
    )


def _find_length_drift(steps: Sequence[Record]) -> HealthFinding | None:
    ends = _ends_of_trend(steps, "avg_response_length")
    if ends is None or not ends[0]:
        return None
    ratio = ends[1] / ends[0]
    if 1 / LARGEST_LENGTH_RATIO <= ratio <= LARGEST_LENGTH_RATIO:
        return None
    return HealthFinding(
        about="Length drifted",
        value=f"{ends[0]:.0f} to {ends[1]:.0f} tokens",
        threshold=f"a factor above {LARGEST_LENGTH_RATIO:g} or below {1 / LARGEST_LENGTH_RATIO:g}",
        reason="the agent works in another way than at the beginning: look at a few trajectories of both ends",
        keys=("algo.overlong_share", "algo.loss_aggregation", "rollout.max_turns"),
    )


def _find_large_ratios(steps: Sequence[Record]) -> HealthFinding | None:
    largest = _recent_figures(steps, "ratio_max")
    if not largest or median(largest) <= LARGEST_RATIO:
        return None
    return HealthFinding(
        about="Ratios have a long tail",
        value=f"the largest of a step is {format_number(median(largest))} (median of {len(largest)} steps)",
        threshold=f"above {LARGEST_RATIO:g}",
        reason="single tokens became many times as likely within one step",
        keys=("trainer.lr", "trainer.prompts_per_mini_batch", "algo.mask_high"),
    )


def _find_clipping(steps: Sequence[Record]) -> HealthFinding | None:
    shares = _recent_figures(steps, "clip_fraction")
    if not shares or _mean(shares) <= LARGEST_SHARE_CLIPPED:
        return None
    return HealthFinding(
        about="Many tokens clipped",
        value=f"{format_percent(_mean(shares))} in the last {len(shares)} steps",
        threshold=f"above {format_percent(LARGEST_SHARE_CLIPPED)}",
        reason="a clipped token teaches nothing; the updates of a step go further than the clipping allows",
        keys=("trainer.lr", "trainer.prompts_per_mini_batch"),
    )
