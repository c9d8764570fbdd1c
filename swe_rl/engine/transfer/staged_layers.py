"""Takes new weights for models whose loaders in vLLM copy straight into parameters.

vLLM reloads layer by layer: parameters stand on the meta device, wrapped loaders count what they are given, and a layer
whose elements are all there is made on the GPU and processed. Some models (gpt_oss, mimo_v2) copy a part of their
weights themselves (`param.copy_(weight)` in `load_weights`). On the meta device such a copy is lost without an error,
and the layer keeps old values, or is processed from memory that nobody wrote.

For these models the layers get memory of the host instead, into which loaders and copies write alike. When all weights
have come, each layer is made on the GPU from it, one after the other.

Invariants:
- vLLM's workers import this file, in their environment: nothing of swe_rl is imported here.
- A layer of which nothing came keeps its weights, as in vLLM's own reload.
- Elements that nobody writes are padding, and become 0.
- The host holds one copy of the weights during an update, the GPU one layer more than the model.
"""

import inspect
import re
import sys
from typing import Any

import torch

COPIES = re.compile(r"\bparam(\.data)?(\[[^]]+\])?\.copy_\(")
_MODELS = "vllm.model_executor.models."
# These are NaNs that no computation makes: an element that still has this pattern was not written.
_UNWRITTEN = {
    torch.bfloat16: (torch.int16, 0x7FC1),
    torch.float16: (torch.int16, 0x7FC1),
    torch.float32: (torch.int32, 0x7FC1A5A5),
}


def copies_past_loaders(model: torch.nn.Module) -> bool:
    """Tells from the source of the model's `load_weights` methods whether they write parameters themselves."""
    owners = {type(layer) for layer in model.modules() if type(layer).__module__.startswith(_MODELS)}
    methods = [
        method
        for owner in owners
        for name, method in inspect.getmembers(owner, inspect.isfunction)
        if "load_weights" in name and method.__module__.startswith(_MODELS)
    ]
    return any(COPIES.search(inspect.getsource(method)) for method in methods)


class StagedLayers:
    """Holds the layers of one update in memory of the host."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Begins an update, after vLLM's `initialize_layerwise_reload(model)`."""
        self._layers = [layer for layer in model.modules() if _is_on_meta(layer)]
        for layer in self._layers:
            for name, parameter in _parameters_of(layer).items():
                setattr(layer, name, _stage_parameter(parameter))

    def finish(self) -> None:
        """Makes the layers that were written, before vLLM's `finalize_layerwise_reload`."""
        layerwise = _layerwise()
        for layer in self._layers:
            parameters = _parameters_of(layer)
            if not any(_count_unwritten(parameter) < parameter.numel() for parameter in parameters.values()):
                continue
            info = layerwise.get_layerwise_info(layer)
            for name, parameter in parameters.items():
                setattr(layer, name, _like(_without_padding(parameter).to(info.restore_device), parameter))
            layerwise._layerwise_process(layer, info)
        self._layers = []


def _layerwise() -> Any:
    import vllm.model_executor.model_loader.reload.layerwise  # noqa: F401 - the package hides the module's name

    return sys.modules["vllm.model_executor.model_loader.reload.layerwise"]


def _parameters_of(layer: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter for name, parameter in layer._parameters.items() if parameter is not None}


def _is_on_meta(layer: torch.nn.Module) -> bool:
    """Tells whether a layer waits for weights of types that we can mark. Attention layers only have scales."""
    parameters = _parameters_of(layer).values()
    if not parameters or _is_attention(layer):
        return False
    return all(parameter.is_meta and parameter.dtype in _UNWRITTEN for parameter in parameters)


def _is_attention(layer: torch.nn.Module) -> bool:
    """Tells whether vLLM makes a layer after all others. Releases before 0.32 have no function for that."""
    layerwise = _layerwise()
    if hasattr(layerwise, "is_deferred_attention_layer"):
        return bool(layerwise.is_deferred_attention_layer(layer))
    return isinstance(layer, (layerwise.Attention, layerwise.MLAAttention))


def _stage_parameter(parameter: torch.Tensor) -> torch.Tensor:
    """Returns memory of the host in place of a parameter on the meta device, with the parameter's own loader."""
    as_integers, pattern = _UNWRITTEN[parameter.dtype]
    memory = torch.empty_strided(parameter.size(), parameter.stride(), dtype=parameter.dtype, device="cpu")
    memory.view(as_integers).fill_(pattern)
    staged = _like(memory, parameter)
    staged.weight_loader = _layerwise()._get_original_loader(parameter)  # type: ignore[attr-defined]
    return staged


def _like(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Returns the tensor with the class and the attributes of vLLM's parameter."""
    tensor.__class__ = parameter.__class__
    tensor.__dict__ = parameter.__dict__.copy()
    return tensor


def _count_unwritten(parameter: torch.Tensor) -> int:
    as_integers, pattern = _UNWRITTEN[parameter.dtype]
    return int((parameter.data.view(as_integers) == pattern).sum())


def _without_padding(parameter: torch.Tensor) -> torch.Tensor:
    as_integers, pattern = _UNWRITTEN[parameter.dtype]
    values = parameter.data
    values.view(as_integers).masked_fill_(values.view(as_integers) == pattern, 0)
    return values
