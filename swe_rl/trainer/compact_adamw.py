"""AdamW whose two moments rest in fewer bits than float32: bfloat16, or 8 bits with a scale for each block.

Invariants:
- Weights, gradients and the arithmetic are float32: a moment is widened, updated, used, and only then narrowed again.
- What a value rests as depends on its parameter's name, its place in the whole tensor, the step and itself: it is the
  same on any number of ranks, and after a resume. A block never crosses a row, as ranks share tensors by rows.
- Vectors and scalars (norms, biases) stay float32: next to no memory, and a row of one value is no block.
- `PART_VALUES` values at a time are widened, so the temporary copies do not grow with the tensor.

Why not torchao 0.18: its bfloat16 is of the weights alone, its 8 bits change with the number of ranks (a shard whose
size is no multiple of 256 stays float32), and each step goes through torch.compile, so a CPU needs a C compiler.
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

BLOCK_VALUES = 256
PART_VALUES = 2**18
MOMENTS = ("exp_avg", "exp_avg_sq")
SCALES = {key: f"{key}_scale" for key in MOMENTS}
_EPS = 1e-8  # as torch's AdamW has it


class CompactAdamW(torch.optim.Optimizer):
    """`names` of all parameters, which choose the bits of stochastic rounding."""

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
        step, (beta1, beta2), lr = int(state["step"]), group["betas"], group["lr"]
        assert param.grad is not None
        locals_ = {key: _rows(local_shard(value)) for key, value in state.items() if key != "step"}
        weights, gradients = _rows(local_shard(param)), _rows(local_shard(param.grad))
        first_row, width = shard_range(param)[0] if param.ndim else 0, max(1, weights.shape[1])
        for start in range(0, len(weights), many := max(1, PART_VALUES // width)):
            rows = slice(start, start + many)
            salt = (self._salts[param], step, (first_row + start) * width)
            part = {key: value[rows] for key, value in locals_.items()}
            weight, gradient = weights[rows], gradients[rows].float()
            mean = widened(part, "exp_avg").lerp_(gradient, 1 - beta1)
            square = widened(part, "exp_avg_sq").mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            scale = math.sqrt(1 - beta2**step)
            weight.mul_(1 - lr * group["weight_decay"])
            weight.addcdiv_(mean, (square.sqrt() / scale).add_(_EPS), value=-lr / (1 - beta1**step))
            narrow(mean, part, "exp_avg", salt)
            narrow(square, part, "exp_avg_sq", salt)


def fresh_state(param: Tensor, kind: OptimizerState) -> dict[str, Tensor]:
    """Both moments before the first update, spread over the ranks as their parameter is."""
    if kind is OptimizerState.float32 or param.ndim < 2:
        return {key: torch.zeros_like(param, requires_grad=False) for key in MOMENTS}
    if kind is OptimizerState.bfloat16:
        return {key: torch.zeros_like(param, requires_grad=False, dtype=torch.bfloat16) for key in MOMENTS}
    state = {key: torch.zeros_like(param, requires_grad=False, dtype=torch.uint8) for key in MOMENTS}
    for key, codes in state.items():
        local_shard(codes).fill_(int(torch.searchsorted(code_book(key), 0.0)))
    return state | {SCALES[key]: _scales_like(param) for key in MOMENTS}


def state_keys(param: Tensor, kind: OptimizerState) -> tuple[str, ...]:
    scaled = kind is OptimizerState.int8 and param.ndim >= 2
    return (*MOMENTS, *SCALES.values()) if scaled else MOMENTS


def _scales_like(param: Tensor) -> Tensor:
    local = local_shard(param)
    blocks = -(-math.prod(param.shape[1:]) // BLOCK_VALUES)
    scales = torch.zeros(local.shape[0], blocks, device=local.device)
    if not is_sharded(param):
        return scales
    from torch.distributed.tensor import DTensor

    sharded: Any = param
    shape, stride = torch.Size((param.shape[0], blocks)), (blocks, 1)
    spread: Tensor = DTensor.from_local(
        scales, sharded.device_mesh, sharded.placements, run_check=False, shape=shape, stride=stride
    )
    return spread.to(param.device)  # from_local moves it to the mesh's device; offloaded parameters are elsewhere


def widened(part: Mapping[str, Tensor], key: str) -> Tensor:
    """A moment in float32, a copy."""
    values = part[key]
    if values.dtype is not torch.uint8:
        return values.to(torch.float32, copy=True)
    scales = part[SCALES[key]].repeat_interleave(BLOCK_VALUES, 1)[:, : values.shape[1]]
    return code_book(key).to(values.device)[values.int()].mul_(scales)


def narrow(values: Tensor, part: Mapping[str, Tensor], key: str, salt: tuple[int, int, int]) -> None:
    """Into the tensors that keep it."""
    kept = part[key]
    if kept.dtype is torch.bfloat16:
        kept.copy_(stochastic_bfloat16(values, salt, key))
    elif kept.dtype is torch.uint8:
        _quantize(values, kept, part[SCALES[key]], key)
    else:
        kept.copy_(values)


def stochastic_bfloat16(values: Tensor, salt: tuple[int, int, int], key: str) -> Tensor:
    """Up with the probability of what lies above the lower neighbour, so that it is right on average.

    Rounding to nearest would freeze the second moment: bfloat16 keeps 8 bits, so neighbours lie 2**-8 to 2**-7 apart,
    and with beta2=0.999 a step moves it by 0.001 of itself at most when it falls. It would never fall again, and
    AdamW's steps would stay as small as after the largest gradient ever seen.
    """
    name, step, first = salt
    stream = zlib.crc32(f"{name} {step} {key}".encode())
    raw = values.contiguous().view(torch.int32).flatten()
    bits = _noise((first + stream) & 0xFFFFFFFF, values.numel(), values.device).bitwise_and_(0xFFFF)
    return bits.add_(raw).bitwise_and_(~0xFFFF).view(torch.float32).view_as(values).bfloat16()


def _noise(first: int, count: int, device: torch.device) -> Tensor:
    """An integer of 32 bits for each of `first`, `first` + 1, ..., which looks random (T. Mueller's integer hash)."""
    signed = first - 2**32 if first >= 2**31 else first
    values = torch.arange(count, dtype=torch.int32, device=device).add_(signed)  # wraps, as the products do
    for _ in range(2):
        values.bitwise_xor_(values.bitwise_right_shift(16).bitwise_and_(0xFFFF)).mul_(0x45D9F3B)
    return values.bitwise_xor_(values.bitwise_right_shift(16))


def _quantize(values: Tensor, codes: Tensor, scales: Tensor, key: str) -> None:
    """Each block over its largest size, as the nearest of the code book's 256 numbers.

    The second moment is never rounded down to 0: what is divided by its root would be thrown out of all bounds.
    """
    width = values.shape[1]
    blocks = nn.functional.pad(values, (0, -width % BLOCK_VALUES)).unflatten(1, (-1, BLOCK_VALUES))
    scales.copy_(blocks.abs().amax(-1))
    unit = blocks / scales.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(-1)
    nearest = nearest_codes(unit, key)
    if key == "exp_avg_sq":
        nearest = torch.where(unit > 0, nearest.clamp(min=1), nearest)
    codes.copy_(nearest.flatten(1)[:, :width])


def nearest_codes(unit: Tensor, key: str) -> Tensor:
    """As `torch.bucketize` between the book's numbers, nine times faster on a CPU: the upper 16 bits of a value leave
    two neighbours, as no two bounds of the book share them.
    """
    bounds, lowest = (table.to(unit.device) for table in _code_tables(key))
    code = lowest[unit.view(torch.int32).bitwise_right_shift(16).bitwise_and_(0xFFFF)]
    return code.add_(unit > bounds[code])


@cache
def _code_tables(key: str) -> tuple[Tensor, Tensor]:
    """What lies between two codes, with infinity behind; and for each upper half of a float32 the code of its least."""
    book = code_book(key)
    bounds = torch.cat([(book[1:] + book[:-1]) / 2, torch.tensor([math.inf])])
    upper = torch.arange(2**16, dtype=torch.int32)
    raw = torch.where(upper >= 2**15, (upper << 16) | 0xFFFF, upper << 16)
    return bounds, torch.bucketize(raw.view(torch.float32).nan_to_num(), bounds[:-1], out_int32=True)


@cache
def code_book(key: str) -> Tensor:
    """256 numbers in order, dense near 0: dynamic quantization (Dettmers et al. 2022, arXiv:2110.02861, section 1.3).

    Seven decades below 1, the i-th from the bottom in 2**i equal parts of either sign; without a sign (the second
    moment) in twice as many. Besides, 0 and 1.
    """
    signed = key == "exp_avg"
    book = [0.0, 1.0]
    for decade in range(7):
        count = 2**decade * (1 if signed else 2)
        values = [(0.1 + 0.9 * (part + 0.5) / count) * 10.0 ** (decade - 6) for part in range(count)]
        book += values + ([-value for value in values] if signed else [])
    return torch.tensor(sorted(book), dtype=torch.float32)


def _rows(local: Tensor) -> Tensor:
    """[rows, values of a row], a view. A rank may have no row: of a critic's head, which has one, the first has it."""
    return local.view(-1, 1) if local.ndim < 2 else local.view(local.shape[0], math.prod(local.shape[1:]))
