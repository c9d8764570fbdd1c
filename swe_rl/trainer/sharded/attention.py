"""Computes causal attention inside the rows of a packed sequence.

Invariants:
- A kernel never looks from one row into another, and grouped key-value heads are understood as transformers orders
  them: query head h uses key-value head h // (heads / kv_heads).
- Shapes are query [tokens, heads, head_dim], keys and values [tokens, kv_heads, head_dim]; the result is as the query.
- A kernel is checked against float32 mathematics before the first step, in result and gradients. A kernel that is
  missing here, raises, or is off by more than `TOLERANCE` is not used; all ranks of a run use the same.
- There is no contest: which kernel is faster depends on the rows' length alone (docs/engineering/benchmarks.md).
"""

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from swe_rl.files.lines import lines_of
from swe_rl.trainer.sharded.packing import Segments
from swe_rl.trainer.trainer import TrainerError

if TYPE_CHECKING:
    from swe_rl.trainer.sharded.mesh import Mesh

Kernel = Callable[[Tensor, Tensor, Tensor, Segments, float], Tensor]

# A kernel may be off by this share of the largest value: bfloat16 keeps eight bits.
TOLERANCE = 0.02
# From this average length on, torch's own attention of a row beats one call for all rows.
LONG_ROW_TOKENS = 2048
# The rows of the check are uneven and cross the borders of kernels' blocks.
_CHECKED = (160, 33, 327)


def by_row(query: Tensor, keys: Tensor, values: Tensor, segments: Segments, scale: float) -> Tensor:
    """Calls scaled_dot_product_attention, a row at a time. torch chooses the kernel: on Hopper cuDNN's, the fastest
    there.
    """
    groups = query.shape[1] // keys.shape[1]
    # On a CPU only equal numbers of heads take the fused kernel.
    if query.device.type == "cpu" and groups > 1:
        keys = keys.repeat_interleave(groups, 1)
        values = values.repeat_interleave(groups, 1)
    parts = zip(
        *(x.transpose(0, 1).unsqueeze(0).split(segments.lengths, 2) for x in (query, keys, values)), strict=True
    )
    grouped = query.shape[1] != keys.shape[1]
    rows = [
        functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)
        for q, k, v in parts
    ]
    if len(rows) == 1:
        joined = rows[0]
    else:
        joined = torch.cat(rows, 2)
    return joined[0].transpose(0, 1)


def varlen_attention(query: Tensor, keys: Tensor, values: Tensor, segments: Segments, scale: float) -> Tensor:
    """Calls torch.nn.attention.varlen: all rows in one FlashAttention call."""
    from torch.nn.attention.varlen import varlen_attn

    # The options differ from 2.11 to 2.13; a kernel that needed one which is missing fails the check below.
    known = inspect.signature(varlen_attn).parameters
    wanted: dict[str, Any] = {"window_size": (-1, 0), "enable_gqa": True, "scale": scale}
    options = {name: value for name, value in wanted.items() if name in known}
    starts = segments.starts
    longest = segments.longest
    out = varlen_attn(
        query.contiguous(), keys.contiguous(), values.contiguous(), starts, starts, longest, longest, **options
    )
    # A pair comes only where auxiliary results are asked for.
    assert isinstance(out, Tensor)
    return out


def flash_attn(query: Tensor, keys: Tensor, values: Tensor, segments: Segments, scale: float) -> Tensor:
    """Calls the flash-attn package, where it is installed."""
    attend = _flash_attn_package()
    starts = segments.starts
    longest = segments.longest
    out: Any = attend(query, keys, values, starts, starts, longest, longest, softmax_scale=scale, causal=True)
    if isinstance(out, tuple):
        result: Tensor = out[0]
    else:
        result = out
    return result


KERNELS: dict[str, Kernel] = {"by_row": by_row, "varlen": varlen_attention, "flash_attn": flash_attn}


def by_length(query: Tensor, keys: Tensor, values: Tensor, segments: Segments, scale: float) -> Tensor:
    """Calls `by_row` for long rows, `varlen_attention` for short ones: 512 tokens a row take it 0.3 to 0.65 of the
    other's time.
    """
    long = segments.total >= LONG_ROW_TOKENS * len(segments.lengths)
    return (by_row if long else varlen_attention)(query, keys, values, segments, scale)


def choose_kernel(mesh: "Mesh", shape: tuple[int, int, int], dtype: torch.dtype, name: str = "auto") -> Kernel:
    """Returns the kernel that `trainer.attention` names, for heads, kv_heads and head_dim of one rank.

    Raises TrainerError where it is missing or wrong here. `auto` is `by_row` on a CPU and where `varlen_attention` is
    out.
    """
    if name == "auto" and mesh.device.type == "cpu":
        return by_row
    if name == "auto":
        if _kernel_problem(mesh, "varlen", shape, dtype):
            kernel: Kernel = by_row
        else:
            kernel = by_length
        name = "by_row"
    elif name in KERNELS:
        kernel = KERNELS[name]
    else:
        raise TrainerError(f"trainer.attention={name}: there is no such kernel; there are auto, {', '.join(KERNELS)}.")
    if problem := _kernel_problem(mesh, name, shape, dtype):
        heads, kv_heads, head_dim = shape
        raise TrainerError(
            f"The attention kernel {name} does not compute {heads} heads ({kv_heads} for keys) of {head_dim} in "
            f"{dtype} on {mesh.device}: {problem}. Choose another with trainer.attention, or update torch."
        )
    return kernel


