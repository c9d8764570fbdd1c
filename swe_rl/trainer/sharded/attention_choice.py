"""The choice of the attention kernel: every candidate is checked against float32 mathematics and timed.

Invariants:
- All ranks take the same kernel: their times are joined (the slowest rank counts) before one is chosen.
- A candidate that raises, gives non-finite values, or differs from the reference by more than `TOLERANCE` in result
  or gradient is out. On a CPU, and with one candidate, nothing is timed.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from swe_rl.trainer.protocol import TrainerError
from swe_rl.trainer.sharded.attention import Kernel, by_row, candidates
from swe_rl.trainer.sharded.mesh import Mesh
from swe_rl.trainer.sharded.packing import Segments

TOLERANCE = 0.02  # of the largest value: bfloat16 keeps eight bits
_CHECKED = (160, 33, 327)  # rows of the check: uneven, across block borders
_REPEATS = 3


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one forward and backward pass; infinite where the kernel is out, for the reason given."""

    name: str
    seconds: float
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    name: str
    kernel: Kernel
    timings: tuple[Timing, ...]


def choose(
    mesh: Mesh,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    rows: Sequence[int] = (8192,),
    only: str | None = None,
    without: Sequence[str] = ("flex",),
) -> Choice:
    """The fastest correct kernel for packed `rows` of so many heads on one rank. Raises TrainerError where none is.

    `only` names the one to take, still checked. `flex` is left out unless asked for: it compiles for half a minute.
    """
    known = {n: k for n, k in candidates(mesh.device).items() if (n == only if only else n not in without)}
    if len(known) == 1 and only is None:
        ((name, kernel),) = known.items()
        return Choice(name, kernel, ())
    shape = (heads, kv_heads, head_dim)
    timings = [_measured(name, kernel, shape, dtype, rows, mesh.device) for name, kernel in known.items()]
    slowest = mesh.maximum(torch.tensor([t.seconds for t in timings], device=mesh.device)).tolist()
    ranked = sorted(zip(slowest, range(len(slowest)), strict=True))
    if not ranked or ranked[0][0] == float("inf"):
        reasons = "; ".join(f"{t.name}: {t.problem}" for t in timings) or f"there is none named {only}"
        raise TrainerError(
            f"No attention kernel computes {heads} heads ({kv_heads} for keys) of {head_dim} in {dtype} on "
            f"{mesh.device}: {reasons}. Choose another with trainer.attention, or update torch."
        )
    best = timings[ranked[0][1]].name
    joined = (Timing(t.name, seconds, t.problem) for t, seconds in zip(timings, slowest, strict=True))
    return Choice(best, known[best], tuple(joined))


def _measured(
    name: str,
    kernel: Kernel,
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    rows: Sequence[int],
    device: torch.device,
) -> Timing:
    try:
        problem = _difference(kernel, shape, dtype, device)
        if problem:
            return Timing(name, float("inf"), problem)
        return Timing(name, _seconds(kernel, shape, dtype, rows, device))
    except Exception as error:  # torch raises whatever its back ends raise: not installed, not supported, out of memory
        reason = str(error).strip().splitlines() or [type(error).__name__]
        return Timing(name, float("inf"), reason[0][:200])


def _difference(kernel: Kernel, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> str | None:
    segments, inputs = _inputs(shape, dtype, _CHECKED, device)
    got = _run(kernel, inputs, segments)
    cpu = Segments(segments.lengths, segments.starts.cpu())
    expected = _run(by_row, [x.detach().float().cpu().requires_grad_() for x in inputs], cpu)
    for what, mine, reference in zip(("result", "d query", "d keys", "d values"), got, expected, strict=True):
        error = float((mine.float().cpu() - reference).abs().max() / reference.abs().max())
        if not error < TOLERANCE:  # also catches NaN
            return f"its {what} is off by {error:.3g} of the largest value"
    return None


def _seconds(
    kernel: Kernel, shape: tuple[int, int, int], dtype: torch.dtype, rows: Sequence[int], device: torch.device
) -> float:
    segments, inputs = _inputs(shape, dtype, rows, device)
    best = float("inf")
    for _ in range(_REPEATS):
        _wait(device)
        start = time.perf_counter()
        _run(kernel, inputs, segments)
        _wait(device)
        best = min(best, time.perf_counter() - start)
    return best


def _run(kernel: Kernel, inputs: Sequence[Tensor], segments: Segments) -> list[Tensor]:
    query, keys, values = inputs
    out = kernel(query, keys, values, segments, query.shape[-1] ** -0.5)
    weights = torch.linspace(-1.0, 1.0, out.numel(), device=out.device).view_as(out).to(out.dtype)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), list(inputs))]


def _inputs(
    shape: tuple[int, int, int], dtype: torch.dtype, rows: Sequence[int], device: torch.device
) -> tuple[Segments, list[Tensor]]:
    heads, kv_heads, head_dim = shape
    generator = torch.Generator(device).manual_seed(0)
    starts = torch.tensor([0, *rows]).cumsum(0).to(device=device, dtype=torch.int32)
    segments = Segments(tuple(rows), starts)

    def random(count: int) -> Tensor:
        values = torch.randn(segments.total, count, head_dim, generator=generator, device=device)
        return values.to(dtype).requires_grad_()

    return segments, [random(heads), random(kv_heads), random(kv_heads)]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
