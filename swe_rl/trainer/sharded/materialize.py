"""Fills a model whose parameters are sharded but still empty: each rank makes or reads its own part only.

Invariants:
- No rank ever holds a whole copy of the model, on the host or on the GPU.
- The same folder, or the same seed and number of ranks of a replica, gives the same weights.
- An adapter's own parameters begin as `adapter.start_values` says, whatever is filled in below them; a critic's head
  begins at zero.
- Files are safetensors only; a tensor that is missing, too many, or of another shape is refused by its name.
"""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from swe_rl.config.choices import FAST_ARCHITECTURES
from swe_rl.errors import UserError
from swe_rl.model.experts import StoredLayout, hub_shapes
from swe_rl.model.stored_names import stored_names
from swe_rl.trainer.checkpoint.tensor_file import INDEX_FILE, SINGLE_FILE
from swe_rl.trainer.critic import is_value_head
from swe_rl.trainer.lora import is_adapter, plain_name, start_values
from swe_rl.trainer.pulse import Beat, no_beat, with_beats
from swe_rl.trainer.sharded.mesh import local_shard, shard_range
from swe_rl.trainer.sharded.model import ShardedModel

# Random matrices have this deviation, the initializer_range of most models of transformers.
_STD = 0.02


class WeightsError(UserError):
    """A model folder's weights are not those of the model that its configuration describes."""


def empty_model(config: Any, dtype: torch.dtype = torch.float32) -> Any:
    """Returns a causal language model of a transformers configuration on the meta device: shapes without memory."""
    from transformers import AutoModelForCausalLM

    config.use_cache = False
    # Of another family transformers knows best which attention its code has.
    attention = None
    if config.model_type in FAST_ARCHITECTURES:
        attention = "sdpa"
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
    # Weights are tied before the model is sharded: two parameters would stay two.
    _tie_embeddings(model)
    return model


def fill_random(model: ShardedModel, device: torch.device, *, seed: int = 0) -> None:
    """Fills in normal matrices, norms of 1, biases of 0, made on the device; for measurements and tests."""
    _allocate_parameters(model, device)
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

    _allocate_parameters(model, device)
    try:
        with ExitStack() as stack, torch.no_grad():
            files = open_files(folder, stack)
            layout = stored_names(model.causal_lm, files)
            for name, parameter in with_beats(_of_base(model), beat):
                _fill_parameter(files, name, parameter, folder, layout)
            _refuse_unknown(files, model, folder, layout)
            start_values(model.causal_lm, seed)
            for name, parameter in model.causal_lm.named_parameters():
                if is_value_head(name):
                    local_shard(parameter).zero_()
    except (OSError, ValueError, SafetensorError) as error:
        raise WeightsError(
            f"The weights in {folder} cannot be read: {error}. Fetch the model again (config.json, {INDEX_FILE} and "
            "its *.safetensors files)."
        ) from error


def _allocate_parameters(model: ShardedModel, device: torch.device) -> None:
    """Gives memory to empty parameters; buffers (rotary frequencies) are computed again, because no file has them."""
    if any(parameter.is_meta for parameter in model.parameters()):
        model.to_empty(
            device="cpu" if model.offload else device
        )  # of the sharded one: its hooks must learn of the new tensors
        _tie_embeddings(model.causal_lm)
    if not model.is_fast:
        _make_buffers(model.causal_lm, device)
        return
    for name, module in list(model.named_modules()):
        if any(True for _ in module.buffers(recurse=False)):
            if not hasattr(module, "inv_freq"):
                raise WeightsError(f"The model's buffers in `{name}` cannot be made without its code; choose another.")
            fresh = type(module)(config=module.config)
            for key, buffer in fresh.named_buffers(recurse=False):
                module.register_buffer(key, buffer.to(device), persistent=False)


def _make_buffers(causal_lm: Any, device: torch.device) -> None:
    """Gives a model's buffers the values with which its family's own code begins; files overwrite what they have.

    The code is run on a twin of which the buffers alone have memory.
    """
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        twin: Any = AutoModelForCausalLM.from_config(causal_lm.config)
    for module in twin.modules():
        for key, buffer in dict(module.named_buffers(recurse=False)).items():
            start = 0.0
            if buffer.is_floating_point():
                start = float("nan")
            module._buffers[key] = torch.full(buffer.shape, start, dtype=buffer.dtype)
    with torch.no_grad():
        for module in twin.modules():
            twin._init_weights(module)
    made = dict(twin.named_modules())
    for name, module in causal_lm.named_modules():
        for key in dict(module.named_buffers(recurse=False)):
            buffer = made[name]._buffers[key]
            is_stored = key not in module._non_persistent_buffers_set
            if not is_stored and buffer.isnan().any():
                raise WeightsError(f"The model's buffer `{name}.{key}` is in no file, and its code does not make it.")
            module.register_buffer(key, buffer.to(device), persistent=is_stored)


