"""The module is the policy and its optimizer: rows go in, updated weights come out.

Invariants:
- It is deterministic: the same rows, weights and seed give the same update, bit for bit on the same ranks.
- On many ranks every rank is given the same rows and calls the same methods; metrics are those of all ranks together.
- The old policy of the ratio is the trainer's own at the start of the step: with one update in a step it is the
  detached current one (ratio exactly 1), with several it is recomputed first. The engine's log-probabilities enter the
  loss through `algo.correction` only.
- The split into micro-batches changes neither loss nor gradient.
- Step k trains weights of version k - 1; a row's age is counted from there.
- The weights and the optimizer's state change in its update and by loading, nowhere else.
- Advantages that the trainer finds itself, by a critic or a teacher, are those of the weights before the step.
- With an adapter it alone is trained and stored, and the model without it is the reference.
- A step without anything to learn from leaves weights and optimizer untouched and says so: `updates == 0`.
"""

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from swe_rl.algo.correction import weighs_sequences
from swe_rl.algo.credit import with_teacher_advantages
from swe_rl.algo.loss import by_sequence, kl_in_loss, token_loss
from swe_rl.algo.own_algorithm import Loss
from swe_rl.algo.row import Row, age_steps, without_old
from swe_rl.algo.sequences import kl_per_token
from swe_rl.config.choices import AdvantageKind, KlEstimator, LoraServing
from swe_rl.config.schema import AlgoConfig, TrainerConfig
from swe_rl.trainer.compute import Batch, Compute, LocalCompute, Work, build_work, out_of_memory_named, per_token
from swe_rl.trainer.critic import Critic
from swe_rl.trainer.lora import Adapter, MergedWeights, adapter_alone, is_adapter
from swe_rl.trainer.metrics import StepStats
from swe_rl.trainer.minibatch import MiniBatch, left_out, measured_rows, mini_batches
from swe_rl.trainer.optimizer import Optimizer, RowsOf, torch_threads
from swe_rl.trainer.routing import Routing
from swe_rl.trainer.schedule import Schedule
from swe_rl.trainer.sharded import attention
from swe_rl.trainer.sharded.mesh import lone_mesh
from swe_rl.trainer.trainer import TrainerError, TrainMetrics
from swe_rl.trainer.trajectories import correction_of, corrections_of, means_of, terms_of

