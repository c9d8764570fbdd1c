"""Holds engines against the trainer after new weights: do they give sampled tokens the same log-probabilities?

Invariants:
- Every engine says how likely tokens are that it sampled, and the trainer gives them log-probabilities of its own: what
  lies between is the engine's loading of names, shapes and types.
- A difference that rounding does not explain stops the run. Wrong, torn or misplaced weights are seen. Those of an
  earlier step are seen where the step was larger than rounding: for the rest there is the version that every trace has.
"""

import asyncio
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from swe_rl.algo.row import Row, fill_sampled
from swe_rl.config.choices import EngineKind
from swe_rl.config.schema import Config
from swe_rl.engine.engine import Completion, Engine, EngineError, EngineState, SamplingParams, WeightSyncError
from swe_rl.facts.sizes import uses_no_gpu
from swe_rl.trainer.trainer import TrainsPolicy

# A short probe is enough: a wrong weight changes nearly every log-probability.
PROMPT_TOKENS = 24
SAMPLED_TOKENS = 12
# Rounding explains this mean absolute difference in nats: float32 in both, or bfloat16 with other kernels.
EXACT = 2e-3
ROUNDED = 0.25


@dataclass(frozen=True, slots=True)
class Agreement:
    """The difference of the engine that differs most, in nats."""

    mean: float
    largest: float
    check_s: float


def explained_difference(config: Config) -> float:
    """Returns the mean difference up to which engines count as equal."""
    exact = uses_no_gpu(config.layout) and config.engine.kind is not EngineKind.external
    return EXACT if exact else ROUNDED


async def require_agreement(
    engines: Sequence[Engine], trainer: TrainsPolicy, version: int, *, vocab_size: int, limit: float
) -> Agreement:
    """Compares engines with the trainer. Raises WeightSyncError that names the engines, and TrainerError."""
    started_s = time.monotonic()
    prompt = _random_prompt(vocab_size)
    replies = await asyncio.gather(*(_sample_twice(engine, prompt, version) for engine in engines))
    answers = {
        engine.name: reply
        for engine, reply in zip(engines, replies, strict=True)
        if engine.state is not EngineState.gone
    }
    completed = {name: reply for name, reply in answers.items() if isinstance(reply, Completion)}
    ours = await asyncio.to_thread(
        trainer.row_logprobs, [_make_row(name, prompt, reply) for name, reply in completed.items()]
    )
    apart = {
        name: _mean_and_largest_gap(row, completed[name].logprobs) for name, row in zip(completed, ours, strict=True)
    }
    wrong = {name: reply for name, reply in answers.items() if isinstance(reply, EngineError)} | {
        name: EngineError(f"{mean:.3g} nats apart on average, {largest:.3g} at most")
        for name, (mean, largest) in apart.items()
        if not mean <= limit  # The negation also catches a mean that is not a number.
    }
    if wrong:
        raise _sync_error(wrong, len(engines), version, limit)
    mean, largest = max(apart.values(), default=(0.0, 0.0))
    return Agreement(mean, largest, time.monotonic() - started_s)


def _sync_error(wrong: dict[str, EngineError], count: int, version: int, limit: float) -> WeightSyncError:
    causes = "; ".join(f"{name}: {why}" for name, why in wrong.items())
    return WeightSyncError(
        f"After the update to the weights of step {version}, {len(wrong)} of {count} engines do not give the tokens "
        f"that they sample the trainer's log-probabilities ({causes}; rounding explains {limit:g}): they hold other "
        "weights. The run stops, as it would train on samples of another policy. Look at the engines' logs "
        "(quantisation, another model?); trainer.check_weights=false leaves the comparison out.",
        wrong,
    )


def _random_prompt(vocab_size: int) -> tuple[int, ...]:
    rng = random.Random(0)
    return tuple(rng.randrange(vocab_size) for _ in range(PROMPT_TOKENS))


async def _sample_twice(engine: Engine, prompt: tuple[int, ...], version: int) -> Completion | EngineError:
    """Returns what an engine samples, asked a second time where it fails.

    An engine that died meanwhile comes back with the same weights.
    """
    session = f"weights-{version}.{engine.name}"
    params = SamplingParams(max_tokens=SAMPLED_TOKENS, temperature=1.0, seed=version)
    failure = EngineError("it gave no tokens")
    for _ in range(2):
        try:
            reply = await engine.generate(prompt, params, request_id=session, session_id=session)
        except EngineError as error:
            failure = error
            continue
        finally:
            engine.release_session(session)
        if reply.token_ids:
            return reply
    return failure


def _make_row(name: str, prompt: tuple[int, ...], reply: Completion) -> Row:
    ids = reply.token_ids
    mask = np.arange(len(prompt) + len(ids)) >= len(prompt)
    return Row(
        trajectory_id=name,
        group_id=name,
        token_ids=np.array(prompt + ids, np.int32),
        loss_mask=mask,
        rollout_logprobs=None,
        advantage=fill_sampled(0.0, mask),
        weight_versions=np.array(reply.weight_versions, np.int32),
        routes=reply.routes,
    )


def _mean_and_largest_gap(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Returns mean and largest absolute difference; nothing sampled proves nothing, so both are NaN then."""
    gaps = [abs(mine - other) for mine, other in zip(ours, theirs, strict=True)]
    if not gaps or not all(math.isfinite(gap) for gap in gaps):
        return math.nan, math.nan
    return sum(gaps) / len(gaps), max(gaps)
