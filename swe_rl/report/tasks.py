"""Chooses a few instances of a run, of which the page shows what the agent was asked to do and what came of it.

Invariants:
- A task is shown where its data set is on this machine (`view/known_instances.py`); nothing is fetched for it.
- The page stays small: a few tasks, each cut where it is long.
- The link to the viewer works while `job=view` runs at `VIEWER_PORT` of this machine. The page says by which command.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from swe_rl.report.sample import TrajectorySet, clip_text

Record = Mapping[str, Any]
# Returns the task of an instance for a run's configuration and the instance's id; None where nobody here knows it.
TaskText = Callable[[Record, str], str | None]

VIEWER_PORT = 8050
_MOST_TASKS = 4
_MOST_CHARS = 4000


def choose_tasks(sets: Sequence[TrajectorySet], config: Record, run: str, task_text: TaskText) -> list[dict[str, Any]]:
    """Returns a few instances with their tasks, of different outcomes where there are some, the latest first.

    `run` is the name that the viewer gives to the run.
    """
    tasks: dict[str, dict[str, Any]] = {}
    for chosen, trajectory in _vary_outcomes(sets):
        instance_id = str(trajectory.get("instance_id"))
        if instance_id in tasks:
            continue
        text = task_text(config, instance_id)
        if text is None:
            continue
        place = {"run": run, "set": f"{chosen.kind}_{chosen.step:06d}"}
        place["trajectory"] = str(trajectory.get("trajectory_id"))
        tasks[instance_id] = {
            "instance_id": instance_id,
            "text": clip_text(text, _MOST_CHARS),
            "kind": chosen.kind,
            "step": chosen.step,
            "status": trajectory.get("status"),
            "reward": trajectory.get("reward"),
            "address": f"http://127.0.0.1:{VIEWER_PORT}/#{urlencode(place)}",
        }
        if len(tasks) == _MOST_TASKS:
            break
    return list(tasks.values())


def _vary_outcomes(sets: Sequence[TrajectorySet]) -> Iterator[tuple[TrajectorySet, Record]]:
    """Yields all trajectories, the latest set first: those of a status that was not met yet, then the others."""
    latest = sorted(sets, key=lambda kept: kept.step, reverse=True)
    pairs = [(chosen, trajectory) for chosen in latest for trajectory in chosen.trajectories]
    met: set[Any] = set()
    others: list[tuple[TrajectorySet, Record]] = []
    for chosen, trajectory in pairs:
        if trajectory.get("status") in met:
            others.append((chosen, trajectory))
            continue
        met.add(trajectory.get("status"))
        yield chosen, trajectory
    yield from others
