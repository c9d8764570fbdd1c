"""Families beyond the fast ones: adapters, critics, checkpoints, exports, hand-over, and the trainer of many ranks.

docs/engineering/models.md shows what is asked here of each family, as a table.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from swe_rl.algo.row import Row
from swe_rl.check.check import check_config
from swe_rl.check.findings import Host, Severity
from swe_rl.config.choices import AdvantageKind, RoutingReplay
from swe_rl.config.compose import compose
from swe_rl.config.known_models import facts_of
from swe_rl.config.schema import AlgoConfig, ModelConfig, TrainerConfig
from swe_rl.engine.embedded.core import WeightLoader
from swe_rl.host.parameter_count import count_parameters
from swe_rl.model.experts import HubNamed
from swe_rl.model.load import load_shape
from swe_rl.model.stored_names import model_without_weights, stored_names
from swe_rl.model.twin import write_twin
from swe_rl.trainer.checkpoint import export
from swe_rl.trainer.checkpoint.export import export_checkpoint
from swe_rl.trainer.critic import attach_value_head
from swe_rl.trainer.lora import base_of, with_adapter
from swe_rl.trainer.rank_trainer import RankTrainer
from swe_rl.trainer.send.hand_over import gather_tensors
from swe_rl.trainer.sharded import assemble
from swe_rl.trainer.sharded.model import check_supported
from swe_rl.trainer.trainer import MeshError, TrainerError
from tests.support.model_families import FAMILIES, ROWS_ALONE, matrix, multimodal_qwen3_5, tiny_of_family

pytestmark = pytest.mark.slow

# Renamed and fused experts with a router's bias, sinks with biased experts, own names of windows and norms.
DIFFERENT = ("nemotron_h", "gpt_oss", "gemma3_text")
FAMILY = [pytest.param(name, marks=() if name in DIFFERENT else pytest.mark.long) for name in FAMILIES]
VARIANTS = ("whole", "recomputed", "adapter", "critic")
VARIANT = {"nemotron_h": "adapter", "gpt_oss": "recomputed", "gemma3_text": "critic"}
CASES = [
    pytest.param(name, variant, marks=() if VARIANT.get(name) == variant else pytest.mark.long)
    for name in FAMILIES
    for variant in VARIANTS
]
SAVED = {"step": 2, "weight_version": 2, "data_order": [1], "config": {"lr": 1.0}}
IDS = torch.arange(3, 33)[None]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """Folders of saved tiny models, by family."""
    made = {}

    def folder(family):
        if family not in made:
            made[family] = tmp_path_factory.mktemp(family)
            tiny_of_family(family).save_pretrained(made[family])
        return made[family]

    return folder


def rows():
    rng = np.random.default_rng(0)
    made = []
    for number, tokens in enumerate((20, 31, 9)):
        mask = np.array([False] * 4 + [True] * (tokens - 4))
        made.append(
            Row(
                trajectory_id=str(number),
                group_id="group",
                weight_versions=[0] * (tokens - 4),
                token_ids=rng.integers(3, 256, tokens).astype(np.int32),
                loss_mask=mask,
                rollout_logprobs=np.where(mask, -3.0, 0.0).astype(np.float32),
                advantage=1.0 - number,
                rewards=np.array([0.0] * (tokens - 5) + [1.0 - number]),
            )
        )
    return made


def loaded(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()


def settings(variant):
    config = TrainerConfig(lr=1e-3, num_threads=1, activation_checkpointing=variant == "recomputed")
    config = replace(config, lora_rank=3 if variant == "adapter" else 0)
    algo = AlgoConfig(advantage=AdvantageKind.gae, critic_warmup_steps=0) if variant == "critic" else AlgoConfig()
    return config, algo


def trainer_of(folder, variant):
    config, algo = settings(variant)
    model = loaded(folder)
    adapter = critic = None
    if variant == "adapter":
        model, adapter = with_adapter(model, config, base_of(ModelConfig(path=str(folder)), folder))
        assert len(adapter.layers) >= 1
    if variant == "critic":
        critic = loaded(folder)
        attach_value_head(critic)
    return RankTrainer(model, config, algo, pad_token_id=0, adapter=adapter, critic=critic)


def sharded_of(folder, variant, mesh, monkeypatch):
    config, algo = settings(variant)
    # The rule that sizes agree is another test's.
    monkeypatch.setattr(assemble, "load_shape", lambda model: model_without_weights(Path(model.path)).config)
    model = ModelConfig(path=str(folder))
    return assemble.sharded_trainer(model, config, algo, mesh, pad_token_id=0, temperature=1.0)


def logits(model):
    with torch.no_grad():
        return model(IDS, use_cache=False).logits


def names_in(folder):
    with safe_open(folder / "model.safetensors", "pt") as file:
        return set(file.keys())


@pytest.mark.parametrize("family", FAMILY)
def test_weights_have_the_names_of_a_checkpoint(family, folder_of):
    folder = folder_of(family)
    model = loaded(folder)
    # Once by what it was loaded from, and once by its configuration alone.
    for layout in (stored_names(model), stored_names(model_without_weights(folder), names_in(folder))):
        named = HubNamed(dict(model.named_parameters()) | dict(model.state_dict()), layout)
        with safe_open(folder / "model.safetensors", "pt") as file:
            assert names_in(folder) <= set(named)
            assert set(named) - names_in(folder) <= {"lm_head.weight"}  # tied
            for name in names_in(folder):
                assert torch.equal(named[name], file.get_tensor(name)), name


@pytest.mark.parametrize(("family", "variant"), CASES)
def test_it_learns_resumes_and_leaves(family, variant, folder_of, tmp_path):
    """After two steps a checkpoint goes on as before; its export and what engines get are the same model."""
    if variant == "adapter":
        pytest.importorskip("peft")
    folder = folder_of(family)
    trainer = trainer_of(folder, variant)
    before = trainer.token_logprobs(rows(), 1.0)
    trainer.train_step(rows(), 1)
    assert trainer.train_step(rows(), 2).grad_norm > 0
    learned = trainer.token_logprobs(rows(), 1.0)
    assert learned != before
    checkpoint = trainer.save(tmp_path, **SAVED)

    target = tmp_path / "export"
    export_checkpoint(checkpoint, folder, target, dtype=torch.float32)
    assert names_in(target) == names_in(folder)
    receiver = loaded(folder)
    WeightLoader(receiver).load(dict(trainer.weights()))
    expected = logits(trainer.model)
    for model in (loaded(target), receiver):
        torch.testing.assert_close(logits(model), expected, rtol=0, atol=1e-5)

    other = trainer_of(folder, variant)
    other.load(checkpoint)
    assert other.token_logprobs(rows(), 1.0) == learned
    assert other.train_step(rows(), 3).grad_norm == trainer.train_step(rows(), 3).grad_norm


def test_an_export_rounds_nothing_that_the_models_files_have_exactly(tmp_path, monkeypatch):
    """Experts are chosen by a bias in float32 beside weights in bfloat16: its last bits change the choice."""
    folder = tmp_path / "model"
    model = tiny_of_family("glm4_moe")
    model.config.dtype = torch.bfloat16
    bias = "model.layers.1.mlp.gate.e_score_correction_bias"
    exact = 7.0 + torch.arange(4) / 1000
    model.state_dict()[bias].copy_(exact)
    weights = HubNamed(model.state_dict(), stored_names(model))
    model.config.save_pretrained(folder)
    save_file(
        {name: (tensor if name == bias else tensor.bfloat16()).contiguous() for name, tensor in weights.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    trainer = trainer_of(folder, "whole")
    checkpoint = trainer.save(tmp_path, **SAVED)
    monkeypatch.setattr(export, "MAX_FILE_BYTES", 60_000)
    export_checkpoint(checkpoint, folder, tmp_path / "export", dtype=None)
    index = json.loads((tmp_path / "export/model.safetensors.index.json").read_text())
    sent = {}
    for file in set(index["weight_map"].values()):
        sent |= load_file(tmp_path / "export" / file)
    assert torch.equal(sent[bias], exact)
    assert {tensor.dtype for name, tensor in sent.items() if name != bias} == {torch.bfloat16}
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in sent.values())
    loaded_bias = AutoModelForCausalLM.from_pretrained(tmp_path / "export").state_dict()[bias]
    assert torch.equal(loaded_bias, exact)


@pytest.mark.parametrize("family", FAMILY)
def test_ranks_learn_what_one_process_learns(family, folder_of, mesh, monkeypatch, capsys):
    folder = folder_of(family)
    alone = trainer_of(folder, "whole")
    ranks = sharded_of(folder, "recomputed", mesh, monkeypatch)
    assert ranks.model.packs_rows == (family not in ROWS_ALONE)
    assert ("packed, and equal" in capsys.readouterr().err) == (family not in ROWS_ALONE)
    for step in (1, 2):
        norms = [trainer.train_step(rows(), step).grad_norm for trainer in (alone, ranks)]
        assert norms[1] == pytest.approx(norms[0], rel=1e-3)
    for one, other in zip(alone.token_logprobs(rows(), 1.0), ranks.token_logprobs(rows(), 1.0), strict=True):
        assert other == pytest.approx(one, abs=2e-3)  # AdamW's first steps make much of rounding
    sent = dict(gather_tensors(ranks.engine_weights(), torch.float32, ranks._layout))
    assert sent.keys() == dict(alone.weights()).keys()


@pytest.mark.long
def test_two_ranks_learn_what_one_process_learns(tmp_path, rank_cases):
    """Of shards, also of tensors that have fewer rows than there are ranks, and of rows that are spread unevenly."""
    families = ("gpt_oss", "nemotron_h", "gemma2", "deepseek_v3")
    for family in families:
        tiny_of_family(family).save_pretrained(tmp_path / family)
    found = rank_cases.run_ranks(2, tmp_path, families, work=rank_cases.family_rank)
    for family in families:
        alone = trainer_of(tmp_path / family, "whole")
        norms = [alone.train_step(rank_cases.rows(), step).grad_norm for step in (1, 2)]
        assert found[family]["norms"] == pytest.approx(norms, rel=1e-3)
        for one, other in zip(alone.token_logprobs(rank_cases.rows(), 1.0), found[family]["logprobs"], strict=True):
            assert other == pytest.approx(one, abs=2e-3)
        sums = {name: float(tensor.abs().sum()) for name, tensor in alone.weights().items()}
        assert found[family]["sums"] == pytest.approx(sums, rel=1e-3)


@pytest.mark.parametrize("variant", ["adapter", "critic"])
def test_ranks_have_adapters_and_critics_of_a_mixture(variant, folder_of, mesh, monkeypatch, tmp_path):
    if variant == "adapter":
        pytest.importorskip("peft")
    folder = folder_of("nemotron_h")
    alone = trainer_of(folder, variant)
    ranks = sharded_of(folder, variant, mesh, monkeypatch)
    norms = [trainer.train_step(rows(), 1).grad_norm for trainer in (alone, ranks)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-3)
    checkpoint = ranks.save(tmp_path, **SAVED)
    ranks.wait()
    alone.load(checkpoint)
    expected = ranks.token_logprobs(rows(), 1.0)
    for one, other in zip(alone.token_logprobs(rows(), 1.0), expected, strict=True):
        assert one == pytest.approx(other, abs=1e-5)


@pytest.mark.parametrize("ranks", [False, True])
def test_the_text_of_a_multimodal_checkpoint_is_trained(ranks, mesh, monkeypatch, tmp_path):
    """The rest of the checkpoint leaves as it came, and all names are those that it had."""
    folder = tmp_path / "model"
    multimodal_qwen3_5().save_pretrained(folder)
    monkeypatch.setattr(assemble, "load_shape", lambda model: model_without_weights(Path(model.path)).config)
    trainer = sharded_of(folder, "whole", mesh, monkeypatch) if ranks else trainer_of(folder, "whole")
    assert trainer.train_step(rows(), 1).grad_norm > 0
    checkpoint = trainer.save(tmp_path, **SAVED)
    trainer.wait()
    export_checkpoint(checkpoint, folder, tmp_path / "export", dtype=torch.float32)
    assert names_in(tmp_path / "export") == names_in(folder)
    sent = dict(gather_tensors(trainer.engine_weights(), torch.float32, trainer._layout))
    old = load_file(folder / "model.safetensors")
    for name, tensor in load_file(tmp_path / "export/model.safetensors").items():
        assert torch.equal(tensor, sent.get(name, old[name])), name
    assert {name for name in names_in(folder) if ".visual." not in name} == sent.keys()


def test_the_type_of_a_multimodal_model_may_be_said_of_its_text_alone(tmp_path):
    folder = tmp_path / "model"
    multimodal_qwen3_5().to(torch.bfloat16).save_pretrained(folder)
    described = json.loads((folder / "config.json").read_text())
    del described["dtype"]
    described["text_config"]["dtype"] = "bfloat16"
    (folder / "config.json").write_text(json.dumps(described))
    checkpoint = trainer_of(folder, "whole").save(tmp_path, **SAVED)
    for asked, expected in ((None, torch.bfloat16), (torch.float32, torch.float32)):
        target = tmp_path / str(expected)
        export_checkpoint(checkpoint, folder, target, dtype=asked)
        assert {tensor.dtype for tensor in load_file(target / "model.safetensors").values()} == {expected}
        assert AutoModelForCausalLM.from_pretrained(target).dtype == expected


def refused(folder, *overrides):
    """The rule and the key of what the check refuses of this model."""
    host = Host(environment={}, read_text=lambda path: Path(path).read_text() if Path(path).is_file() else None)
    host = replace(host, file_exists=lambda path: Path(path).exists(), version=lambda _: "")
    given = compose(["model=folder", f"model.path={folder}", "job=check", *overrides])
    errors = [one for one in check_config(given.config, given.origins, host) if one.severity is Severity.error]
    return {(one.rule_id, one.key) for one in errors if one.rule_id in ("architecture", "routing_replay", "balance")}


@pytest.mark.parametrize("key", ["sequence_parallel", "expert_parallel"])
def test_check_and_start_refuse_to_share_what_is_not_known(key, folder_of, mesh):
    folder = folder_of("gpt_oss")
    layout = ("layout=local2", f"layout.{key}=2")
    assert refused(folder, *layout) == {("architecture", f"layout.{key}")}
    assert refused(folder, "layout=local2") == set()
    ranks = replace(mesh, **{"sp" if key.startswith("s") else "ep": 2})
    with pytest.raises(MeshError, match=rf"layout\.{key}=2 is not known for a `gpt_oss` model"):
        check_supported(model_without_weights(folder), ranks)
    check_supported(model_without_weights(folder), replace(mesh, dp=2))


@pytest.mark.parametrize("key", ["trainer.routing_replay", "algo.balance_coef"])
def test_check_and_start_refuse_to_steer_routers_that_are_not_known(key, folder_of):
    folder = folder_of("gpt_oss")
    replays = key == "trainer.routing_replay"
    config = TrainerConfig(routing_replay=RoutingReplay.replay) if replays else TrainerConfig()
    algo = AlgoConfig() if replays else AlgoConfig(balance_coef=0.1)
    rule = "routing_replay" if replays else "balance"
    assert refused(folder, f"{key}={'replay' if replays else 0.1}") == {(rule, key)}
    assert refused(folder) == set()
    with pytest.raises(TrainerError, match=rf"{key} is set, and the routers of a `gpt_oss` model are not known"):
        RankTrainer(loaded(folder), config, algo, pad_token_id=0)


@pytest.mark.parametrize("family", FAMILY)
def test_sizes_are_those_of_the_configuration(family, folder_of):
    folder = folder_of(family)
    sizes = facts_of(str(folder))
    assert load_shape(ModelConfig(path=str(folder), **sizes)) is not None


@pytest.mark.slow  # a child process imports transformers
def test_a_folder_without_weights_has_the_parameters_that_its_model_has(folder_of, monkeypatch, tmp_path):
    """What config.json says is enough."""
    family = "gpt_oss"
    folder = folder_of(family)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    counted = sum(parameter.numel() for parameter in tiny_of_family(family).parameters())
    assert facts_of(str(tmp_path))["params_b"] == pytest.approx(counted / 1e9, abs=1e-6)
    count_parameters.cache_clear()
    monkeypatch.setattr("sys.executable", "/no/python")
    assert count_parameters(tmp_path / "config.json") is not None  # kept from before


@pytest.mark.parametrize("family", FAMILY)
def test_a_twin_is_small_and_of_the_same_kind(family, tmp_path):
    large = AutoConfig.for_model(family)
    large.save_pretrained(tmp_path / "large")
    (tmp_path / "large/tokenizer_config.json").write_text("{}")
    parameters = write_twin(ModelConfig(path=str(tmp_path / "large")), tmp_path / "twin")
    twin = loaded(tmp_path / "twin")
    assert sum(parameter.numel() for parameter in twin.parameters()) == parameters
    assert type(twin.config) is type(large) and (tmp_path / "twin/tokenizer_config.json").is_file()
    assert twin.config.vocab_size == large.vocab_size
    assert parameters < 3 * twin.config.vocab_size * 64 + 1_000_000
    kinds = [set(getattr(config, "layer_types", None) or ()) for config in (large, twin.config)]
    assert kinds[0] == kinds[1]


def test_the_page_shows_what_is_asked_here():
    page = (Path(__file__).parents[2] / "docs/engineering/models.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in page if line.startswith("|")] == matrix()
