"""Runs a job that makes data sets ready for each part of a mix.

Invariants:
- A part that needs nothing, or cannot be made ready, ends no other part. Each is named with what became of it.
"""

from collections.abc import Callable

from rich.console import Console

from swe_rl.config.schema import Config
from swe_rl.dataset.instance import InstanceError
from swe_rl.facts.mix import part_configs


class NothingToDoError(InstanceError):
    """Says that an environment needs nothing of a job. It is a mistake only where the job is about it alone."""


def run_for_parts(config: Config, run: Callable[[Config], int]) -> int:
    """Returns the worst exit status of `run`, which gets the configuration of each part; of one environment its own.

    Raises what `run` raises for one environment. Of a part an InstanceError is printed, and the other parts go on.
    """
    parts = part_configs(config)
    if list(parts) == [""]:
        return run(config)
    console = Console()
    worst = 0
    for name, part in parts.items():
        console.print(f"part {name} (env={part.env.name}):", markup=False, highlight=False, soft_wrap=True)
        try:
            status = run(part)
        except NothingToDoError as error:
            console.print(f"{name}: {error}", markup=False, highlight=False, soft_wrap=True)
            status = 0
        except InstanceError as error:
            console.print(f"{name}: {error}", markup=False, highlight=False, soft_wrap=True)
            status = error.exit_status
        worst = max(worst, status)
    return worst
