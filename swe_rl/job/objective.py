"""`job.objective`: the figure of a run's `summary.json` that Hydra's sweepers get as what the job returned.

Invariants:
- A figure that was not measured is an error, never a number that a sweeper would go by.
"""

import math
from pathlib import Path
from typing import Any

from swe_rl.config.schema import Config
from swe_rl.errors import RunError
from swe_rl.job.which_folder import folder_of_ended
from swe_rl.logger.disk import decode_json


class ObjectiveError(RunError):
    """The job is over, and what it was run for was not measured."""


def objective(config: Config, fresh: Path) -> float | None:
    """None where job.objective names nothing. `fresh`: the folder that Hydra made. Raises ObjectiveError."""
    name = config.job.objective
    if name is None:
        return None
    path = folder_of_ended(config, fresh).summary_json
    figures = {key: value for key, value in _read(path).items() if _is_figure(value)}
    if name not in figures:
        raise ObjectiveError(
            f"job.objective={name} was not measured, so the job has nothing to return: {path} has no number there. "
            f"Figures that it has: {', '.join(figures) or 'none'}."
        )
    return float(figures[name])


def _is_figure(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = decode_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
