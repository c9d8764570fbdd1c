"""A mixture of experts in the trainer: what learns, its names outside of memory, its load, and going on."""

import json
import multiprocessing
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from swe_rl.config.schema import AlgoConfig, EngineConfig, TrainerConfig
from swe_rl.engine.embedded.core import WeightLoader
from swe_rl.engine.embedded.model import PackedDecoder
from swe_rl.engine.server import weights as http_weights
from swe_rl.model.experts import HubNamed, hub_shapes
from swe_rl.model.load import ModelError, load_model
from swe_rl.trainer.checkpoint import export
from swe_rl.trainer.checkpoint.checkpoints import Checkpoints
from swe_rl.trainer.lora import with_adapter
from swe_rl.trainer.optimizer import Optimizer
from swe_rl.trainer.rank_trainer import RankTrainer
from swe_rl.trainer.routing import Routing, load_max, unused_rate
from swe_rl.trainer.send.hand_over import receive_bucket, send_weights, write_weights
from swe_rl.trainer.send.wire import announce_tensors
from swe_rl.trainer.sharded import attention
from swe_rl.trainer.sharded.assemble import sharded_model, sharded_trainer
from swe_rl.trainer.sharded.experts import _by_element, _grouped_products, use_sharded_experts
from swe_rl.trainer.sharded.flops import layer_weights
from swe_rl.trainer.sharded.materialize import WeightsError
from swe_rl.trainer.sharded.mesh import make_mesh
from swe_rl.trainer.sharded.model import _compile_layers, require_agreement
from swe_rl.trainer.trainer import MeshError

CONFIG = TrainerConfig(lr=1e-3, num_threads=1)
LORA = replace(CONFIG, lr=1e-2, lora_rank=3)
SAVED = {"step": 1, "weight_version": 1, "data_order": [], "config": {}}


def local(saved, config=CONFIG, algo=None):
    model, adapter = load_model(saved), None
    if config.lora_rank:
        model, adapter = with_adapter(model, config)
    return RankTrainer(model, config, algo or AlgoConfig(), pad_token_id=0, adapter=adapter)


def ranked(saved, mesh, config=CONFIG):
    return sharded_trainer(saved, config, AlgoConfig(), mesh, pad_token_id=0, temperature=1.0)


def named_by_transformers(model, folder):
    """Names and values as `save_pretrained` writes them."""
    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def test_routers_and_experts_learn(saved_mixture, rank_cases):
    trainer = local(saved_mixture)
    before = {name: one.clone() for name, one in trainer.policy_weights().items()}
    metrics = trainer.train_step(rank_cases.rows(), 1)
    assert metrics.updates == 1 and metrics.grad_norm > 0
    for name, now in trainer.policy_weights().items():
        if "mlp" in name:  # routers and each expert
            assert (now != before[name]).flatten(1).any(dim=1).all(), name


def test_names_and_values_for_engines_are_those_that_transformers_writes(saved_mixture, rank_cases, tmp_path):
    trainer = local(saved_mixture)
    trainer.train_step(rank_cases.rows(), 1)
    expected = named_by_transformers(trainer.model, tmp_path)
    assert "model.layers.1.mlp.experts.3.gate_proj.weight" in expected
    same(dict(trainer.weights()), expected)
    told = announce_tensors(trainer.engine_weights(), {}, torch.float32)
    assert {one.name: tuple(one.shape) for one in told} == {name: tuple(x.shape) for name, x in expected.items()}


def test_what_ranks_send_and_write_has_the_same_names(saved_mixture, mesh, tmp_path):
    expected = load_file(f"{saved_mixture.path}/model.safetensors")
    weights = ranked(saved_mixture, mesh).engine_weights()
    ours, theirs = multiprocessing.Pipe()
    thread = threading.Thread(target=lambda: (send_weights(weights, mesh, theirs), theirs.send(("done", None))))
    thread.start()
    sent = {}
    while (message := ours.recv())[0] == "bucket":
        sent.update(receive_bucket(message[1], ours))
    thread.join()
    same(sent, expected)
    write_weights(weights, mesh, tmp_path, {})
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 4 * sum(one.numel() for one in expected.values())
    assert index["weight_map"].keys() == expected.keys()
    same(load_file(tmp_path / "model-00001-of-00001.safetensors"), expected)


