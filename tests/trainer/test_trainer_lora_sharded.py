"""LoRA on the ranks of a mesh (here one), from folders: adapters, a base in the type that is computed in, exports."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from swe_rl.config.schema import AlgoConfig, TrainerConfig
from swe_rl.trainer.checkpoint import export
from swe_rl.trainer.checkpoint.checkpoints import Checkpoints
from swe_rl.trainer.checkpoint.export import ExportError
from swe_rl.trainer.checkpoint.folder import CorruptCheckpointError
from swe_rl.trainer.compute import ShardedCompute
from swe_rl.trainer.lora import base_of, is_adapter, plain_name, start_values, with_adapter
from swe_rl.trainer.policy import Trainer
from swe_rl.trainer.rank_trainer import RankTrainer
from swe_rl.trainer.send.hand_over import gather_tensors, write_weights
from swe_rl.trainer.sharded.assemble import empty_policy, sharded_trainer
from swe_rl.trainer.sharded.attention import by_row
from swe_rl.trainer.sharded.materialize import fill_from_folder, fill_random
from swe_rl.trainer.sharded.model import ShardedModel

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("peft")
CONFIG = TrainerConfig(lr=1e-2, lora_rank=3, num_threads=1, seed=4)
SAVED = {"step": 1, "weight_version": 1, "data_order": [], "config": {}, "keep": 0}


def sharded(saved, mesh, config=CONFIG, algo=None):
    return sharded_trainer(saved, config, algo or AlgoConfig(), mesh, pad_token_id=0, temperature=1.0)


def local(saved, config=CONFIG, algo=None):
    model = AutoModelForCausalLM.from_pretrained(saved.path, dtype="float32")
    policy, adapter = with_adapter(model, config, base_of(saved, Path(saved.path)))
    return RankTrainer(policy, config, algo or AlgoConfig(), pad_token_id=0, adapter=adapter)


@pytest.fixture
def stepped(mesh, saved, rank_cases):
    trainer = sharded(saved, mesh)
    trainer.train_step(rank_cases.rows(), 1)
    return trainer


def same(weights, others):
    assert set(weights) == set(others)
    for name, tensor in others.items():
        torch.testing.assert_close(weights[name], tensor, rtol=0, atol=1e-5)


def whole(trainer):
    return dict(gather_tensors(trainer.engine_weights(), torch.float32))


@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_loaded_by_shards_it_learns_what_one_process_learns(mesh, saved, rank_cases, kl):
    algo = AlgoConfig(kl_coef=kl)
    here, there = local(saved, algo=algo), sharded(saved, mesh, replace(CONFIG, offload_optimizer=True), algo)
    assert there.reference is None and not there.model.offload
    same(whole(there), {name: tensor.detach() for name, tensor in load_file(f"{saved.path}/model.safetensors").items()})
    for step in (1, 2, 3):
        expected, got = here.train_step(rank_cases.rows(), step), there.train_step(rank_cases.rows(), step)
        assert (got.loss, got.grad_norm) == pytest.approx((expected.loss, expected.grad_norm), abs=1e-5)
    same(whole(there), dict(here.weights()))


def test_the_base_is_frozen_in_the_type_of_computation_and_what_learns_is_float32(mesh, saved, rank_cases):
    shape = AutoConfig.from_pretrained(saved.path)
    causal_lm, adapter = empty_policy(shape, CONFIG, torch.bfloat16)
    assert all(parameter.is_meta for parameter in causal_lm.parameters())
    model = ShardedModel(causal_lm, mesh, by_row, compute_dtype=torch.bfloat16)
    fill_from_folder(model, Path(saved.path), CPU)
    start = {name: one.full_tensor().clone() for name, one in model.causal_lm.named_parameters()}
    trainer = Trainer(model, CONFIG, AlgoConfig(), pad_token_id=0, compute=ShardedCompute(mesh), adapter=adapter)
    files = load_file(f"{saved.path}/model.safetensors")
    assert all(torch.equal(one, files[name].bfloat16()) for name, one in gather_tensors(trainer.engine_weights()))
    assert trainer.train_step(rank_cases.rows(), 1).updates == 1
    for name, one in model.causal_lm.named_parameters():
        assert one.dtype is (torch.float32 if is_adapter(name) else torch.bfloat16) and one.grad is None
        assert is_adapter(name) or torch.equal(one.full_tensor(), start[name])
    assert all(one.dtype is torch.float32 for one in trainer.state_dict()["tensors"].values())
    changed = {
        name for name, one in gather_tensors(trainer.engine_weights()) if not torch.equal(one, files[name].bfloat16())
    }
    assert changed == {plain_name(name) for name in start if "base_layer" in name}


def test_random_weights_are_the_same_below_an_adapter(mesh, saved):
    shape = AutoConfig.from_pretrained(saved.path)
    models = [empty_policy(shape, replace(CONFIG, lora_rank=rank), torch.float32)[0] for rank in (0, 3)]
    plain_one, adapted = (ShardedModel(model, mesh, by_row, compute_dtype=torch.float32) for model in models)
    for model in (plain_one, adapted):
        fill_random(model, CPU, seed=2)
    found = {plain_name(name): one.full_tensor() for name, one in adapted.causal_lm.named_parameters()}
    for name, one in plain_one.causal_lm.named_parameters():
        assert torch.equal(found[name], one.full_tensor())
    before = {name: one.clone() for name, one in found.items()}
    start_values(adapted.causal_lm, 2)
    assert all(torch.equal(before[name], found[name]) for name in found)


def test_each_kind_of_trainer_goes_on_from_the_others_checkpoint(mesh, saved, stepped, rank_cases, tmp_path):
    folder = Checkpoints(mesh).save(tmp_path / "many", stepped, background=False, **SAVED)
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert size < 4 * 3 * 1.5 * sum(one.numel() for one in stepped.policy_weights().values())
    alone = local(saved, replace(CONFIG, seed=9))
    assert alone.load(folder).step == 1
    same(dict(alone.weights()), whole(stepped))
    ours, theirs = alone.train_step(rank_cases.rows(), 2), stepped.train_step(rank_cases.rows(), 2)
    assert ours.loss == pytest.approx(theirs.loss, abs=1e-6)
    back = alone.save(tmp_path / "one", hash_of_config="x", **SAVED)
    other = sharded(saved, mesh, replace(CONFIG, seed=8))
    Checkpoints(mesh).load(back, other)
    same(whole(other), dict(alone.weights()))


def test_a_base_that_was_trained_further_is_noticed(mesh, saved, stepped, tmp_path):
    folder = Checkpoints(mesh).save(tmp_path / "many", stepped, background=False, **SAVED)
    moved = replace(saved, path=str(tmp_path / "moved"))
    model = AutoModelForCausalLM.from_pretrained(saved.path)
    model.save_pretrained(moved.path)
    Checkpoints(mesh).load(folder, sharded(moved, mesh))  # another place is not another model
    with torch.no_grad():
        model.model.norm.weight.mul_(1.01)
    model.save_pretrained(moved.path)
    with pytest.raises(CorruptCheckpointError, match="its adapter is of other weights than"):
        Checkpoints(mesh).load(folder, sharded(moved, mesh))
    with pytest.raises(ExportError, match=r"cannot be merged: .*model.path"):
        export.export_checkpoint(folder, Path(moved.path), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["many", "one"])
def test_an_export_is_the_merged_model_with_the_adapter_beside_it(
    mesh, saved, stepped, rank_cases, tmp_path, kind, peft
):
    trainer = stepped
    folder = Checkpoints(mesh).save(tmp_path / "many", stepped, background=False, **SAVED)
    if kind == "one":
        trainer = local(saved)
        trainer.load(folder)
        folder = trainer.save(tmp_path / "one", hash_of_config="x", **SAVED)
    files = export.export_checkpoint(folder, Path(saved.path), tmp_path / "out", dtype=torch.float32)
    assert {"adapter_config.json", "adapter_model.safetensors", "model.safetensors"} <= {path.name for path in files}
    together = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="float32").eval()
    loaded = together.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in whole(trainer).items())
    base = AutoModelForCausalLM.from_pretrained(saved.path, dtype="float32").eval()
    ids = torch.tensor([rank_cases.rows()[0].token_ids.tolist()])
    with torch.no_grad():
        before = base(ids).logits.clone()
        apart = peft.PeftModel.from_pretrained(base, tmp_path / "out" / "adapter")
        torch.testing.assert_close(apart(ids).logits, together(ids).logits, rtol=0, atol=1e-5)
        assert (before - together(ids).logits).abs().max() > 1e-3
    export.export_checkpoint(folder, Path(saved.path), tmp_path / "half")
    half = AutoModelForCausalLM.from_pretrained(tmp_path / "half").state_dict()
    assert all(torch.equal(half[name], tensor.bfloat16()) for name, tensor in whole(trainer).items())


def test_ranks_write_merged_files(mesh, saved, stepped, tmp_path):
    write_weights(stepped.engine_weights(), mesh, tmp_path, {"lm_head.weight": "model.embed_tokens.weight"})
    written = load_file(tmp_path / "model-00001-of-00001.safetensors")
    expected = whole(stepped)
    assert set(written) == {*expected, "lm_head.weight"}
    assert all(torch.equal(written[name], tensor) for name, tensor in expected.items())
