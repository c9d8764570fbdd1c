"""Causal attention inside the rows of a packed sequence, by whatever this machine computes fastest.

Invariants:
- A kernel never looks from one row into another, and grouped key-value heads are understood as transformers orders
  them: query head h uses key-value head h // (heads / kv_heads).
- Shapes: query [tokens, heads, head_dim], keys and values [tokens, kv_heads, head_dim]; result as the query.
- A kernel that is missing here, refuses, or is inexact is never chosen; the first of `candidates` needs nothing.
"""

import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from swe_rl.trainer.sharded.packing import Segments

Kernel = Callable[[Tensor, Tensor, Tensor, Segments, float], Tensor]


def by_row(query: Tensor, keys: Tensor, values: Tensor, segments: Segments, scale: float) -> Tensor:
    """scaled_dot_product_attention, a row at a time; torch chooses the kernel."""
    groups = query.shape[1] // keys.shape[1]
    if query.device.type == "cpu" and groups > 1:  # there, only equal numbers of heads take the fused kernel
        keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
    parts = zip(
        *(x.transpose(0, 1).unsqueeze(0).split(segments.lengths, 2) for x in (query, keys, values)), strict=True
    )
    grouped = query.shape[1] != keys.shape[1]
    rows = [
        functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)
        for q, k, v in parts
    ]
    joined = rows[0] if len(rows) == 1 else torch.cat(rows, 2)
    return joined[0].transpose(0, 1)


def by_row_cudnn(query: Tensor, keys: Tensor, values: Tensor, segments: Segments, scale: float) -> Tensor:
    """The same by cuDNN, the fastest on Hopper for long rows; it prepares itself once for every new length."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return by_row(query, keys, values, segments, scale)


def by_row_cudnn_expanded(query: Tensor, keys: Tensor, values: Tensor, segments: Segments, scale: float) -> Tensor:
    """The same with repeated key-value heads, where cuDNN does not take grouped ones."""
    groups = query.shape[1] // keys.shape[1]
    return by_row_cudnn(query, keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1), segments, scale)


def by_row_flash(query: Tensor, keys: Tensor, values: Tensor, segments: Segments, scale: float) -> Tensor:
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return by_row(query, keys, values, segments, scale)


def varlen(query: Tensor, keys: Tensor, values: Tensor, segments: Segments, scale: float) -> Tensor:
    """torch.nn.attention.varlen (2.10 and later): all rows in one FlashAttention call."""
    attend, options = _varlen_attn()
    starts, longest = segments.starts, segments.longest
    out: Tensor = attend(
        query.contiguous(), keys.contiguous(), values.contiguous(), starts, starts, longest, longest, **options(scale)
    )
    return out


def varlen_expanded(query: Tensor, keys: Tensor, values: Tensor, segments: Segments, scale: float) -> Tensor:
    groups = query.shape[1] // keys.shape[1]
    return varlen(query, keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1), segments, scale)


def flash_attn(query: Tensor, keys: Tensor, values: Tensor, segments: Segments, scale: float) -> Tensor:
    """The flash-attn package, where it is installed."""
    attend = _flash_attn_package()
    starts, longest = segments.starts, segments.longest
    out: Any = attend(query, keys, values, starts, starts, longest, longest, softmax_scale=scale, causal=True)
    result: Tensor = out[0] if isinstance(out, tuple) else out
    return result


def flex(query: Tensor, keys: Tensor, values: Tensor, segments: Segments, scale: float) -> Tensor:
    """flex_attention, compiled by Triton, with a block mask of the rows."""
    mask = _block_mask(segments)
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (query, keys, values))
    grouped = query.shape[1] != keys.shape[1]
    out: Tensor = _compiled_flex()(q, k, v, block_mask=mask, scale=scale, enable_gqa=grouped)
    return out[0].transpose(0, 1)


def candidates(device: torch.device) -> dict[str, Kernel]:
    """By name, the plain one first. On a CPU there is no other."""
    plain: dict[str, Kernel] = {"by_row": by_row}
    if device.type != "cuda":
        return plain
    return plain | {
        "flash_attn": flash_attn,
        "varlen": varlen,
        "varlen_expanded": varlen_expanded,
        "by_row_cudnn": by_row_cudnn,
        "by_row_cudnn_expanded": by_row_cudnn_expanded,
        "by_row_flash": by_row_flash,
        "flex": flex,
    }


@lru_cache(maxsize=1)
def attention_operators() -> list[Any]:
    """torch's operators behind the kernels, as far as this version has them."""
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
    found = (getattr(getattr(torch.ops, space), name, None) for space, name in names)
    return [packet.default for packet in found if packet is not None]


@lru_cache(maxsize=1)
def _varlen_attn() -> tuple[Callable[..., Any], Callable[[float], dict[str, Any]]]:
    """The function and its options, which changed from 2.10 on."""
    from torch.nn.attention.varlen import varlen_attn

    known = inspect.signature(varlen_attn).parameters
    causal: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}
    if "enable_gqa" in known:
        causal["enable_gqa"] = True
    if "scale" in known:
        return varlen_attn, lambda scale: {**causal, "scale": scale}
    return varlen_attn, lambda _: causal


@lru_cache(maxsize=1)
def _flash_attn_package() -> Callable[..., Any]:
    try:
        from flash_attn_interface import flash_attn_varlen_func  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        from flash_attn import flash_attn_varlen_func  # type: ignore[import-not-found, unused-ignore]
    found: Callable[..., Any] = flash_attn_varlen_func
    return found


@lru_cache(maxsize=1)
def _compiled_flex() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    compiled: Callable[..., Any] = torch.compile(flex_attention, dynamic=True)
    return compiled


@lru_cache(maxsize=4)
def _cached_block_mask(lengths: tuple[int, ...], device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    row = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).to(device)

    def visible(_: Tensor, __: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (row[q] == row[k]) & (q >= k)

    return torch.compile(create_block_mask)(visible, None, None, len(row), len(row), device=str(device))


def _block_mask(segments: Segments) -> Any:
    return _cached_block_mask(segments.lengths, segments.starts.device)
