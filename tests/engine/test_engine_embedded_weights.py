import pytest
import torch

from swe_rl.engine.embedded.core import WeightLoader
from swe_rl.engine.engine import EngineError


def untied_from(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_values_are_copied_in_place(build_model):
    target, source = build_model(1), build_model(2)
    pointer = target.model.embed_tokens.weight.data_ptr()
    WeightLoader(target).load(source.state_dict())
    assert target.model.embed_tokens.weight.data_ptr() == pointer
    assert all(torch.equal(a, b) for a, b in zip(target.parameters(), source.parameters(), strict=True))


@pytest.mark.parametrize("dropped", ["lm_head.weight", "model.embed_tokens.weight"])
def test_tied_parameters_may_come_under_one_name(build_model, dropped):
    target, weights = build_model(1), untied_from(build_model(2))
    expected = weights.pop(dropped)
    WeightLoader(target).load(weights)
    assert torch.equal(target.lm_head.weight, expected)


def test_tied_parameters_that_differ_are_refused(build_model):
    weights = untied_from(build_model(2))
    weights["lm_head.weight"] += 1
    with pytest.raises(EngineError, match=r"tied but their values differ"):
        WeightLoader(build_model(1)).load(weights)


def test_untied_models_need_both(build_model):
    weights = untied_from(build_model(2, tied=False))
    del weights["lm_head.weight"]
    with pytest.raises(EngineError, match=r"`lm_head.weight` is missing"):
        WeightLoader(build_model(1, tied=False)).load(weights)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda w: w.update({"model.layers.9.weight": torch.zeros(1)}),
            r"no parameter `model.layers.9.weight`",
        ),
        (lambda w: w.update({"model.norm.weight": torch.zeros(65)}), r"`model.norm.weight` has shape \[65\].*\[64\]"),
        (lambda w: w.pop("model.layers.1.mlp.up_proj.weight"), r"`model.layers.1.mlp.up_proj.weight` is missing"),
    ],
)
def test_a_mismatch_is_named_and_changes_nothing(build_model, change, message):
    target, weights = build_model(1), untied_from(build_model(2))
    before = untied_from(target)
    change(weights)
    with pytest.raises(EngineError, match=message):
        WeightLoader(target).load(weights)
    assert all(torch.equal(value, before[name]) for name, value in target.state_dict().items())
