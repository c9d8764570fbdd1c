"""The module is an AdamW whose two moments rest in fewer bits than float32: bfloat16, or 8 bits with scales by block.

Invariants:
- Weights, gradients and the arithmetic are float32: a moment is widened, updated, used, and only then narrowed again.
- What a value rests as depends on its parameter's name, its place in the whole tensor, the step and itself: it is the
  same on any number of ranks, and after a resume. A block never crosses a row, as ranks share tensors by rows.
- Vectors and scalars (norms, biases) stay float32: next to no memory, and a row of one value is no block.
- `PART_VALUES` values at a time are widened, so the temporary copies do not grow with the tensor.

torchao 0.18 does not do: its bfloat16 is of the weights alone, its 8 bits change with the number of ranks (a shard
whose size is no multiple of 256 stays float32), and each step goes through torch.compile, so a CPU needs a C compiler.
"""

import math
import zlib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from swe_rl.config.choices import OptimizerState
from swe_rl.trainer.sharded.mesh import is_sharded, local_shard, shard_range

# A block of 256 values shares one scale, as in Dettmers et al. 2022 with smaller blocks: a float32 scale then costs
# 1/64 of the codes, and one large value spoils few others.
BLOCK_VALUES = 256
# This many values are widened at once: 1 MiB of float32 a moment, instead of a copy of the whole tensor.
PART_VALUES = 2**18
MOMENTS = ("exp_avg", "exp_avg_sq")
SCALES = {key: f"{key}_scale" for key in MOMENTS}
# AdamW of torch adds the same 1e-8, so that both optimizers take the same steps.
_EPS = 1e-8


