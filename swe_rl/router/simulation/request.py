"""One turn of a program, as an engine sees it.

Invariants:
- `computed` tokens have their keys and values in the cache; of the newest sampled token they never are.
- A preempted request keeps what it sampled and computes it again as if it were prompt.
"""

from dataclasses import dataclass, field

from swe_rl.router.simulation.blocks import Key, Segment
from swe_rl.router.simulation.workload import Program

BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Chain:
    """The segments of a program's blocks: what all share, what its group shares, its own. `system_blocks` and
    `shared_blocks` are where the first and the second end; only whole blocks are shared."""

    keys: tuple[Key, Key, Key]
    system_blocks: int
    shared_blocks: int

    def bounds(self, tokens: int) -> tuple[int, int, int]:
        """Blocks of each segment that `tokens` from the start need."""
        blocks = -(-tokens // BLOCK_TOKENS)
        system = min(blocks, self.system_blocks)
        group = min(blocks, self.shared_blocks) - system
        return system, group, blocks - system - group


def chain_of(program: Program) -> Chain:
    return Chain(
        (("system", ""), ("group", program.group), ("program", program.program_id)),
        program.system_tokens // BLOCK_TOKENS,
        max(program.system_tokens, program.prompt_tokens) // BLOCK_TOKENS,
    )


@dataclass(eq=False, slots=True)
class Request:
    request_id: str
    program_id: str
    chain: Chain
    prompt_tokens: int
    out_tokens: int
    arrived_s: float = 0.0
    known_tokens: int = 0  # computed at some time by this program, here or elsewhere
    sampled: int = 0
    computed: int = 0
    cached_tokens: int = -1  # at its first start; -1: not started
    placed: bool = False
    segments: list[Segment] = field(default_factory=list)
    decoding_from: int = -1  # the engine's count of decoding steps when it began to decode; -1: it does not

    @property
    def target_tokens(self) -> int:
        """What prefill must compute before the next token can be sampled."""
        return self.prompt_tokens + self.sampled
