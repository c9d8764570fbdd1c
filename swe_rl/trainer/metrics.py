"""What one training step reports.

Invariants:
- A quantity without a single token behind it is None, never 0; the policy's losses, gradient norm and fractions are 0.
- Entropy and the engine's distance are over all sampled tokens, also of rows that are not trained: of many such rows a
  random part stands for all, with their weight. Everything else is over the tokens that are trained.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from swe_rl.algo.loss import TokenLoss
from swe_rl.algo.sequences import kl_per_token
from swe_rl.config.choices import KlEstimator
from swe_rl.trainer.compute import Work
from swe_rl.trainer.optimizer import CriticMetrics, Update
from swe_rl.trainer.routing import load_entropy, load_max, unused_rate
from swe_rl.trainer.sharded.mesh import Mesh


@dataclass(frozen=True, slots=True)
class TrainMetrics:
    """One step. Log-probabilities, entropy and KL in nats; losses and gradient norms are means over the updates.

    - kl_loss: the weighted KL to the reference before `kl_coef`; 0 where that term is off.
    - grad_norm: before clipping, over the applied updates; 0 without any.
    - kl_rollout: mean k3 of KL(engine || trainer) at the start of the step; None where the engine's log-probabilities
      are unknown. `logprob_diff_*` are of the absolute difference between the two.
    - entropy, kl_rollout, logprob_diff_mean: over all sampled tokens; measured_token_share of these were looked at.
    - clip_fraction_low, clip_fraction_high: tokens that the lower and the upper end of the clip hold (the dual clip is
      an upper end); clip_fraction has both. With `algo.policy_loss=gspo` all tokens of a trajectory are held together.
    - masked_fraction: tokens whose correction is 0, so that only KL and entropy train them.
    - stale_rows: those left out by `algo.max_staleness_steps`. staleness_mean and staleness_max are of the others that
      have trained tokens, in versions of the weights, of which each step makes one; None without any.
    - expert_load_max: of a mixture, the tokens of a layer's most used expert over an even share, mean over layers: 1 is
      even. expert_entropy: of tokens over a layer's experts, as a share of the largest: 1 is even. expert_unused_rate:
      the share of experts without a token. All over trained tokens; None of a dense model.
    - balance_loss: of the load over experts, before `algo.balance_coef`, mean over the updates: the number of
      experts a token passes where it is even. It comes on top of `loss`. None where that is off or nothing is trained.
    - routing_disagreement: of the experts that the engine sent trained tokens to, the share that the trainer's routers
      would not have chosen; None where the engine does not tell.
    - teacher_kl: mean of log policy - log teacher over trained tokens, with a teacher; value_loss, value_explained and
      critic_grad_norm: of a critic (`CriticMetrics`). None of the other algorithms.
    - trained_rows + skipped_rows = all rows; skipped are those masked as a whole or without advantage and other term.
    - updates: optimizer updates applied; nonfinite_updates: those dropped; repeated_updates: those whose gradient was
      finite only when it was computed again without cuDNN's attention, or not even then (`attention.without_cudnn`),
      the critic's among them;
      idle_updates: mini-batches without any gradient (masked as a whole), which move neither weights nor moments.
    """

    step: int
    loss: float
    policy_loss: float
    kl_loss: float
    entropy: float | None
    grad_norm: float
    clip_fraction: float
    clip_fraction_low: float
    clip_fraction_high: float
    kl_rollout: float | None
    logprob_diff_mean: float | None
    logprob_diff_max: float | None
    ratio_mean: float | None
    ratio_min: float | None
    ratio_max: float | None
    correction_mean: float | None
    masked_fraction: float
    expert_load_max: float | None
    expert_entropy: float | None
    expert_unused_rate: float | None
    balance_loss: float | None
    teacher_kl: float | None
    value_loss: float | None
    value_explained: float | None
    critic_grad_norm: float | None
    routing_disagreement: float | None
    stale_rows: int
    staleness_mean: float | None
    staleness_max: int | None
    trained_rows: int
    trained_tokens: int
    measured_token_share: float | None
    skipped_rows: int
    lr: float
    updates: int
    nonfinite_updates: int
    repeated_updates: int
    idle_updates: int
    train_s: float


@dataclass(slots=True)
class Mean:
    """A mean, minimum and maximum over all tokens that were added."""

    total: float = 0.0
    tokens: int = 0
    low: float = float("inf")
    high: float = float("-inf")

    def add(self, values: Tensor) -> None:
        if values.numel() == 0:
            return
        values = values.detach().float()
        total, low, high = torch.stack((values.sum(), values.min(), values.max())).tolist()
        self.total += total
        self.tokens += values.numel()
        self.low, self.high = min(self.low, low), max(self.high, high)

    @property
    def mean(self) -> float | None:
        return self.total / self.tokens if self.tokens else None

    @property
    def minimum(self) -> float | None:
        return self.low if self.tokens else None

    @property
    def maximum(self) -> float | None:
        return self.high if self.tokens else None


@dataclass(slots=True)
class StepStats:
    """Sums of one step while it runs; `attempts` counts the updates tried, applied or not."""

    attempts: int = 0
    updates: int = 0
    nonfinite_updates: int = 0
    repeated_updates: int = 0
    loss: float = 0.0
    policy_loss: float = 0.0
    kl_loss: float = 0.0
    grad_norms: float = 0.0
    trained_rows: int = 0
    stale_rows: int = 0
    ages_steps: list[int] = field(default_factory=list)
    expert_tokens: Tensor | None = None  # [layers, experts]
    teacher_kl: float | None = None  # this and the next: of all ranks already
    critic: CriticMetrics | None = None
    balance: Tensor | None = None  # a sum over the updates
    routing_choices: Tensor | None = None  # [2]: compared with the engine's, and different
    entropy: Mean = field(default_factory=Mean)
    clipped: Mean = field(default_factory=Mean)
    clipped_low: Mean = field(default_factory=Mean)
    clipped_high: Mean = field(default_factory=Mean)
    kl_rollout: Mean = field(default_factory=Mean)
    logprob_diff: Mean = field(default_factory=Mean)
    ratio: Mean = field(default_factory=Mean)
    correction: Mean = field(default_factory=Mean)
    masked: Mean = field(default_factory=Mean)
    left_out_tokens: int = 0  # sampled tokens of rows that are not trained; the same on each rank
    left_entropy: Mean = field(default_factory=Mean)  # of those that were looked at, as the next two
    left_kl_rollout: Mean = field(default_factory=Mean)
    left_logprob_diff: Mean = field(default_factory=Mean)

    def observe(self, work: Work, loss: TokenLoss, entropy: Tensor, start_logprobs: Tensor, correction: Tensor) -> None:
        """What one micro-batch adds; losses are weighed as in the loss that is minimised.

        All tensors are [trained tokens] of `work`; `start_logprobs` are those of the old policy.
        """
        parts = (loss.total, loss.policy, loss.kl)
        sums = torch.stack([(part.detach() * work.weights).sum() for part in parts]).tolist()
        self.loss += sums[0]
        self.policy_loss += sums[1]
        self.kl_loss += sums[2]
        self.entropy.add(entropy)
        self.clipped.add(loss.clipped)
        self.clipped_low.add(loss.clipped_low)
        self.clipped_high.add(loss.clipped_high)
        self.ratio.add(loss.ratio)
        self.correction.add(correction)
        self.masked.add(correction == 0)
        _engine_gap(self.kl_rollout, self.logprob_diff, work, start_logprobs)

    def observe_left_out(self, work: Work, entropy: Tensor, start_logprobs: Tensor) -> None:
        """Of rows that are not trained: what is measured of all sampled tokens."""
        self.left_entropy.add(entropy)
        _engine_gap(self.left_kl_rollout, self.left_logprob_diff, work, start_logprobs)

    def add_age(self, steps: int) -> None:
        self.ages_steps.append(steps)

    def record(self, update: Update) -> None:
        self.attempts += 1
        self.updates += update.applied
        self.nonfinite_updates += not update.is_finite
        self.repeated_updates += update.repeated
        self.grad_norms += update.grad_norm if update.applied else 0.0

    def join(self, mesh: Mesh) -> None:
        """Sums, minima and maxima over all ranks; counts of updates and rows are the same on each already."""
        means = [self.entropy, self.clipped, self.kl_rollout, self.logprob_diff, self.ratio, self.correction]
        means += [self.clipped_low, self.clipped_high, self.masked]
        means += [self.left_entropy, self.left_kl_rollout, self.left_logprob_diff]

        def tensor(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float64, device=mesh.device)

        sums = [self.loss, self.policy_loss, self.kl_loss, *(x for mean in means for x in (mean.total, mean.tokens))]
        joined = mesh.sum(tensor(sums)).tolist()
        lows = mesh.minimum(tensor([mean.low for mean in means])).tolist()
        highs = mesh.maximum(tensor([mean.high for mean in means])).tolist()
        self.loss, self.policy_loss, self.kl_loss = joined[:3]
        if self.expert_tokens is not None:
            self.expert_tokens = mesh.sum(self.expert_tokens)
        if self.balance is not None:
            self.balance = mesh.sum(self.balance)
        if self.routing_choices is not None:
            self.routing_choices = mesh.sum(self.routing_choices)
        for i, joint in enumerate(means):
            joint.total, joint.tokens = joined[3 + 2 * i], int(joined[4 + 2 * i])
            joint.low, joint.high = lows[i], highs[i]

    def metrics(self, *, step: int, rows: int, lr: float, train_s: float) -> TrainMetrics:
        attempts, tokens = max(1, self.attempts), self.expert_tokens
        return TrainMetrics(
            step=step,
            loss=self.loss / attempts,
            policy_loss=self.policy_loss / attempts,
            kl_loss=self.kl_loss / attempts,
            entropy=self._over_all(self.entropy, self.left_entropy),
            grad_norm=self.grad_norms / max(1, self.updates),
            clip_fraction=self.clipped.mean or 0.0,
            clip_fraction_low=self.clipped_low.mean or 0.0,
            clip_fraction_high=self.clipped_high.mean or 0.0,
            kl_rollout=self._over_all(self.kl_rollout, self.left_kl_rollout),
            logprob_diff_mean=self._over_all(self.logprob_diff, self.left_logprob_diff),
            logprob_diff_max=_largest(self.logprob_diff.maximum, self.left_logprob_diff.maximum),
            ratio_mean=self.ratio.mean,
            ratio_min=self.ratio.minimum,
            ratio_max=self.ratio.maximum,
            correction_mean=self.correction.mean,
            masked_fraction=self.masked.mean or 0.0,
            expert_load_max=None if tokens is None else load_max(tokens),
            expert_entropy=None if tokens is None else load_entropy(tokens),
            expert_unused_rate=None if tokens is None else unused_rate(tokens),
            balance_loss=float(self.balance) / attempts if self.balance is not None and self.attempts else None,
            teacher_kl=self.teacher_kl,
            value_loss=self.critic.loss if self.critic else None,
            value_explained=self.critic.explained if self.critic else None,
            critic_grad_norm=self.critic.grad_norm if self.critic else None,
            routing_disagreement=_share(self.routing_choices),
            stale_rows=self.stale_rows,
            staleness_mean=sum(self.ages_steps) / len(self.ages_steps) if self.ages_steps else None,
            staleness_max=max(self.ages_steps, default=None),
            trained_rows=self.trained_rows,
            trained_tokens=self.entropy.tokens,
            measured_token_share=self._measured_share(),
            skipped_rows=rows - self.trained_rows,
            lr=lr,
            updates=self.updates,
            nonfinite_updates=self.nonfinite_updates,
            repeated_updates=self.repeated_updates + (self.critic.repeated_updates if self.critic else 0),
            idle_updates=self.attempts - self.updates - self.nonfinite_updates,
            train_s=train_s,
        )

    def _over_all(self, trained: Mean, left: Mean) -> float | None:
        """The mean over all sampled tokens: each one that was looked at stands for as many of the rows left out."""
        weight = self.left_out_tokens / self.left_entropy.tokens if self.left_entropy.tokens else 0.0
        tokens = trained.tokens + weight * left.tokens
        return (trained.total + weight * left.total) / tokens if tokens else None

    def _measured_share(self) -> float | None:
        sampled = self.entropy.tokens + self.left_out_tokens
        return (self.entropy.tokens + self.left_entropy.tokens) / sampled if sampled else None


def _share(choices: Tensor | None) -> float | None:
    compared, different = (0, 0) if choices is None else choices.tolist()
    return different / compared if compared else None


def _largest(first: float | None, other: float | None) -> float | None:
    return max((value for value in (first, other) if value is not None), default=None)


def _engine_gap(kl: Mean, difference: Mean, work: Work, start_logprobs: Tensor) -> None:
    known = torch.isfinite(work.rollout_logprobs)
    rollout, start = work.rollout_logprobs[known], start_logprobs[known]
    kl.add(kl_per_token(rollout, start, KlEstimator.k3))
    difference.add((rollout - start).abs())
