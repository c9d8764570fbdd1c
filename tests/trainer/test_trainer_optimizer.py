import math

import pytest
import torch

from swe_rl.trainer.optimizer import Optimizer
from swe_rl.trainer.trainer import TrainerError


def pair(grad_clip=1.0):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    return model, Optimizer(model, lr=0.1, weight_decay=0.01, betas=(0.9, 0.95), grad_clip=grad_clip)


def gradients(model, value):
    for param in model.parameters():
        param.grad = torch.full_like(param, value)


def test_it_is_adamw_on_clipped_gradients():
    model, optimizer = pair()
    weight = model.weight.detach().clone()
    gradients(model, 2.0)
    update = optimizer.apply(0.1)
    assert update.grad_norm == pytest.approx(2.0 * math.sqrt(8))
    # The first step of Adam is lr * sign(gradient), after the decoupled decay.
    torch.testing.assert_close(model.weight.detach(), weight * (1 - 0.1 * 0.01) - 0.1, rtol=1e-4, atol=1e-5)
    assert model.weight.grad is None


def test_zero_leaves_the_clipping_off():
    model, optimizer = pair(grad_clip=0.0)
    gradients(model, 100.0)
    optimizer.apply(0.1)
    assert float(optimizer.state_tensors()["exp_avg.bias"][0]) == pytest.approx(10.0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_non_finite_update_is_dropped_and_the_third_stops(value):
    model, optimizer = pair()
    before = model.weight.detach().clone()
    for _ in range(2):
        gradients(model, value)
        assert not optimizer.apply(0.1).applied
    assert torch.equal(model.weight, before)
    gradients(model, 1.0)
    assert optimizer.apply(0.1).applied
    for _ in range(2):
        gradients(model, value)
        optimizer.apply(0.1)
    gradients(model, value)
    with pytest.raises(TrainerError, match="3 updates in a row"):
        optimizer.apply(0.1)
    assert bool(torch.isfinite(model.weight).all())


@pytest.mark.parametrize("second", [math.nan, 1.0])
def test_an_update_that_is_computed_again_counts_as_one(second):
    model, optimizer = pair()
    gradients(model, math.nan)

    def again():
        assert model.weight.grad is None  # nothing of the first gradient is in the second
        gradients(model, second)
        return True

    update = optimizer.apply(0.1, again)
    assert update.repeated and update.applied is math.isfinite(second)
    assert optimizer.nonfinite_in_a_row == (0 if update.applied else 1)
    gradients(model, 1.0)
    assert not optimizer.apply(0.1, again).repeated  # what is finite is not asked about


def test_a_zero_gradient_moves_nothing():
    """Momentum and decay would: what a mini-batch without a trained token has learned is nothing."""
    model, optimizer = pair()
    gradients(model, 1.0)
    optimizer.apply(0.1)
    weight, state = model.weight.detach().clone(), {k: v.clone() for k, v in optimizer.state_tensors().items()}
    for value in (0.0, None):
        for param in model.parameters():
            param.grad = None if value is None else torch.zeros_like(param)
        update = optimizer.apply(0.1)
        assert (update.applied, update.grad_norm, optimizer.nonfinite_in_a_row) == (False, 0.0, 0)
    assert torch.equal(model.weight, weight)
    assert all(torch.equal(tensor, state[name]) for name, tensor in optimizer.state_tensors().items())


def load(optimizer, state):
    optimizer.load_shards(state.keys(), lambda name, a, b: state[name][a:b] if state[name].ndim else state[name])


def test_the_state_goes_round():
    model, optimizer = pair()
    gradients(model, 1.0)
    optimizer.apply(0.1)
    state = {name: tensor.clone() for name, tensor in optimizer.state_tensors().items()}
    other_model, other = pair()
    other_model.load_state_dict(model.state_dict())
    load(other, state)
    for m, o in ((model, optimizer), (other_model, other)):
        gradients(m, -0.3)
        o.apply(0.05)
    assert torch.equal(model.weight, other_model.weight)
    assert all(
        torch.equal(state_a, state_b)
        for state_a, state_b in zip(optimizer.state_tensors().values(), other.state_tensors().values(), strict=True)
    )


def test_an_empty_state_is_a_fresh_optimizer():
    model, optimizer = pair()
    assert optimizer.state_tensors() == {}
    gradients(model, 1.0)
    optimizer.apply(0.1)
    load(optimizer, {})
    assert optimizer.state_tensors() == {}


def test_the_state_of_another_model_is_refused():
    model, optimizer = pair()
    gradients(model, 1.0)
    optimizer.apply(0.1)
    state = optimizer.state_tensors()
    with pytest.raises(TrainerError, match="another model"):
        load(optimizer, {**state, "exp_avg.extra": torch.zeros(1)})


def test_weights_that_rest_in_the_host_s_memory_are_updated_as_others_are():
    """The fused kernel and more threads are for speed; the checkpoint of either is read by the other."""
    results = []
    for offload_threads in (0, 2):
        torch.manual_seed(0)
        model = torch.nn.Linear(64, 48)
        optimizer = Optimizer(
            model, lr=0.1, weight_decay=0.01, betas=(0.9, 0.95), grad_clip=1.0, offload_threads=offload_threads
        )
        before = torch.get_num_threads()
        for step in range(3):
            torch.manual_seed(step)
            for param in model.parameters():
                param.grad = torch.randn_like(param)
            update = optimizer.apply(0.01)
        assert torch.get_num_threads() == before
        results.append((update.grad_norm, [param.detach() for param in model.parameters()], optimizer.state_tensors()))
    (norm, weights, states), (other_norm, other_weights, other_states) = results
    assert other_norm == pytest.approx(norm, rel=1e-6)
    torch.testing.assert_close(other_weights, weights, rtol=1e-6, atol=1e-6)
    assert states.keys() == other_states.keys()
    for name, tensor in states.items():
        torch.testing.assert_close(other_states[name], tensor, rtol=1e-5, atol=1e-7)
