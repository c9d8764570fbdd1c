"""Rules of log-probabilities check what engines report, where corrections, masks and metrics compare it.

Invariants:
- Weights and masks of whole trajectories multiply what is wrong with each token, so that they are refused; weights and
  masks of single tokens are warned of.
- The embedded engine reports what the trainer computes, and is asked nothing.
- What cannot be known without asking a server is asked by its probe, and by the preflight.
"""

from collections.abc import Iterator

from swe_rl.check.findings import Finding, Host, error, rule_about, rule_between, warning
from swe_rl.check.rules.engine import find_drafting
from swe_rl.config.choices import Capture, EngineKind, LogprobsMode, RolloutMode, RoutingReplay
from swe_rl.config.parts import Part
from swe_rl.config.schema import Config
from swe_rl.facts.logprobs import (
    COUNTS_TRUNCATION,
    UNTRUNCATED,
    scales_raw,
    truncates_vocabulary,
    uses_engine_logprobs,
    weighs_trajectories,
)
from swe_rl.facts.schedule import scaled_temperature
from swe_rl.facts.server_arguments import server_arguments

_MODE = "engine.logprobs_mode"
_BENDING_FLAGS = ("--logits-processors", "--watermark-config")


@rule_between(Part.trainer, Part.engines)
def log_probabilities(config: Config, _: Host) -> Iterator[Finding]:
    engine = config.engine
    rollout = config.rollout
    if engine.kind is EngineKind.embedded or rollout.capture is Capture.retokenize:
        return
    temperature = scaled_temperature(rollout)
    scaled = temperature != 1.0
    if engine.logprobs_mode is LogprobsMode.raw and scaled and uses_engine_logprobs(config):
        words = f"log-probabilities at temperature 1 are not those of tokens sampled at {temperature:g}"
        yield error("logprobs_mode", _MODE, words, f"{_MODE}=whole")
    if not truncates_vocabulary(rollout):
        return
    if engine.logprobs_mode is LogprobsMode.processed:
        started = ""
        if engine.kind is EngineKind.external:
            started = " and servers with --logprobs-mode raw_logprobs"
        fix = f"{_MODE}=whole{started}, or {UNTRUNCATED}"
        yield _of_kept_tokens(config, _MODE, "", fix)
    elif engine.logprobs_mode is LogprobsMode.whole and engine.kind is EngineKind.external and scaled:
        words = "a vLLM server cannot report log-probabilities of the whole vocabulary at another temperature than 1"
        fix = f"rollout.temperature=1.0, or engine=vllm, or {UNTRUNCATED}"
        yield _of_kept_tokens(config, "rollout.temperature", f"{words}; it ", fix)


def _of_kept_tokens(config: Config, key: str, before: str, fix: str) -> Finding:
    if weighs_trajectories(config):
        then = "the weight or mask of a trajectory multiplies the kept probability of each token, and is about 0"
        words = f"{before}reports log-probabilities of the tokens that truncation kept: {then}"
        return error("logprobs_mode", key, words, fix)
    return warning("logprobs_mode", key, f"{before}{COUNTS_TRUNCATION}", fix)


@rule_between(Part.trainer, Part.engines)
def scaled_logprobs(config: Config, host: Host) -> Iterator[Finding]:
    """Refuses what vLLM cannot do where it reports log-probabilities at another temperature than 1.

    Drafted tokens pass another sampler than the one that reports them, and experts are told by the newer one of its two
    model runners alone.
    """
    if not scales_raw(config):
        return
    words = "truncated sampling at another temperature than 1 needs our own log-probabilities in vLLM's sampler"
    fix = f"rollout.temperature=1.0, or {UNTRUNCATED}"
    if asked := find_drafting(server_arguments(config, host.environment)):
        yield error("scaled_logprobs", asked.key, f"{words}, which drafted tokens do not pass", fix, value=asked.flag)
    if config.trainer.routing_replay is not RoutingReplay.none:
        why = "which cannot tell experts"
        yield error("scaled_logprobs", "trainer.routing_replay", f"{words}, {why}", fix)


@rule_between(Part.trainer, Part.engines)
def bent_sampling(config: Config, host: Host) -> Iterator[Finding]:
    """Refuses servers that change the logits before they sample, because the trainer computes from the model's own."""
    given = server_arguments(config, host.environment)
    for flag in _BENDING_FLAGS:
        if flag in given:
            words = "it changes the distribution that tokens are sampled from, which the trainer does not know of"
            yield error("bent_sampling", given[flag].key, words, f"leave {flag} out", value=flag)


@rule_about(Part.trainer)
def stale_truncation(config: Config, _: Host) -> Iterator[Finding]:
    """Warns of truncation with older weights.

    At equal weights the probability that truncation keeps is the same on both sides, and at older ones it is not.
    """
    ahead = config.trainer.max_staleness_steps > 0 or config.rollout.mode is RolloutMode.stream
    if ahead and truncates_vocabulary(config.rollout) and weighs_trajectories(config):
        yield warning(
            "stale_truncation",
            "trainer.max_staleness_steps",
            "tokens of older weights were cut off where the present ones would not cut; the ratio of each token has a "
            "small error for it, which grows with the length of a trajectory",
            f"{UNTRUNCATED}, or algo.correction=token_tis and algo.mask_level=token",
        )
