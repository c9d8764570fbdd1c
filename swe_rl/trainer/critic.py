"""The module is PPO's critic: it predicts what is still to come after each sampled token, by a copy of the policy.

Invariants:
- The value of a token is read where the token is predicted from, so it knows nothing of it.
- Values, advantages and targets of a step are those of the critic before the step; it is updated afterwards.
- The rows of a trajectory are one sequence of decisions, in their order, which is that of their ends
  (`rollout.rows.traced_rows`). After the last token of a row comes the first one of the next row, so what a later row
  brings is credited to the rows before it.
- Its head, which gives one number a token, begins at zero, so its first values are 0 and the first advantages are
  returns.
- It has an optimizer and a learning rate of its own; the policy's gradient never reaches it, nor its own the policy.
- The split into micro-batches and over ranks changes neither its loss nor its gradient.
- Its names in a checkpoint begin with `critic.`; an export does not have it.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from swe_rl.algo.credit import gae
from swe_rl.algo.loss import value_loss
from swe_rl.algo.residue import FLOAT32, without_residue
from swe_rl.algo.row import PerToken, Row
from swe_rl.config.schema import AlgoConfig, TrainerConfig
from swe_rl.trainer.compute import Compute, of_tokens, per_token
from swe_rl.trainer.minibatch import MiniBatch
from swe_rl.trainer.optimizer import CriticMetrics, Optimizer, RowsOf
from swe_rl.trainer.sharded.attention import again_without_cudnn
from swe_rl.trainer.trainer import TrainerError

PREFIX = "critic."
_MODEL = f"{PREFIX}model."
_OPTIMIZER = f"{PREFIX}optimizer."
# This is added to the deviation of the advantages, so that a step whose advantages are all alike is not divided by 0.
# It is small beside any deviation that teaches something.
_EPS = 1e-6


def is_value_head(name: str) -> bool:
    return name.startswith("value_head.")


def attach_value_head(causal_lm: Any) -> None:
    """Adds `value_head` [1, hidden], of zeros, to a model. Its output head is frozen, as nothing is read from it."""
    embedding = causal_lm.get_input_embeddings().weight
    if causal_lm.lm_head.weight is not embedding:
        causal_lm.lm_head.weight.requires_grad_(False)
    causal_lm.value_head = nn.Linear(embedding.shape[1], 1, bias=False, device=embedding.device, dtype=embedding.dtype)
    nn.init.zeros_(causal_lm.value_head.weight)


class Critic:
    """Owns the optimizer of a critic. `model` has a `value_head`, or is a `ShardedModel` of one; it is changed in
    place.
    """

    def __init__(
        self,
        model: nn.Module,
        config: TrainerConfig,
        algo: AlgoConfig,
        compute: Compute,
        *,
        pad_token_id: int,
        offload_threads: int = 0,
    ) -> None:
        self.model = model
        self._config = config
        self._algo = algo
        self._compute = compute
        self._pad_token_id = pad_token_id
        self._optimizer = Optimizer(
            compute.bare(model),
            lr=algo.critic_lr,
            weight_decay=config.weight_decay,
            betas=(config.beta1, config.beta2),
            grad_clip=config.grad_clip,
            offload_threads=offload_threads,
            kind=config.optimizer_state,
        )
        # Both have the step's rows as keys, by their identity, which the mini-batches keep.
        self._values: dict[int, PerToken] = {}
        self._targets: dict[int, PerToken] = {}
        compute.checkpoint_activations(model, config.activation_checkpointing)

    def credited(self, rows: Sequence[Row]) -> list[Row]:
        """The rows with advantages in place of rewards. Raises TrainerError where a trained row has no rewards."""
        attempts = _rows_by_trajectory(rows)
        known = [row for attempt in attempts for row in attempt]
        values = {id(row): value for row, value in zip(known, self._predict_values(known), strict=True)}
        raw: dict[int, npt.NDArray[np.float64]] = {}
        sizes: dict[int, float] = {}
        for attempt in attempts:
            of_attempt, size = self._estimate_advantages(attempt, [values[id(row)] for row in attempt])
            for row, advantages in zip(attempt, of_attempt, strict=True):
                raw[id(row)] = advantages
                sizes[id(row)] = size
        trained = [row for row in rows if row.trained_tokens > 0]
        shift, scale = 0.0, 1.0
        if self._algo.normalize_std:
            shift, scale = _mean_and_scale([raw[id(row)] for row in trained])
        self._values = {}
        self._targets = {}
        credited: dict[int, Row] = {}
        for row in trained:
            advantages = raw[id(row)]
            value = values[id(row)]
            # Values are of float32: what that cannot tell from the value that was predicted teaches nothing.
            scaled = scale * without_residue(advantages - shift, sizes[id(row)], FLOAT32)
            made = credited[id(row)] = replace(row, advantage=scaled.astype(np.float32))
            self._values[id(made)] = value.astype(np.float32)
            self._targets[id(made)] = (advantages + value).astype(np.float32)
        return [credited.get(id(row), row) for row in rows]

    def _predict_values(self, rows: Sequence[Row]) -> Sequence[npt.NDArray[np.float64]]:
        """Returns the value of each sampled token, for each row."""
        sequences = [(row.token_ids, row.loss_mask) for row in rows]
        limit = self._config.max_tokens_per_micro_batch
        batches = self._compute.micro_batches(sequences, limit, self._pad_token_id)
        return per_token(rows, batches, self._compute, self._of)

    def _estimate_advantages(
        self, attempt: Sequence[Row], values: Sequence[npt.NDArray[np.float64]]
    ) -> tuple[list[npt.NDArray[np.float64]], float]:
        """Returns the advantages of each row of an attempt, and the size of the numbers that they were made of.

        The size says how much of a small advantage is only float32's rounding.
        """
        rewards = []
        for row in attempt:
            if row.rewards is None or len(row.rewards) != row.sampled_tokens:
                raise TrainerError(f"A row of trajectory {row.trajectory_id} has no reward for each sampled token.")
            rewards.append(row.rewards)
        brought = np.concatenate(rewards)
        predicted = np.concatenate(values)
        advantages = gae(brought, predicted, self._algo.discount, self._algo.gae_lambda)
        ends = np.cumsum([len(of_row) for of_row in rewards])[:-1]
        return np.split(advantages, ends), float(max(np.abs(brought).sum(), np.abs(predicted).max()))

    def update(self, minis: Sequence[MiniBatch], lr: float, until_unread: Callable[[], None]) -> CriticMetrics:
        """Updates the critic `algo.critic_epochs` times over the mini-batches of rows that `credited` gave."""
        explained = self._explained()
        updates = []
        for mini in [mini for _ in range(self._algo.critic_epochs) for mini in minis]:
            # Each time that the mini-batch is computed appends its loss; the last one is the one of the update.
            losses: list[float] = []
            passes = partial(self._accumulate, mini, losses)
            passes()
            # A checkpoint may still read the weights. The passes above only read them as well, so the wait comes after.
            until_unread()
            again = partial(again_without_cudnn, self._compute.device, passes)
            updates.append((self._optimizer.apply(lr, again), losses[-1]))
        kept = [(update.grad_norm, loss) for update, loss in updates if update.is_finite]
        norm, loss = (sum(column) / len(kept) for column in zip(*kept, strict=True)) if kept else (None, None)
        return CriticMetrics(loss, explained, norm, sum(update.repeated for update, _ in updates))

    def _accumulate(self, mini: MiniBatch, losses: list[float]) -> None:
        sequences = [(row.token_ids, row.loss_mask) for row in mini.rows]
        total = torch.zeros((), dtype=torch.float64, device=self._compute.device)
        limit = self._config.max_tokens_per_micro_batch
        for batch in self._compute.micro_batches(sequences, limit, self._pad_token_id):
            names = [id(mini.rows[i]) for i in batch.members]
            old, targets = (
                of_tokens(batch, [known[name] for name in names]) for known in (self._values, self._targets)
            )
            weights = torch.tensor([mini.weights[i] for i in batch.members], dtype=torch.float32).to(old.device)
            values = self._compute.values(self.model, batch)
            loss = value_loss(values, old, targets, self._algo.value_clip) * weights[batch.member_of_token]
            (loss.sum() * self._compute.gradient_scale).backward()
            total += loss.detach().double().sum()
        losses.append(float(self._compute.mesh.sum(total)))

    def _of(self, batch: Any) -> Tensor:
        return self._compute.values(self.model, batch)

    def _explained(self) -> float | None:
        if not self._targets:
            return None
        targets, values = (np.concatenate(list(known.values())) for known in (self._targets, self._values))
        targets = targets.astype(np.float64)
        values = values.astype(np.float64)
        deviations = without_residue(targets - targets.mean(), np.abs(targets).max(), FLOAT32)
        spread = float(np.mean(deviations**2))
        if spread > 0:
            return 1.0 - float(np.var(targets - values)) / spread
        return None

    def tensors(self) -> dict[str, Tensor]:
        """Returns weights and optimizer state by their names in a checkpoint; these are the live tensors."""
        state = {f"{_OPTIMIZER}{name}": tensor for name, tensor in self._optimizer.state_tensors().items()}
        return self.parameters() | state

    def parameters(self) -> dict[str, Tensor]:
        """Returns the part of `tensors` that is always there: the weights."""
        named = self._compute.bare(self.model).named_parameters()
        return {f"{_MODEL}{name}": parameter for name, parameter in named}

    def load_optimizer(self, names: Collection[str], rows: RowsOf) -> None:
        """Loads those of a checkpoint's `names` that are the optimizer's. Raises TrainerError."""
        state = {name.removeprefix(_OPTIMIZER) for name in names if name.startswith(_OPTIMIZER)}
        self._optimizer.load_shards(state, lambda name, a, b: rows(f"{_OPTIMIZER}{name}", a, b))

    @property
    def counters(self) -> Mapping[str, int]:
        return {"critic_nonfinite_in_a_row": self._optimizer.nonfinite_in_a_row}

    def load_counters(self, counters: Mapping[str, Any]) -> None:
        self._optimizer.nonfinite_in_a_row = int(counters["critic_nonfinite_in_a_row"])


def _rows_by_trajectory(rows: Sequence[Row]) -> list[list[Row]]:
    """Returns the rows that sampled, for each trajectory with a row that is trained.

    A row that is not trained is needed as well: what it brought is a return of the rows before it.
    """
    trained = {row.trajectory_id for row in rows if row.trained_tokens > 0}
    attempts: dict[str, list[Row]] = {}
    for row in rows:
        if row.trajectory_id in trained and row.sampled_tokens > 0:
            attempts.setdefault(row.trajectory_id, []).append(row)
    return list(attempts.values())


def _mean_and_scale(advantages: Sequence[np.ndarray[Any, Any]]) -> tuple[float, float]:
    """Returns the number to take off all tokens of a step and the factor after it: mean and 1 / sample deviation."""
    joined = np.concatenate([*advantages, np.zeros(0)])
    if len(joined) < 2:
        return 0.0, 1.0
    deviation = float(joined.std(ddof=1))
    return float(joined.mean()), 1.0 / (deviation + _EPS) if math.isfinite(deviation) else 1.0
