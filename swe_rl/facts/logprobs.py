"""This module knows over which tokens engines report log-probabilities, what a run needs of them, and how vLLM is made
to report it.

Corrections, masks and metrics compare a token's log-probability in the trainer with the one in the engine. The trainer
has the logits of the whole vocabulary and the temperature of the rollouts, so it computes `LogprobsMode.whole`. An
engine that reports the same makes every ratio 1 at equal weights, whatever `rollout.top_p`, `top_k` and `min_p` leave
out. One that reports `processed` ones divides by the probability that truncation kept, and each ratio is this kept
probability in place of 1.

Invariants:
- Without truncation `processed` is `whole`; at temperature 1 `raw` is `whole`.
- The rules, the probe of a server, the preflight and the command line of vLLM all ask here.
"""

import math
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass

from swe_rl.config.choices import Correction, EngineKind, ExtensionKind, LogprobsMode, MaskLevel
from swe_rl.config.parts import Part, started_parts
from swe_rl.config.schema import Config, RolloutConfig
from swe_rl.extension.find import declared_attribute
from swe_rl.facts.schedule import scaled_temperature

UNTRUNCATED = "rollout.top_p=1.0 rollout.top_k=0 rollout.min_p=0.0"
COUNTS_TRUNCATION = (
    "reports log-probabilities of the tokens that truncation kept: weights, masks, kl_rollout and logprob_diff_* count "
    "what truncation left out as a difference of policies"
)
# Each model has these ids, and hardly any is sure of what follows them.
PROMPT_IDS = (1, 2, 3, 5, 8, 13, 21, 34)
_OTHER_PROMPT_IDS = (33, 20, 12, 7, 4, 2, 9, 30)
ASKED_TOKENS = 8
# More logits than this hardly ever tie in bfloat16.
_MOST_TIES = 8
# A tie's log-probability differs by no more than rounding.
_TIE_NATS = 1e-4
# Two answers of one server differ by no more, as batches are summed in another order.
_SAME_NATS = 1e-3


def truncates_vocabulary(rollout: RolloutConfig) -> bool:
    """Tells whether some tokens of the vocabulary are never sampled."""
    return rollout.top_p < 1.0 or rollout.top_k > 0 or rollout.min_p > 0.0


def trains_truncated(config: Config) -> bool:
    return truncates_vocabulary(config.rollout) and Part.trainer in started_parts(config)


def uses_engine_logprobs(config: Config) -> bool:
    """Tells whether tokens are weighed or masked by the engine's log-probabilities, as algo/correction.py and losses
    say."""
    corrections = {config.algo.correction, config.algo.stale_correction}
    return bool(corrections - {None, Correction.none}) or masks_tokens(config)


def masks_tokens(config: Config) -> bool:
    """Tells whether tokens are masked, fresh and stale ones alike; a user's own loss may do so."""
    bounded = config.algo.mask_low is not None or config.algo.mask_high is not None
    return bounded or _own_loss_compares(config)


def weighs_trajectories(config: Config) -> bool:
    """Tells whether the gaps of a trajectory's tokens add up in one weight; a user's own loss may add them up, too."""
    algo = config.algo
    by_product = Correction.sequence_tis in (algo.correction, algo.stale_correction)
    bounded = algo.mask_low is not None or algo.mask_high is not None
    return by_product or (bounded and algo.mask_level is not MaskLevel.token) or _own_loss_compares(config)


def _own_loss_compares(config: Config) -> bool:
    return bool(declared_attribute(config, ExtensionKind.loss, "needs_rollout_logprobs"))


def accepted_modes(config: Config) -> frozenset[LogprobsMode]:
    """Returns what a server may report without the run being refused at its start."""
    accepted = set(LogprobsMode)
    if scaled_temperature(config.rollout) != 1.0 and config.engine.logprobs_mode is not LogprobsMode.raw:
        accepted.remove(LogprobsMode.raw)
    if trains_truncated(config) and weighs_trajectories(config):
        accepted.remove(LogprobsMode.processed)
    return frozenset(accepted)


