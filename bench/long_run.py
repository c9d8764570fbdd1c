"""What a long run costs to go on with and to look at: a folder of many steps, written as a run writes it.

    python -m bench.long_run --steps 1000 --trajectories 512 --folder FOLDER

Prints seconds and peak memory of going back by one step (as a resume does), of asking what was evaluated, and of the
report, with the size of its page. Each is measured in a process of its own.
"""

import argparse
import multiprocessing
import random
import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from swe_rl.agent.protocol import Turn
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.gateway.trace import Trace
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import EventLog, StepLog, read_evals, truncate_after
from swe_rl.report.page import write_report
from swe_rl.rollout.batch import eval_numbers, rollout_numbers
from swe_rl.rollout.collect import Collected
from swe_rl.rollout.profile import program_event
from swe_rl.rollout.trajectory import OUR_WORDS, Status, Trajectory, TrajectoryId

GROUP, TURNS, NEW_TOKENS, SAMPLED_TOKENS = 8, 8, 64, 32
EVAL_EVERY, EVAL_INSTANCES = 10, 500
_TEXT = "It goes through the package, reads a file, and says what it saw there. " * 4


def trajectory(split: str, step: int, number: int, rng: random.Random) -> Trajectory:
    instance, sample = divmod(number, GROUP)
    name = TrajectoryId(split, step, f"repo__package-{instance}", sample, 0)
    status = rng.choice((Status.resolved, Status.unresolved, Status.step_limit))
    turns = [
        Turn(index=index, message=_TEXT, command="ls", observation=_TEXT, exit_code=0, completion_s=2.0, command_s=0.5)
        for index in range(TURNS)
    ]
    return Trajectory(
        trajectory_id=str(name),
        instance_id=name.instance_id,
        group_id=name.group_id,
        split=split,
        step=step,
        sample=sample,
        attempt=0,
        status=status,
        reward=float(status is Status.resolved),
        trained=True,
        in_baseline=True,
        turns=turns,
        patch=_TEXT,
        num_calls=TURNS,
        began_s={"boot": 100.0 * step, "grade": 100.0 * step + 30.0},
        times_s={"boot": 1.0, "decode": 2.0 * TURNS, "grade": 3.0},
    )


def traces_of(attempt: Trajectory) -> Iterator[Trace]:
    for turn in range(TURNS):
        yield Trace(
            attempt.trajectory_id, turn, 0, range(NEW_TOKENS), range(SAMPLED_TOKENS), [-0.5] * SAMPLED_TOKENS,
            [attempt.step] * SAMPLED_TOKENS, "stop", created_s=attempt.began_s["boot"] + 3.0 * (turn + 1), decode_s=2.0,
            engine="engine0", base_turn=turn - 1 if turn else None,
            base_tokens=turn * (NEW_TOKENS + SAMPLED_TOKENS),
        )  # fmt: skip


def write(folder: RunFolder, steps: int, trajectories: int) -> None:
    rng = random.Random(0)
    store = TraceStore(folder.create().traces_db)
    with EventLog(folder.events_jsonl) as events, StepLog(folder) as log:
        events.write("started", name="long", seed=0)
        for step in range(steps + 1):
            if step:
                attempts = [trajectory("train", step, number, rng) for number in range(trajectories)]
                conversations = [list(traces_of(attempt)) for attempt in attempts]
                for conversation in conversations:
                    for trace in conversation:
                        store.append(trace)
                log.append_trajectories(step, (attempt.to_record() for attempt in attempts), ours=OUR_WORDS)
                pairs = zip(attempts, conversations, strict=True)
                log.append_programs(step, "program", (program_event(*pair, 0.0) for pair in pairs))
                log.append({"step": step, "train_s": 20.0, **rollout_numbers(Collected(attempts, []), 60.0)})
                events.write("weights", step=step, gather_s=0.1, load_s=0.2)
            if step % EVAL_EVERY == 0:
                measured = [trajectory("eval-heldout", step, number, rng) for number in range(4 * EVAL_INSTANCES)]
                log.append_eval(eval_numbers(Collected(measured, []), step=step, split="heldout", eval_s=9.0))
    store.close()


def go_back(folder: RunFolder, steps: int) -> str:
    """As `Run.resume`: the last step and its traces are gone."""
    gone = truncate_after(folder, steps - 1)
    store = TraceStore(folder.traces_db)
    late = [name for name in store.sessions() if (id := TrajectoryId.parse(name)) and id.step >= steps]
    store.delete(late)
    store.close()
    return f"{gone} step and {len(late)} sessions gone"


def evaluated(folder: RunFolder, steps: int) -> str:
    return f"{len(read_evals(folder))} evaluations"


def report(folder: RunFolder, steps: int) -> str:
    return f"{write_report(folder).stat().st_size / 1e6:.1f} MB"


def timed(work: Callable[[RunFolder, int], str], folder: Path, steps: int) -> tuple[str, float, float]:
    started_s = time.perf_counter()
    outcome = work(RunFolder(folder), steps)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return outcome, time.perf_counter() - started_s, peak_mb


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--trajectories", type=int, default=512, help="of a step")
    parser.add_argument("--folder", type=Path, required=True, help="of a run; what is there stays as it is")
    given: Any = parser.parse_args(arguments)
    if not (given.folder / "steps.jsonl").exists():
        started_s = time.perf_counter()
        write(RunFolder(given.folder), given.steps, given.trajectories)
        print(f"written in {time.perf_counter() - started_s:.0f} s", flush=True)
    print("| what | outcome | seconds | peak MB |\n| --- | --- | --- | --- |")
    for work in (go_back, evaluated, report):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as apart:
            outcome, took_s, peak_mb = apart.submit(timed, work, given.folder, given.steps).result()
        print(f"| {work.__name__} | {outcome} | {took_s:.2f} | {peak_mb:.0f} |", flush=True)


if __name__ == "__main__":
    main()