def _kernel_problem(mesh: "Mesh", name: str, shape: tuple[int, int, int], dtype: torch.dtype) -> str | None:
    """Returns why this kernel is out on this rank or on another, or None."""
    try:
        problem = _kernel_difference(KERNELS[name], shape, dtype, mesh.device)
    # torch raises whatever its back ends raise: not installed, not supported, out of memory.
    except Exception as error:
        reason = lines_of(str(error).strip(), ends=False) or [type(error).__name__]
        problem = reason[0][:200]
    # All ranks have to come to the same verdict, as a run whose ranks use two kernels would mix their rounding.
    somewhere = float(mesh.maximum(torch.tensor([float(problem is not None)], device=mesh.device)))
    return problem or ("it is out on another rank" if somewhere else None)


def _kernel_difference(
    kernel: Kernel, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device
) -> str | None:
    segments, inputs = _random_inputs(shape, dtype, device)
    got = _run_kernel(kernel, inputs, segments)
    cpu = Segments(segments.lengths, segments.starts.cpu())
    expected = _run_kernel(by_row, [x.detach().float().cpu().requires_grad_() for x in inputs], cpu)
    for what, mine, reference in zip(("result", "d query", "d keys", "d values"), got, expected, strict=True):
        error = float((mine.float().cpu() - reference).abs().max() / reference.abs().max())
        # The negation also catches NaN.
        if not error < TOLERANCE:
            return f"its {what} is off by {error:.3g} of the largest value"
    return None


def _run_kernel(kernel: Kernel, inputs: Sequence[Tensor], segments: Segments) -> list[Tensor]:
    query, keys, values = inputs
    out = kernel(query, keys, values, segments, query.shape[-1] ** -0.5)
    # The weights differ by place, so that a kernel that permutes its results gives other gradients.
    weights = torch.linspace(-1.0, 1.0, out.numel(), device=out.device).view_as(out).to(out.dtype)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), list(inputs))]


def _random_inputs(
    shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device
) -> tuple[Segments, list[Tensor]]:
    heads, kv_heads, head_dim = shape
    generator = torch.Generator(device).manual_seed(0)
    segments = Segments(_CHECKED, torch.tensor([0, *_CHECKED]).cumsum(0).to(device=device, dtype=torch.int32))

    def random(count: int) -> Tensor:
        values = torch.randn(segments.total, count, head_dim, generator=generator, device=device)
        return values.to(dtype).requires_grad_()

    return segments, [random(heads), random(kv_heads), random(kv_heads)]


def without_cudnn(device: torch.device) -> bool:
    """Switches cuDNN's kernels off for torch's own attention in this process. Returns False if they already were.

    Their backward pass has given gradients that are not finite from finite inputs (pytorch/pytorch issue 196678,
    huggingface/trl issue 7181), and never always: for some lengths, at some values. They are the fastest on Hopper, so
    they stay until they are seen to fail.
    """
    if device.type != "cuda" or not torch.backends.cuda.cudnn_sdp_enabled():
        return False
    torch.backends.cuda.enable_cudnn_sdp(False)
    return True


def again_without_cudnn(device: torch.device, passes: Callable[[], object]) -> bool:
    """Runs the passes of an update once more, where they may give another gradient now; says whether it did."""
    if not without_cudnn(device):
        return False
    passes()
    return True


@lru_cache(maxsize=1)
def attention_operators() -> list[Any]:
    """Returns torch's operators behind the kernels, as far as this version has them."""
    names = (
        ("aten", "_flash_attention_forward"),
        ("aten", "_cudnn_attention_forward"),
        ("aten", "_scaled_dot_product_flash_attention"),
        ("aten", "_scaled_dot_product_flash_attention_for_cpu"),
        ("aten", "_scaled_dot_product_efficient_attention"),
        ("aten", "_scaled_dot_product_cudnn_attention"),
        ("torch_attn", "_varlen_attn"),
        ("flash_attn", "_flash_attn_varlen_forward"),
    )
    with suppress(ImportError):
        import torch.nn.attention.varlen  # noqa: F401 - registers its operator
    packets = (getattr(getattr(torch.ops, space), name, None) for space, name in names)
    return [packet.default for packet in packets if packet is not None]


@lru_cache(maxsize=1)
def _flash_attn_package() -> Callable[..., Any]:
    try:
        from flash_attn_interface import flash_attn_varlen_func  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        from flash_attn import flash_attn_varlen_func  # type: ignore[import-not-found, unused-ignore]
    function: Callable[..., Any] = flash_attn_varlen_func
    return function