def test_a_server_s_folder_is_read_by_transformers(saved_mixture, rank_cases, tmp_path):
    trainer = local(saved_mixture)
    trainer.train_step(rank_cases.rows(), 1)
    http_weights.export_weights(Path(saved_mixture.path), tmp_path, trainer.weights())
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="float32")
    same(loaded.state_dict(), dict(trainer.policy_weights()))


def test_the_embedded_engine_takes_them(saved_mixture, rank_cases):
    trainer, model = local(saved_mixture), load_model(saved_mixture)
    trainer.train_step(rank_cases.rows(), 1)
    WeightLoader(model).load(trainer.weights())
    same(model.state_dict(), dict(trainer.policy_weights()))


def test_an_expert_that_is_missing_is_named(saved_mixture, mesh, tmp_path):
    from safetensors.torch import save_file

    tensors = load_file(f"{saved_mixture.path}/model.safetensors")
    del tensors["model.layers.0.mlp.experts.2.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(Path(saved_mixture.path, "config.json").read_text())
    with pytest.raises(WeightsError, match="lack `model.layers.0.mlp.experts.2.up_proj.weight`"):
        sharded_model(replace(saved_mixture, path=str(tmp_path)), CONFIG, mesh)


def test_another_mixture_than_configured_is_refused(saved, saved_mixture):
    with pytest.raises(ModelError, match="model.active_experts=1 but .* has num_experts_per_tok=2"):
        load_model(replace(saved_mixture, active_experts=1))
    with pytest.raises(ModelError, match="model.num_experts=4 but .* has num_experts=0"):
        load_model(replace(saved, num_experts=4, active_experts=2, expert_intermediate_size=24))


def test_ranks_learn_what_one_process_learns(saved_mixture, mesh, rank_cases):
    one, ranks = local(saved_mixture), ranked(saved_mixture, mesh)
    require_agreement(ranks.model, tokens=40)
    for step in (1, 2):
        expected, got = one.train_step(rank_cases.rows(), step), ranks.train_step(rank_cases.rows(), step)
        for key in ("loss", "grad_norm", "entropy", "expert_load_max", "expert_unused_rate"):
            assert getattr(got, key) == pytest.approx(getattr(expected, key), abs=1e-5), key
        assert 1.0 <= expected.expert_load_max <= 2.0
    for name, tensor in ranks.policy_weights().items():
        torch.testing.assert_close(tensor.full_tensor(), one.policy_weights()[name], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["ranks", "alone"])
def test_an_export_is_the_trained_model(saved_mixture, mesh, rank_cases, tmp_path, kind):
    if kind == "ranks":
        trainer = ranked(saved_mixture, mesh)
        trainer.train_step(rank_cases.rows(), 1)
        folder = Checkpoints(mesh).save(tmp_path / "c", trainer, background=False, **SAVED)
    else:
        trainer = local(saved_mixture)
        trainer.train_step(rank_cases.rows(), 1)
        folder = trainer.save(tmp_path / "c", hash_of_config="x", keep=1, **SAVED)
    target = tmp_path / "out"
    export.export_checkpoint(folder, Path(saved_mixture.path), target, dtype=torch.float32)
    loaded = AutoModelForCausalLM.from_pretrained(target)
    assert_named_as_saved(loaded, target, tmp_path / "again")
    other = RankTrainer(loaded, CONFIG, AlgoConfig(), pad_token_id=0)
    rows = rank_cases.rows()
    for mine, theirs in zip(trainer.token_logprobs(rows, 1.0), other.row_logprobs(rows), strict=True):
        assert theirs == pytest.approx(mine, abs=1e-5)


def assert_named_as_saved(model, folder, again):
    expected = named_by_transformers(model, again)
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert {name: file.get_slice(name).get_shape() for name in file.keys()} == {  # noqa: SIM118
            name: list(tensor.shape) for name, tensor in expected.items()
        }


def test_a_checkpoint_continues_exactly_and_from_the_other_kind(saved_mixture, mesh, rank_cases, tmp_path):
    straight = local(saved_mixture)
    straight.train_step(rank_cases.rows(), 1)
    folder = straight.save(tmp_path / "c", hash_of_config="x", keep=1, **SAVED)
    expected = straight.train_step(rank_cases.rows(), 2)
    resumed = local(saved_mixture)
    resumed.load(folder, "x")
    again = resumed.train_step(rank_cases.rows(), 2)
    assert replace(again, train_s=0.0) == replace(expected, train_s=0.0)
    same(resumed.policy_weights(), straight.policy_weights())
    ranks = ranked(saved_mixture, mesh)
    Checkpoints(mesh).load(folder, ranks)
    assert ranks.train_step(rank_cases.rows(), 2).loss == pytest.approx(expected.loss, abs=1e-6)


def test_an_adapter_is_on_attention_alone(saved_mixture, mesh, rank_cases, tmp_path):
    pytest.importorskip("peft")
    trainer = local(saved_mixture, LORA)
    assert {name.split(".")[4] for name in trainer.policy_weights()} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    trainer.train_step(rank_cases.rows(), 1)
    merged = dict(trainer.weights())
    http_weights.export_weights(Path(saved_mixture.path), tmp_path, trainer.weights())
    same(load_file(tmp_path / "model.safetensors"), merged)
    base = load_file(f"{saved_mixture.path}/model.safetensors")
    changed = {name for name, tensor in merged.items() if not torch.equal(tensor, base[name])}
    assert merged.keys() == base.keys() and changed == {name for name in base if "self_attn" in name and "proj" in name}
    ranks = ranked(saved_mixture, mesh, LORA)
    ranks.train_step(rank_cases.rows(), 1)
    folder = Checkpoints(mesh).save(tmp_path / "c", ranks, background=False, **SAVED)
    export.export_checkpoint(folder, Path(saved_mixture.path), tmp_path / "out", dtype=torch.float32)
    for name, tensor in load_file(tmp_path / "out" / "model.safetensors").items():
        torch.testing.assert_close(tensor, merged[name], rtol=0, atol=1e-5)
    told = json.loads((tmp_path / "out" / "adapter" / "adapter_config.json").read_text())
    assert told["target_modules"] == ["k_proj", "o_proj", "q_proj", "v_proj"]


def test_experts_without_tokens_have_a_gradient_of_zeros():
    """No rank may stay out of the collective that adds gradients up."""
    weights = torch.randn(3, 4, 2, requires_grad=True)
    rows = torch.randn(5, 2, requires_grad=True)
    out = _grouped_products(rows, weights, torch.tensor([0, 5, 5], dtype=torch.int32))
    out.sum().backward()
    torch.testing.assert_close(out, rows @ weights[1].T)
    assert weights.grad[1].any() and not weights.grad[[0, 2]].any()
    weights.grad = None
    _grouped_products(rows[:0], weights, torch.zeros(3, dtype=torch.int32)).sum().backward()
    assert weights.grad is not None and not weights.grad.any()


def test_ranks_that_cannot_share_the_experts_are_refused(saved_mixture, mesh):
    with pytest.raises(MeshError, match="layout.expert_parallel=2 does not divide the 1 ranks"):
        make_mesh(1, torch.device("cpu"), ep=2)
    with pytest.raises(MeshError, match="layout.shard_ranks=2 does not divide the 1 ranks"):
        make_mesh(1, torch.device("cpu"), shard_ranks=2)
    with pytest.raises(MeshError, match="layout.expert_parallel=3 cannot share out the 4 experts"):
        use_sharded_experts(load_model(saved_mixture), replace(mesh, dp=3, ep=3))


@pytest.mark.slow
def test_compile_leaves_experts_out(saved_mixture):
    layers = load_model(saved_mixture).model.layers
    _compile_layers(layers)
    assert all(layer.mlp._compiled_call_impl is None for layer in layers)
    assert all(layer.self_attn._compiled_call_impl is not None for layer in layers)


@pytest.fixture
def stance():
    yield
    torch.compiler.set_stance("default")


@pytest.mark.long  # it compiles for a minute; the lane `slow` has the experts that are left out
@pytest.mark.slow
@pytest.mark.usefixtures("stance")
def test_what_is_compiled_around_the_experts_products_is_the_same():
    """Also for other numbers of rows than the first, for which nothing is compiled again."""
    both = [_by_element(torch.nn.SiLU(), compiled) for compiled in (False, True)]
    for tokens in (5, 9, 2):
        torch.compiler.set_stance("default" if tokens == 5 else "fail_on_recompile")
        torch.manual_seed(tokens)
        gate_up, counts = torch.randn(tokens * 2, 12), torch.rand(tokens * 2)
        rows, places = torch.randn(tokens * 2, 6), torch.randperm(tokens * 2).view(tokens, 2)
        results = []
        for gated, summed in both:
            leaves = [values.clone().requires_grad_() for values in (gate_up, counts)]
            out = gated(*leaves)
            out.square().sum().backward()
            results.append([out.detach(), *(leaf.grad for leaf in leaves), summed(rows, places)])
        torch.testing.assert_close(results[1], results[0])
        torch.testing.assert_close(results[0][-1], rows[places].sum(dim=1))


def test_a_teacher_of_another_width_leaves_the_policy_s_kernels_for_one_width(monkeypatch):
    widths = []

    def backend(graph, _):
        values = [node.meta["example_value"] for node in graph.graph.nodes if node.op == "placeholder"]
        widths.append([each.shape[1] for each in values if isinstance(each, torch.Tensor) and each.ndim == 2])
        return graph.forward

    torch_compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **more: torch_compile(function, backend=backend, **more))
    policy, teacher = (_by_element(torch.nn.SiLU(), compiled=True) for _ in range(2))
    for (gated, _), width, learns in ((policy, 12, False), (teacher, 20, False), (policy, 12, True)):
        for tokens in (5, 9):
            gated(torch.randn(tokens, width, requires_grad=learns), torch.rand(tokens))
    assert all(isinstance(width, int) for of_graph in widths for width in of_graph), widths
    assert widths == [[12], [20], [12]]


