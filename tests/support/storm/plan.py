"""Which kills a storm consists of: a list that the seed decides, and the runs that take them.

Invariants:
- A kill's target and moment depend on the seed and its number alone, so that a storm can stop and go on.
"""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from swe_rl.files.kill_point import POINTS
from tests.support.storm.jobs import JOBS, OF_TARGET
from tests.support.storm.runs import Kill
from tests.support.storm.targets import lives_in_a_start, waits_for_update

# How often each target is drawn: the driver holds most of what can be lost.
_SHARES = {"driver": 8, "store": 3, "engine": 3, "rank": 2, "guard": 3, "grader": 3, "runtime": 2, "engine_cpu": 1}
_SHARES |= {"step": 2, "stream_driver": 4, "stream_store": 1, "stream_engine": 2, "stream_rank": 2, "stream_grader": 1}
_SHARES |= {
    f"{way}{name}": 1
    for way in ("memory_", "stream_memory_", "gpu_", "stream_gpu_")
    for name in ("driver", "engine", "rank")
}
DEFAULT_TARGETS = ("driver", "store", "engine", "rank", "guard", "grader", "runtime")
_UNTIL_AN_UPDATE = 0.4  # of the run: the kill is at the update that follows
_IN_A_START = 0.25  # of the kills
# Points that a run comes to often: which time is drawn from as many.
_TIMES = {"file_aside": 8, "sandbox_made": 20, "traces_inserted": 40, "traces_committed": 40, "checkpoint_files": 8}
_TIMES |= {"checkpoint_aside": 2, "checkpoint_named": 2, "checkpoint_discarded": 1, "trained": 3, "weights_synced": 3}
_TIMES |= {"trajectories_written": 3, "programs_written": 3, "step_recorded": 3, "traces_flushed": 5}
_TIMES |= {"group_complete": 6, "group_queued": 6, "groups_taken": 3, "queue_pruned": 3}
_TIMES |= {"eval_trajectories_written": 2, "eval_recorded": 2, "workspace_aside": 4, "weights_written": 3}
# What only a resumed run comes to: it is killed there while it goes on after this one.
_FIRST = "step_recorded:2"
_OF_RESUME = frozenset({"went_back", "trajectories_taken_back", "steps_taken_back"})
Chunk = tuple[str, list[Kill]]  # a job's name, and the kills of one run of it


def random_kills(seed: int, number: int, targets: Sequence[str]) -> list[Kill]:
    shares = [_SHARES[target] for target in targets]
    found = []
    for index in range(number):
        chance = random.Random(f"{seed}/{index}")
        [target] = chance.choices(targets, shares)
        at = chance.random() * (_UNTIL_AN_UPDATE if waits_for_update(target) else 1.0)
        found.append(Kill(index, target, at, lives_in_a_start(target) and chance.random() < _IN_A_START))
    return found


def chunks(kills: Sequence[Kill], each: int) -> list[Chunk]:
    """Runs of at most `each` kills, in order of their first one."""
    waiting: dict[str, list[Kill]] = defaultdict(list)
    found: list[Chunk] = []
    for kill in kills:
        name = OF_TARGET[kill.target].name
        waiting[name].append(kill)
        if len(waiting[name]) == each:
            found.append((name, waiting.pop(name)))
    return found + list(waiting.items())


def point_kills(seed: int, names: Sequence[str] = ()) -> list[Chunk]:
    """Every point once in the main job, or in the jobs that come to it elsewhere; `names`: only those.

    Numbers are below 0: a storm has its random ones from 0 on.
    """
    own = {name for job in JOBS if job.name == "servers" for name in job.points}
    own |= {point.name for point in POINTS if point.file == "run/stream.py"}
    pairs = [("embedded", point.name) for point in POINTS if point.name not in own]
    pairs += [(job.name, name) for job in JOBS for name in job.points]
    found: list[Chunk] = []
    for place, (job, name) in enumerate(pairs, 1):
        chance = random.Random(f"{seed}/{name}")
        kill = Kill(-place, "point", point=f"{name}:{chance.randint(1, _TIMES.get(name, 1))}")
        before = [replace(kill, number=-1000 - place, point=_FIRST)] if name in _OF_RESUME else []
        if not names or name in names:
            found.append((job, [*before, kill]))
    return found
