"""Kill points are named moments between two writes, at which a rehearsal kills this process as SIGKILL from outside
would.

`SWE_RL_KILL_AT=step_recorded` kills at the first call with that name, `step_recorded:3` at the third. Without the
variable a call compares one value. `tests/support/kill_storm.py` goes through all names.

Invariants:
- Each name of POINTS is called at one place of the package, and no other name is (a test reads the sources).
- Each process counts its own calls; what it starts inherits the variable.
"""

import os
import signal
from dataclasses import dataclass

VARIABLE = "SWE_RL_KILL_AT"


@dataclass(frozen=True, slots=True)
class Point:
    """Names a kill point. `file` is where it is called, below swe_rl/. `before` is written by then, `after` is not."""

    name: str
    file: str
    before: str
    after: str


POINTS = (
    Point("folder_locked", "run/which_folder.py", "the run's folder and its lock", "status.json"),
    Point("status_written", "run/session.py", "status.json says running", "events.jsonl"),
    Point("file_aside", "files/disk.py", "a whole file beside its name", "its name"),
    Point("went_back", "run/loop.py", "the event that a resumed run went back", "steps.jsonl is cut"),
    Point("trajectories_taken_back", "logger/jsonl.py", "trajectories after the checkpoint are gone", "their steps"),
    Point("steps_taken_back", "run/loop.py", "steps.jsonl is cut", "traces of later steps are gone"),
    Point("scratch_made", "sandbox/lease.py", "a scratch folder", "its lease"),
    Point("lease_written", "sandbox/process/provider.py", "a scratch folder and its lease", "a sandbox"),
    Point("workspace_aside", "sandbox/lease.py", "an instance's tree beside its name", "its name"),
    Point("leased_emptied", "sandbox/working_copy.py", "a leased folder has nothing but its lease", "its end"),
    Point("sandbox_made", "sandbox/process/provider.py", "a sandbox's folder", "its first command"),
    Point("traces_inserted", "gateway/store/writer.py", "a group of traces in a transaction", "its commit"),
    Point("traces_committed", "gateway/store/writer.py", "the commit of a group of traces", "who waits hears of it"),
    Point("traces_flushed", "run/rollouts.py", "all traces of a step or an evaluation", "what is learned from them"),
    Point("group_complete", "run/stream.py", "all traces of a group", "its file in the queue"),
    Point("group_queued", "run/stream.py", "a group's file in the queue", "anybody learns from it"),
    Point("groups_taken", "run/stream.py", "a step's groups in the queue", "what is learned from them"),
    Point("queue_pruned", "run/stream.py", "a checkpoint", "the other files of groups that it knows are gone"),
    Point("eval_trajectories_written", "run/rollouts.py", "the trajectories of an evaluation", "its numbers"),
    Point("eval_recorded", "run/rollouts.py", "the numbers of an evaluation", "the next step"),
    Point("trained", "run/learner.py", "the policy's update, in memory", "new weights in the engines"),
    Point("weights_written", "engine/server/weights.py", "new weights beside their name", "their name"),
    Point("weights_synced", "run/loop.py", "new weights in the engines", "the step's trajectories"),
    Point("trajectories_written", "run/rollouts.py", "a step's trajectories", "their programs, and the step"),
    Point("programs_written", "run/rollouts.py", "a step's programs", "the step in steps.jsonl"),
    Point("step_recorded", "run/loop.py", "a step in steps.jsonl", "status.json, and its checkpoint"),
    Point("checkpoint_files", "trainer/checkpoint/folder.py", "a file of a checkpoint", "the others"),
    Point("checkpoint_aside", "trainer/checkpoint/folder.py", "a whole checkpoint beside its name", "its name"),
    Point("checkpoint_named", "trainer/checkpoint/folder.py", "a checkpoint", "the older ones are pruned"),
    Point("checkpoint_discarded", "trainer/checkpoint/folder.py", "an older checkpoint has lost its name", "its end"),
    Point("summary_written", "run/session.py", "summary.json", "report.html"),
    Point("report_written", "run/session.py", "report.html", "the last word of status.json"),
)  # fmt: skip

_wanted: tuple[str, int] | None = None
_is_read = False
_calls = 0


def kill_point(name: str) -> None:
    """Ends the process by SIGKILL if the environment asks for it. Raises ValueError if the environment names no
    point."""
    global _wanted, _is_read, _calls
    if not _is_read:
        _wanted = _parse_variable(os.environ.get(VARIABLE, ""))
        _is_read = True
    if _wanted is None or name != _wanted[0]:
        return
    _calls += 1
    if _calls >= _wanted[1]:
        os.kill(os.getpid(), signal.SIGKILL)


def _parse_variable(text: str) -> tuple[str, int] | None:
    """Reads the variable. A name that is no point is refused: a rehearsal that kills nothing would prove nothing."""
    if not text:
        return None
    name, _, count = text.partition(":")
    if name not in {point.name for point in POINTS}:
        raise ValueError(f"{VARIABLE}={text} names no point of swe_rl/files/kill_point.py")
    return name, int(count or 1)
