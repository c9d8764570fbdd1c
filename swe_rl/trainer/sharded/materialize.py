"""Weights for a model whose parameters are sharded but still empty: each rank makes or reads its own part only.

Invariants:
- No rank ever holds a whole copy of the model, on the host or on the GPU.
- The same folder, or the same seed and number of ranks of a replica, gives the same weights.
- An adapter's own parameters begin as `adapter.start_values` says, whatever is filled in below them; a critic's head
  begins at zero.
- Safetensors only; a tensor that is missing, too many, or of another shape is refused by its name.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from swe_rl.errors import UserError
from swe_rl.model.experts import expert_parts, hub_shapes
from swe_rl.trainer.checkpoint.tensor_file import INDEX_FILE, SINGLE_FILE
from swe_rl.trainer.critic import is_value_head
from swe_rl.trainer.lora import is_adapter, plain, start_values
from swe_rl.trainer.pulse import Beat, beating, no_beat
from swe_rl.trainer.sharded.mesh import local_shard, shard_range
from swe_rl.trainer.sharded.model import ShardedModel

_STD = 0.02  # of random matrices


class WeightsError(UserError):
    """A model folder's weights are not those of the model that its configuration describes."""


def empty_model(config: Any, dtype: torch.dtype = torch.float32) -> Any:
    """A causal language model of a transformers configuration on the meta device: shapes without memory."""
    from transformers import AutoModelForCausalLM

    config.use_cache = False
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    _tie(model)  # before it is sharded: two parameters would stay two
    return model


def fill_random(model: ShardedModel, device: torch.device, *, seed: int = 0) -> None:
    """Normal matrices, norms of 1, biases of 0, made on the device; for measurements and tests."""
    _allocate(model, device)
    generator = torch.Generator(device=device).manual_seed(seed * 100_003 + model.mesh.shard_rank)
    with torch.no_grad():
        for name, parameter in _of_base(model):
            local = local_shard(parameter)
            if parameter.ndim > 1:
                local.copy_(torch.randn(local.shape, device=device, generator=generator) * _STD)
            else:
                local.fill_(0.0 if name.endswith("bias") else 1.0)
    start_values(model.causal_lm, seed)


def fill_from_folder(
    model: ShardedModel, folder: Path, device: torch.device, *, seed: int = 0, beat: Beat = no_beat
) -> None:
    """Reads each rank's rows of each tensor from the safetensors files of `folder`. Raises WeightsError.

    `seed` is that of an adapter's values.
    """
    from safetensors import SafetensorError

    _allocate(model, device)
    try:
        with ExitStack() as stack, torch.no_grad():
            files = open_files(folder, stack)
            for name, parameter in beating(_of_base(model), beat):
                _fill(files, name, parameter, folder)
            _refuse_unknown(files, model, folder)
            start_values(model.causal_lm, seed)
            for name, parameter in model.causal_lm.named_parameters():
                if is_value_head(name):
                    local_shard(parameter).zero_()
    except (OSError, ValueError, SafetensorError) as error:
        raise WeightsError(
            f"The weights in {folder} cannot be read: {error}. Fetch the model again (config.json, {INDEX_FILE} and "
            "its *.safetensors files)."
        ) from error


def _allocate(model: ShardedModel, device: torch.device) -> None:
    """Memory for empty parameters; buffers (rotary frequencies) are computed again, because they are in no file."""
    if any(parameter.is_meta for parameter in model.parameters()):
        model.to_empty(
            device="cpu" if model.offload else device
        )  # of the sharded one: its hooks must learn of the new tensors
        _tie(model.causal_lm)
    for name, module in list(model.named_modules()):
        if any(True for _ in module.buffers(recurse=False)):
            if not hasattr(module, "inv_freq"):
                raise WeightsError(f"The model's buffers in `{name}` cannot be made without its code; choose another.")
            fresh = type(module)(config=module.config)
            for key, buffer in fresh.named_buffers(recurse=False):
                module.register_buffer(key, buffer.to(device), persistent=False)


def _tie(causal_lm: Any) -> None:
    if causal_lm.config.tie_word_embeddings:
        causal_lm.get_output_embeddings().weight = causal_lm.get_input_embeddings().weight


def open_files(folder: Path, stack: ExitStack) -> dict[str, Any]:
    """The open file of each tensor's name."""
    from safetensors import safe_open

    index = folder / INDEX_FILE
    if index.is_file():
        names: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    else:
        names = dict.fromkeys(_names_in(folder / SINGLE_FILE), SINGLE_FILE)
    opened = {
        file: stack.enter_context(safe_open(str(folder / Path(file).name), framework="pt", device="cpu"))
        for file in sorted(set(names.values()))
    }
    return {name: opened[file] for name, file in names.items()}


def _names_in(path: Path) -> list[str]:
    from safetensors import safe_open

    with safe_open(str(path), framework="pt") as file:
        return list(file.keys())


def _fill(files: dict[str, Any], name: str, parameter: Tensor, folder: Path) -> None:
    """This rank's rows; of a mixture's experts these are whole experts, each of which has tensors of its own there."""
    (start, stop), local = shard_range(parameter), local_shard(parameter)
    parts = expert_parts(name, parameter.shape)
    for part in parts:
        if start <= part.expert < stop:
            rows = local[part.expert - start, part.start : part.stop]
            rows.copy_(_tensor_of(files, part.name, tuple(rows.shape), folder)[:])
    if not parts:
        local.copy_(_tensor_of(files, name, tuple(parameter.shape), folder)[start:stop])


def _tensor_of(files: dict[str, Any], name: str, shape: tuple[int, ...], folder: Path) -> Any:
    """To be read by rows."""
    if name not in files:
        raise WeightsError(f"The weights in {folder} lack `{name}`: they are of another model than its config.json.")
    tensor = files[name].get_slice(name)
    there = tuple(tensor.get_shape())
    if there != shape:
        raise WeightsError(f"`{name}` in {folder} has shape {list(there)}, config.json says {list(shape)}.")
    return tensor


def _refuse_unknown(files: dict[str, Any], model: ShardedModel, folder: Path) -> None:
    known = set(_names_of(model))
    unknown = sorted(name for name in files if name not in known and not name.endswith("inv_freq"))
    if unknown:
        raise WeightsError(f"The weights in {folder} have {unknown[:3]}, which the model of its config.json has not.")


def _names_of(model: ShardedModel) -> Iterator[str]:
    """As files have them. Tied weights under each of their names: some folders hold them twice."""
    for name, parameter in model.causal_lm.named_parameters(remove_duplicate=False):
        if not is_adapter(name):
            yield from (hub_name for hub_name, _ in hub_shapes(plain(name), parameter.shape))


def _of_base(model: ShardedModel) -> Iterator[tuple[str, Tensor]]:
    """By transformers' own names."""
    for name, parameter in model.causal_lm.named_parameters():
        if not is_adapter(name) and not is_value_head(name):
            yield plain(name), parameter