def served_mode(config: Config) -> LogprobsMode:
    """Returns `processed` or `raw`, the two that vLLM has, for servers that this run starts; see `scales_raw`."""
    mode = config.engine.logprobs_mode
    if mode is not LogprobsMode.whole:
        return mode
    if truncates_vocabulary(config.rollout):
        return LogprobsMode.raw
    return LogprobsMode.processed


def scales_raw(config: Config) -> bool:
    """Tells whether vLLM's own modes do not do, so that its workers load our file that brings the temperature into
    `raw`."""
    rollout = config.rollout
    wanted = config.engine.kind is EngineKind.vllm and config.engine.logprobs_mode is LogprobsMode.whole
    return wanted and truncates_vocabulary(rollout) and scaled_temperature(rollout) != 1.0


@dataclass(frozen=True, slots=True)
class ProbeQuestion:
    """Asks for the likeliest tokens after a prompt. They are sampled with `top_k=1`, so that truncation keeps one of
    them each."""

    prompt_ids: tuple[int, ...]
    temperature: float


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """Has tokens, and their log-probabilities in nats."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]


def find_mode(
    accepted: Collection[LogprobsMode], temperature: float
) -> Generator[ProbeQuestion, ProbeAnswer, LogprobsMode]:
    """Asks a server what it reports. Whoever iterates sends the answers. `temperature` is that of the rollouts.

    A model that is sure of each token reports 0 in every mode, so that nothing is refused for one prompt alone.
    """
    prompt_ids = PROMPT_IDS
    plain = yield ProbeQuestion(prompt_ids, 1.0)
    if _after_truncation(plain) and LogprobsMode.processed not in accepted:
        prompt_ids = _OTHER_PROMPT_IDS
        plain = yield ProbeQuestion(prompt_ids, 1.0)
    if _after_truncation(plain):
        return LogprobsMode.processed
    if temperature == 1.0:
        return LogprobsMode.raw
    scaled = yield ProbeQuestion(prompt_ids, temperature)
    if _answers_agree(plain, scaled):
        return LogprobsMode.raw
    return LogprobsMode.whole


def _after_truncation(answer: ProbeAnswer) -> bool:
    """Tells whether truncation explains all log-probabilities.

    One token is left, or a few equally likely ones, as bfloat16 logits often tie: each log-probability is minus the
    logarithm of their number. Those over the whole vocabulary are anything.
    """
    return all(map(_of_ties, answer.logprobs))


def _of_ties(logprob: float) -> bool:
    tied = 0
    if logprob > -math.log(_MOST_TIES + 1):
        tied = round(math.exp(-logprob))
    return 1 <= tied <= _MOST_TIES and abs(logprob + math.log(tied)) <= _TIE_NATS


def _answers_agree(answer: ProbeAnswer, other: ProbeAnswer) -> bool:
    """Tells whether both answers agree as far as they have the same past: up to the first token that differs, as
    equally likely ones may."""
    apart = (at for at, (token, its) in enumerate(zip(answer.token_ids, other.token_ids, strict=True)) if token != its)
    count = next(apart, len(answer.token_ids) - 1) + 1
    return all(
        abs(logprob - its) <= _SAME_NATS
        for logprob, its in zip(answer.logprobs[:count], other.logprobs[:count], strict=True)
    )


def describe_refusal(reported: LogprobsMode, temperature: float, truncated: bool) -> tuple[str, str]:
    """Says what is wrong with a server that reports so, in words that follow its name, and the way out."""
    if reported is LogprobsMode.processed:
        started = ""
        if temperature == 1.0:
            started = "start it with --logprobs-mode raw_logprobs, or "
        words = (
            "reports log-probabilities of the tokens that truncation kept, and the weight or mask of a trajectory "
            "would multiply the kept probability of each token"
        )
        return words, f"{started}sample with {UNTRUNCATED}"
    started = "start it with --logprobs-mode processed_logprobs, or "
    if truncated:
        started = ""
    words = f"reports log-probabilities at temperature 1, and tokens are sampled at {temperature:g}"
    return words, f"{started}sample with rollout.temperature=1.0"
