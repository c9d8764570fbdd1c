"""What one process alone can see of the parallel trainer: probe, weights from folders, checkpoints, export."""

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from swe_rl.config.choices import AdvantageKind
from swe_rl.config.compose import compose
from swe_rl.config.schema import AlgoConfig, TrainerConfig
from swe_rl.facts import memory
from swe_rl.model.load import ModelError
from swe_rl.model.tiny import build_model
from swe_rl.trainer.checkpoint import checkpoints, export
from swe_rl.trainer.checkpoint import folder as checkpoint
from swe_rl.trainer.checkpoint.checkpoints import Checkpoints
from swe_rl.trainer.checkpoint.export import ExportError
from swe_rl.trainer.checkpoint.folder import CheckpointWriteError, CorruptCheckpointError
from swe_rl.trainer.checkpoint.stored import open_stored
from swe_rl.trainer.policy import Trainer
from swe_rl.trainer.rank_trainer import RankTrainer
from swe_rl.trainer.sharded import assemble
from swe_rl.trainer.sharded.assemble import sharded_model, sharded_trainer
from swe_rl.trainer.sharded.attention import by_row
from swe_rl.trainer.sharded.materialize import WeightsError, empty_model, fill_random
from swe_rl.trainer.sharded.mesh import gather_whole, local_shard, make_mesh
from swe_rl.trainer.sharded.model import ShardedModel, compare_packed, require_agreement
from swe_rl.trainer.sharded.packing import Segments, pack_sequences
from swe_rl.trainer.trainer import CorruptionError, MeshError

CPU = torch.device("cpu")
CONFIG = TrainerConfig(lr=1e-3, num_threads=1)


def leaking(query, keys, values, rows, scale):
    return by_row(query, keys, values, Segments((rows.total,), rows.starts[[0, -1]]), scale)


def test_the_probe_agrees_with_transformers(mesh, saved):
    found = require_agreement(sharded_model(saved, CONFIG, mesh), tokens=40)
    assert found.mean < 1e-5 and found.tokens == 39 + 33 + 26


def stored_bytes(model):
    return sum(local_shard(parameter).nbytes for parameter in model.parameters())


def planned_for(dtype):
    """A configuration for GPUs, which compute in bfloat16, or for CPUs."""
    made = replace(compose().config, trainer=CONFIG, algo=AlgoConfig())
    gpus = 1 if dtype is torch.bfloat16 else 0
    return replace(made, layout=replace(made.layout, trainer_gpus=gpus))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_reference_takes_the_memory_that_the_plan_gives_it(mesh, saved, rank_cases, monkeypatch, dtype):
    """In the type that is computed in: in bfloat16, 14 billion parameters take 30 GB instead of 59."""
    monkeypatch.setattr(assemble, "computed_in", lambda device: dtype)
    algo = AlgoConfig(kl_coef=0.1)
    trainer = sharded_trainer(saved, CONFIG, algo, mesh, pad_token_id=0, temperature=1.0)
    held = stored_bytes(trainer.reference)
    assert {parameter.dtype for parameter in trainer.reference.parameters()} == {dtype}
    assert not any(parameter.requires_grad for parameter in trainer.reference.parameters())
    assert stored_bytes(trainer.model) * dtype.itemsize == 4 * held  # what is trained stays float32
    planned = replace(
        planned_for(dtype),
        model=replace(saved, params_b=sum(parameter.numel() for parameter in trainer.model.parameters()) / 1e9),
        algo=algo,
    )
    without = replace(planned, algo=AlgoConfig())
    assert round((memory.trainer_gb(planned) - memory.trainer_gb(without)) * 1e9) == held
    assert trainer.train_step(rank_cases.rows(), 1).kl_loss == pytest.approx(0.0, abs=1e-3)