_PASS = "a pass for log-probabilities"
_MEASURED_PART = 8  # rows that are not trained are measured up to this part of the trained tokens


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
        compute: Compute | None = None,
        adapter: Adapter | None = None,
        teacher: nn.Module | None = None,
        critic: nn.Module | None = None,
        loss: Loss | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Makes the optimizer, and the critic's. `temperature` is the rollouts'. `reference` is needed where
        `algo.kl_coef` is not 0. `adapter` is what `adapter.attach` gave for `model`, which is then its own reference.
        `teacher` is needed for `algo.advantage=teacher`; `critic`, a model with a `value_head`, for
        `algo.advantage=gae`. `reference` and `teacher` are never changed. `compute` is `ShardedCompute` for a
        `ShardedModel` (the others are, too); None stands for this process alone. `keep_all_rows` also feeds rows that
        have no gradient; it changes metrics, not the update. `loss` takes the place of `algo.policy_loss`. Raises
        TrainerError where one of them is missing or the temperature is not positive.
        """
        if temperature <= 0:
            raise TrainerError(f"The trainer cannot learn from samples of temperature {temperature}: it must be > 0.")
        reads_reference = algo.kl_coef != 0.0 or (loss is not None and loss.needs_reference_logprobs)
        if reads_reference and reference is None and adapter is None:
            raise TrainerError("The KL or the loss reads a reference model, but the trainer got none (algo.kl_coef).")
        if algo.advantage is AdvantageKind.teacher and teacher is None:
            raise TrainerError("algo.advantage=teacher, so the trainer needs a teacher, but got none.")
        if algo.advantage is AdvantageKind.gae and critic is None:
            raise TrainerError("algo.advantage=gae, so the trainer needs a critic, but got none.")
        self.model = model
        self.reference = reference
        self.config = config
        self.algo = algo
        self.adapter = adapter
        self.teacher = teacher
        self._pad_token_id = pad_token_id
        self._temperature = temperature
        self._clock = clock
        self._keep_all_rows = keep_all_rows or (loss is not None and loss.needs_all_rows)
        self._formula = loss
        self._needs_sequences = loss is not None and loss.needs_sequences
        self._reads_reference = kl_in_loss(algo) or (loss is not None and loss.needs_reference_logprobs)
        self._compute: Compute = compute or LocalCompute(lone_mesh(next(model.parameters()).device))
        self._mesh = self._compute.mesh
        self._compute.look_at_head(model)
        self._routing = Routing(self._compute.bare(model), self._mesh, config.routing_replay, algo.balance_coef)
        self._optimizer = Optimizer(
            self._compute.bare(model),
            lr=config.lr,
            weight_decay=config.weight_decay,
            betas=(config.beta1, config.beta2),
            grad_clip=config.grad_clip,
            offload_threads=self._offload_threads(),
            kind=config.optimizer_state,
        )
        self.critic: Critic | None = None
        if critic is not None:
            threads = self._offload_threads()
            self.critic = Critic(
                critic, config, algo, self._compute, pad_token_id=pad_token_id, offload_threads=threads
            )
        self.steps_done = 0
        self.updates_done = 0
        self._until_unread: Callable[[], None] = _nobody_reads
        self._compute.checkpoint_activations(model, config.activation_checkpointing)

    def _offload_threads(self) -> int:
        """Returns this rank's share of the cores, as if all ranks were on this host; 0 without offloaded weights."""
        if not self.config.offload_optimizer or self.adapter is not None or self._compute.device.type != "cuda":
            return 0
        return max(self.config.num_threads, len(os.sched_getaffinity(0)) // self._mesh.world)

    def train_step(self, rows: Sequence[Row], step: int, lr: float | None = None) -> TrainMetrics:
        """Updates the policy once per mini-batch that has anything to learn from.

        `step` seeds the order of the groups. `lr` None stands for `trainer.lr`, whose schedule counts the policy's
        steps. Raises TrainerError on a malformed row, where memory runs out (the weights may be those of half a step
        then), and after three non-finite gradient norms in a row.
        """
        start = self._clock()
        stats = StepStats()
        critic_alone = self.algo.critic_warmup_steps if self.critic else 0
        if lr is None:
            lr = self.config.lr * Schedule.of(self.config, critic_alone).factor(max(0, self.steps_done - critic_alone))
        with torch_threads(self.config.num_threads), out_of_memory_named(self.config, f"the update of step {step}"):
            kept = self._credited(self._fresh(rows, step, stats), stats)
            minis = of_critic = self._mini_batches(kept, step)
            if self.steps_done < critic_alone:
                minis = []
            stats.trained_rows = sum(len(mini.rows) for mini in minis)
            # Before the updates: these rows are compared with what the engine said under the same weights.
            self._measure(left_out(kept, minis, self.algo), minis, step, stats)
            self._update_all([self._works(mini) for mini in minis], lr, stats, version=step - 1)
            if self.critic:
                lr_critic = self.algo.critic_lr * Schedule.of(self.config).factor(self.steps_done)
                stats.critic = self.critic.update(of_critic, lr_critic, self._until_unread)
            stats.expert_tokens = self._routing.taken()
            stats.routing_choices = self._routing.taken_choices()
            stats.balance = self._routing.taken_balance()
            stats.join(self._mesh)
        self.steps_done += 1
        return stats.metrics(step=step, rows=len(rows), lr=lr, train_s=self._clock() - start)

    def forget_moments(self) -> None:
        """Begins AdamW anew, with the weights as they are."""
        self._optimizer.forget()

    def sequence_kl(self, rows: Sequence[Row], estimator: KlEstimator = KlEstimator.k1) -> dict[str, float]:
        """Returns KL(policy || reference) in nats, summed over a trajectory's tokens; for `algo.kl_in=reward`."""
        if self.reference is None and self.adapter is None:
            raise TrainerError("The KL to a reference was asked for, but the trainer has no reference model.")
        kept = [row for row in rows if row.sampled_tokens > 0]  # also untrained ones, which a baseline may have
        by_row = [0.0] * len(kept)
        with torch_threads(self.config.num_threads), out_of_memory_named(self.config, _PASS):
            for batch in self._micro_batches(kept):
                kl = kl_per_token(self._of_policy(batch), self._of_reference(batch), estimator, self.algo.kl_cap)
                for member, value in zip(batch.member_of_token.tolist(), kl.tolist(), strict=True):
                    by_row[batch.members[member]] += value
            joined = self._mesh.sum(torch.tensor(by_row, dtype=torch.float64, device=self._compute.device)).tolist()
        sums = {row.trajectory_id: 0.0 for row in rows}
        for row, value in zip(kept, joined, strict=True):
            sums[row.trajectory_id] += value
        return sums

    def token_logprobs(self, rows: Sequence[Row], temperature: float) -> list[list[float]]:
        """Returns log-probabilities in nats of each row's trained tokens, in order; every rank gets all ranks'."""
        with torch_threads(self.config.num_threads), out_of_memory_named(self.config, _PASS):
            of_policy = partial(self._of_policy, temperature=temperature)
            logprobs = per_token(rows, self._micro_batches(rows), self._compute, of_policy)
        return [values.tolist() for values in logprobs]

    def policy_weights(self) -> dict[str, Tensor]:
        """Returns detached views of what is trained; tied weights appear under each name, sharded on many ranks."""
        return self._trained(self._compute.bare(self.model).state_dict())

    def wait_before_updates(self, until_unread: Callable[[], None]) -> None:
        """Has `until_unread` called before each update from now on: somebody reads weights and optimizer state."""
        self._until_unread = until_unread

    def state_dict(self) -> dict[str, Any]:
        """Returns `tensors` (optimizer), `counters` and `adapter` (plain data); the weights are `policy_weights()`."""
        counters = {
            "steps_done": self.steps_done,
            "updates_done": self.updates_done,
            "nonfinite_in_a_row": self._optimizer.nonfinite_in_a_row,
            "cudnn_attention": torch.backends.cuda.cudnn_sdp_enabled(),
            **(self.critic.counters if self.critic else {}),
        }
        adapter = self.adapter.described() if self.adapter else None
        return {"tensors": self._optimizer.state_tensors(), "counters": counters, "adapter": adapter}

    def named_parameters(self) -> dict[str, Tensor]:
        """Returns what `policy_weights` does, but each tensor once and as it is (sharded on many ranks)."""
        return self._trained(dict(self._compute.bare(self.model).named_parameters()))

    @property
    def sends_adapter(self) -> bool:
        return self.adapter is not None and self.config.lora_serving is LoraServing.adapter

    def engine_weights(self) -> Mapping[str, Tensor]:
        """Returns all weights by their names in memory, each once; with an adapter see `MergedWeights`.

        `trainer.lora_serving=adapter` gives the adapter alone, under the names of its files."""
        parameters = {name: parameter.detach() for name, parameter in self._compute.bare(self.model).named_parameters()}
        if self.sends_adapter:
            return adapter_alone(parameters)
        return MergedWeights(parameters, self.adapter.scale) if self.adapter else parameters

    def load_shards(self, optimizer: Collection[str], rows: RowsOf, counters: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave; `rows(name, first, last + 1)` reads a tensor. Raises TrainerError."""
        self._optimizer.load_shards(optimizer, rows)
        self.steps_done = int(counters["steps_done"])
        self.updates_done = int(counters["updates_done"])
        self._optimizer.nonfinite_in_a_row = int(counters["nonfinite_in_a_row"])
        if not counters.get("cudnn_attention", True):  # given up for good; checkpoints of before do not say
            torch.backends.cuda.enable_cudnn_sdp(False)
        if self.critic:
            self.critic.load_counters(counters)

    def _trained(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.detach() for name, tensor in tensors.items() if self.adapter is None or is_adapter(name)}

    def _fresh(self, rows: Sequence[Row], step: int, stats: StepStats) -> list[Row]:
        kept = without_old(rows, step - 1, self.algo.max_staleness_steps)
        stats.stale_rows = sum(old.trained and not new.trained for old, new in zip(rows, kept, strict=True))
        for row in kept:
            if row.trained_tokens > 0:
                stats.add_age(age_steps(row, step - 1))
        return kept

    def _credited(self, rows: list[Row], stats: StepStats) -> list[Row]:
        """Returns the rows with the advantages that are found here: by a critic, or by a teacher."""
        if self.critic:
            return self.critic.credited(rows)
        return self._taught(rows, stats) if self.teacher and self.algo.advantage is AdvantageKind.teacher else rows

    def _taught(self, rows: list[Row], stats: StepStats) -> list[Row]:
        """Returns rows with a teacher's advantages, token by token; both models at the rollouts' temperature."""
        teacher = self.teacher
        assert teacher is not None
        trained = [row for row in rows if row.trained_tokens > 0]
        batches = self._micro_batches(trained)
        gaps = per_token(
            trained, batches, self._compute, lambda batch: self._logprobs(teacher, batch) - self._of_policy(batch)
        )
        stats.teacher_kl = -float(np.concatenate(gaps).mean()) if gaps else None
        return with_teacher_advantages(rows, trained, gaps)

    def _mini_batches(self, rows: Sequence[Row], step: int) -> list[MiniBatch]:
        keep_all = self._keep_all_rows or self.critic is not None  # a value is learned where the advantage is 0, too
        most = self.config.prompts_per_mini_batch
        seed = self._seed(step)
        return mini_batches(rows, self.algo, most, seed, keep_all=keep_all, keep_whole=self._needs_sequences)

    def _seed(self, step: int) -> int:
        return self.config.seed * 1_000_003 + step

    def _works(self, mini: MiniBatch) -> list[Work]:
        works = build_work(mini, self.config.max_tokens_per_micro_batch, self._pad_token_id, self._compute)
        return [replace(work, batch=self._routing.of(work.batch, mini.rows)) for work in works]

    def _measure(self, rows: Sequence[Row], minis: Sequence[MiniBatch], step: int, stats: StepStats) -> None:
        """Measures rows that are not trained, by the weights before the updates: some figures are of all tokens."""
        stats.left_out_tokens = sum(row.sampled_tokens for row in rows)
        fed_tokens = sum(len(row.token_ids) for mini in minis for row in mini.rows)
        most_tokens = max(fed_tokens // _MEASURED_PART, self.config.max_tokens_per_micro_batch)
        chosen = measured_rows(rows, most_tokens, self._seed(step))
        works = self._works(MiniBatch(chosen, (0.0,) * len(chosen))) if chosen else []
        for work in works:
            with torch.no_grad(), self._routing.replaying(work.batch.routes):
                logprobs, entropy = self._compute.logprobs(self.model, work.batch, self._temperature, False)
            stats.observe_left_out(work, entropy, logprobs)

    def _update_all(self, plan: list[list[Work]], lr: float, stats: StepStats, version: int) -> None:
        # The weight of a split trajectory's sequence needs all its rows' log-probabilities before the first backward.
        needs_old = len(plan) > 1 or weighs_sequences(self.algo) or self._routing.balances or self._needs_sequences
        old = []
        pulls = []
        for works in plan:
            old.append(self._all_logprobs(works, loading=True) if needs_old else None)
            pulls.append(self._routing.pull())
        for i, (works, old_logprobs, pull) in enumerate(zip(plan, old, pulls, strict=True)):
            moved = old_logprobs is not None and i > 0  # before the first update the policy is the old one
            needs_means = self._needs_sequences or (moved and by_sequence(self.algo))
            means = self._sequence_means(works, old_logprobs or [], moved=moved) if needs_means else None
            accumulate = partial(self._accumulate, works, old_logprobs, means, pull, version, len(plan) == 1)
            accumulate(stats)
            self._until_unread()  # here, not at the step's start: all passes before it only read the weights
            again = partial(attention.again_without_cudnn, self._compute.device, partial(accumulate, None))
            update = self._optimizer.apply(lr, again)
            stats.record(update)
            self.updates_done += update.applied

    def _accumulate(
        self,
        works: list[Work],
        old: list[Tensor] | None,
        means: list[Tensor] | None,
        pull: Tensor | None,
        version: int,
        ratio_is_one: bool,
        stats: StepStats | None,  # None where the same passes run again: they were counted
    ) -> None:
        corrections = corrections_of(works, old, self.algo, version, self._mesh.sum) if old else None
        for i, work in enumerate(works):
            reference = self._of_reference(work.batch) if self._reads_reference else None
            entropy_grad = self.algo.entropy_coef != 0.0
            positions = work.batch.hidden_index
            scale = self._compute.gradient_scale
            with self._routing.replaying(work.batch.routes), self._routing.balancing(positions, pull, scale):
                with self._routing.counting(positions if stats else None):
                    logprobs, entropy = self._compute.logprobs(self.model, work.batch, self._temperature, entropy_grad)
                start = old[i] if old else logprobs.detach()
                correction = corrections[i] if corrections else correction_of(work, start, self.algo, version)
                # The very tensor that has the gradient: `start` is of another pass, whose kernels may round otherwise,
                # and a ratio of 1.00001 would already count as moved.
                denominator = logprobs.detach() if ratio_is_one else start
                mean = means[i] if means else None
                loss = token_loss(
                    logprobs=logprobs,
                    old_logprobs=denominator,
                    advantages=work.advantages,
                    entropy=entropy,
                    correction=correction,
                    reference_logprobs=reference,
                    algo=self.algo,
                    mean_log_ratio=torch.zeros_like(denominator) if mean is None else mean,
                    formula=self._formula,
                    rollout_logprobs=work.rollout_logprobs,
                    sequences=work.sequences,
                    sequence_means=mean,
                )
                (torch.sum(loss.total * work.weights) * scale).backward()
            if stats:
                stats.observe(work, loss, entropy, start, correction)

    def _sequence_means(self, works: list[Work], old: list[Tensor], *, moved: bool) -> list[Tensor]:
        """Returns each token's mean over its trajectory: the log-ratio of policy to old, or what somebody's own loss
        wants. It is computed before the update and without gradient, because every token needs all others.
        """
        now = self._all_logprobs(works) if moved else old
        terms = [self._term(*of_work) for of_work in zip(works, now, old, strict=True)]
        return means_of(works, terms, self._mesh.sum)

    def _term(self, work: Work, now: Tensor, old: Tensor) -> Tensor:
        if self._formula is None:
            return now - old
        reference = self._of_reference(work.batch) if self._reads_reference else None
        return terms_of(self._formula, work, logprobs=now, old_logprobs=old, reference_logprobs=reference)

    def _all_logprobs(self, works: list[Work], *, loading: bool = False) -> list[Tensor]:
        """Returns log-probabilities of each micro-batch. With `loading` the load over experts is looked at, too."""
        logprobs = []
        for work in works:
            with self._routing.loading(work.batch.hidden_index) if loading else nullcontext():
                logprobs.append(self._of_policy(work.batch))
        return logprobs

    def _of_policy(self, batch: Batch, temperature: float | None = None) -> Tensor:
        with self._routing.replaying(batch.routes):
            return self._logprobs(self.model, batch, temperature)

    @torch.no_grad()
    def _logprobs(self, model: nn.Module, batch: Batch, temperature: float | None = None) -> Tensor:
        """Returns the log-probabilities of a model. `temperature` None stands for that of the rollouts."""
        return self._compute.logprobs(model, batch, temperature or self._temperature, False)[0]

    def _of_reference(self, batch: Batch) -> Tensor:
        with self._reference() as model:
            return self._logprobs(model, batch)

    @contextmanager
    def _reference(self) -> Iterator[nn.Module]:
        if self.adapter is None:
            assert self.reference is not None
            yield self.reference
        else:
            with self.adapter.off():
                yield self.model

    def _micro_batches(self, rows: Sequence[Row]) -> list[Any]:
        sequences = [(row.token_ids, row.loss_mask) for row in rows]
        batches = self._compute.micro_batches(sequences, self.config.max_tokens_per_micro_batch, self._pad_token_id)
        return [self._routing.of(batch, rows) for batch in batches]


def _nobody_reads() -> None:
    return None
