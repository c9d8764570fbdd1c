"""Writes `summary.json`: the run in one flat object, for tables and for people.

Invariants:
- Every key is always there; what was not measured is null, never zero.
- `resolved_rate_before` is the first held-out evaluation, `_after` that of the latest step, where there is another.
"""

import json
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from swe_rl.config.folders import PACKAGE
from swe_rl.files.disk import write_json_atomic
from swe_rl.logger.figures import finite_number
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import read_evals, read_events, read_jsonl
from swe_rl.version import __version__

_DISTRIBUTIONS = ("torch", "transformers", "vllm", "ray", "swebench", "mini-swe-agent", "hydra-core")
_GIT_TIMEOUT_S = 10.0
# It lies beside a package that was frozen for a sweep, with what `git_state` said of the original.
SNAPSHOT = "snapshot.json"

Record = Mapping[str, Any]


def write_summary(folder: RunFolder, *, wall_s: float, extra: Record | None = None) -> dict[str, Any]:
    """Writes and returns the summary of what the folder holds; `extra` adds flat keys. Raises DiskError."""
    summary = build_summary(read_jsonl(folder.steps_jsonl), read_evals(folder), wall_s=wall_s)
    summary |= {"trainer_restarts": len(read_events(folder.events_jsonl, "trainer_restart")), **(extra or {})}
    write_json_atomic(folder.summary_json, summary)
    return summary


def build_summary(steps: Sequence[Record], evals: Sequence[Record], *, wall_s: float) -> dict[str, Any]:
    """Returns the summary. `wall_s` is in seconds; rates are means over steps, as the field reports them."""
    before, after = before_and_after(evals)
    return {
        "steps": max((int(step["step"]) for step in steps), default=0),
        "resolved_rate_before": before.get("resolved_rate"),
        "resolved_samples_before": before.get("num_samples"),
        "resolved_rate_after": after.get("resolved_rate"),
        "resolved_samples_after": after.get("num_samples"),
        "tokens_per_s": finite_mean(rates_of(steps, "tokens_per_s")),
        "sampled_tokens_per_s": finite_mean(rates_of(steps, "sampled_tokens_per_s")),
        "num_trajectories": sum(int(step.get("num_trajectories") or 0) for step in steps),
        "wall_s": wall_s,
        **package_versions(),
        **git_state(PACKAGE),
    }


def before_and_after(evals: Sequence[Record]) -> tuple[Record, Record]:
    """Returns the first and the latest evaluation of the split that was evaluated first; {} for one that was not made.

    A step that was evaluated twice (resumed there) counts with its last result.
    """
    split = evals[0].get("split") if evals else None
    ours = [event for event in evals if event.get("split") == split and isinstance(event.get("step"), int)]
    by_step: dict[int, Record] = {event["step"]: event for event in ours}
    ordered = [by_step[step] for step in sorted(by_step)]
    if not ordered:
        return {}, {}
    return ordered[0], ordered[-1] if len(ordered) > 1 else {}


def rates_of(steps: Sequence[Record], key: str) -> list[float | None]:
    """Returns the rate of each step; None where `key` was not measured, or is not finite.

    With rollout.mode=stream a step may take groups that were nearly done, so that the mean of its own rates is no rate.
    There each step's tokens are divided by the mean time of such steps: the mean is that of all tokens.
    """
    rates = [finite_number(step.get(key)) for step in steps]
    times_s = [finite_number(step.get("generate_s")) if "queued_groups" in step else None for step in steps]
    flowing = [time_s for rate, time_s in zip(rates, times_s, strict=True) if rate is not None and time_s]
    mean_s = finite_mean(flowing)
    return [
        rate * time_s / mean_s if rate is not None and time_s and mean_s else rate
        for rate, time_s in zip(rates, times_s, strict=True)
    ]


def finite_mean(values: Iterable[Any]) -> float | None:
    known = [number for value in values if (number := finite_number(value)) is not None]
    if not known:
        return None
    return sum(known) / len(known)


def package_versions() -> dict[str, str | None]:
    """Returns `torch_version` and its like, from the installed metadata: nothing is imported."""
    by_key: dict[str, str | None] = {"swe_rl_version": __version__, "python_version": platform.python_version()}
    for name in _DISTRIBUTIONS:
        key = f"{name.replace('-', '_')}_version"
        try:
            by_key[key] = metadata.version(name)
        except metadata.PackageNotFoundError:
            by_key[key] = None
    return by_key


def git_state(package: Path) -> dict[str, Any]:
    """Returns `git_sha` of the checkout that tracks this package and whether its files differ.

    A frozen copy knows its own. Both are None outside of both.
    """
    snapshot = package.parent / SNAPSHOT
    if snapshot.is_file():
        return dict(json.loads(snapshot.read_text(encoding="utf-8")))
    if _run_git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return {"git_sha": None, "git_dirty": None}
    return {
        "git_sha": _run_git(package, "rev-parse", "HEAD"),
        "git_dirty": bool(_run_git(package, "status", "--short", ".")),
    }


def git_difference(checkout: Path) -> str:
    """Returns what differs from the last commit, as a patch; empty outside of a checkout."""
    return _run_git(checkout, "diff", "HEAD", "--", ".") or ""


def _run_git(folder: Path, *arguments: str) -> str | None:
    command = ("git", "-C", str(folder), *arguments)
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if result.returncode != 0:
        return None
    return result.stdout.strip()
