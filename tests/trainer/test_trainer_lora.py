"""LoRA in one process: what learns, what the engines get, what the reference is, and going on from a checkpoint."""

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from swe_rl.algo.sequences import kl_per_token
from swe_rl.config.choices import KlEstimator, KlPlace, LoraServing
from swe_rl.config.schema import AlgoConfig, TrainerConfig
from swe_rl.engine.server.weights import export_weights
from swe_rl.errors import UserError
from swe_rl.model.adapter import alpha_of
from swe_rl.trainer.checkpoint.folder import CorruptCheckpointError, config_hash
from swe_rl.trainer.lora import (
    TARGETS,
    adapter_names,
    attach_adapter,
    in_files,
    is_a,
    is_adapter,
    merge_weight,
    weights_fingerprint,
    with_adapter,
)
from swe_rl.trainer.rank_trainer import RankTrainer
from swe_rl.trainer.send import hand_over
from swe_rl.trainer.trainer import TrainerError

CONFIG = TrainerConfig(lr=1e-2, lora_rank=3, num_threads=1, seed=4)
pytestmark = pytest.mark.usefixtures("peft")
BASE = {"path": "m", "revision": None, "fingerprint": "one"}
SAVED = {"weight_version": 1, "data_order": [], "config": {}, "hash_of_config": config_hash({}), "keep": 0}


def trainer_of(model, config=CONFIG, algo=None, base=None):
    policy, adapter = with_adapter(model, config, base)
    return RankTrainer(policy, config, algo or AlgoConfig(), pad_token_id=0, adapter=adapter)


def copied(weights):
    return {name: tensor.clone() for name, tensor in weights.items()}


class _Pipe:
    def __init__(self):
        self.sent, self.bytes = [], 0

    def send(self, words):
        self.sent += words[1]

    def send_bytes(self, data):
        self.bytes += len(data)


def test_engines_that_hold_the_base_get_the_adapter_alone(build, make_rows, monkeypatch):
    """Under peft's names, and in its own precision whatever the engines compute in."""
    monkeypatch.setattr(hand_over, "exchange_type", lambda mesh: torch.bfloat16)
    trainer = trainer_of(build(), replace(CONFIG, lora_serving=LoraServing.adapter))
    trainer.train_step(make_rows(), 1)
    weights, trained = trainer.weights(), trainer.policy_weights()
    assert {in_files(name): tuple(one.shape) for name, one in trained.items()} == {
        name: tuple(one.shape) for name, one in weights.items()
    }
    assert all(torch.equal(weights[in_files(name)], one) for name, one in trained.items())
    pipe = _Pipe()
    trainer.send_weights(pipe)
    assert {header.name: header.dtype for header in pipe.sent} == dict.fromkeys(weights, "float32")
    assert pipe.bytes == 4 * sum(one.numel() for one in trained.values())


def test_only_the_adapter_of_each_linear_layer_learns(build, make_rows):
    model = build()
    before = copied(model.state_dict())
    trainer = trainer_of(model)
    names = set(trainer.policy_weights())
    assert len(names) == 2 * len(TARGETS) * model.config.num_hidden_layers and all(map(is_adapter, names))
    start = copied(trainer.policy_weights())
    trainer.train_step(make_rows(), 1)
    assert {name.partition(".")[2] for name in trainer.state_dict()["tensors"]} == names
    assert any(not torch.equal(start[name], one) for name, one in trainer.policy_weights().items())
    assert all(torch.equal(before[name], one) for name, one in model.state_dict().items())
    assert all(torch.equal(before[name], one) for name, one in model.named_parameters())  # names are its own as well
    own = {one.data_ptr() for one in model.parameters()}
    carried = {one.data_ptr() for name, one in trainer.model.named_parameters() if not is_adapter(name)}
    assert own == carried  # no second copy


