"""Sampling a step: its instances, and others in place of those whose groups have nothing to compare.

Invariants:
- At most `max_resample_rounds` further rounds, each of as many instances as useful groups are missing.
- No instance twice in one step; where all were asked, the step goes on with what there is.
- What was sampled stays in the step's record, useful or not.
"""

from collections.abc import Awaitable, Callable, Sequence

from swe_rl.config.choices import DynamicSampling
from swe_rl.config.schema import AlgoConfig
from swe_rl.rollout.batch import degenerate_groups
from swe_rl.rollout.collect import Collected
from swe_rl.rollout.sampler import PromptSampler

Generate = Callable[[Sequence[int]], Awaitable[Collected]]


async def sampled(
    sampler: PromptSampler, generate: Generate, algo: AlgoConfig, *, prompts: int, available: int
) -> Collected:
    """`generate`'s trajectories of `prompts` of the `available` instances, which it is given by index.

    With `algo.dynamic_sampling=resample` groups of equal rewards are replaced, until `prompts` useful ones are there
    or the rounds are used up (DAPO, arXiv:2503.14476, section 3.2).
    """
    taken = sampler.take(prompts)
    collected = await generate(taken)
    for _ in range(algo.max_resample_rounds if algo.dynamic_sampling is DynamicSampling.resample else 0):
        useful = len(taken) - len(degenerate_groups(collected.trajectories))
        missing = min(prompts - useful, available - len(taken))
        if missing <= 0:
            break
        more = sampler.take(missing, taken)
        taken += more
        collected = _joined(collected, await generate(more))
    return collected


def _joined(one: Collected, other: Collected) -> Collected:
    return Collected(
        [*one.trajectories, *other.trajectories], [*one.results, *other.results], [*one.retried, *other.retried]
    )
