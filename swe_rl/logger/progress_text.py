"""Words progress: numbers in, one line of ASCII out.

Invariants:
- `tok/s` counts the tokens that the policy sampled. A rate that counts others says so: `response tokens/s` those of the
  trajectories' responses, what tools said included, as the field reports it (`tokens_per_s`).
- It is pure; a number that is missing or not finite reads '-', and never raises.
- `Started: 'x'`, `Finished: 'x', time cost: 1.23s` and `avg_final_rewards: .., avg_response_length: ..` are SkyRL's
  markers, so that tools made for its logs read ours.
"""

import sys
from collections.abc import Mapping
from typing import Any

from swe_rl.config.choices import INFRA_STATUSES

LARGEST_FLOAT = sys.float_info.max  # no NaN, no infinity and no longer integer is within it


def format_number(value: Any, pattern: str = ".3g") -> str:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST_FLOAT:
        return "-"
    return format(value, pattern)


def format_percent(value: Any) -> str:
    shown = format_number(value * 100 if isinstance(value, int | float) else value, ".1f")
    return f"{shown}%" if shown != "-" else shown


def format_duration(seconds: float) -> str:
    """Returns a time such as `8.4s`, `3:07`, `2:04:11`."""
    if not abs(seconds) <= LARGEST_FLOAT:
        return "-"
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{rest:02d}"
    return f"{minutes}:{rest:02d}"


_ERROR_CHARS = 200
_RESOLVED = "resolved"
# A step's line names this many kinds of failures.
_KINDS = 3


def step_line(
    record: Mapping[str, Any], total_steps: int, step_s: float, held_out: float | None, left_s: float | None
) -> str:
    """Returns the line of a step: whether it learns, how fast it is, and when the run is over.

    `held_out` is the latest held-out rate. Before the first one, the rate of the step's own attempts stands there.
    What broke is named, and where nothing was resolved, how most attempts ended. All else is in `step_details`.
    """
    width = len(str(total_steps))
    statuses = record.get("statuses") or {}
    broken = sum(statuses.get(status, 0) for status in INFRA_STATUSES)
    rate = f"resolved {format_percent(record.get('resolved_rate'))}"
    if held_out is not None:
        rate = f"held-out {format_percent(held_out)}"
    parts = (
        f"step {record.get('step', '-'):>{width}}/{total_steps}",
        f"reward {format_number(record.get('reward_mean'), '.3f')}",
        rate,
        f"{format_number(record.get('sampled_tokens_per_s'), '.0f')} tok/s",
        f"{format_duration(step_s)}/step",
        f"{format_duration(left_s)} left" if left_s is not None else "",
        f"infrastructure broke {broken}" if broken else "",
        _most_ended_as(statuses),
        *_update_faults(record),
    )
    return PART.join(part for part in parts if part)


def _most_ended_as(statuses: Mapping[str, int]) -> str:
    """Returns the most frequent status of attempts that did not break, such as `4 context overflow`.

    It is empty where an attempt resolved its issue.
    """
    ended = {status: count for status, count in statuses.items() if count and status not in INFRA_STATUSES}
    if not ended or _RESOLVED in ended:
        return ""
    status = max(ended, key=ended.__getitem__)
    return f"{ended[status]} {status_words(status)}"


def status_words(status: str) -> str:
    """Returns a status as the terminal and the browser show it: `empty patch` for `empty_patch`."""
    return status.replace("_", " ")


def step_details(record: Mapping[str, Any], total_steps: int, step_s: float) -> str:
    """Returns a step's record in figures, in the order of a person's questions: whether it learns, then
    what it costs.
    """
    width = len(str(total_steps))
    interval = record.get("resolved_interval")
    phases = (("generate_s", "generate"), ("train_s", "train"), ("weight_sync_s", "send"))
    parts = (
        f"step {record.get('step', '-'):>{width}}/{total_steps}",
        f"reward {format_number(record.get('reward_mean'), '.3f')}",
        f"resolved {format_percent(record.get('resolved_rate'))}{f' ({format_span(*interval)})' if interval else ''}",
        f"signal {format_percent(record.get('signal_rate'))}" if "foreseen_groups" in record else "",
        f"length {format_number(record.get('avg_response_length'), '.0f')}",
        cut_replies(record.get("cut_reply_rate")),
        f"loss {format_number(record.get('loss'), '.4f')}",
        _gradient_norm(record),
        f"entropy {format_number(record.get('entropy'), '.3f')}",
        f"KL {format_number(record.get('kl_rollout'), '.2g')}",
        *frequent_failures(record.get("statuses") or {}),
        f"{format_number(record.get('tokens_per_s'), '.0f')} response tokens/s",
        f"{record['concurrency']} at once" if "concurrency" in record else "",
        " + ".join(f"{name} {format_duration(record[key])}" for key, name in phases if key in record),
        f"total {format_duration(step_s)}",
    )
    return PART.join(part for part in parts if part)


def cut_replies(rate: float | None) -> str:
    """Returns words for the share of cut replies; nothing where no reply was cut."""
    if not rate:
        return ""
    return f"replies cut {format_percent(rate)}"


def _gradient_norm(record: Mapping[str, Any]) -> str:
    """Returns the gradient's norm over the applied updates.

    An update whose gradient was not finite moved nothing, and is named.
    """
    faults = _update_faults(record)
    if record.get("nonfinite_updates") and not record.get("updates"):
        return PART.join(faults)
    return PART.join([f"gradient {format_number(record.get('grad_norm'))}", *faults])


