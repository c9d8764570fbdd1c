"""This module writes what a run says first.

Invariants:
- A line says one thing: what the run is, how much there is to do, where files go, how to watch it.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from swe_rl.config.choices import TRAININGS, ExtensionKind, JobName
from swe_rl.config.schema import Config, Extensible
from swe_rl.errors import count_noun
from swe_rl.extension.find import find_foreign
from swe_rl.facts import sizes
from swe_rl.logger.progress_text import PART
from swe_rl.plan.updates import describe_imitation

_LABEL_COLUMNS = 8


def banner_lines(
    config: Config, plan: Mapping[str, Any], folder: Path, overrides: Sequence[str] = (), columns: int = sys.maxsize
) -> list[str]:
    """Returns what a run says first, a line each: what it is, how much there is to do, where files go, how to watch it.

    `plan` is that of plan.json; `overrides` are what this run was given, which tells it from others of its sweep. A
    time is named only where the plan's estimate covers all of a step. A command that `columns` cannot hold names its
    folder by the line above it.
    """
    watch = f"tail -f {path_from_here(folder / 'run.log')}"
    if _LABEL_COLUMNS + len(watch) > columns:
        watch = "tail -f run.log, in this folder"
    rows = {
        config.job.name.value: _describe_run(config),
        "with": PART.join(overrides),
        "plan": _describe_work(config, plan.get("time", {})),
        "folder": path_from_here(folder),
        "watch": watch,
    }
    return [f"{label:<{_LABEL_COLUMNS}}{text}" for label, text in rows.items() if text]


def path_from_here(path: Path) -> str:
    """Returns a path relative to the working directory where it lies below it."""
    try:
        if path.is_relative_to(Path.cwd()):
            return os.path.relpath(path)
        return str(path)
    # The working directory was removed.
    except OSError:
        return str(path)


def _describe_run(config: Config) -> str:
    if config.job.name is JobName.sft:
        files = ", ".join(config.sft.data)
        if files:
            what = f"data of {files}"
        else:
            what = f"demonstrations of {config.env.name}"
        return f"{config.model.name} on {what}: layout {config.layout.name}"
    parts = [f"agent {config.agent.name}", f"engine {config.engine.kind.value}"]
    if config.job.name in TRAININGS:
        replaced = [f"{kind} {group.name}" for kind, group in _parts_of_learning(config) if find_foreign(kind, group)]
        parts.insert(1, " with ".join(filter(None, [f"algo {config.algo.name}", " and ".join(replaced)])))
    if not sizes.uses_no_gpu(config.layout):
        parts.append(f"{sizes.gpus_needed(config)} GPUs, layout {config.layout.name}, router {config.router.name}")
    return f"{config.model.name} on {config.env.name}: {', '.join(parts)}"


def _parts_of_learning(config: Config) -> Iterator[tuple[ExtensionKind, Extensible]]:
    """Yields the parts of an algorithm that somebody's own code may take the place of."""
    yield ExtensionKind.reward, config.reward
    yield ExtensionKind.advantage, config.advantage
    yield ExtensionKind.loss, config.loss


def _describe_work(config: Config, time: Mapping[str, Any]) -> str:
    rollout = config.rollout
    if config.job.name is JobName.sft:
        return describe_imitation(config)
    if config.job.name is JobName.eval:
        return f"{count_noun(rollout.eval_n, 'trajectory')} for each instance of {config.env.eval_split}"
    group = f"{count_noun(rollout.prompts_per_step, 'instance')} x {count_noun(rollout.n, 'trajectory')}"
    steps = f"{count_noun(config.trainer.steps, 'step')} of {group}"
    known = "run" in time and (config.job.name not in TRAININGS or isinstance(time.get("training_s_per_step"), float))
    if known:
        return f"{steps}, about {time['run']}"
    return steps
