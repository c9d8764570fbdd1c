"""Moments in bfloat16 and in 8 bits against AdamW in NumPy, against themselves, and against the plan."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from swe_rl.config.choices import OptimizerState
from swe_rl.config.compose import compose
from swe_rl.facts import memory
from swe_rl.trainer.checkpoint.tensor_file import tensor_bytes
from swe_rl.trainer.compact_adamw import MOMENTS, code_book, nearest_codes, stochastic_bfloat16
from swe_rl.trainer.optimizer import Optimizer
from swe_rl.trainer.trainer import TrainerError

LR, DECAY, BETAS, STEPS = 1e-2, 0.01, (0.9, 0.999), 20
COMPACT = (OptimizerState.bfloat16, OptimizerState.int8)


def pair(kind, shape=(24, 300)):
    torch.manual_seed(0)
    model = torch.nn.Linear(shape[1], shape[0])
    return model, Optimizer(model, lr=LR, weight_decay=DECAY, betas=BETAS, grad_clip=0.0, kind=kind)


def gradient(shape, step):
    """Sizes that differ by decades within a block, as those of a model do."""
    generator = np.random.default_rng(step)
    sizes = 10.0 ** np.random.default_rng(99).uniform(-4, 0, shape)
    return ((generator.standard_normal(shape) + 0.5) * sizes).astype(np.float32)


def update(model, optimizer, steps):
    for step in steps:
        for param in model.parameters():
            param.grad = torch.from_numpy(gradient(tuple(param.shape), step))
        optimizer.apply(LR)


def adamw_in_numpy(weight):
    """Float64, by the formula (Loshchilov and Hutter 2019)."""
    mean, square, weight = np.zeros(weight.shape), np.zeros(weight.shape), weight.astype(np.float64)
    for step in range(1, STEPS + 1):
        g = gradient(weight.shape, step).astype(np.float64)
        mean = BETAS[0] * mean + (1 - BETAS[0]) * g
        square = BETAS[1] * square + (1 - BETAS[1]) * g * g
        size = np.sqrt(square / (1 - BETAS[1] ** step)) + 1e-8
        weight = weight * (1 - LR * DECAY) - LR * mean / (1 - BETAS[0] ** step) / size
    return weight


@pytest.mark.parametrize(
    ("kind", "tolerance"),
    [(OptimizerState.float32, 1e-5), (OptimizerState.bfloat16, 0.01), (OptimizerState.int8, 0.35)],
)
def test_it_is_adamw_within_the_bits_of_its_state(kind, tolerance):
    """Distance of the weights from NumPy's, in parts of the way that they went; vectors are exact."""
    model, optimizer = pair(kind)
    starts = [param.detach().numpy().copy() for param in model.parameters()]
    update(model, optimizer, range(1, STEPS + 1))
    for start, param in zip(starts, model.parameters(), strict=True):
        expected = adamw_in_numpy(start)
        off = np.linalg.norm(param.detach().numpy() - expected) / np.linalg.norm(expected - start)
        assert off < (tolerance if param.ndim > 1 else 1e-5)
        if kind is not OptimizerState.float32 and param.ndim > 1:
            assert off > 1e-5  # it does rest in fewer bits


@pytest.mark.parametrize("kind", COMPACT)
def test_it_goes_on_from_its_state_to_the_bit(kind):
    model, optimizer = pair(kind)
    update(model, optimizer, range(1, 4))
    state = {name: tensor.clone() for name, tensor in optimizer.state_tensors().items()}
    other_model, other = pair(kind)
    other_model.load_state_dict(model.state_dict())
    load(other, state)
    update(model, optimizer, range(4, 7))
    update(other_model, other, range(4, 7))
    assert torch.equal(model.weight, other_model.weight)
    assert optimizer.state_tensors().keys() == other.state_tensors().keys()
    for name, tensor in optimizer.state_tensors().items():
        assert torch.equal(tensor, other.state_tensors()[name]), name


