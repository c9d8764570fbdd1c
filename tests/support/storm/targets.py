"""What can be killed of a running job: found by command lines below the warm process."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from swe_rl.logger.jsonl import read_events
from tests.support.fake_vllm.server import HAS_TAKEN, TAKES

POLL_S = 0.004
TARGETS = {
    "driver": "the run's own process, which is also its router and its gateway",
    "store": "the run's own process, which writes the trace store, right after a write of it",
    "engine": "a server of an engine (the fake vLLM)",
    "engine_cpu": "a server of an engine (vLLM's CPU build, by SWE_RL_VLLM_COMMAND)",
    "rank": "a rank of the trainer, or the process that ranks are forked from",
    "guard": "bubblewrap around a command, or the first process in its namespace",
    "grader": "the process that runs the tests of a patch",
    "runtime": "the server of sandboxes",
    "step": "a step of a SLURM job on another node, with the engine's server in it",
}
_STREAM = "stream_"  # the same parts of runs whose groups flow
_MEMORY = "memory_"  # the same parts, while new weights are on their way from memory to memory
_GPU = "gpu_"  # the same parts of runs on two GPUs, with vLLM
TARGETS |= {f"{_STREAM}{name}": TARGETS[name] for name in ("driver", "store", "engine", "rank", "grader")}
TARGETS |= {f"{way}{_MEMORY}{name}": TARGETS[name] for way in ("", _STREAM) for name in ("driver", "engine", "rank")}
TARGETS |= {f"{way}{_GPU}{name}": TARGETS[name] for way in ("", _STREAM) for name in ("driver", "engine", "rank")}


def part(target: str) -> str:
    """What of a run it is, whatever the run."""
    return target.removeprefix(_STREAM).removeprefix(_MEMORY).removeprefix(_GPU)


def waits_for_update(target: str) -> bool:
    return target.removeprefix(_STREAM).startswith(_MEMORY)


def lives_in_a_start(target: str) -> bool:
    """Before anything is sampled."""
    lasts = part(target) in ("driver", "engine", "engine_cpu", "rank", "runtime", "step")
    return lasts and not waits_for_update(target)


def samplings(folder: Path) -> int:
    """How often the runs of `folder` have given their engines weights: each start does so before it samples."""
    return sum(len(read_events(path, "weights")) for path in folder.glob("*/*/events.jsonl"))


def command_line(pid: int) -> list[str]:
    """Empty for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def candidates(target: str, pids: Iterable[int]) -> list[int]:
    """Those of `pids` that are `target`."""
    found = [pid for pid in pids if _is(target, command_line(pid))]
    return [pid for pid in found if target != "guard" or _is_guard(pid)]


def _is_guard(pid: int) -> bool:
    """No fork of a namespace's first process on its way to become the command: that is the policy's."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    numbers = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
    return len(numbers) == 1 or numbers[-1] == "1"


def _is(target: str, line: list[str]) -> bool:
    program = Path(line[0]).name if line else ""
    if target == "guard":
        return program == "bwrap" or line[4:5] == ["reporter"]
    if target == "grader":
        return program.startswith("python") and any(word.endswith("/session_program.py") for word in line[1:3])
    if target == "rank":
        return any("fork_server" in word for word in line)  # also the process that they are forked from
    if target in ("engine", "engine_cpu"):
        served = "--port" in line and not any(word.endswith("vllm_guard.py") for word in line)
        return served or program == "VLLM::EngineCore"
    return False


def stamp(folder: Path) -> tuple[int, int]:
    """Of the trace store's log: it changes with each write."""
    sizes = [(path.stat().st_size, path.stat().st_mtime_ns) for path in folder.glob("*/*/traces.db-wal")]
    return max(sizes, default=(0, 0))


def updates(folder: Path) -> dict[str, tuple[int, int]]:
    """By the logs of the fake servers of all runs: updates of weights that began, and that ended."""
    logs = {path: path.read_text(errors="replace") for path in folder.glob("*/*/engines/*.log")}
    return {str(path): (text.count(TAKES), text.count(HAS_TAKEN)) for path, text in logs.items()}


def is_under_way(before: Mapping[str, tuple[int, int]], now: Mapping[str, tuple[int, int]]) -> bool:
    """Whether an update that began after `before` has not ended at some server."""
    for path, (begun, ended) in now.items():
        earlier_begun, earlier_ended = before.get(path, (0, 0))
        if begun - earlier_begun > ended - earlier_ended:
            return True
    return False
