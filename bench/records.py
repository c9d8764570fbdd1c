"""What a load saw, turn by turn, and its summary.

Invariants:
- Rates count sampled tokens of answered turns only, over the time until the last program ended (or the limit).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from swe_rl.router.simulation.outcome import percentile

_WINDOW_S = 10.0


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """Seconds since the load began; `latency_s` as the agent saw it."""

    ended_s: float
    latency_s: float
    prompt_tokens: int
    cached_tokens: int
    sampled_tokens: int


@dataclass(slots=True)
class ProgramRecord:
    """`odd_prompts`: prompts that had another length than expected; `ended_s` None: cut short, or failed."""

    program_id: str
    started_s: float = 0.0
    ended_s: float | None = None
    turns: list[TurnRecord] = field(default_factory=list)
    tool_s: float = 0.0
    odd_prompts: int = 0
    short_replies: int = 0
    retries: int = 0
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        latencies = sorted(turn.latency_s for turn in self.turns)
        return {
            "program": self.program_id,
            "started_s": round(self.started_s, 3),
            "ended_s": None if self.ended_s is None else round(self.ended_s, 3),
            "turns": len(self.turns),
            "sampled_tokens": sum(turn.sampled_tokens for turn in self.turns),
            "prompt_tokens": sum(turn.prompt_tokens for turn in self.turns),
            "cached_tokens": sum(turn.cached_tokens for turn in self.turns),
            "serving_s": round(sum(latencies), 3),
            "tool_s": round(self.tool_s, 3),
            "worst_turn_s": round(latencies[-1], 3) if latencies else 0.0,
            "error": self.error,
        }


def summarize(records: Sequence[ProgramRecord], elapsed_s: float) -> dict[str, Any]:
    turns = [turn for record in records for turn in record.turns]
    ended = sorted(record.ended_s for record in records if record.ended_s is not None)
    errors = [record.error for record in records if record.error is not None]
    sampled, prompts = sum(one.sampled_tokens for one in turns), sum(one.prompt_tokens for one in turns)
    latencies = sorted(turn.latency_s for turn in turns)
    whole = len(ended) == len(records)
    makespan_s = ended[-1] if whole else elapsed_s
    return {
        "complete": whole,
        "programs": len(records),
        "programs_ended": len(ended),
        "turns": len(turns),
        "makespan_s": round(makespan_s, 3),
        "sampled_tokens": sampled,
        "tokens_per_s": round(sampled / makespan_s, 2) if makespan_s else 0.0,
        "prompt_tokens": prompts,
        "cached_tokens": sum(turn.cached_tokens for turn in turns),
        "cached_share": round(sum(turn.cached_tokens for turn in turns) / prompts, 4) if prompts else 0.0,
        "turn_p50_s": round(percentile(latencies, 50), 3),
        "turn_p90_s": round(percentile(latencies, 90), 3),
        "turn_p99_s": round(percentile(latencies, 99), 3),
        "turn_max_s": round(latencies[-1], 3) if latencies else 0.0,
        "half_ended_s": round(percentile(ended, 50), 3),
        "most_ended_s": round(percentile(ended, 90), 3),
        "tokens_per_s_by_10s": _by_window(turns, makespan_s),
        "odd_prompts": sum(record.odd_prompts for record in records),
        "short_replies": sum(record.short_replies for record in records),
        "retries": sum(record.retries for record in records),
        "num_errors": len(errors),
        "errors": sorted(set(errors))[:5],
        "by_program": [record.to_json() for record in records],
    }


def _by_window(turns: Sequence[TurnRecord], until_s: float) -> list[float]:
    sums = [0] * (int(until_s / _WINDOW_S) + 1)
    for turn in turns:
        sums[min(len(sums) - 1, int(turn.ended_s / _WINDOW_S))] += turn.sampled_tokens
    return [round(tokens / _WINDOW_S, 1) for tokens in sums]
