"""A log of SkyRL's synchronous trainer (`slurm-<id>.err`) as one measurement a step.

Invariants:
- Steps count from 1 in each file, as `Started: 'step'` opens them; what comes before the first belongs to none.
- The last match of a step wins; a number that is not finite, or no number, leaves what was there.
- Nothing of a log but its numbers leaves this module.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_NUMBER = r"(-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
_STARTED = "Started: 'step'"
_FINISHED = re.compile(rf"Finished: '(generate|step)', time cost: {_NUMBER}s")
_AVERAGES = re.compile(rf"avg_final_rewards: {_NUMBER}, avg_response_length: {_NUMBER}(?![\d.])")
_JOB = re.compile(r"slurm-(\d+(?:_\d+)?)\.(?:err|out)")


@dataclass(slots=True)
class LogStep:
    """What a log says of a step; None for what it does not (yet) say."""

    generate_s: float | None = None
    step_s: float | None = None
    reward_mean: float | None = None
    avg_response_length: float | None = None

    def tokens_per_s(self, trajectories_per_step: int) -> float | None:
        """Trajectories times mean response tokens over the seconds of generation; None for an incomplete step.

        The published measure of the program-aware router (ThunderAgent's DP=4 comparison). Responses hold the tools'
        output as well, and generation the start of containers and the grading.
        """
        if self.avg_response_length is None or self.generate_s is None or self.generate_s <= 0:
            return None
        return trajectories_per_step * self.avg_response_length / self.generate_s


def read_log(path: Path) -> list[LogStep]:
    """Of a file that may still grow; bytes that are no text are passed over. Raises OSError."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        return list(parse(lines))


def parse(lines: Iterable[str]) -> Iterator[LogStep]:
    """The steps in their order, each once it is over."""
    step: LogStep | None = None
    for line in lines:
        text = _ANSI.sub("", line) if "\x1b" in line else line
        if _STARTED in text:
            if step is not None:
                yield step
            step = LogStep()
        if step is not None:
            _add(step, text)
    if step is not None:
        yield step


def _add(step: LogStep, text: str) -> None:
    for name, cost_s in _FINISHED.findall(text):
        if name == "generate":
            step.generate_s = float(cost_s)
        else:
            step.step_s = float(cost_s)
    if averages := _AVERAGES.search(text):
        step.reward_mean, step.avg_response_length = float(averages[1]), float(averages[2])


def job_id(path: Path) -> str | None:
    """The job that SLURM named the file after: `slurm-25609.err` is of 25609."""
    match = _JOB.fullmatch(path.name)
    return match[1] if match else None