def _update_faults(record: Mapping[str, Any]) -> list[str]:
    """Returns how many updates were dropped or made again, each in words; nothing where none was."""
    faults = []
    if dropped := record.get("nonfinite_updates") or 0:
        faults.append(f"updates dropped {dropped} (gradient not finite)")
    if repeated := record.get("repeated_updates") or 0:
        faults.append(f"updates repeated {repeated} (gradient not finite, cuDNN's attention is off now)")
    return faults


def nothing_learned(record: Mapping[str, Any]) -> str:
    """Returns why no update changed the policy, as a line; empty where one did, and in steps without a trainer."""
    if record.get("updates", 1) or record.get("nonfinite_updates"):
        return ""
    reason = reason_for_no_update(record)
    return f"step {record.get('step', '-')}: the policy learned nothing and is unchanged: {reason}"


def reason_for_no_update(record: Mapping[str, Any]) -> str:
    """Returns why a step without any update had none."""
    trained_rows = record.get("trained_rows")
    if not trained_rows and record.get("value_loss") is not None:
        return "the critic learns alone (algo.critic_warmup_steps)"
    if record.get("teacher_kl") is not None:
        return "the teacher thinks of every token as the policy does"
    if _no_prompt_fits(record):
        return "no first prompt fits (raise rollout.max_prompt_tokens, and rollout.max_trajectory_tokens with it)"
    if record.get("signal_rate") == 0.0:
        return "all groups had equal rewards"
    if trained_rows and record.get("masked_fraction") == 1.0:
        return "algo.mask_low and algo.mask_high leave every token out"
    if not trained_rows and record.get("stale_rows"):
        return "all that could teach was too old (algo.max_staleness_steps)"
    return "no trajectory that is trained has an advantage"


def _no_prompt_fits(record: Mapping[str, Any]) -> bool:
    """Tells whether every trajectory was over before the policy said its first word, for want of room."""
    overflows = (record.get("statuses") or {}).get("context_overflow", 0)
    return record.get("avg_response_length") == 0 and overflows == record.get("num_trajectories") != 0


# It stands between two parts of a line, where it may be broken.
PART = "  "


def frequent_failures(statuses: Mapping[str, int]) -> list[str]:
    """Returns the most frequent ways in which trajectories ended without solving anything: `20 empty_patch`."""
    others = sorted(((count, name) for name, count in statuses.items() if name != "resolved"), reverse=True)
    rest = sum(count for count, _ in others[_KINDS:])
    named = [f"{count} {name}" for count, name in others[:_KINDS]]
    if not named:
        return []
    if rest:
        named.append(f"{rest} other")
    return [", ".join(named)]


def wrap_line(line: str, columns: int, indent: int = 6) -> str:
    """Returns a line broken between parts, never inside of a part; what follows is indented.

    What was broken before stays as it is.
    """
    if len(line) <= columns or "\n" in line:
        return line
    first, *parts = line.split(PART) if line == line.lstrip() else (line,)
    lines = [first]
    for part in parts:
        joined = f"{lines[-1]}{PART}{part}"
        if len(joined) > columns:
            lines.append(f"{' ' * indent}{part}")
        else:
            lines[-1] = joined
    return "\n".join(lines)


def trajectory_line(record: Mapping[str, Any]) -> str:
    """Returns a trajectory's record in figures; seconds are of sandbox, agent and grading."""
    times_s = record.get("times_s") or {}
    parts = (
        str(record.get("trajectory_id", "-")),
        str(record.get("status", "-")),
        f"reward {format_number(record.get('reward'), '.3f')}",
        f"{len(record.get('turns') or ())} turns",
        f"{format_number(record.get('sampled_tokens'), 'd')} sampled tokens",
        " + ".join(
            f"{name} {format_duration(times_s[name])}" for name in ("boot", "agent", "grade") if name in times_s
        ),
        " ".join(str(record.get("error") or "").split())[:_ERROR_CHARS],
    )
    return PART.join(part for part in parts if part)


def collection_line(done: int, total: int, counts: Mapping[str, int], sampled_tokens_per_s: float) -> str:
    """Returns a line that 80 columns hold with three statuses. A narrower terminal cuts the rarest ones off."""
    by_count = sorted(counts.items(), key=lambda item: -item[1])
    statuses = ", ".join(f"{count} {status_words(status)}" for status, count in by_count)
    of_total = f"{done}/{total}" if total else str(done)
    rate = f"{sampled_tokens_per_s:.0f} tok/s" if sampled_tokens_per_s > 0 else ""
    return PART.join(part for part in (f"{of_total} done", rate, statuses) if part)


def eval_line(
    label: str,
    rate: float | None,
    num_samples: int,
    interval: tuple[float, float] | None = None,
    cut_reply_rate: float | None = None,
) -> str:
    """Returns the line of an evaluation. `interval` is the 95 % one, of the rate."""
    within = ""
    if interval:
        within = f" ({format_span(*interval)}%)"
    line = f"eval {label}: {format_percent(rate)}{within} resolved of {num_samples} trajectories"
    return PART.join(filter(None, (line, cut_replies(cut_reply_rate))))


def format_span(low: float, high: float) -> str:
    """Returns shares in per cent: `17.2 - 34.9`."""
    return f"{100 * low:.1f} - {100 * high:.1f}"


def started_line(phase: str) -> str:
    return f"Started: '{phase}'"


def finished_line(phase: str, cost_s: float) -> str:
    return f"Finished: '{phase}', time cost: {cost_s:.2f}s"


def average_line(record: Mapping[str, Any]) -> str:
    rewards = format_number(record.get("reward_mean"), ".4f")
    length = format_number(record.get("avg_response_length"), ".1f")
    return f"avg_final_rewards: {rewards}, avg_response_length: {length}"
