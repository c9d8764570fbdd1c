"""Writes a comparison for programs: one JSON object, and a CSV line for each arm, repeat and step.

Invariants:
- Keys name their units; what is unknown is null in JSON and empty in CSV, and nothing is rounded.
- `delta_percent_interval` is over pairs of runs, null for one; `within_run_delta_percent_interval` is over the steps of
  the only pair, and says nothing about another one.
- An evaluation is on the line of its step. That before the first step is on a line of step 0, which has nothing else.
"""

import csv
import io
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from swe_rl.report.compare.compare import Arm, Comparison, MeasuredRun, Pair, StepRate, parts_of_arms
from swe_rl.report.compare.held_out import held_out_record
from swe_rl.report.compare.learning import learning_record
from swe_rl.report.statistics import LEVEL, RESAMPLES, SEED, known_difference, percent_change

_NUMBERS = ("tokens_per_s", "reward_mean", "avg_response_length", "generate_s", "step_s")


def comparison_record(made: Comparison) -> dict[str, Any]:
    """Returns the record. The baseline is the first of `arms`; `pairs` has an entry for each other."""
    return {
        "baseline": made.arms[0].label,
        "engines": made.engines,
        "source": made.source,
        "arms": [_arm_record(arm) for arm in made.arms],
        "pairs": [_pair_record(pair) for pair in made.pairs],
        "bootstrap": {"level": LEVEL, "resamples": RESAMPLES, "seed": SEED},
    }


def _arm_record(arm: Arm) -> dict[str, Any]:
    return {
        "label": arm.label,
        "short": arm.short,
        "average_tokens_per_s": arm.average(),
        "spread_of_runs_tokens_per_s": arm.spread(),
        "wall_s": arm.wall_s(),
        "learning": learning_record(arm),
        "runs": [_run_record(name, run) for name, run in arm.runs.items()],
    }


def _run_record(name: str, run: MeasuredRun) -> dict[str, Any]:
    return {
        "repeat": name or None,
        "source": run.source,
        "kind": "skyrl_log" if run.is_log else "run",
        "job": run.job,
        "status": run.status,
        "num_trajectories": run.num_trajectories,
        "wall_s": run.wall_s,
        "incomplete_steps": run.incomplete,
        "held_out": held_out_record(run.held_out) if run.held_out else None,
        "parts": {name: part.held_out and held_out_record(part.held_out) for name, part in run.parts.items()},
        "evaluations": [{"step": step, **asdict(rate)} for step, rate in sorted(run.evaluations.items())],
        "steps": [{"step": step, **asdict(run.steps[step])} for step in sorted(run.steps)],
    }


def _pair_record(pair: Pair) -> dict[str, Any]:
    tokens = pair.tokens
    rewards = pair.means(lambda rate: rate.reward_mean) or (None, None)
    return {
        "candidate": pair.candidate.label,
        "paired_steps": len(pair.keys),
        "baseline_average_tokens_per_s": tokens and tokens.baseline_average,
        "candidate_average_tokens_per_s": tokens and tokens.candidate_average,
        "delta_tokens_per_s": tokens and tokens.delta,
        "delta_percent": tokens and tokens.delta_percent,
        "paired_runs": tokens.runs if tokens else 0,
        "delta_percent_interval": tokens and tokens.interval_percent,
        "within_run_delta_percent_interval": tokens and tokens.within_run_percent,
        "baseline_median_tokens_per_s": tokens and tokens.baseline_median,
        "candidate_median_tokens_per_s": tokens and tokens.candidate_median,
        "baseline_reward_mean": rewards[0],
        "candidate_reward_mean": rewards[1],
        "held_out_gain_points": asdict(pair.gain) if pair.gain else None,
        "held_out_percent": asdict(pair.held_out) if pair.held_out else None,
        "parts": {
            name: {"held_out_gain_points": gain and asdict(gain), "held_out_percent": rates and asdict(rates)}
            for name, (gain, rates) in pair.parts.items()
        },
        "steps": list(_paired_steps(pair)),
    }


def _paired_steps(pair: Pair) -> Iterator[dict[str, Any]]:
    rates = pair.baseline.rates(), pair.candidate.rates()
    for repeat, step in pair.keys:
        before, after = (arm_rates[repeat, step].tokens_per_s for arm_rates in rates)
        yield {
            "repeat": repeat or None,
            "step": step,
            "baseline_tokens_per_s": before,
            "candidate_tokens_per_s": after,
            "delta_tokens_per_s": known_difference(before, after),
            "delta_percent": percent_change(before, after),
        }


_HELD_OUT = ("rate", "low", "high", "num_samples", "num_instances")
_NO_STEP = StepRate(None)


def csv_text(made: Comparison) -> str:
    """Returns CSV. `delta_percent` is against the baseline's step of the same repeat."""
    written = io.StringIO()
    lines = csv.writer(written, lineterminator="\n")
    parts = parts_of_arms(made.arms)
    held_out = [f"held_out_{name}" for name in _HELD_OUT]
    held_out += [f"held_out_{part}_{name}" for part in parts for name in _HELD_OUT]
    lines.writerow(["arm", "repeat", "step", *_NUMBERS, "baseline_tokens_per_s", "delta_percent", *held_out])
    base = made.arms[0].rates()
    for arm in made.arms:
        for repeat, run in arm.runs.items():
            for step in sorted(run.steps.keys() | run.evaluations.keys()):
                rate = run.steps.get(step, _NO_STEP)
                before = base.get((repeat, step), _NO_STEP).tokens_per_s
                values = [getattr(rate, name) for name in _NUMBERS]
                values += [before, percent_change(before, rate.tokens_per_s)]
                rates = [run.evaluations_of(part).get(step) for part in ("", *parts)]
                values += [getattr(measured, name, None) for measured in rates for name in _HELD_OUT]
                lines.writerow([arm.label, repeat, step, *("" if value is None else value for value in values)])
    return written.getvalue()