def test_a_critic_and_a_teacher_take_the_memory_that_the_plan_gives_them(
    mesh, saved, rank_cases, tmp_path, monkeypatch
):
    """A critic has float32 weights, gradients and moments of its own, in checkpoints too; a teacher rests in bfloat16.

    An output head that is not tied is in the critic's memory, but not trained: the plan is that much too careful.
    """
    monkeypatch.setattr(assemble, "computed_in", lambda device: torch.bfloat16)
    plain = planned_for(torch.bfloat16)
    folder = tmp_path / "checkpoints"

    def planned(algo, params):
        return replace(plain, model=replace(saved, params_b=params / 1e9), algo=algo)

    ppo, distill = (
        AlgoConfig(advantage=AdvantageKind.gae),
        AlgoConfig(advantage=AdvantageKind.teacher, teacher=saved.path),
    )
    trainer = sharded_trainer(saved, CONFIG, distill, mesh, pad_token_id=0, temperature=1.0)
    params = sum(parameter.numel() for parameter in trainer.model.parameters())
    added = memory.trainer_gb(planned(distill, params)) - memory.trainer_gb(planned(AlgoConfig(), params))
    assert round(added * 1e9) == stored_bytes(trainer.teacher) == 2 * params
    trainer = sharded_trainer(saved, CONFIG, ppo, mesh, pad_token_id=0, temperature=1.0)
    trainer.train_step(rank_cases.rows(credit=True), 1)
    tensors = trainer.critic.tensors().values()
    trained = sum(parameter.numel() for parameter in trainer.critic.model.parameters() if parameter.requires_grad)
    held = sum(local_shard(tensor).nbytes for tensor in tensors) + 4 * trained  # and gradients
    added = memory.trainer_gb(planned(ppo, params)) - memory.trainer_gb(planned(AlgoConfig(), params))
    assert held == pytest.approx(added * 1e9, rel=0.01)
    state = {"step": 1, "weight_version": 1, "data_order": {}, "config": {}, "hash_of_config": ""}
    trainer.save(folder, keep=1, **state)
    trainer.wait()
    (shard,) = folder.rglob("shard_*.safetensors")
    assert shard.stat().st_size == pytest.approx(memory.checkpoint_gb(planned(ppo, params)) * 1e9, rel=0.1)


def test_the_probe_refuses_rows_that_see_each_other(mesh, saved):
    model = sharded_model(saved, CONFIG, mesh)
    model._kernel = leaking
    with pytest.raises(CorruptionError, match="off by .* nats on average .*trainer.attention=by_row"):
        require_agreement(model, tokens=40)


def test_the_probe_sees_wrong_positions(mesh, saved, monkeypatch):
    def wrong(sequences, *given, **named):
        batch = pack_sequences(sequences, *given, **named)
        return batch if len(sequences) == 1 else replace(batch, position_ids=batch.position_ids // 2)

    model = sharded_model(saved, CONFIG, mesh)
    monkeypatch.setattr("swe_rl.trainer.sharded.model.pack_sequences", wrong)
    assert compare_packed(model, tokens=40, rows=3).mean > 1e-3


def test_the_weights_are_those_of_the_folder(mesh, saved):
    model = sharded_model(saved, CONFIG, mesh)
    expected = AutoModelForCausalLM.from_pretrained(saved.path, dtype="float32").state_dict()
    for name, tensor in model.causal_lm.state_dict().items():
        assert torch.equal(tensor.full_tensor(), expected[name])


@pytest.mark.parametrize("tied", [True, False])
def test_loaded_by_shards_it_learns_what_the_plain_model_learns(mesh, saved, rank_cases, tmp_path, tied):
    model = replace(saved, tie_word_embeddings=tied, path=str(tmp_path))
    build_model(model, 3).save_pretrained(tmp_path)
    plain = Trainer(build_model(model, 3), CONFIG, AlgoConfig(), pad_token_id=0)
    sharded = sharded_trainer(model, CONFIG, AlgoConfig(), mesh, pad_token_id=0, temperature=1.0)
    for step in (1, 2):
        expected, got = plain.train_step(rank_cases.rows(), step), sharded.train_step(rank_cases.rows(), step)
        assert (got.grad_norm, got.entropy) == pytest.approx((expected.grad_norm, expected.entropy), abs=1e-5)
    weights = plain.policy_weights()
    for name, tensor in sharded.policy_weights().items():
        torch.testing.assert_close(tensor.full_tensor(), weights[name], rtol=0, atol=1e-5)


@pytest.fixture
def copied(saved, tmp_path):
    def change(weights):
        tensors = load_file(f"{saved.path}/model.safetensors")
        save_file(weights(tensors), tmp_path / "model.safetensors", metadata={"format": "pt"})
        shutil.copy(f"{saved.path}/config.json", tmp_path)
        return replace(saved, path=str(tmp_path))

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: {k: v for k, v in t.items() if "norm.weight" not in k}, "lack `model.layers.0"),
        (lambda t: t | {"model.more": torch.ones(1)}, "have .'model.more'"),
        (lambda t: t | {"model.norm.weight": torch.ones(31)}, "has shape .31., config.json says .32."),
    ],
)
def test_weights_of_another_model_are_refused(mesh, copied, change, words):
    with pytest.raises(WeightsError, match=words):
        sharded_model(copied(change), CONFIG, mesh)