def test_the_load_counts_trained_tokens_once(saved_mixture, rank_cases, monkeypatch):
    """Several mini-batches, recomputation and an entropy term: more passes, the same tokens."""
    taken = []
    found = Routing.taken
    monkeypatch.setattr(Routing, "taken", lambda self: taken.append(found(self)) or taken[-1])
    rows = rank_cases.rows()
    for changes in ({}, {"prompts_per_mini_batch": 1, "activation_checkpointing": True}):
        metrics = local(saved_mixture, replace(CONFIG, **changes)).train_step(rows, 1)
        assert taken[-1].shape == (2, 4) and taken[-1].sum(dim=1).tolist() == [2 * metrics.trained_tokens] * 2
    model = load_model(saved_mixture)
    kept = [row for row in rows if row.teaches]
    chosen = torch.zeros(4, dtype=torch.int64)
    for row in kept:
        logits = model(torch.tensor([row.token_ids.tolist()]), output_router_logits=True).router_logits[0]
        at = [i - 1 for i, masked in enumerate(row.loss_mask) if masked]
        chosen += torch.bincount(logits[at].topk(2).indices.flatten(), minlength=4)
    assert taken[0][0].tolist() == chosen.tolist()


@pytest.mark.parametrize("changes", [{}, {"max_tokens_per_micro_batch": 48, "activation_checkpointing": True}])
def test_the_balancing_loss_is_transformers_own(saved_mixture, rank_cases, monkeypatch, changes):
    """Its value and its gradient, over all trained tokens, also of advantage 0, however these are split."""
    gradients = []
    apply = Optimizer.apply

    def kept(optimizer, lr, again=None):
        gradients.append({name: param.grad.clone() for name, param in optimizer._params.items()})
        return apply(optimizer, lr, again)

    monkeypatch.setattr(Optimizer, "apply", kept)
    rows, config = rank_cases.rows(), replace(CONFIG, **changes)
    plain = local(saved_mixture, config).train_step(rows, 1)
    trainer = local(saved_mixture, config, AlgoConfig(balance_coef=0.3))
    metrics = trainer.train_step(rows, 1)
    assert trainer.train_step([], 2).balance_loss is None and plain.trained_rows < metrics.trained_rows == len(rows)
    assert plain.balance_loss is None and metrics.loss == pytest.approx(plain.loss, abs=1e-6)
    model = load_model(saved_mixture)
    logits = [[], []]
    for row in rows:
        found = model(torch.tensor([row.token_ids.tolist()]), output_router_logits=True).router_logits
        at = [i - 1 for i, masked in enumerate(row.loss_mask) if masked]
        for of_layer, of_row in zip(logits, found, strict=True):
            of_layer.append(of_row[at])
    loss = load_balancing_loss_func(tuple(torch.cat(of_layer) for of_layer in logits), 4, 2)
    assert metrics.balance_loss == pytest.approx(loss.item(), abs=1e-5)
    loss.backward()
    without, with_loss = gradients
    for name, param in model.named_parameters():
        expected = 0.3 * (param.grad if param.grad is not None else torch.zeros_like(param))
        torch.testing.assert_close(with_loss[name] - without[name], expected, rtol=1e-4, atol=2e-6, msg=name)
    assert model.model.layers[0].mlp.gate.weight.grad.abs().max() > 1e-3