def test_merged_is_the_base_at_the_start_and_then_differs_by_the_product(build, make_rows):
    model = build()
    base = copied(dict(model.named_parameters()))
    trainer = trainer_of(model, replace(CONFIG, lora_alpha=5))
    weights = trainer.weights()
    assert list(weights) == list(base)
    assert all(torch.equal(weights[name], base[name]) for name in base)
    trainer.train_step(make_rows(), 1)
    adapter, changed = trainer.policy_weights(), 0
    for name, merged_now in weights.items():  # the mapping of before: those of now
        first, second = adapter_names(name)
        product = adapter[second].double() @ adapter[first].double() * (5 / 3) if first in adapter else 0.0
        torch.testing.assert_close(merged_now.double(), base[name].double() + product, rtol=0, atol=1e-6)
        changed += not torch.equal(merged_now, base[name])
    assert changed == len(adapter) / 2


def test_the_merged_model_is_the_policy(build, make_rows):
    trainer = trainer_of(build())
    trainer.train_step(make_rows(), 1)
    plain = build(1)
    plain.load_state_dict(dict(trainer.weights()), strict=False)
    other = RankTrainer(plain, TrainerConfig(num_threads=1), AlgoConfig(), pad_token_id=0)
    for one, two in zip(trainer.row_logprobs(make_rows()), other.row_logprobs(make_rows()), strict=True):
        assert one == pytest.approx(two, abs=1e-5)


@given(
    rows=st.integers(1, 9),
    inputs=st.integers(1, 9),
    rank=st.integers(1, 4),
    alpha=st.integers(1, 64),
    seed=st.integers(0),
)
def test_merging_is_the_formula(rows, inputs, rank, alpha, seed):
    rng = np.random.default_rng(seed)
    base, first, second = (rng.normal(size=shape) for shape in ((rows, inputs), (rank, inputs), (rows, rank)))
    expected = base + alpha / rank * np.einsum("ir,rj->ij", second, first)
    found = merge_weight(*(torch.tensor(one, dtype=torch.float32) for one in (base, first, second)), alpha / rank)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-4, rtol=1e-4)
    half = torch.tensor(base).bfloat16()
    assert torch.equal(merge_weight(half, torch.tensor(first), torch.zeros(rows, rank), alpha / rank).bfloat16(), half)


def test_the_start_comes_from_the_seed_alone(build):
    def start(seed, noise):
        model = build()
        torch.manual_seed(noise)
        state = torch.get_rng_state()
        adapter = attach_adapter(model, replace(CONFIG, seed=seed))
        assert torch.equal(torch.get_rng_state(), state)
        return adapter, {name: one for name, one in model.named_parameters() if is_adapter(name)}

    (adapter, one), (_, same), (_, other) = start(1, 0), start(1, 9), start(2, 0)
    assert (adapter.scale, alpha_of(8, None)) == (2.0, 16)
    for name, values in one.items():
        assert torch.equal(values, same[name])
        if is_a(name):
            bound = 1 / math.sqrt(values.shape[1])
            assert not torch.equal(values, other[name])
            assert bound / 2 < values.abs().max() <= bound
        else:
            assert not values.any()


@pytest.mark.parametrize("place", list(KlPlace))
def test_the_reference_is_the_base_without_a_second_model(build, make_rows, place):
    algo = AlgoConfig(kl_coef=0.1, kl_in=place, kl_estimator=KlEstimator.k1)
    trainer = trainer_of(build(), algo=algo)
    assert trainer.reference is None
    assert trainer.train_step(make_rows(), 1).kl_loss == 0.0
    now, base = trainer.row_logprobs(make_rows()), RankTrainer(build(), CONFIG, AlgoConfig(), pad_token_id=0)
    expected = {}
    for row, ours, theirs in zip(make_rows(), now, base.row_logprobs(make_rows()), strict=True):
        kl = kl_per_token(torch.tensor(ours), torch.tensor(theirs), KlEstimator.k1)
        expected[row.trajectory_id] = float(kl.sum())
    assert trainer.sequence_kl(make_rows()) == pytest.approx(expected, abs=1e-4)
    assert any(abs(value) > 1e-2 for value in expected.values())
    assert trainer.row_logprobs(make_rows()) == now  # it is on again
    if place is KlPlace.loss:
        assert trainer.train_step(make_rows(), 2).kl_loss != 0.0