def load(optimizer, state):
    optimizer.load_shards(state.keys(), lambda name, a, b: state[name][a:b] if state[name].ndim else state[name])


@pytest.mark.parametrize("there", OptimizerState)
@pytest.mark.parametrize("here", OptimizerState)
def test_moments_of_other_bits_are_refused_by_name(there, here):
    model, optimizer = pair(there)
    update(model, optimizer, [1])
    state, (_, other) = optimizer.state_tensors(), pair(here)
    if there is here:
        load(other, state)
    else:
        with pytest.raises(TrainerError, match=f"trainer.optimizer_state={here} here"):
            load(other, state)


@pytest.mark.parametrize("kind", OptimizerState)
def test_the_state_takes_the_memory_that_the_plan_gives_it(kind):
    """In the optimizer and in checkpoints; of wide rows, as those of models are, and but for the vectors."""
    model, optimizer = pair(kind, (64, 1024))
    update(model, optimizer, [1])
    held = tensor_bytes({name: one for name, one in optimizer.state_tensors().items() if name.endswith(".weight")}) - 4
    config = compose().config
    params_b = model.weight.numel() / 1e9
    config = replace(
        config,
        model=replace(config.model, params_b=params_b),
        trainer=replace(config.trainer, optimizer_state=kind),
        algo=replace(config.algo, kl_coef=0.0),
    )
    assert round(memory.trainer_gb(config) * 1e9) == held + 8 * model.weight.numel()
    assert round(memory.checkpoint_gb(config) * 1e9) == held + 4 * model.weight.numel()


def test_stochastic_rounding_is_right_on_average_where_the_nearest_would_freeze():
    values = torch.full((1, 100_000), 1.0 + 2**-10)  # an eighth of the way to the next bfloat16
    rounded = stochastic_bfloat16(values, (7, 1, 0), "exp_avg_sq").float()
    assert set(rounded.flatten().tolist()) == {1.0, 1.0 + 2**-7}
    assert float(rounded.mean()) == pytest.approx(1.0 + 2**-10, abs=1e-4)
    assert float(values.bfloat16().float().mean()) == 1.0
    parts = [stochastic_bfloat16(values[:, a:b], (7, 1, a), "exp_avg_sq") for a, b in ((0, 300), (300, 100_000))]
    assert torch.equal(torch.cat(parts, 1).float(), rounded)  # of any number of ranks
    assert not torch.equal(stochastic_bfloat16(values, (7, 2, 0), "exp_avg_sq").float(), rounded)
    assert torch.equal(stochastic_bfloat16(-values, (7, 1, 0), "exp_avg_sq").float(), -rounded)


@pytest.mark.parametrize("key", MOMENTS)
def test_codes_are_the_nearest_of_the_book(key):
    book = code_book(key)
    assert len(set(book.tolist())) == 256
    bounds = (book[1:] + book[:-1]) / 2
    beside = [torch.nextafter(bounds, torch.full_like(bounds, to)) for to in (-9.0, 9.0)]
    unit = torch.cat([book, bounds, *beside, torch.linspace(-1, 1, 9_999), torch.linspace(-1e-6, 1e-6, 9_999)])
    unit = unit if key == "exp_avg" else unit.abs()
    assert torch.equal(nearest_codes(unit, key), torch.bucketize(unit, bounds, out_int32=True))


def test_a_second_moment_is_never_rounded_to_nothing():
    """A small value beside a large one: divided by the root of 0 its momentum would throw the weight away."""
    model, optimizer = pair(OptimizerState.int8, (1, 256))
    before = model.weight.detach().clone()
    for small in (1e-6, 0.0):
        for param in model.parameters():
            param.grad = torch.full_like(param, small)
            param.grad.view(-1)[0] = 1.0
        optimizer.apply(LR)
    assert float((model.weight.detach() - before).abs().max()) < 3 * LR
