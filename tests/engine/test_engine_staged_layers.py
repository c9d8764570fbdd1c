"""The host's copy of a model's layers during an update, above a stand-in for vLLM's reload of one layer."""

from types import ModuleType, SimpleNamespace

import pytest
import torch

from swe_rl.engine.transfer import staged_layers
from swe_rl.engine.transfer.staged_layers import StagedLayers, copies_past_loaders


class Layer(torch.nn.Module):
    """Has two parameters: the first one is copied into, the second one has a loader."""

    def __init__(self):
        super().__init__()
        self.kernel = {"copied": torch.zeros(2, 3), "loaded": torch.zeros(4)}
        for name, tensor in self.kernel.items():
            self.register_parameter(name, torch.nn.Parameter(tensor.to("meta"), requires_grad=False))

    def load_weights(self, weights):
        for name, weight in weights:
            param = getattr(self, name)
            if name == "copied":
                param[:, :2].copy_(weight)
            else:
                param.weight_loader(param, weight)


@pytest.fixture
def layerwise(monkeypatch):
    module = ModuleType("layerwise")
    module.is_deferred_attention_layer = lambda layer: False
    module.get_layerwise_info = lambda layer: SimpleNamespace(restore_device=torch.device("cpu"))
    module._get_original_loader = lambda parameter: lambda param, weight: param.data.copy_(weight)

    def process(layer, info):
        for name, tensor in layer.kernel.items():
            tensor.copy_(getattr(layer, name))

    module._layerwise_process = process
    monkeypatch.setattr(staged_layers, "_layerwise", lambda: module)
    return module


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_copies_and_loaders_arrive_alike_and_padding_becomes_zero(layerwise, dtype):
    layer = Layer().to(dtype)
    staged = StagedLayers(layer)
    layer.load_weights(
        [("copied", torch.ones(2, 2, dtype=dtype)), ("loaded", torch.full((4,), float("nan")).to(dtype))]
    )
    staged.finish()
    assert layer.kernel["copied"].tolist() == [[1, 1, 0], [1, 1, 0]]
    # A weight that is no number is the trainer's fault, and not hidden as padding.
    assert layer.kernel["loaded"].isnan().all()


def test_a_layer_of_which_nothing_came_keeps_its_weights(layerwise):
    model = torch.nn.ModuleList([Layer(), Layer()])
    for layer in model:
        layer.kernel["loaded"].fill_(7.0)
    staged = StagedLayers(model)
    model[0].load_weights([("loaded", torch.arange(4.0))])
    staged.finish()
    assert model[0].kernel["loaded"].tolist() == [0, 1, 2, 3] and model[1].kernel["loaded"].tolist() == [7] * 4


def test_models_are_known_by_what_their_loaders_say(monkeypatch):
    assert not copies_past_loaders(Layer())
    for method in (Layer, Layer.load_weights):
        monkeypatch.setattr(method, "__module__", "vllm.model_executor.models.gpt_oss")
    assert copies_past_loaders(torch.nn.Sequential(Layer()))
