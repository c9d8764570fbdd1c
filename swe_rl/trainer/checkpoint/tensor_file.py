"""Writes the safetensors format as a stream, and knows how a Hugging Face folder names its files.

Invariants:
- There is no pickle, and no second copy of the model, or of a tensor: `CHUNK_BYTES` at a time go to the host.
- Any safetensors reader can read the file.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# A Hugging Face folder has these names: the index where the weights are in several files, or the one file.
INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
# A chunk of 16 MiB keeps the copy from a GPU near its full speed, and the host's share of memory negligible.
CHUNK_BYTES = 16 * 2**20
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
# These are attributes of torch.
TYPES = {code: str(dtype).removeprefix("torch.") for dtype, code in DTYPES.items()}


def tensor_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Returns the size of the data in bytes, without the header."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def part_name(number: int, count: int) -> str:
    """Returns the name of the `number`-th of `count` files, counted from 1."""
    return f"model-{number:05d}-of-{count:05d}.safetensors"


def index_content(files: Mapping[str, str], size_bytes: int) -> bytes:
    """Returns the JSON that says which file has which tensor. `size_bytes` is the size of all of them."""
    return json.dumps({"metadata": {"total_size": size_bytes}, "weight_map": dict(files)}, indent=1).encode()


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes a file that need not outlive this machine: it is not synced. Raises OSError."""
    with path.open("xb") as file:
        file.writelines(safetensors_chunks(tensors))


def safetensors_chunks(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """Yields the file's bytes: 8 bytes of header length, the JSON header padded to 8 bytes, then the data in order."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for tensor in tensors.values():
        yield from (_bytes_of(part) for part in _iter_chunks(tensor.detach()))


def _iter_chunks(tensor: Tensor) -> Iterator[Tensor]:
    """Yields a tensor's elements in order, flat, at most a chunk at a time, as views wherever that is possible."""
    if tensor.is_contiguous():
        yield from tensor.reshape(-1).split(max(1, CHUNK_BYTES // tensor.element_size()))
    elif tensor.numel() * tensor.element_size() <= CHUNK_BYTES:
        yield tensor.contiguous().reshape(-1)
    else:
        for row in tensor:
            yield from _iter_chunks(row)


def _bytes_of(flat: Tensor) -> memoryview:
    array: Any = flat.to("cpu").view(torch.uint8).numpy()
    return memoryview(array)
