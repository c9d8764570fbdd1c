"""The policy and its optimizer: rows in, updated weights out.

Invariants:
- Single process, synchronous, deterministic: the same rows, weights and seed give the same update, bit for bit.
- The old policy of the ratio is the trainer's own at the start of the step: with one update in a step it is the
  detached current one (ratio exactly 1), with several it is recomputed first. The engine's log-probabilities enter the
  loss through `algo.correction` only.
- The split into micro-batches changes neither loss nor gradient.
- A step without anything to learn from leaves weights and optimizer untouched and says so: `updates == 0`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from swe_rl.algo.correction import correction_weights
from swe_rl.algo.kl import kl_per_token
from swe_rl.algo.loss import TokenLoss, kl_in_loss, token_loss
from swe_rl.algo.row import Row
from swe_rl.config.schema import AlgoConfig, Correction, KlEstimator, TrainerConfig
from swe_rl.trainer.batching import MicroBatch, micro_batches
from swe_rl.trainer.errors import TrainerError
from swe_rl.trainer.logprobs import token_logprobs
from swe_rl.trainer.metrics import StepStats, TrainMetrics
from swe_rl.trainer.minibatch import mini_batches
from swe_rl.trainer.optimizer import Optimizer
from swe_rl.trainer.schedule import warmup_factor
from swe_rl.trainer.threads import torch_threads
from swe_rl.trainer.work import Work, build_work


class Trainer:
    """Owns the optimizer of `model`; the model itself is the caller's and is changed in place."""

    def __init__(
        self,
        model: nn.Module,
        config: TrainerConfig,
        algo: AlgoConfig,
        *,
        pad_token_id: int,
        temperature: float = 1.0,
        reference: nn.Module | None = None,
        keep_all_rows: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`temperature` is the rollouts'. `reference` is needed where `algo.kl_coef` is not 0; it is never changed.

        `keep_all_rows` also feeds rows that have no gradient; it changes metrics, not the update. Raises TrainerError
        where the reference is missing or the temperature is not positive.
        """
        if temperature <= 0:
            raise TrainerError(f"The trainer cannot learn from samples of temperature {temperature}: it must be > 0.")
        if algo.kl_coef != 0.0 and reference is None:
            raise TrainerError("algo.kl_coef is not 0, so the trainer needs a reference model, but got none.")
        self.model, self.reference, self.config, self.algo = model, reference, config, algo
        self._pad_token_id, self._temperature, self._clock = pad_token_id, temperature, clock
        self._keep_all_rows = keep_all_rows
        betas = (config.beta1, config.beta2)
        self._optimizer = Optimizer(
            model, lr=config.lr, weight_decay=config.weight_decay, betas=betas, grad_clip=config.grad_clip
        )
        self.steps_done = 0
        self.updates_done = 0
        _prepare(model, config.activation_checkpointing)

    def train_step(self, rows: Sequence[Row], step: int) -> TrainMetrics:
        """Updates the policy once per mini-batch that has anything to learn from.

        `step` seeds the order of the groups; the warm-up counts the calls. Raises TrainerError on a malformed row and
        after three non-finite gradient norms in a row.
        """
        start = self._clock()
        stats = StepStats()
        lr = self.config.lr * warmup_factor(self.steps_done, self.config.warmup_steps)
        with torch_threads(self.config.num_threads):
            self._update_all(self._plan(rows, step, stats), lr, stats)
        self.steps_done += 1
        return stats.metrics(step=step, rows=len(rows), lr=lr, train_s=self._clock() - start)

    def sequence_kl(self, rows: Sequence[Row], estimator: KlEstimator = KlEstimator.k1) -> dict[str, float]:
        """KL(policy || reference) in nats, summed over each trajectory's trained tokens; for `algo.kl_in=reward`."""
        if self.reference is None:
            raise TrainerError("The KL to a reference was asked for, but the trainer has no reference model.")
        kept = [row for row in rows if row.trained_tokens > 0]
        sums = {row.trajectory_id: 0.0 for row in rows}
        with torch_threads(self.config.num_threads):
            for batch in self._micro_batches(kept):
                kl = kl_per_token(self._logprobs(self.model, batch), self._logprobs(self.reference, batch), estimator)
                for member, value in zip(batch.member_of_token.tolist(), kl.tolist(), strict=True):
                    sums[kept[batch.members[member]].trajectory_id] += value
        return sums

    def policy_weights(self) -> dict[str, Tensor]:
        """Detached views of the weights by state_dict name; tied weights appear under each of their names."""
        return {name: tensor.detach() for name, tensor in self.model.state_dict().items()}

    def state_dict(self) -> dict[str, Any]:
        """`tensors` (optimizer) and `counters` (plain numbers); the weights are `policy_weights()`."""
        counters = {
            "steps_done": self.steps_done,
            "updates_done": self.updates_done,
            "nonfinite_in_a_row": self._optimizer.nonfinite_in_a_row,
        }
        return {"tensors": self._optimizer.state_tensors(), "counters": counters}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave. Raises TrainerError where it is of another model."""
        self._optimizer.load_state_tensors(state["tensors"])
        self.steps_done = int(state["counters"]["steps_done"])
        self.updates_done = int(state["counters"]["updates_done"])
        self._optimizer.nonfinite_in_a_row = int(state["counters"]["nonfinite_in_a_row"])

    def load_policy_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copies weights in by state_dict name. Raises TrainerError where names or shapes are not the model's."""
        try:
            self.model.load_state_dict(weights, strict=True)
        except RuntimeError as error:
            raise TrainerError(f"These weights are of another model: {error}") from error

    def _plan(self, rows: Sequence[Row], step: int, stats: StepStats) -> list[list[Work]]:
        config = self.config
        seed = config.seed * 1_000_003 + step
        minis = mini_batches(rows, self.algo, config.prompts_per_mini_batch, seed, keep_all=self._keep_all_rows)
        stats.trained_rows = sum(len(mini.rows) for mini in minis)
        tokens = config.max_tokens_per_micro_batch
        return [build_work(mini, tokens, self._pad_token_id, self._device) for mini in minis]

    def _update_all(self, plan: list[list[Work]], lr: float, stats: StepStats) -> None:
        # The weight of a split trajectory's sequence needs all its rows' log-probabilities before the first backward.
        needs_old = len(plan) > 1 or self.algo.correction is Correction.sequence_tis
        old = [[self._logprobs(self.model, w.batch) for w in works] if needs_old else None for works in plan]
        for works, old_logprobs in zip(plan, old, strict=True):
            self._accumulate(works, old_logprobs, stats, ratio_is_one=len(plan) == 1)
            update = self._optimizer.apply(lr)
            stats.record(update)
            self.updates_done += update.applied

    def _accumulate(self, works: list[Work], old: list[Tensor] | None, stats: StepStats, *, ratio_is_one: bool) -> None:
        corrections = self._corrections(works, old) if old else None
        for i, work in enumerate(works):
            entropy_grad = self.algo.entropy_coef != 0.0
            logprobs, entropy = token_logprobs(self.model, work.batch, self._temperature, entropy_grad=entropy_grad)
            start = old[i] if old else logprobs.detach()
            correction = corrections[i] if corrections else self._correction(work, start)
            denominator = logprobs.detach() if ratio_is_one else start
            reference = self._reference_logprobs(work.batch)
            loss = token_loss(logprobs, denominator, work.advantages, entropy, correction, reference, self.algo)
            torch.sum(loss.total * work.weights).backward()
            _observe(stats, work, loss, entropy, start, correction)

    def _corrections(self, works: list[Work], old: list[Tensor]) -> list[Tensor]:
        """Over the whole mini-batch at once, because a trajectory's rows may sit in several micro-batches."""
        joined = correction_weights(
            torch.cat(old),
            torch.cat([work.rollout_logprobs for work in works]),
            torch.cat([work.sequences for work in works]),
            self.algo.correction,
            self.algo.correction_cap,
            (self.algo.mask_low, self.algo.mask_high),
        )
        return list(torch.split(joined, [len(part) for part in old]))

    def _correction(self, work: Work, old: Tensor) -> Tensor:
        algo, bounds = self.algo, (self.algo.mask_low, self.algo.mask_high)
        return correction_weights(
            old, work.rollout_logprobs, work.sequences, algo.correction, algo.correction_cap, bounds
        )

    @torch.no_grad()
    def _logprobs(self, model: nn.Module, batch: MicroBatch) -> Tensor:
        return token_logprobs(model, batch, self._temperature)[0]

    def _reference_logprobs(self, batch: MicroBatch) -> Tensor | None:
        if self.reference is None or not kl_in_loss(self.algo):
            return None
        return self._logprobs(self.reference, batch)

    def _micro_batches(self, rows: Sequence[Row]) -> list[MicroBatch]:
        sequences = [(row.token_ids, row.loss_mask) for row in rows]
        return micro_batches(sequences, self.config.max_tokens_per_micro_batch, self._pad_token_id, self._device)

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device


def _prepare(model: nn.Module, activation_checkpointing: bool) -> None:
    # Evaluation mode keeps dropout off, without which the ratio would not be 1; only checkpointing needs training mode.
    model.train(activation_checkpointing)
    if activation_checkpointing:
        enable: Any = getattr(model, "gradient_checkpointing_enable", None)
        if enable is None:
            raise TrainerError("trainer.activation_checkpointing is on, but this model does not support it.")
        enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def _observe(
    stats: StepStats, work: Work, loss: TokenLoss, entropy: Tensor, start_logprobs: Tensor, correction: Tensor
) -> None:
    sums = torch.stack([(part.detach() * work.weights).sum() for part in (loss.total, loss.policy, loss.kl)])
    stats.add_losses(*sums.tolist())
    stats.entropy.add(entropy)
    stats.clipped.add(loss.clipped)
    stats.ratio.add(loss.ratio)
    stats.correction.add(correction)
    known = torch.isfinite(work.rollout_logprobs)
    rollout, start = work.rollout_logprobs[known], start_logprobs[known]
    stats.kl_rollout.add(kl_per_token(rollout, start, KlEstimator.k3))
    stats.logprob_diff.add((rollout - start).abs())