class CompactAdamW(torch.optim.Optimizer):
    """Updates weights as torch's AdamW does, with small moments. `names` choose the bits of stochastic rounding."""

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        names: Mapping[Tensor, str],
        kind: OptimizerState,
        *,
        lr: float,
        weight_decay: float,
        betas: tuple[float, float],
    ) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay, "betas": betas})
        self._kind = kind
        self._salts = {param: zlib.crc32(name.encode()) for param, name in names.items()}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    state = self.state[param]
                    if not state:
                        state.update(fresh_state(param, self._kind), step=torch.tensor(0.0))
                    state["step"] += 1
                    self._update(param, state, group)

    def _update(self, param: Tensor, state: Mapping[str, Tensor], group: Mapping[str, Any]) -> None:
        step = int(state["step"])
        beta1, beta2 = group["betas"]
        lr = group["lr"]
        assert param.grad is not None
        locals_ = {key: _view_rows(local_shard(value)) for key, value in state.items() if key != "step"}
        weights = _view_rows(local_shard(param))
        gradients = _view_rows(local_shard(param.grad))
        first_row = 0
        if param.ndim:
            first_row = shard_range(param)[0]
        width = max(1, weights.shape[1])
        for start in range(0, len(weights), many := max(1, PART_VALUES // width)):
            rows = slice(start, start + many)
            salt = (self._salts[param], step, (first_row + start) * width)
            part = {key: value[rows] for key, value in locals_.items()}
            weight = weights[rows]
            gradient = gradients[rows].float()
            mean = widen_moment(part, "exp_avg").lerp_(gradient, 1 - beta1)
            square = widen_moment(part, "exp_avg_sq").mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            scale = math.sqrt(1 - beta2**step)
            weight.mul_(1 - lr * group["weight_decay"])
            weight.addcdiv_(mean, (square.sqrt() / scale).add_(_EPS), value=-lr / (1 - beta1**step))
            narrow_moment(mean, part, "exp_avg", salt)
            narrow_moment(square, part, "exp_avg_sq", salt)


def fresh_state(param: Tensor, kind: OptimizerState) -> dict[str, Tensor]:
    """Returns both moments before the first update, spread over the ranks as their parameter is."""
    if kind is OptimizerState.float32 or param.ndim < 2:
        return {key: torch.zeros_like(param, requires_grad=False) for key in MOMENTS}
    if kind is OptimizerState.bfloat16:
        return {key: torch.zeros_like(param, requires_grad=False, dtype=torch.bfloat16) for key in MOMENTS}
    state = {key: torch.zeros_like(param, requires_grad=False, dtype=torch.uint8) for key in MOMENTS}
    for key, codes in state.items():
        # The code of 0.0 is not 0: the book is sorted, and its negative numbers come first.
        local_shard(codes).fill_(int(torch.searchsorted(code_book(key), 0.0)))
    return state | {SCALES[key]: _scales_like(param) for key in MOMENTS}


def state_keys(param: Tensor, kind: OptimizerState) -> tuple[str, ...]:
    scaled = kind is OptimizerState.int8 and param.ndim >= 2
    if scaled:
        return (*MOMENTS, *SCALES.values())
    return MOMENTS


def _scales_like(param: Tensor) -> Tensor:
    local = local_shard(param)
    blocks = -(-math.prod(param.shape[1:]) // BLOCK_VALUES)
    scales = torch.zeros(local.shape[0], blocks, device=local.device)
    if not is_sharded(param):
        return scales
    from torch.distributed.tensor import DTensor

    sharded: Any = param
    shape = torch.Size((param.shape[0], blocks))
    stride = (blocks, 1)
    spread: Tensor = DTensor.from_local(
        scales, sharded.device_mesh, sharded.placements, run_check=False, shape=shape, stride=stride
    )
    # `from_local` moves the scales to the mesh's device, but offloaded parameters are elsewhere.
    return spread.to(param.device)


def widen_moment(part: Mapping[str, Tensor], key: str) -> Tensor:
    """Returns a copy of a moment in float32."""
    values = part[key]
    if values.dtype is not torch.uint8:
        return values.to(torch.float32, copy=True)
    scales = part[SCALES[key]].repeat_interleave(BLOCK_VALUES, 1)[:, : values.shape[1]]
    return code_book(key).to(values.device)[values.int()].mul_(scales)


def narrow_moment(values: Tensor, part: Mapping[str, Tensor], key: str, salt: tuple[int, int, int]) -> None:
    """Writes a moment's float32 `values` into the tensors that keep it."""
    kept = part[key]
    if kept.dtype is torch.bfloat16:
        kept.copy_(stochastic_bfloat16(values, salt, key))
    elif kept.dtype is torch.uint8:
        _quantize_blocks(values, kept, part[SCALES[key]], key)
    else:
        kept.copy_(values)


def stochastic_bfloat16(values: Tensor, salt: tuple[int, int, int], key: str) -> Tensor:
    """Rounds up with the probability of what lies above the lower neighbour, so that it is right on average.

    Rounding to nearest would freeze the second moment: bfloat16 keeps 8 bits, so neighbours lie 2**-8 to 2**-7 apart,
    and with beta2=0.999 a step moves it by 0.001 of itself at most when it falls. It would never fall again, and
    AdamW's steps would stay as small as after the largest gradient ever seen.
    """
    name, step, first = salt
    stream = zlib.crc32(f"{name} {step} {key}".encode())
    raw = values.contiguous().view(torch.int32).flatten()
    # The noise fills the 16 bits that bfloat16 drops. Their sum carries into the kept bits as often as the dropped part
    # says, so the rounding costs one addition and no division.
    bits = _hash_noise((first + stream) & 0xFFFFFFFF, values.numel(), values.device).bitwise_and_(0xFFFF)
    return bits.add_(raw).bitwise_and_(~0xFFFF).view(torch.float32).view_as(values).bfloat16()


def _hash_noise(first: int, count: int, device: torch.device) -> Tensor:
    """Returns a random-looking integer of 32 bits for each of `first`, `first` + 1, ... (T. Mueller's integer hash)."""
    if first >= 2**31:
        signed = first - 2**32
    else:
        signed = first
    # The addition wraps, as the products do.
    values = torch.arange(count, dtype=torch.int32, device=device).add_(signed)
    for _ in range(2):
        values.bitwise_xor_(values.bitwise_right_shift(16).bitwise_and_(0xFFFF)).mul_(0x45D9F3B)
    return values.bitwise_xor_(values.bitwise_right_shift(16))


def _quantize_blocks(values: Tensor, codes: Tensor, scales: Tensor, key: str) -> None:
    """Writes each block over its largest size, as the nearest of the code book's 256 numbers.

    The second moment is never rounded down to 0: what is divided by its root would be thrown out of all bounds.
    """
    width = values.shape[1]
    blocks = nn.functional.pad(values, (0, -width % BLOCK_VALUES)).unflatten(1, (-1, BLOCK_VALUES))
    scales.copy_(blocks.abs().amax(-1))
    # A block of zeros has the scale 0. The smallest float32 in its place keeps the division from giving NaN.
    unit = blocks / scales.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(-1)
    nearest = nearest_codes(unit, key)
    if key == "exp_avg_sq":
        nearest = torch.where(unit > 0, nearest.clamp(min=1), nearest)
    codes.copy_(nearest.flatten(1)[:, :width])


def nearest_codes(unit: Tensor, key: str) -> Tensor:
    """Returns what `torch.bucketize` gives between the book's numbers, nine times faster on a CPU.

    The upper 16 bits of a value leave two neighbours, as no two bounds of the book share them.
    """
    bounds, lowest = (table.to(unit.device) for table in _code_tables(key))
    code = lowest[unit.view(torch.int32).bitwise_right_shift(16).bitwise_and_(0xFFFF)]
    return code.add_(unit > bounds[code])


@cache
def _code_tables(key: str) -> tuple[Tensor, Tensor]:
    """Returns the bounds between codes, with infinity at the end, and the lowest code of each float32's upper half."""
    book = code_book(key)
    bounds = torch.cat([(book[1:] + book[:-1]) / 2, torch.tensor([math.inf])])
    upper = torch.arange(2**16, dtype=torch.int32)
    raw = torch.where(upper >= 2**15, (upper << 16) | 0xFFFF, upper << 16)
    return bounds, torch.bucketize(raw.view(torch.float32).nan_to_num(), bounds[:-1], out_int32=True)


@cache
def code_book(key: str) -> Tensor:
    """Returns 256 numbers in order, dense near 0: dynamic quantization (Dettmers et al. 2022, arXiv:2110.02861, section
    1.3).

    Seven decades lie below 1. The i-th from the bottom has 2**i equal parts of either sign; without a sign (the second
    moment) it has twice as many. 0 and 1 come on top.
    """
    signed = key == "exp_avg"
    book = [0.0, 1.0]
    for decade in range(7):
        count = 2**decade * (1 if signed else 2)
        values = [(0.1 + 0.9 * (part + 0.5) / count) * 10.0 ** (decade - 6) for part in range(count)]
        book += values + ([-value for value in values] if signed else [])
    return torch.tensor(sorted(book), dtype=torch.float32)


def _view_rows(local: Tensor) -> Tensor:
    """Returns a view [rows, values of a row]. A rank may have no row: a critic's head has one, which is the first
    rank's.
    """
    if local.ndim < 2:
        return local.view(-1, 1)
    return local.view(local.shape[0], math.prod(local.shape[1:]))