def test_passes_that_run_again_count_nothing_twice(saved_mixture, rank_cases, monkeypatch):
    """The metrics are those of a step whose first gradient was finite."""
    rows, algo = rank_cases.rows(), AlgoConfig(balance_coef=0.3)
    expected, trainer = local(saved_mixture, algo=algo).train_step(rows, 1), local(saved_mixture, algo=algo)
    apply = Optimizer.apply

    def broken(optimizer, lr, again=None):
        for param in optimizer._params.values():
            param.grad.fill_(float("nan"))
        return apply(optimizer, lr, again)

    monkeypatch.setattr(Optimizer, "apply", broken)
    monkeypatch.setattr(attention, "without_cudnn", lambda device: True)
    metrics = trainer.train_step(rows, 1)
    assert metrics.repeated_updates == metrics.updates == expected.updates
    assert replace(metrics, repeated_updates=0, train_s=expected.train_s) == expected


def test_even_and_uneven_loads():
    assert load_max(torch.tensor([[5, 5, 5, 5], [5, 5, 5, 5]])) == 1.0
    assert load_max(torch.tensor([[10, 10, 0, 0], [5, 5, 5, 5]])) == 1.5
    assert unused_rate(torch.tensor([[10, 10, 0, 0], [5, 5, 5, 5]])) == 0.25
    assert (load_max(torch.zeros(2, 4)), unused_rate(torch.zeros(2, 4))) == (None, None)


def test_a_token_s_arithmetic_is_that_of_its_experts(saved_mixture):
    assert layer_weights(load_model(saved_mixture).config) == 32 * 8 * (2 * 4 + 2 * 2) + 32 * (3 * 48 + 4)


def test_parts_cover_a_tensor_once():
    weights = {"a.mlp.experts.gate_up_proj": torch.arange(24.0).view(2, 4, 3), "a.mlp.gate.weight": torch.ones(2, 3)}
    named = HubNamed(weights)
    assert list(named) == [
        *(f"a.mlp.experts.{e}.{kind}_proj.weight" for e in (0, 1) for kind in ("gate", "up")),
        "a.mlp.gate.weight",
    ]
    assert torch.cat([named[name].flatten() for name in list(named)[:4]]).tolist() == list(range(24))
    assert hub_shapes("a.mlp.experts.down_proj", (2, 3, 5))[1] == ("a.mlp.experts.1.down_proj.weight", (3, 5))


def test_the_embedded_engine_serves_it(saved_mixture):
    assert PackedDecoder(load_model(saved_mixture), EngineConfig().max_model_len, 0).shape.heads == 4
