"""The policy and its optimizer: rows in, updated weights out.

Invariants:
- Synchronous, deterministic: the same rows, weights and seed give the same update, bit for bit on the same ranks.
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

from swe_rl.algo.correction import correction_weights, weighs_sequences
from swe_rl.algo.loss import by_sequence, kl_in_loss, token_loss
from swe_rl.algo.protocol import Loss
from swe_rl.algo.row import Row, age_steps, without_old
from swe_rl.algo.sequences import Sequences, kl_per_token
from swe_rl.config.choices import Advantage, KlEstimator, LoraServing
from swe_rl.config.schema import AlgoConfig, TrainerConfig
from swe_rl.trainer.compute import Batch, Compute, LocalCompute, Work, build_work, out_of_memory_named, per_token
from swe_rl.trainer.critic import Critic
from swe_rl.trainer.lora import Adapter, MergedWeights, adapter_alone, is_adapter
from swe_rl.trainer.metrics import StepStats, TrainMetrics
from swe_rl.trainer.minibatch import MiniBatch, left_out, measured_rows, mini_batches
from swe_rl.trainer.optimizer import Optimizer, RowsOf, torch_threads, warmup_factor
from swe_rl.trainer.protocol import TrainerError
from swe_rl.trainer.routing import Routing
from swe_rl.trainer.sharded import attention
from swe_rl.trainer.sharded.mesh import alone

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
        """`temperature` is the rollouts'. `reference` is needed where `algo.kl_coef` is not 0; it is never changed.
        `adapter` is what `adapter.attach` gave for `model`, which is then its own reference.

        `teacher` is needed for `algo.advantage=teacher` and is never changed; `critic`, a model with a `value_head`,
        for `algo.advantage=gae`. `compute` is `ShardedCompute` for a `ShardedModel` (the others are, too); None: this
        process alone.
        `keep_all_rows` also feeds rows that have no gradient; it changes metrics, not the update. `loss`: in place of
        `algo.policy_loss`. Raises TrainerError where one of them is missing or the temperature is not positive.
        """
        if temperature <= 0:
            raise TrainerError(f"The trainer cannot learn from samples of temperature {temperature}: it must be > 0.")
        if algo.kl_coef != 0.0 and reference is None and adapter is None:
            raise TrainerError("algo.kl_coef is not 0, so the trainer needs a reference model, but got none.")
        if algo.advantage is Advantage.teacher and teacher is None:
            raise TrainerError("algo.advantage=teacher, so the trainer needs a teacher, but got none.")
        if algo.advantage is Advantage.gae and critic is None:
            raise TrainerError("algo.advantage=gae, so the trainer needs a critic, but got none.")
        self.model, self.reference, self.config, self.algo = model, reference, config, algo
        self.adapter, self.teacher = adapter, teacher
        self._pad_token_id, self._temperature, self._clock = pad_token_id, temperature, clock
        self._keep_all_rows = keep_all_rows or (loss is not None and loss.needs_all_rows)
        self._formula = loss
        self._compute: Compute = compute or LocalCompute(alone(next(model.parameters()).device))
        self._mesh = self._compute.mesh
        betas = (config.beta1, config.beta2)
        self._routing = Routing(self._compute.bare(model), self._mesh, config.routing_replay, algo.balance_coef)
        self._optimizer = Optimizer(
            self._compute.bare(model),
            lr=config.lr,
            weight_decay=config.weight_decay,
            betas=betas,
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
        """This rank's share of the cores, as if all ranks were on this host; 0 where the weights are on the GPU."""
        if not self.config.offload_optimizer or self.adapter is not None or self._compute.device.type != "cuda":
            return 0
        return max(self.config.num_threads, len(os.sched_getaffinity(0)) // self._mesh.world)

    def train_step(self, rows: Sequence[Row], step: int, lr: float | None = None) -> TrainMetrics:
        """Updates the policy once per mini-batch that has anything to learn from.

        `step` seeds the order of the groups. `lr` None: `trainer.lr`, whose warm-up counts the policy's steps. Raises
        TrainerError on a malformed row, where memory runs out (the weights may be those of half a step then), and
        after three non-finite gradient norms in a row.
        """
        start = self._clock()
        stats = StepStats()
        critic_alone = self.algo.critic_warmup_steps if self.critic else 0
        if lr is None:
            lr = self.config.lr * warmup_factor(max(0, self.steps_done - critic_alone), self.config.warmup_steps)
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
                lr_critic = self.algo.critic_lr * warmup_factor(self.steps_done, self.config.warmup_steps)
                stats.critic = self.critic.update(of_critic, lr_critic, self._until_unread)
            stats.expert_tokens, stats.routing_choices = self._routing.taken(), self._routing.taken_choices()
            stats.balance = self._routing.taken_balance()
            stats.join(self._mesh)
        self.steps_done += 1
        return stats.metrics(step=step, rows=len(rows), lr=lr, train_s=self._clock() - start)

    def forget_moments(self) -> None:
        """AdamW begins anew, with the weights as they are."""
        self._optimizer.forget()

    def sequence_kl(self, rows: Sequence[Row], estimator: KlEstimator = KlEstimator.k1) -> dict[str, float]:
        """KL(policy || reference) in nats, summed over each trajectory's sampled tokens; for `algo.kl_in=reward`."""
        if self.reference is None and self.adapter is None:
            raise TrainerError("The KL to a reference was asked for, but the trainer has no reference model.")
        kept = [row for row in rows if row.sampled_tokens > 0]  # also untrained ones, which a baseline may have
        by_row = [0.0] * len(kept)
        with torch_threads(self.config.num_threads), out_of_memory_named(self.config, _PASS):
            for batch in self._micro_batches(kept):
                kl = kl_per_token(self._of_policy(batch), self._of_reference(batch), estimator)
                for member, value in zip(batch.member_of_token.tolist(), kl.tolist(), strict=True):
                    by_row[batch.members[member]] += value
            joined = self._mesh.sum(torch.tensor(by_row, dtype=torch.float64, device=self._compute.device)).tolist()
        sums = {row.trajectory_id: 0.0 for row in rows}
        for row, value in zip(kept, joined, strict=True):
            sums[row.trajectory_id] += value
        return sums

    def token_logprobs(self, rows: Sequence[Row], temperature: float) -> list[list[float]]:
        """Log-probabilities in nats of each row's trained tokens, in their order; on every rank those of all ranks."""
        with torch_threads(self.config.num_threads), out_of_memory_named(self.config, _PASS):
            of_policy = partial(self._of_policy, temperature=temperature)
            logprobs = per_token(rows, self._micro_batches(rows), self._compute, of_policy)
        return [values.tolist() for values in logprobs]

    def policy_weights(self) -> dict[str, Tensor]:
        """Detached views of what is trained by state_dict name; tied weights appear under each of their names.

        On many ranks they are sharded tensors: `shard.whole` puts one together.
        """
        return self._trained(self._compute.bare(self.model).state_dict())

    def wait_before_updates(self, until_unread: Callable[[], None]) -> None:
        """From now on `until_unread` is called before each update: somebody reads weights and optimizer state."""
        self._until_unread = until_unread

    def state_dict(self) -> dict[str, Any]:
        """`tensors` (optimizer), `counters` and `adapter` (plain data); the weights are `policy_weights()`."""
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
        """As `policy_weights`, but each tensor once and as it is (sharded tensors on many ranks)."""
        return self._trained(dict(self._compute.bare(self.model).named_parameters()))

    @property
    def sends_adapter(self) -> bool:
        return self.adapter is not None and self.config.lora_serving is LoraServing.adapter

    def engine_weights(self) -> Mapping[str, Tensor]:
        """All weights by their names in memory, each once; with an adapter merged one by one, see `MergedWeights`.

        Of `trainer.lora_serving=adapter` the adapter alone, under the names of its files.
        """
        parameters = {name: parameter.detach() for name, parameter in self._compute.bare(self.model).named_parameters()}
        if self.sends_adapter:
            return adapter_alone(parameters)
        return MergedWeights(parameters, self.adapter.scale) if self.adapter else parameters

    def load_shards(self, optimizer: Collection[str], rows: RowsOf, counters: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave: `rows(name, first, last + 1)` of each of the `optimizer`'s tensors.

        Raises TrainerError where it is of another model.
        """
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
        """With the advantages that are found here: by a critic, or by a teacher."""
        if self.critic:
            return self.critic.credited(rows)
        return self._taught(rows, stats) if self.teacher and self.algo.advantage is Advantage.teacher else rows

    def _taught(self, rows: list[Row], stats: StepStats) -> list[Row]:
        """The advantage of a token is log teacher - log policy: less the reverse KL, by the token that was sampled.

        Its policy gradient is that of KL(policy || teacher) at this token alone, later ones left out ("On-Policy
        Distillation", Thinking Machines Lab, 2025; reverse KL on the student's own samples: MiniLLM, arXiv:2306.08543,
        section 2.1). Both are at the rollouts' temperature.
        """
        teacher = self.teacher
        assert teacher is not None
        trained = [row for row in rows if row.trained_tokens > 0]
        gaps = per_token(
            *(trained, self._micro_batches(trained), self._compute),
            lambda batch: self._logprobs(teacher, batch) - self._of_policy(batch),
        )
        joined = np.concatenate([*gaps, np.zeros(0)])
        stats.teacher_kl = -float(joined.mean()) if len(joined) else None
        taught = {
            id(row): replace(row, advantage=gap.astype(np.float32)) for row, gap in zip(trained, gaps, strict=True)
        }
        return [taught.get(id(row), row) for row in rows]

    def _mini_batches(self, rows: Sequence[Row], step: int) -> list[MiniBatch]:
        keep_all = self._keep_all_rows or self.critic is not None  # a value is learned where the advantage is 0, too
        return mini_batches(rows, self.algo, self.config.prompts_per_mini_batch, self._seed(step), keep_all=keep_all)

    def _seed(self, step: int) -> int:
        return self.config.seed * 1_000_003 + step

    def _works(self, mini: MiniBatch) -> list[Work]:
        works = build_work(mini, self.config.max_tokens_per_micro_batch, self._pad_token_id, self._compute)
        return [replace(work, batch=self._routing.of(work.batch, mini.rows)) for work in works]

    def _measure(self, rows: Sequence[Row], minis: Sequence[MiniBatch], step: int, stats: StepStats) -> None:
        """What is reported of all sampled tokens, of those that are not trained; with the weights before the updates.

        A forward pass alone, of at most an eighth of the trained rows' tokens, or of one micro-batch.
        """
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
        needs_old = len(plan) > 1 or weighs_sequences(self.algo) or self._routing.balances
        old, pulls = [], []
        for works in plan:
            old.append(self._all_logprobs(works, loading=True) if needs_old else None)
            pulls.append(self._routing.pull())
        for i, (works, old_logprobs, pull) in enumerate(zip(plan, old, pulls, strict=True)):
            moved = old_logprobs is not None and i > 0  # before the first update the policy is the old one
            ratios = self._mean_log_ratios(works, old_logprobs or []) if moved and by_sequence(self.algo) else None
            accumulate = partial(self._accumulate, works, old_logprobs, ratios, pull, version, len(plan) == 1)
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
        ratios: list[Tensor] | None,
        pull: Tensor | None,
        version: int,
        ratio_is_one: bool,
        stats: StepStats | None,  # None where the same passes run again: they were counted
    ) -> None:
        corrections = self._corrections(works, old, version) if old else None
        for i, work in enumerate(works):
            reference = self._of_reference(work.batch) if kl_in_loss(self.algo) else None
            entropy_grad = self.algo.entropy_coef != 0.0
            positions, scale = work.batch.hidden_index, self._compute.gradient_scale
            with self._routing.replaying(work.batch.routes), self._routing.balancing(positions, pull, scale):
                with self._routing.counting(positions if stats else None):
                    logprobs, entropy = self._compute.logprobs(self.model, work.batch, self._temperature, entropy_grad)
                start = old[i] if old else logprobs.detach()
                correction = corrections[i] if corrections else self._correction(work, start, version)
                # The very tensor that has the gradient: `start` is of another pass, whose kernels may round otherwise,
                # and a ratio of 1.00001 would already count as moved.
                denominator = logprobs.detach() if ratio_is_one else start
                ratio = ratios[i] if ratios else torch.zeros_like(denominator)
                loss = token_loss(
                    *(logprobs, denominator, work.advantages, entropy, correction, reference, self.algo, ratio),
                    formula=self._formula,
                    rollout_logprobs=work.rollout_logprobs,
                )
                (torch.sum(loss.total * work.weights) * scale).backward()
            if stats:
                stats.observe(work, loss, entropy, start, correction)

    def _corrections(self, works: list[Work], old: list[Tensor], version: int) -> list[Tensor]:
        """Over the whole mini-batch at once, because a trajectory's rows may sit in several micro-batches."""
        rollout, versions = (torch.cat([getattr(w, name) for w in works]) for name in ("rollout_logprobs", "versions"))
        joined = correction_weights(torch.cat(old), rollout, self._sequences(works), self.algo, versions < version)
        return list(torch.split(joined, [len(part) for part in old]))

    def _correction(self, work: Work, old: Tensor, version: int) -> Tensor:
        """Of one micro-batch alone, where no weight depends on another token."""
        sequences = Sequences(work.sequences, work.num_sequences)
        return correction_weights(old, work.rollout_logprobs, sequences, self.algo, work.versions < version)

    def _mean_log_ratios(self, works: list[Work], old: list[Tensor]) -> list[Tensor]:
        """Of each token's trajectory, policy to old. A pass without gradient, because every token needs all others."""
        now = torch.cat(self._all_logprobs(works))
        joined = self._sequences(works).mean(now - torch.cat(old))
        return list(torch.split(joined, [len(part) for part in old]))

    def _sequences(self, works: list[Work]) -> Sequences:
        joined = torch.cat([work.sequences for work in works])
        return Sequences(joined, works[0].num_sequences, over_ranks=self._mesh.sum)

    def _all_logprobs(self, works: list[Work], *, loading: bool = False) -> list[Tensor]:
        """`loading`: the load over experts is looked at, too."""
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
        """`temperature`: that of the rollouts where it is None."""
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
