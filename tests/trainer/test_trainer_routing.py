"""Routing replay: the engine's choice with the trainer's own weights, in every pass of the policy and in no other."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from swe_rl.config.choices import KlPlace, RoutingReplay
from swe_rl.config.schema import AlgoConfig, TrainerConfig
from swe_rl.trainer.rank_trainer import RankTrainer
from swe_rl.trainer.routing import Routing, load_entropy
from swe_rl.trainer.sharded.mesh import lone_mesh
from swe_rl.trainer.trainer import TrainerError

REPLAY = TrainerConfig(lr=1e-3, num_threads=1, routing_replay=RoutingReplay.replay)
MEASURE, NONE = (replace(REPLAY, routing_replay=mode) for mode in (RoutingReplay.measure, RoutingReplay.none))
CPU = lone_mesh(torch.device("cpu"))


@pytest.fixture
def mixture(rank_cases):
    return rank_cases.build(0, experts=5)


def trainer(model, config, **more):
    return RankTrainer(copy.deepcopy(model), config, more.pop("algo", AlgoConfig()), pad_token_id=0, **more)


def own_routes(model, row):
    """What the model's routers choose for each token but the last."""
    with torch.no_grad():
        output = model(torch.tensor([row.token_ids[:-1].tolist()]), output_router_logits=True)
    return np.stack([logits.topk(2).indices.numpy() for logits in output.router_logits], axis=1).astype(np.uint8)


def swayed(model):
    """The same but for its routers, which choose otherwise now and then: the engine's rounding, many times as large."""
    other = copy.deepcopy(model)
    torch.manual_seed(5)
    for layer in other.model.layers:
        weight = layer.mlp.gate.weight
        weight.data += 0.1 * weight.std() * torch.randn_like(weight)
    return other


@pytest.mark.parametrize("normalised", [True, False])
def test_the_chosen_experts_are_weighed_by_the_router_that_learns(normalised):
    """One block against the formula, with its gradients: the choice is given, its softmax is not."""
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        hidden_size=8, moe_intermediate_size=6, num_experts=5, num_experts_per_tok=2, norm_topk_prob=normalised
    )
    block = Qwen3MoeSparseMoeBlock(config)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter)
    inputs = torch.randn(1, 7, 8)
    routes = torch.tensor([[[0, 1]], [[3, 4]], [[-1, -1]], [[2, 0]], [[4, 1]], [[1, 3]], [[2, 3]]])
    shares = torch.softmax(inputs[0] @ block.gate.weight.T, -1)
    chosen = torch.where(routes[:, 0] < 0, shares.topk(2).indices, routes[:, 0])
    weights = shares.gather(1, chosen)
    weights = weights / weights.sum(-1, keepdim=True) if normalised else weights

    def expert(row, number):
        gate, up = (block.experts.gate_up_proj[number] @ row).chunk(2)
        return block.experts.down_proj[number] @ (torch.nn.functional.silu(gate) * up)

    tokens = zip(inputs[0], weights, chosen, strict=True)
    expected = torch.stack([sum(w * expert(row, n) for w, n in zip(*of, strict=True)) for row, *of in tokens])
    expected.square().sum().backward()
    gradients = {name: parameter.grad.clone() for name, parameter in block.named_parameters()}
    block.zero_grad()
    routing = Routing(torch.nn.ModuleList([block]), CPU, RoutingReplay.replay)
    with routing.replaying(routes.to(torch.int16)):
        got = block(inputs)[0]
        got.square().sum().backward()
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
    for name, parameter in block.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-4, atol=1e-5)
    assert block.gate.weight.grad.abs().max() > 0
    assert not torch.allclose(block(inputs)[0], got)  # outside of the block it chooses for itself


def test_its_own_choice_changes_nothing(mixture, rank_cases):
    rows = [replace(row, routes=own_routes(mixture, row)) for row in rank_cases.rows()]
    expected, got = (trainer(mixture, config).train_step(rows, 1) for config in (NONE, REPLAY))
    assert expected.routing_disagreement is None and got.routing_disagreement == 0.0
    for key in ("loss", "grad_norm", "entropy", "kl_rollout", "expert_load_max", "expert_entropy"):
        assert getattr(got, key) == pytest.approx(getattr(expected, key), rel=1e-6), key


