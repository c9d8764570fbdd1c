"""Losses and gradients against TRL's GRPOTrainer on identical log-probabilities; skipped where trl is not installed.

The trainer is made without its `__init__`: only what its loss reads is set, and the model's forward pass is replaced
by given log-probabilities.
"""

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from swe_rl.algo.correction import correction_weights
from swe_rl.algo.loss import row_weights, token_loss
from swe_rl.algo.sequences import Sequences
from swe_rl.config.choices import Correction, LossAggregation, MaskLevel, PolicyLoss
from swe_rl.config.schema import AlgoConfig

ROWS, LONGEST, MAX_TOKENS = 5, 12, 20


@pytest.fixture(scope="module")
def trl():
    pytest.importorskip("accelerate")
    pytest.importorskip("trl")
    return pytest.importorskip("trl.trainer.grpo_trainer")


@pytest.fixture
def trl_loss(trl):
    class Given(trl.GRPOTrainer):
        def __init__(self, logprobs, entropy, **settings):
            self.given = logprobs, entropy
            for name, value in settings.items():
                setattr(self, name, value)

        def _get_per_token_logps_and_entropies(self, *arguments, **more):
            return *self.given, None

    def compute(case, loss_type, level="token", *, delta=None, beta=0.0, entropy_coef=0.0, **changes):
        new = case["new"].clone().requires_grad_()
        settings = {
            "loss_type": loss_type,
            "importance_sampling_level": level,
            "epsilon_low": 0.2,
            "epsilon_high": 0.28,
            "beta": beta,
            "args": SimpleNamespace(delta=delta, use_bias_correction_kl=False, steps_per_generation=1),
            "model": SimpleNamespace(training=True),
            "accelerator": SimpleNamespace(
                num_processes=1,
                sync_gradients=True,
                gather=lambda values: values,
                reduce=lambda values, reduction: values,
            ),
            "current_gradient_accumulation_steps": 1,
            "max_completion_length": MAX_TOKENS,
            "aux_loss_enabled": False,
            "top_entropy_quantile": 1.0,
            "off_policy_mask_threshold": None,
            "use_vllm": "importance_sampling_ratio" in changes,
            "vllm_importance_sampling_correction": True,
            "use_adaptive_entropy": False,
            "_entropy_bonus_enabled": entropy_coef != 0.0,
            "entropy_coef": entropy_coef,
            "_metrics": {"train": defaultdict(list)},
        }
        inputs = {
            "prompt_ids": torch.zeros(ROWS, 1, dtype=torch.long),
            "prompt_mask": torch.ones(ROWS, 1),
            "completion_ids": torch.zeros(ROWS, LONGEST, dtype=torch.long),
            "completion_mask": case["mask"],
            "advantages": case["advantages"],
            "old_per_token_logps": case["old"],
            "ref_per_token_logps": case["reference"],
            "num_items_in_batch": case["mask"].sum(),
        }
        ours = {name: changes.pop(name) for name in ("importance_sampling_ratio",) if name in changes}
        trainer = Given(new, case["entropy"], **(settings | changes))
        loss = trainer._compute_loss(None, inputs | ours)
        loss.backward()
        return float(loss.detach()), new.grad * case["mask"], trainer._metrics["train"]

    return compute


def our_loss(case, algo, correction=None):
    kept = case["mask"].bool()
    new = case["new"].clone().requires_grad_()
    advantages = case["advantages"][:, None].expand_as(new)
    lengths = [int(n) for n in case["mask"].sum(1)]
    weights = row_weights(lengths, [str(i) for i in range(ROWS)], algo.loss_aggregation, algo.loss_norm_tokens)
    each = torch.tensor(weights, dtype=torch.float64)[:, None].expand_as(new)[kept]
    ratio = sequences(case).mean((new.detach() - case["old"])[kept])
    correction = torch.ones_like(each) if correction is None else correction
    parts = (new[kept], case["old"][kept], advantages[kept], case["entropy"][kept], correction, case["reference"][kept])
    loss = token_loss(*parts, algo, ratio)
    total = (loss.total * each).sum()
    total.backward()
    return float(total.detach()), new.grad, loss


def sequences(case):
    kept = case["mask"].bool()
    return Sequences(torch.arange(ROWS)[:, None].expand(ROWS, LONGEST)[kept], ROWS)


@pytest.fixture(params=range(4))
def case(request):
    generator = torch.Generator().manual_seed(request.param)

    def normal(scale):
        return scale * torch.randn(ROWS, LONGEST, generator=generator, dtype=torch.float64)

    new = -normal(1.0).abs() - 0.05
    lengths = torch.randint(1, LONGEST + 1, (ROWS, 1), generator=generator)
    mask = (torch.arange(LONGEST)[None, :] < lengths).long()
    mask[:, 1:] *= (normal(1.0)[:, 1:] < 1.0).long()  # observations between what was sampled
    return {
        "new": new,
        "old": new + normal(0.3),
        "reference": new + normal(0.5),
        "rollout": new + normal(0.2),
        "entropy": normal(1.0).abs(),
        "mask": mask,
        "advantages": normal(1.0)[:, 0],
    }


