"""Reads the programs of a run that is there, which a simulation takes in place of a drawn workload."""

from dataclasses import replace
from pathlib import Path

from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import read_jsonl
from swe_rl.router.simulation.workload import RecordedTurn, SimulatedProgram, WorkloadError, program_of, shared_tokens


def last_steps(path: Path, count: int) -> dict[int, tuple[SimulatedProgram, ...]]:
    """Returns the last so many steps of a run that have turns, the last one first.

    Raises WorkloadError where there is none; TraceStoreError, DiskError.
    """
    folder = RunFolder(path)
    steps = folder.trajectory_steps() if folder.traces_db.is_file() else []
    if not steps:
        raise WorkloadError(
            f"job.workload_from={path} is not the folder of a run with steps: give outputs/NAME/TIME, with its "
            "trajectories/ and traces.db."
        )
    programs: dict[int, tuple[SimulatedProgram, ...]] = {}
    for step in reversed(steps):
        if len(programs) < count and (of_step := recorded_programs(folder, step)):
            programs[step] = of_step
    if not programs:
        raise WorkloadError(f"job.workload_from={path} has no turns: its agents asked no model.")
    return programs


def recorded_programs(folder: RunFolder, step: int) -> tuple[SimulatedProgram, ...]:
    """Returns one step of a run, from its trajectories and traces. Raises TraceStoreError, DiskError."""
    from swe_rl.gateway.store.schema import read_traces
    from swe_rl.gateway.trace import whole_prompts
    from swe_rl.rollout.profile import asked_times_s

    programs = []
    prompts = []
    for record in read_jsonl(folder.trajectories(step)):
        traces = read_traces(folder.traces_db, record["trajectory_id"], in_use=folder.is_locked())
        asked_s_of_traces = asked_times_s(traces, record.get("recalled_turns", 0))
        turns = [
            RecordedTurn(trace.prompt_tokens, len(trace.sampled_ids), asked_s, trace.created_s)
            for trace, asked_s in zip(traces, asked_s_of_traces, strict=True)
        ]
        times_s = record["times_s"]
        boot_s = times_s.get("boot", 0.0)
        grade_s = times_s.get("grade", 0.0)
        program = program_of(record["trajectory_id"], record["group_id"], turns, boot_s=boot_s, grade_s=grade_s)
        if program is not None:
            programs.append(program)
            prompts.append(next(whole_prompts(traces)).tolist())
    shared = shared_tokens(prompts)
    return tuple(replace(program, system_tokens=shared) for program in programs)
