"""The wording of progress: numbers in, one line of ASCII out.

Invariants:
- A rate says which tokens it counts: `response` all of the trajectories' responses, what tools said included, as the
  field reports it (`tokens_per_s`); `sampled` what the policy sampled.
- Pure; a number that is missing or not finite reads '-', and never raises.
- `Started: 'x'`, `Finished: 'x', time cost: 1.23s` and `avg_final_rewards: .., avg_response_length: ..` are SkyRL's
  markers, so that tools made for its logs read ours.
"""

import math
from collections.abc import Mapping
from typing import Any


def number(value: Any, pattern: str = ".3g") -> str:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return "-"
    return format(value, pattern)


def percent(value: Any) -> str:
    shown = number(value * 100 if isinstance(value, int | float) else value, ".1f")
    return f"{shown}%" if shown != "-" else shown


def duration(seconds: float) -> str:
    """`8.4s`, `3:07`, `2:04:11`."""
    if not math.isfinite(seconds):
        return "-"
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


_ERROR_CHARS = 200
_KINDS = 3  # of failures that a step's line names


def step_line(record: Mapping[str, Any], total_steps: int, step_s: float) -> str:
    """A step's record in figures: its order is that of a person's questions, whether it learns, then what it costs."""
    width = len(str(total_steps))
    interval = record.get("resolved_interval")
    phases = (("generate_s", "generate"), ("train_s", "train"), ("weight_sync_s", "send"))
    parts = (
        f"step {record.get('step', '-'):>{width}}/{total_steps}",
        f"reward {number(record.get('reward_mean'), '.3f')}",
        f"resolved {percent(record.get('resolved_rate'))}{f' ({span(*interval)})' if interval else ''}",
        f"signal {percent(record.get('signal_rate'))}" if "foreseen_groups" in record else "",
        f"length {number(record.get('avg_response_length'), '.0f')}",
        f"loss {number(record.get('loss'), '.4f')}",
        _gradient(record),
        f"entropy {number(record.get('entropy'), '.3f')}",
        f"KL {number(record.get('kl_rollout'), '.2g')}",
        *failures(record.get("statuses") or {}),
        f"{number(record.get('tokens_per_s'), '.0f')} response tokens/s",
        " + ".join(f"{name} {duration(record[key])}" for key, name in phases if key in record),
        f"total {duration(step_s)}",
    )
    return PART.join(part for part in parts if part)


def _gradient(record: Mapping[str, Any]) -> str:
    """Its norm over the applied updates. An update whose gradient was not finite moved nothing, and is named."""
    dropped, applied = record.get("nonfinite_updates") or 0, record.get("updates") or 0
    norm = "" if dropped and not applied else f"gradient {number(record.get('grad_norm'))}"
    repeated = record.get("repeated_updates") or 0
    parts = (
        norm,
        f"updates dropped {dropped} (gradient not finite)" if dropped else "",
        f"updates repeated {repeated} (gradient not finite, cuDNN's attention is off now)" if repeated else "",
    )
    return PART.join(filter(None, parts))


PART = "  "  # between two parts of a line, where it may be broken


def failures(statuses: Mapping[str, int]) -> list[str]:
    """The most frequent ways in which trajectories ended without solving anything: `20 empty_patch`."""
    others = sorted(((count, name) for name, count in statuses.items() if name != "resolved"), reverse=True)
    rest = sum(count for count, _ in others[_KINDS:])
    named = [f"{count} {name}" for count, name in others[:_KINDS]]
    return [", ".join([*named, *([f"{rest} other"] if rest else [])])] if named else []


def wrapped(line: str, columns: int, indent: int = 6) -> str:
    """Broken between parts, never inside of a part; what follows is indented. What was broken before stays as it is."""
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
    """A trajectory's record in figures; seconds are of sandbox, agent and grading."""
    times_s = record.get("times_s") or {}
    parts = (
        str(record.get("trajectory_id", "-")),
        str(record.get("status", "-")),
        f"reward {number(record.get('reward'), '.3f')}",
        f"{len(record.get('turns') or ())} turns",
        f"{number(record.get('sampled_tokens'), 'd')} sampled tokens",
        " + ".join(f"{name} {duration(times_s[name])}" for name in ("boot", "agent", "grade") if name in times_s),
        " ".join(str(record.get("error") or "").split())[:_ERROR_CHARS],
    )
    return PART.join(part for part in parts if part)


def collection_line(done: int, total: int, counts: Mapping[str, int], sampled_tokens_per_s: float) -> str:
    statuses = ", ".join(f"{count} {status}" for status, count in sorted(counts.items(), key=lambda item: -item[1]))
    of_total = f"{done}/{total}" if total else str(done)
    rate = f"  {sampled_tokens_per_s:.0f} sampled tokens/s" if sampled_tokens_per_s > 0 else ""
    return f"{of_total} trajectories{f' ({statuses})' if statuses else ''}{rate}"


def eval_line(label: str, rate: float | None, num_samples: int, interval: tuple[float, float] | None = None) -> str:
    """`interval`: 95 %, of the rate."""
    within = f" ({span(*interval)}%)" if interval else ""
    return f"eval {label}: {percent(rate)}{within} resolved of {num_samples} trajectories"


def span(low: float, high: float) -> str:
    """Shares in per cent: `17.2 - 34.9`."""
    return f"{100 * low:.1f} - {100 * high:.1f}"


def started(phase: str) -> str:
    return f"Started: '{phase}'"


def finished(phase: str, cost_s: float) -> str:
    return f"Finished: '{phase}', time cost: {cost_s:.2f}s"


def averages(record: Mapping[str, Any]) -> str:
    rewards, length = number(record.get("reward_mean"), ".4f"), number(record.get("avg_response_length"), ".1f")
    return f"avg_final_rewards: {rewards}, avg_response_length: {length}"