def test_checkpointed_activations_change_nothing(build, make_rows):
    plain, thrifty = trainer_of(build()), trainer_of(build(), replace(CONFIG, activation_checkpointing=True))
    for step in (1, 2):
        one, two = plain.train_step(make_rows(), step), thrifty.train_step(make_rows(), step)
        assert (one.loss, one.grad_norm) == pytest.approx((two.loss, two.grad_norm), abs=1e-6)


def test_killed_and_resumed_is_uninterrupted(build, make_rows, tmp_path):
    straight = trainer_of(build(), base=BASE)
    straight.train_step(make_rows(), 1)
    folder = straight.save(tmp_path, step=1, **SAVED)
    straight.train_step(make_rows(), 2)
    resumed = trainer_of(build(), replace(CONFIG, seed=9), base=BASE)  # which begins elsewhere
    found = resumed.load(folder, config_hash({}))
    assert found.step == 1
    resumed.config = straight.config
    resumed.train_step(make_rows(), 2)
    for name, tensor in straight.weights().items():
        torch.testing.assert_close(tensor, resumed.weights()[name], rtol=0, atol=1e-6)
    stored = load_file(folder / "shard_00000_of_00001.safetensors")
    weights = {name.removeprefix("model.") for name in stored if name.startswith("model.")}
    assert weights == straight.policy_weights().keys()  # the base is not in it


@pytest.mark.parametrize(
    ("change", "base", "said"),
    [
        ({}, BASE | {"fingerprint": "two"}, "its adapter is of other weights than m has now"),
        ({"lora_rank": 2}, BASE, "its adapter has rank 3 and alpha 6, here 2 and 4"),
        ({"lora_alpha": 3}, BASE, "its adapter has rank 3 and alpha 6, here 3 and 3"),
        ({"lora_rank": 0}, None, "it holds an adapter, this run trains a whole model"),
    ],
)
def test_a_checkpoint_of_another_kind_is_refused(build, make_rows, tmp_path, change, base, said):
    folder = trainer_of(build(), base=BASE).save(tmp_path, step=1, **SAVED)
    config = replace(CONFIG, **change)
    plain = RankTrainer(build(), config, AlgoConfig(), pad_token_id=0)
    other = trainer_of(build(), config, base=base) if config.lora_rank else plain
    with pytest.raises(CorruptCheckpointError, match=said):
        other.load(folder)
    whole = plain.save(tmp_path, step=2, **SAVED)
    with pytest.raises(CorruptCheckpointError, match="it holds a whole model, this run trains an adapter"):
        trainer_of(build(), base=BASE).load(whole)


@pytest.mark.parametrize("untied", [False, True])
def test_engines_that_read_a_folder_get_the_merged_model(build, make_rows, tmp_path, untied):
    source, target = tmp_path / "base", tmp_path / "new"
    build().save_pretrained(source)
    target.mkdir()
    trainer = trainer_of(build())
    trainer.train_step(make_rows(), 1)
    export_weights(source, target, trainer.weights(), untied=untied)
    loaded = AutoModelForCausalLM.from_pretrained(target).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in trainer.weights().items())
    assert torch.equal(loaded["lm_head.weight"], loaded["model.embed_tokens.weight"])


def test_a_fingerprint_sees_other_weights_and_nothing_else(build, tmp_path):
    folders = []
    for i, seed in enumerate((0, 0, 1)):
        folders.append(tmp_path / str(i))
        build(seed).save_pretrained(folders[-1])
    (folders[1] / "README.md").write_text("beside it")
    one, same, other = map(weights_fingerprint, folders)
    assert one == same != other


def test_without_peft_the_way_out_is_said(build, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match=r"lora_rank=3 needs peft.*swe_rl\[lora\].*trainer.lora_rank=0"):
        attach_adapter(build(), CONFIG)


def test_a_model_without_such_layers_is_refused():
    with pytest.raises(TrainerError, match="has none of the layers q_proj"):
        attach_adapter(torch.nn.Sequential(torch.nn.Linear(2, 2)), CONFIG)