def test_another_shape_than_configured_is_refused(mesh, saved):
    with pytest.raises(ModelError, match="model.num_layers=3"):
        sharded_model(replace(saved, num_layers=3), CONFIG, mesh)


def test_windows_of_a_fast_family_are_refused(mesh, saved):
    config = build_model(saved, 0).config
    config.layer_types = ["sliding_attention"] * config.num_hidden_layers
    config.sliding_window = 8
    with pytest.raises(MeshError, match=r"layers of type \['sliding_attention'\] of a `qwen3` model"):
        ShardedModel(empty_model(config), mesh, by_row)


def test_random_weights_are_seeded(mesh, saved):
    def made(seed):
        model = ShardedModel(empty_model(build_model(saved, 0).config), mesh, by_row, compute_dtype=torch.float32)
        fill_random(model, CPU, seed=seed)
        return model.causal_lm.model.layers[0].mlp.up_proj.weight.full_tensor()

    assert torch.equal(made(1), made(1)) and not torch.equal(made(1), made(2))


@pytest.fixture
def stepped(mesh, saved, rank_cases):
    trainer = sharded_trainer(saved, CONFIG, AlgoConfig(), mesh, pad_token_id=0, temperature=1.0)
    trainer.train_step(rank_cases.rows(), 1)
    return trainer


def save(mesh, folder, trainer, step=1, **changes):
    arguments = {"step": step, "weight_version": step, "data_order": [], "config": {"a": 1}, "background": False}
    return Checkpoints(mesh, timeout_s=5).save(folder, trainer, **{**arguments, **changes})


def test_an_update_waits_for_the_checkpoint_that_reads_its_tensors(mesh, stepped, rank_cases, tmp_path, monkeypatch):
    write = checkpoints.write_file

    def late(path, chunks):
        time.sleep(0.3)  # in which an update would be over
        return write(path, chunks)

    monkeypatch.setattr(checkpoints, "write_file", late)
    before = {name: gather_whole(tensor).clone() for name, tensor in stepped.policy_weights().items()}
    folder = save(mesh, tmp_path, stepped, background=True)
    rows = rank_cases.rows()
    stepped.token_logprobs(rows, 1.0)
    assert not folder.exists()  # what only reads does not wait
    stepped.train_step(rows, 2)
    assert folder.exists()
    assert any(not torch.equal(gather_whole(one), before[name]) for name, one in stepped.policy_weights().items())
    with open_stored(folder) as stored:
        for name in stepped.named_parameters():
            assert torch.equal(stored.whole(f"model.{name}"), before[name])
            assert float(stored.whole(f"optimizer.step.{name}")) == 1.0


def test_an_exported_checkpoint_is_loaded_by_transformers(mesh, saved, stepped, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "MAX_FILE_BYTES", 16_000)  # several files
    folder = save(mesh, tmp_path, stepped)
    target = tmp_path / "exported"
    files = export.export_checkpoint(folder, Path(saved.path), target)
    assert {"config.json", "model.safetensors.index.json", "tokenizer_config.json"} < {path.name for path in files}
    loaded = AutoModelForCausalLM.from_pretrained(target)
    assert loaded.dtype is torch.bfloat16
    for name, tensor in stepped.policy_weights().items():
        assert torch.equal(loaded.state_dict()[name], tensor.full_tensor().bfloat16())
    with pytest.raises(ExportError, match="is there already"):
        export.export_checkpoint(folder, Path(saved.path), target)


