"""The workload of the benchmarks: the simulator's programs, as messages whose tokens are known beforehand.

Invariants:
- The same draws as job=simulate's (swe_rl/router/simulation/workload.py): what is measured can be simulated.
- A program's prompt of turn n has exactly the tokens that its `SimulatedTurn`s add up to, markup included.
- Equal options give equal programs and texts, told by `digest`.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from bench.words import MESSAGE_TOKENS, PROMPT_TOKENS, REPLY_END_TOKENS, text
from swe_rl.config.schema import RolloutConfig
from swe_rl.router.simulation.workload import WORKLOADS, Lognormal, SimulatedProgram, SimulatedTurn, draw_workload

_TEXTS = 1  # goes up when equal programs would get other texts
_LONGEST_TOOL_S = 120.0
_FIRST_TOKENS = 2 * MESSAGE_TOKENS + PROMPT_TOKENS + 2  # with one word each for the system and the user
_LATER_TOKENS = REPLY_END_TOKENS + MESSAGE_TOKENS + PROMPT_TOKENS + 1


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """`scale` shrinks programs and turns, `token_scale` every length, `tool_scale` every tool's time.

    `sampled_median`: sampled tokens of a turn are lognormal with it and `sampled_sigma`; 0: the workload's own.
    `tool_median_s` and `tool_sigma` say the same of a tool's seconds, of which one takes 120 s at most. A program ends
    before it has more than `max_trajectory_tokens`, which are counted after the scale.
    """

    workload: str = "agent_load"
    programs: int = 160
    samples_per_prompt: int = 1
    seed: int = 0
    scale: float = 1.0
    token_scale: float = 1.0
    tool_scale: float = 1.0
    sampled_median: float = 0.0
    sampled_sigma: float = 0.5
    tool_median_s: float = 0.0
    tool_sigma: float = 1.0
    max_trajectory_tokens: int = 32768


@dataclass(frozen=True, slots=True)
class Load:
    programs: tuple[SimulatedProgram, ...]
    options: LoadOptions
    digest: str

    @property
    def sampled_tokens(self) -> int:
        return sum(program.sampled_tokens for program in self.programs)

    @property
    def max_context_tokens(self) -> int:
        return max(program.total_tokens for program in self.programs)

    def describe(self) -> str:
        turns = sum(len(program.turns) for program in self.programs)
        contexts = sum(program.total_tokens for program in self.programs) / len(self.programs)
        return (
            f"{len(self.programs)} programs, {turns} turns, {self.sampled_tokens} tokens to sample, "
            f"{contexts:.0f} tokens a program at its end (at most {self.max_context_tokens}), workload {self.digest}"
        )


def make_load(options: LoadOptions) -> Load:
    parameters = WORKLOADS[options.workload]
    if options.sampled_median:
        parameters = replace(parameters, out_tokens=Lognormal(options.sampled_median, options.sampled_sigma))
    if options.tool_median_s:
        parameters = replace(parameters, tool_s=Lognormal(options.tool_median_s, options.tool_sigma, _LONGEST_TOOL_S))
    programs = max(1, round(options.programs * options.scale))
    rollout = RolloutConfig(
        prompts_per_step=math.ceil(programs / options.samples_per_prompt),
        n=options.samples_per_prompt,
        max_turns=64,
        max_prompt_tokens=8192,
        max_trajectory_tokens=round(options.max_trajectory_tokens / options.token_scale),
        max_turn_tokens=4096,
        concurrency=programs,
        command_timeout_s=600.0,
    )
    drawn = draw_workload(parameters, rollout, options.seed).steps[0][:programs]
    shrunk = tuple(_shrink(program, options) for program in drawn)
    return Load(shrunk, options, _digest(shrunk, options.seed))


def _shrink(program: SimulatedProgram, options: LoadOptions) -> SimulatedProgram:
    kept = program.turns[: max(1, math.ceil(len(program.turns) * options.scale))]
    tokens = options.token_scale
    turns = tuple(
        SimulatedTurn(
            max(_LATER_TOKENS if index else _FIRST_TOKENS, round(turn.new_in_tokens * tokens)),
            max(1, round(turn.out_tokens * tokens)),
            turn.tool_s * options.tool_scale,
        )
        for index, turn in enumerate(kept)
    )
    room = turns[0].new_in_tokens - MESSAGE_TOKENS - PROMPT_TOKENS - 1
    system_tokens = min(room, max(MESSAGE_TOKENS + 1, round(program.system_tokens * tokens)))
    return replace(program, turns=turns, system_tokens=system_tokens, boot_s=0.0, grade_s=0.0)


def _digest(programs: Sequence[SimulatedProgram], seed: int) -> str:
    told = json.dumps([_TEXTS, seed, [asdict(program) for program in programs]], sort_keys=True)
    return hashlib.blake2b(told.encode(), digest_size=8).hexdigest()


def first_messages(program: SimulatedProgram, seed: int, vocabulary_size: int) -> list[dict[str, str]]:
    """All programs share the system message, those of one group the user's as well."""
    system = program.system_tokens - MESSAGE_TOKENS
    user = program.prompt_tokens - program.system_tokens - MESSAGE_TOKENS - PROMPT_TOKENS
    return [
        {"role": "system", "content": text(f"{seed}", system, vocabulary_size)},
        {"role": "user", "content": text(f"{seed}/{program.group}", user, vocabulary_size)},
    ]


def observation(program: SimulatedProgram, turn: int, seed: int, vocabulary_size: int) -> dict[str, str]:
    """What the tool before `turn` said."""
    words = program.turns[turn].new_in_tokens - REPLY_END_TOKENS - MESSAGE_TOKENS - PROMPT_TOKENS
    return {"role": "user", "content": text(f"{seed}/{program.program_id}/{turn}", words, vocabulary_size)}
