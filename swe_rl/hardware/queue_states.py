"""What SLURM says of all jobs of a sweep, in one question.

Invariants:
- Nothing raises and nothing blocks for long: a controller that does not answer makes every job's state unknown.
- A job that the queue has forgotten is gone; how it ended, accounting knows where a cluster keeps it.
"""

from collections.abc import Sequence

from swe_rl.hardware.squeue import JobState, Queue, Run, ask, listed, read_state, run_command


def queue_states(ids: Sequence[str], run: Run = run_command) -> dict[str, JobState]:
    """State by id as in `ids`, `12_3` for the elements of an array."""
    if not ids:
        return {}
    answer = _squeue(ids, run)
    if answer is None:
        return dict.fromkeys(ids, JobState(Queue.UNKNOWN))
    gone = [one for one in ids if one not in answer]
    return {**{one: answer[one] for one in ids if one in answer}, **_ended(gone, run)}


def _squeue(ids: Sequence[str], run: Run) -> dict[str, JobState] | None:
    """None where SLURM did not answer."""
    heads = ",".join(dict.fromkeys(one.partition("_")[0] for one in ids))
    found = listed(["--array", f"--jobs={heads}", "--format=%i|%T|%r"], run)
    if found is None:
        return None
    lines = [line.split("|", 1) for line in found.splitlines() if "|" in line]
    return {name.strip(): read_state(rest) for name, rest in lines}


def _ended(ids: Sequence[str], run: Run) -> dict[str, JobState]:
    found = dict.fromkeys(ids, JobState(Queue.GONE))
    if not ids:
        return found
    done = ask(["sacct", "-X", "--noheader", "--parsable2", "--format=JobID,State", f"--jobs={','.join(ids)}"], run)
    for line in done.stdout.splitlines() if done is not None and not done.returncode else ():
        name, _, state = line.partition("|")
        if name in found and state:
            found[name] = JobState(Queue.GONE, state.split()[0])  # `CANCELLED by 1000`
    return found