def same(ours, theirs):
    assert ours[0] == pytest.approx(theirs[0], rel=1e-9)
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("loss_type", "aggregation"),
    [
        ("grpo", LossAggregation.sequence_mean),
        ("bnpo", LossAggregation.token_mean),
        ("dapo", LossAggregation.token_mean),
        ("dr_grpo", LossAggregation.sequence_sum_norm),
    ],
)
@pytest.mark.parametrize("delta", [None, 1.5])
def test_clipped_losses(trl_loss, case, loss_type, aggregation, delta):
    algo = AlgoConfig(loss_aggregation=aggregation, loss_norm_tokens=MAX_TOKENS, clip_c=delta or 0.0)
    ours, theirs = our_loss(case, algo), trl_loss(case, loss_type, delta=delta)
    same(ours, theirs)
    if delta is None:
        assert float(ours[2].clipped_low.double().mean()) == pytest.approx(theirs[2]["clip_ratio/low_mean"][0])
        assert float(ours[2].clipped_high.double().mean()) == pytest.approx(theirs[2]["clip_ratio/high_mean"][0])


@pytest.mark.parametrize("clip", [(3e-4, 4e-4), (0.2, 0.28)])
@pytest.mark.parametrize("policy_loss", [PolicyLoss.gspo, PolicyLoss.gspo_token])
def test_gspo(trl_loss, case, clip, policy_loss):
    low, high = clip
    algo = AlgoConfig(
        policy_loss=policy_loss, clip_low=low, clip_high=high, loss_aggregation=LossAggregation.sequence_mean
    )
    same(our_loss(case, algo), trl_loss(case, "grpo", "sequence", epsilon_low=low, epsilon_high=high))


def test_cispo(trl_loss, case):
    algo = AlgoConfig(policy_loss=PolicyLoss.cispo, clip_low=1.0, clip_high=0.3)
    same(our_loss(case, algo), trl_loss(case, "cispo", epsilon_high=1.3))


@pytest.mark.parametrize(("loss_type", "level"), [("bnpo", "token"), ("cispo", "token"), ("grpo", "sequence")])
def test_kl_and_entropy_terms(trl_loss, case, loss_type, level):
    policy_loss = {"bnpo": PolicyLoss.clip, "cispo": PolicyLoss.cispo, "grpo": PolicyLoss.gspo}[loss_type]
    by_sequence = LossAggregation.sequence_mean if level == "sequence" else LossAggregation.token_mean
    algo = AlgoConfig(policy_loss=policy_loss, clip_low=0.2, kl_coef=0.1, loss_aggregation=by_sequence)
    if policy_loss is PolicyLoss.cispo:
        algo = AlgoConfig(policy_loss=policy_loss, clip_low=1.0, clip_high=0.28, kl_coef=0.1)
        same(our_loss(case, algo), trl_loss(case, loss_type, level, beta=0.1, epsilon_high=1.28))
    else:
        same(our_loss(case, algo), trl_loss(case, loss_type, level, beta=0.1))


def test_the_entropy_bonus(trl_loss, case):
    same(our_loss(case, AlgoConfig(entropy_coef=0.01)), trl_loss(case, "bnpo", entropy_coef=0.01))


@pytest.mark.parametrize(
    ("algo", "loss_type", "level"),
    [
        (AlgoConfig(correction=Correction.token_tis), "bnpo", "token"),
        (AlgoConfig(correction=Correction.sequence_tis), "bnpo", "token"),
        (AlgoConfig(mask_level=MaskLevel.sequence, mask_low=0.5, mask_high=2.0), "bnpo", "token"),
        (
            AlgoConfig(
                policy_loss=PolicyLoss.gspo,
                correction=Correction.token_tis,
                loss_aggregation=LossAggregation.sequence_mean,
            ),
            "grpo",
            "sequence",
        ),
    ],
)
def test_corrections(trl_loss, case, algo, loss_type, level):
    """TRL takes the weights as given: token by token, also for GSPO, whose gradient then has their mean."""
    kept = case["mask"].bool()
    parts = case["old"][kept], case["rollout"][kept], sequences(case)
    given = correction_weights(*parts, AlgoConfig(**without_gspo(algo)))
    theirs = torch.ones_like(case["new"])
    theirs[kept] = given
    ours = correction_weights(*parts, algo)
    same(our_loss(case, algo, ours), trl_loss(case, loss_type, level, importance_sampling_ratio=theirs))


def without_gspo(algo):
    names = ("correction", "correction_cap", "mask_level", "mask_low", "mask_high")
    return {name: getattr(algo, name) for name in names}
