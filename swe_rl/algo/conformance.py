"""Tests advantages and losses of your own: `swe_rl.testing` shows these checks."""

from dataclasses import replace
from typing import TYPE_CHECKING

from swe_rl.algo.foreign.advantage import ForeignAdvantage, ask_estimator
from swe_rl.algo.own_algorithm import LossTokens, RewardGroup
from swe_rl.config.choices import ExtensionKind
from swe_rl.config.schema import AlgoConfig
from swe_rl.extension.conformance import NONE, ConformanceError, Params, made_of, require
from swe_rl.extension.make import ExtensionFailure

if TYPE_CHECKING:
    import torch


def check_advantage(advantage: type, params: Params = NONE) -> None:
    made, maker = made_of(ExtensionKind.advantage, advantage, params, {"config": AlgoConfig()})
    guarded = ForeignAdvantage(made, maker)
    rows: list[tuple[float | None, ...]] = [(1.0, 0.0, 0.0), (1.0, 1.0), (0.0, None, 1.0, 0.5), (None, None), (0.5,)]
    groups = [_make_group(row) for row in rows]
    for some in (groups, groups[:1], []):
        try:
            values = guarded.advantages(some)
        except ExtensionFailure as error:
            raise ConformanceError(str(error)) from error
        require(values == guarded.advantages(some), maker, "advantages must not remember its former calls")
    best, *others = guarded.advantages(groups[:1])[0]
    require(best >= max(others), maker, "advantages must not be lower for a higher reward of the same group")
    [alike] = ask_estimator(guarded, [_make_group((1 / 3, 1 / 3, 1 / 3), sampled_tokens=(40, 40, 40))])
    zero = not guarded.needs_group or not any(alike)
    require(zero, maker, "advantages of trajectories that are all alike must be 0, unless needs_group = False")


def _make_group(rewards: tuple[float | None, ...], sampled_tokens: tuple[int, ...] = ()) -> RewardGroup:
    """Returns a group as a run tells it: trajectories of several lengths, unless `sampled_tokens` says which."""
    number = len(rewards)
    lengths = sampled_tokens or tuple(40 + 10 * (place % 3) for place in range(number))
    return RewardGroup(
        rewards=rewards,
        in_baseline=tuple(reward is not None for reward in rewards),
        graded=rewards,
        sampled_tokens=lengths,
        response_tokens=tuple(2 * tokens for tokens in lengths),
        turns=(4,) * number,
        trajectory_ids=tuple(f"train.1.conformance.{place}.0" for place in range(number)),
        instance_id="conformance",
        step=1,
    )


def check_loss(loss: type, params: Params = NONE) -> None:
    """Checks a loss, also that each token's loss depends on that token alone: micro-batches and ranks split them
    freely.
    """
    import torch

    from swe_rl.algo.foreign.loss import ForeignLoss
    from swe_rl.algo.sequences import Sequences

    made, maker = made_of(ExtensionKind.loss, loss, params, {"config": AlgoConfig()})
    guarded = ForeignLoss(made, maker)

    def tokens(count: int, order: "torch.Tensor | None" = None) -> LossTokens:
        source = torch.Generator().manual_seed(0)
        old = -3.0 * torch.rand(count, generator=source)
        moved = old + 0.2 * torch.randn(count, generator=source)
        advantages = torch.arange(count).remainder(3).float() - 1.0
        sequences = torch.arange(count) // 3
        rows = [moved, old, old.clone(), advantages, torch.ones(count), old - 0.1, sequences]
        moved, old, sampled, advantages, entropy, reference, sequences = (
            row if order is None else row[order] for row in rows
        )
        given = LossTokens(moved.detach(), old, sampled, advantages, entropy, reference, sequences)
        means = None
        if guarded.needs_sequences:
            unknown = replace(given, entropy=torch.full((count,), torch.nan))
            means = Sequences(sequences, count // 3).mean(guarded.sequence_terms(unknown))
        return replace(given, logprobs=moved.detach().requires_grad_(), sequence_means=means)

    some = tokens(9)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    try:
        plain = guarded.loss(some)
        shuffled = guarded.loss(tokens(9, order))
        nothing = guarded.loss(tokens(0))
    except ExtensionFailure as error:
        raise ConformanceError(str(error)) from error
    require(nothing.shape == (0,), maker, "loss must take no tokens at all")
    require(torch.allclose(plain[order], shuffled), maker, "loss of a token must depend on that token alone")
    plain.sum().backward()
    gradient = some.logprobs.grad
    require(gradient is not None and bool(gradient.any()), maker, "loss must have a gradient by tokens.logprobs")
    if not guarded.needs_all_rows and gradient is not None:
        still = not bool(gradient[some.advantages == 0].any())
        require(still, maker, "tokens of advantage 0 are left out, unless needs_all_rows = True")