def test_replay_brings_engine_and_trainer_together(mixture, rank_cases):
    """The engine's routers are the trainer's but for noise: what the choice alone costs, with and without replay."""
    engine = trainer(swayed(mixture), NONE)
    rows = [row for row in rank_cases.rows(longest=60) if row.sampled_tokens]
    known = [np.zeros(len(row.token_ids), np.float32) for row in rows]
    for row, values, logprobs in zip(rows, known, engine.row_logprobs(rows), strict=True):
        values[row.loss_mask] = logprobs
    rows = [
        replace(row, rollout_logprobs=values, routes=own_routes(engine.model, row))
        for row, values in zip(rows, known, strict=True)
    ]
    apart = trainer(mixture, MEASURE).train_step(rows, 1)
    together = trainer(mixture, REPLAY).train_step(rows, 1)
    assert 0.01 < apart.routing_disagreement < 0.3 and 0.01 < together.routing_disagreement < 0.3
    assert together.kl_rollout < apart.kl_rollout / 3
    assert together.logprob_diff_mean < apart.logprob_diff_mean / 2


def test_every_pass_of_the_policy_replays_and_the_reference_does_not(mixture, rank_cases):
    """Several mini-batches, recomputation and a KL: with the engine's choice as with its own, all of them agree."""
    rows = [rank_cases.routed(row) for row in rank_cases.rows()]
    algo = AlgoConfig(kl_coef=0.1, kl_in=KlPlace.loss)
    recompute = replace(REPLAY, activation_checkpointing=True, prompts_per_mini_batch=1)
    kept = replace(REPLAY, prompts_per_mini_batch=1)
    steps = [trainer(mixture, config, algo=algo, reference=mixture).train_step(rows, 1) for config in (kept, recompute)]
    assert replace(steps[1], train_s=0.0) == replace(steps[0], train_s=0.0)
    policy = trainer(mixture, REPLAY, algo=algo, reference=copy.deepcopy(mixture))
    replayed, own = policy.row_logprobs(rows), policy.row_logprobs([replace(row, routes=None) for row in rows])
    sums = {row.trajectory_id: 0.0 for row in rows}
    for row, ours, theirs in zip(rows, replayed, own, strict=True):
        sums[row.trajectory_id] += sum(ours) - sum(theirs)
    assert policy.sequence_kl(rows) == pytest.approx(sums, rel=1e-4, abs=1e-4)
    assert any(abs(value) > 0.1 for value in sums.values())


def test_what_is_of_another_model_is_named(mixture, rank_cases):
    row = rank_cases.rows()[0]
    tokens = len(row.token_ids) - 1
    for routes in (np.zeros((tokens, 3, 2), np.uint8), np.full((tokens, 2, 2), 5, np.uint8)):
        with pytest.raises(TrainerError, match="to experts up to number ., 2 of each of .* has 5, 2 of each of 2"):
            trainer(mixture, REPLAY).train_step([replace(row, routes=routes)], 1)
    with pytest.raises(TrainerError, match=f"has {tokens + 1} tokens, but {tokens - 1} were routed"):
        trainer(mixture, REPLAY).train_step([replace(row, routes=np.zeros((tokens - 1, 2, 2), np.uint8))], 1)


def test_a_dense_model_and_rows_without_routes_have_no_figure(build, rank_cases):
    metrics = trainer(build(), REPLAY).train_step(rank_cases.rows(), 1)
    assert metrics.routing_disagreement is None and metrics.expert_entropy is None


def test_entropy_of_even_and_uneven_loads():
    assert load_entropy(torch.tensor([[5, 5, 5, 5]])) == pytest.approx(1.0)
    assert load_entropy(torch.tensor([[7, 0, 7, 0], [9, 0, 0, 0]])) == pytest.approx(0.25)
    assert load_entropy(torch.zeros(2, 4)) is None