def _tie_embeddings(causal_lm: Any) -> None:
    if causal_lm.config.tie_word_embeddings:
        causal_lm.get_output_embeddings().weight = causal_lm.get_input_embeddings().weight


def open_files(folder: Path, stack: ExitStack) -> dict[str, Any]:
    """Returns the open file of each tensor's name."""
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


def _fill_parameter(files: dict[str, Any], name: str, parameter: Tensor, folder: Path, layout: StoredLayout) -> None:
    """Fills this rank's rows; a mixture's experts are whole experts, each of which has tensors of its own there."""
    local = local_shard(parameter)
    if not parameter.ndim:
        local.copy_(_tensor_of(files, name, (), folder)[...])
        return
    start, stop = shard_range(parameter)
    parts = layout(name, parameter.shape)
    for part in parts:
        tensor = _tensor_of(files, part.name, part.shape(parameter.shape), folder)
        if part.expert is None:
            first = max(start, part.start)
            last = min(stop, part.stop)
            if first < last:
                local[first - start : last - start].copy_(tensor[first - part.start : last - part.start])
        elif start <= part.expert < stop:
            local[part.expert - start, part.start : part.stop].copy_(tensor[:])
    if not parts:
        local.copy_(_tensor_of(files, name, tuple(parameter.shape), folder)[start:stop])


def _tensor_of(files: dict[str, Any], name: str, shape: tuple[int, ...], folder: Path) -> Any:
    """Returns a tensor of a file, to be read by rows. Raises WeightsError."""
    if name not in files:
        raise WeightsError(f"The weights in {folder} lack `{name}`: they are of another model than its config.json.")
    tensor = files[name].get_slice(name)
    there = tuple(tensor.get_shape())
    if there != shape:
        raise WeightsError(f"`{name}` in {folder} has shape {list(there)}, config.json says {list(shape)}.")
    return tensor


def _refuse_unknown(files: dict[str, Any], model: ShardedModel, folder: Path, layout: StoredLayout) -> None:
    known = set(_names_of(model, layout))
    # What the family itself leaves out, such as layers that predict more tokens at once; of a multimodal checkpoint
    # all that is not its text's.
    left_out = list(getattr(model.causal_lm, "_keys_to_ignore_on_load_unexpected", None) or ())
    if "text_config" in json.loads((folder / "config.json").read_text(encoding="utf-8")):
        left_out.append("")
    unknown = sorted(
        name
        for name in files
        if name not in known
        and not name.endswith("inv_freq")
        and not any(re.search(pattern, name) for pattern in left_out)
    )
    if unknown:
        raise WeightsError(f"The weights in {folder} have {unknown[:3]}, which the model of its config.json has not.")


def _names_of(model: ShardedModel, layout: StoredLayout) -> Iterator[str]:
    """Yields the names that files have. Tied weights come under each of their names: some folders hold them twice."""
    for name, parameter in model.causal_lm.named_parameters(remove_duplicate=False):
        if not is_adapter(name):
            yield from (hub_name for hub_name, _ in hub_shapes(plain_name(name), parameter.shape, layout))
    for name, buffer in _stored_buffers(model.causal_lm):
        yield from (hub_name for hub_name, _ in hub_shapes(name, buffer.shape, layout))


def _of_base(model: ShardedModel) -> Iterator[tuple[str, Tensor]]:
    """Yields the base's parameters, and the buffers that files have, by transformers' own names."""
    for name, parameter in model.causal_lm.named_parameters():
        if not is_adapter(name) and not is_value_head(name):
            yield plain_name(name), parameter
    yield from _stored_buffers(model.causal_lm)


def _stored_buffers(causal_lm: Any) -> Iterator[tuple[str, Tensor]]:
    for prefix, module in causal_lm.named_modules():
        for key, buffer in module.named_buffers(recurse=False):
            if key not in module._non_persistent_buffers_set:
                yield f"{prefix}.{key}", buffer
