"""A workload that was seen: programs from the turns that a run recorded.

Invariants:
- Lengths and pauses are those that were seen; how long an engine took is not taken over, it is what is simulated.
- A turn whose prompt does not go on from the one before (a cut chain) counts as going on: a program only grows.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from swe_rl.router.simulation.workload import Program, Turn


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """`asked_s` and `answered_s`: on one clock, when the request reached the gateway and when it was answered."""

    prompt_tokens: int
    sampled_tokens: int
    asked_s: float
    answered_s: float


def program_of(
    program_id: str, group: str, turns: Sequence[RecordedTurn], *, boot_s: float = 0.0, grade_s: float = 0.0
) -> Program | None:
    """None without a turn. What all programs share at the start is not recorded: a group's first prompt is."""
    if not turns:
        return None
    return Program(program_id, group, tuple(_turns(turns)), boot_s, grade_s)


def _turns(turns: Sequence[RecordedTurn]) -> Iterator[Turn]:
    held = 0
    for number, turn in enumerate(turns):
        new = max(1, turn.prompt_tokens - held)
        out = max(1, turn.sampled_tokens)
        last = number + 1 == len(turns)
        tool_s = 0.0 if last else max(0.0, turns[number + 1].asked_s - turn.answered_s)
        yield Turn(new, out, tool_s)
        held += new + out


def resized(programs: Sequence[Program], count: int) -> tuple[Program, ...]:
    """So many of them, in order; from the beginning again, as groups of their own, where there are fewer."""
    made = list(programs[:count])
    while len(made) < count:
        again = len(made) // len(programs)
        program = programs[len(made) % len(programs)]
        made.append(replace(program, program_id=f"{program.program_id}~{again}", group=f"{program.group}~{again}"))
    return tuple(made)


def shared_tokens(prompts: Iterable[Sequence[int]]) -> int:
    """Length of the beginning that all token sequences have in common: a workload's `system_tokens`."""
    common: Sequence[int] | None = None
    for prompt in prompts:
        if common is None:
            common = prompt
        length = min(len(common), len(prompt))
        same = next((index for index in range(length) if common[index] != prompt[index]), length)
        common = common[:same]
    return len(common or ())