def test_a_checkpoint_of_one_process_is_exported_too(saved, tmp_path):
    alone = local(saved)
    folder = alone.save(tmp_path, step=1, weight_version=1, data_order=[], config={})
    export.export_checkpoint(folder, Path(saved.path), tmp_path / "out", dtype=torch.float32)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in alone.policy_weights().items())


@pytest.mark.parametrize("name", ["shard_00000_of_00001.safetensors", "shards.json", "state.json"])
def test_a_changed_byte_is_found(mesh, stepped, tmp_path, name):
    folder = save(mesh, tmp_path, stepped)
    content = bytearray((folder / name).read_bytes())
    content[-2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(CorruptCheckpointError, match=f"{name} was changed after it was written"):
        Checkpoints(mesh).load(folder, stepped)


def test_a_missing_shard_is_found_by_its_name(mesh, stepped, tmp_path):
    folder = save(mesh, tmp_path, stepped)
    (folder / "shard_00000_of_00001.safetensors").unlink()
    assert checkpoint.newest_checkpoint(tmp_path) is None
    with pytest.raises(CorruptCheckpointError, match="shard_00000_of_00001.safetensors is missing"):
        Checkpoints(mesh).load(folder, stepped)


def test_another_configuration_is_refused(mesh, stepped, tmp_path):
    folder = save(mesh, tmp_path, stepped, hash_of_config="one")
    with pytest.raises(CorruptCheckpointError, match="config mismatch"):
        Checkpoints(mesh).load(folder, stepped, "two")


def test_rows_that_are_missing_are_found(mesh, stepped, tmp_path):
    folder = save(mesh, tmp_path, stepped)
    index = json.loads((folder / "shards.json").read_text())
    index["model.model.norm.weight"]["pieces"][0][2] -= 1
    with pytest.raises(ValueError, match=r"model.model.norm.weight has 31 of 32 rows"):
        from swe_rl.trainer.checkpoint.stored import joined_index

        joined_index([index])


def test_a_disk_that_cannot_be_written_is_told_and_leaves_nothing(mesh, stepped, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("swe_rl.trainer.checkpoint.checkpoints.write_file", full)
    with pytest.raises(CheckpointWriteError, match="disk is full"):
        save(mesh, tmp_path, stepped)
    assert list(tmp_path.iterdir()) == []


def test_one_process_goes_on_with_what_many_wrote_and_back(mesh, saved, stepped, rank_cases, tmp_path):
    folder = save(mesh, tmp_path / "many", stepped)
    alone = local(saved)
    found = alone.load(folder)
    assert (found.step, alone.updates_done) == (1, stepped.updates_done)
    ours, theirs = alone.train_step(rank_cases.rows(), 2), stepped.train_step(rank_cases.rows(), 2)
    assert ours.loss == pytest.approx(theirs.loss, abs=1e-6)
    arguments = {"step": 2, "weight_version": 2, "data_order": [], "config": {}, "hash_of_config": "x", "keep": 2}
    folder = alone.save(tmp_path / "one", **arguments)
    Checkpoints(mesh).load(folder, stepped)
    for name, tensor in alone.named_parameters().items():
        assert torch.equal(stepped.named_parameters()[name].full_tensor(), tensor), name
    again = local(saved)
    again.load(folder, "x")
    assert again.state_dict()["counters"] == alone.state_dict()["counters"] == stepped.state_dict()["counters"]
    for name, tensor in alone.state_dict()["tensors"].items():
        assert torch.equal(again.state_dict()["tensors"][name], tensor), name
    assert again.train_step(rank_cases.rows(), 3).loss == alone.train_step(rank_cases.rows(), 3).loss


def local(saved):
    model = AutoModelForCausalLM.from_pretrained(saved.path, dtype="float32")
    return RankTrainer(model, CONFIG, AlgoConfig(), pad_token_id=0)


def test_more_ranks_than_heads_divide_is_refused_by_the_mesh(mesh):
    with pytest.raises(MeshError, match="layout.sequence_parallel=2 does not divide the 1 ranks"):
        make_mesh(2, CPU)
