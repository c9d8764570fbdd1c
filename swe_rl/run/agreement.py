"""After new weights: do engines and trainer hold the same ones? Both say how likely the same tokens are.

Invariants:
- An engine samples after a fixed prompt, and the trainer gives those tokens log-probabilities of its own: what lies
  between is the engine's loading of names, shapes and types, and nothing else.
- Every engine is asked, at the same time; a difference that rounding does not explain stops the run.
- The comparison sees wrong, torn or misplaced weights. Those of an earlier step it sees where the step was larger than
  rounding; for that there is the version that every trace carries.
"""

import asyncio
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from swe_rl.algo.row import Row
from swe_rl.config.choices import EngineKind
from swe_rl.config.schema import Config
from swe_rl.engine.protocol import Completion, Engine, EngineError, EngineState, SamplingParams, WeightSyncError
from swe_rl.plan.sizes import uses_no_gpu
from swe_rl.trainer.protocol import TrainsPolicy

PROMPT_TOKENS, SAMPLED_TOKENS = 24, 12
# Mean absolute difference in nats that rounding explains: float32 in both, or bfloat16 with other kernels.
EXACT, ROUNDED = 2e-3, 0.25


@dataclass(frozen=True, slots=True)
class Agreement:
    """Of the engine that differs most, in nats."""

    mean: float
    largest: float
    check_s: float


def explained(config: Config) -> float:
    """The mean difference up to which engines count as equal."""
    exact = uses_no_gpu(config.layout) and config.engine.kind is not EngineKind.external
    return EXACT if exact else ROUNDED


async def require_agreement(
    engines: Sequence[Engine], trainer: TrainsPolicy, version: int, *, vocab_size: int, limit: float
) -> Agreement:
    """Raises WeightSyncError that names the engines, and TrainerError."""
    started_s = time.monotonic()
    prompt = _prompt(vocab_size)
    replies = await asyncio.gather(*(_sampled(engine, prompt, version) for engine in engines))
    found = {
        engine.name: reply
        for engine, reply in zip(engines, replies, strict=True)
        if engine.state is not EngineState.gone
    }
    told = {name: reply for name, reply in found.items() if isinstance(reply, Completion)}
    ours = await asyncio.to_thread(trainer.row_logprobs, [_row(name, prompt, reply) for name, reply in told.items()])
    apart = {name: _apart(own, told[name].logprobs) for name, own in zip(told, ours, strict=True)}
    wrong = {name: reply for name, reply in found.items() if isinstance(reply, EngineError)} | {
        name: EngineError(f"{mean:.3g} nats apart on average, {largest:.3g} at most")
        for name, (mean, largest) in apart.items()
        if not mean <= limit  # also where it is not a number
    }
    if wrong:
        raise _error(wrong, len(engines), version, limit)
    mean, largest = max(apart.values(), default=(0.0, 0.0))
    return Agreement(mean, largest, time.monotonic() - started_s)


def _error(wrong: dict[str, EngineError], count: int, version: int, limit: float) -> WeightSyncError:
    told = "; ".join(f"{name}: {why}" for name, why in wrong.items())
    return WeightSyncError(
        f"After the update to the weights of step {version}, {len(wrong)} of {count} engines do not give the tokens "
        f"that they sample the trainer's log-probabilities ({told}; rounding explains {limit:g}): they hold other "
        "weights. The run stops, as it would train on samples of another policy. Look at the engines' logs "
        "(quantisation, another model?); trainer.check_weights=false leaves the comparison out.",
        wrong,
    )


def _prompt(vocab_size: int) -> tuple[int, ...]:
    rng = random.Random(0)
    return tuple(rng.randrange(vocab_size) for _ in range(PROMPT_TOKENS))


async def _sampled(engine: Engine, prompt: tuple[int, ...], version: int) -> Completion | EngineError:
    """Asked a second time where it fails: an engine that died meanwhile comes back with the same weights."""
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


def _row(name: str, prompt: tuple[int, ...], reply: Completion) -> Row:
    ids = reply.token_ids
    return Row(
        trajectory_id=name,
        group_id=name,
        token_ids=prompt + ids,
        loss_mask=(0,) * len(prompt) + (1,) * len(ids),
        rollout_logprobs=None,
        advantage=0.0,
        weight_versions=(reply.weight_version, reply.weight_version),
    )


def _apart(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Mean and largest absolute difference; nothing sampled proves nothing."""
    found = [abs(own - other) for own, other in zip(ours, theirs, strict=True)]
    if not found or not all(math.isfinite(value) for value in found):
        return math.nan, math.nan
    return sum(found) / len(found), max(found)
