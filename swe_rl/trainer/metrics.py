"""Gathers what one training step reports.

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
from swe_rl.trainer.trainer import TrainMetrics


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
        self.low = min(self.low, low)
        self.high = max(self.high, high)

    @property
    def mean(self) -> float | None:
        if self.tokens:
            return self.total / self.tokens
        return None

    @property
    def minimum(self) -> float | None:
        if self.tokens:
            return self.low
        return None

    @property
    def maximum(self) -> float | None:
        if self.tokens:
            return self.high
        return None


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
    # Only steps whose loss has the KL fill this.
    kl_capped: Mean = field(default_factory=Mean)
    grad_norms: float = 0.0
    trained_rows: int = 0
    stale_rows: int = 0
    ages_steps: list[int] = field(default_factory=list)
    # Its shape is [layers, experts].
    expert_tokens: Tensor | None = None
    # This and the next are of all ranks already.
    teacher_kl: float | None = None
    critic: CriticMetrics | None = None
    # This is a sum over the updates.
    balance: Tensor | None = None
    # [2]: the choices that were compared with the engine's, and those that differ.
    routing_choices: Tensor | None = None
    entropy: Mean = field(default_factory=Mean)
    clipped: Mean = field(default_factory=Mean)
    clipped_low: Mean = field(default_factory=Mean)
    clipped_high: Mean = field(default_factory=Mean)
    kl_rollout: Mean = field(default_factory=Mean)
    logprob_diff: Mean = field(default_factory=Mean)
    ratio: Mean = field(default_factory=Mean)
    correction: Mean = field(default_factory=Mean)
    masked: Mean = field(default_factory=Mean)
    # These are the sampled tokens of rows that are not trained, the same on each rank.
    left_out_tokens: int = 0
    # This and the next two are of those that were looked at.
    left_entropy: Mean = field(default_factory=Mean)
    left_kl_rollout: Mean = field(default_factory=Mean)
    left_logprob_diff: Mean = field(default_factory=Mean)

    def observe(self, work: Work, loss: TokenLoss, entropy: Tensor, start_logprobs: Tensor, correction: Tensor) -> None:
        """Adds one micro-batch; losses are weighed as in the loss that is minimised.

        All tensors are [trained tokens] of `work`; `start_logprobs` are those of the old policy.
        """
        parts = (loss.total, loss.policy, loss.kl)
        sums = torch.stack([(part.detach() * work.weights).sum() for part in parts]).tolist()
        self.loss += sums[0]
        self.policy_loss += sums[1]
        self.kl_loss += sums[2]
        self.entropy.add(entropy)
        if loss.kl_capped is not None:
            self.kl_capped.add(loss.kl_capped)
        self.clipped.add(loss.clipped)
        self.clipped_low.add(loss.clipped_low)
        self.clipped_high.add(loss.clipped_high)
        self.ratio.add(loss.ratio)
        self.correction.add(correction)
        self.masked.add(correction == 0)
        _engine_gap(self.kl_rollout, self.logprob_diff, work, start_logprobs)

    def observe_left_out(self, work: Work, entropy: Tensor, start_logprobs: Tensor) -> None:
        """Adds what is measured of all sampled tokens, for rows that are not trained."""
        self.left_entropy.add(entropy)
        _engine_gap(self.left_kl_rollout, self.left_logprob_diff, work, start_logprobs)

    def add_age(self, steps: int) -> None:
        self.ages_steps.append(steps)

    def record(self, update: Update) -> None:
        self.attempts += 1
        self.updates += update.applied
        self.nonfinite_updates += not update.is_finite
        self.repeated_updates += update.repeated
        if update.applied:
            self.grad_norms += update.grad_norm
        else:
            self.grad_norms += 0.0

    def join(self, mesh: Mesh) -> None:
        """Sums, minima and maxima over all ranks; counts of updates and rows are the same on each already."""
        means = [self.entropy, self.clipped, self.kl_rollout, self.logprob_diff, self.ratio, self.correction]
        means += [self.clipped_low, self.clipped_high, self.masked, self.kl_capped]
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
            joint.total = joined[3 + 2 * i]
            joint.tokens = int(joined[4 + 2 * i])
            joint.low = lows[i]
            joint.high = highs[i]

    def metrics(self, *, step: int, rows: int, lr: float, train_s: float) -> TrainMetrics:
        attempts = max(1, self.attempts)
        repeated_updates = self.repeated_updates
        if self.critic:
            repeated_updates += self.critic.repeated_updates
        return TrainMetrics(
            step=step,
            loss=self.loss / attempts,
            policy_loss=self.policy_loss / attempts,
            kl_loss=self.kl_loss / attempts,
            kl_capped_fraction=self.kl_capped.mean,
            entropy=self._over_all(self.entropy, self.left_entropy),
            grad_norm=self.grad_norms / max(1, self.updates),
            clip_fraction=self.clipped.mean or 0.0,
            clip_fraction_low=self.clipped_low.mean or 0.0,
            clip_fraction_high=self.clipped_high.mean or 0.0,
            kl_rollout=self._over_all(self.kl_rollout, self.left_kl_rollout),
            logprob_diff_mean=self._over_all(self.logprob_diff, self.left_logprob_diff),
            logprob_diff_max=_largest_known(self.logprob_diff.maximum, self.left_logprob_diff.maximum),
            ratio_mean=self.ratio.mean,
            ratio_min=self.ratio.minimum,
            ratio_max=self.ratio.maximum,
            correction_mean=self.correction.mean,
            masked_fraction=self.masked.mean or 0.0,
            **self._expert_figures(),
            balance_loss=float(self.balance) / attempts if self.balance is not None and self.attempts else None,
            teacher_kl=self.teacher_kl,
            **self._critic_figures(),
            routing_disagreement=_different_share(self.routing_choices),
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
            repeated_updates=repeated_updates,
            idle_updates=self.attempts - self.updates - self.nonfinite_updates,
            train_s=train_s,
        )

    def _expert_figures(self) -> dict[str, float | None]:
        tokens = self.expert_tokens
        if tokens is None:
            return dict.fromkeys(("expert_load_max", "expert_entropy", "expert_unused_rate"))
        return {
            "expert_load_max": load_max(tokens),
            "expert_entropy": load_entropy(tokens),
            "expert_unused_rate": unused_rate(tokens),
        }

    def _critic_figures(self) -> dict[str, float | None]:
        critic = self.critic
        if critic is None:
            return dict.fromkeys(("value_loss", "value_explained", "critic_grad_norm"))
        return {
            "value_loss": critic.loss,
            "value_explained": critic.explained,
            "critic_grad_norm": critic.grad_norm,
        }

    def _over_all(self, trained: Mean, left: Mean) -> float | None:
        """Returns the mean over all sampled tokens: each one that was looked at stands for as many of the rows left
        out.
        """
        weight = 0.0
        if self.left_entropy.tokens:
            weight = self.left_out_tokens / self.left_entropy.tokens
        tokens = trained.tokens + weight * left.tokens
        if tokens:
            return (trained.total + weight * left.total) / tokens
        return None

    def _measured_share(self) -> float | None:
        sampled = self.entropy.tokens + self.left_out_tokens
        if sampled:
            return (self.entropy.tokens + self.left_entropy.tokens) / sampled
        return None


def _different_share(choices: Tensor | None) -> float | None:
    if choices is None:
        return None
    compared, different = choices.tolist()
    if compared:
        return float(different / compared)
    return None


def _largest_known(first: float | None, other: float | None) -> float | None:
    return max((value for value in (first, other) if value is not None), default=None)


def _engine_gap(kl: Mean, difference: Mean, work: Work, start_logprobs: Tensor) -> None:
    known = torch.isfinite(work.rollout_logprobs)
    rollout = work.rollout_logprobs[known]
    start = start_logprobs[known]
    kl.add(kl_per_token(rollout, start, KlEstimator.k3))
    difference.add((rollout - start).abs())
