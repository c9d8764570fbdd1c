"""What a model's files say, in the keys of `model`: against conf/model, and what transformers and runs write."""

import json
import math
from dataclasses import asdict, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from transformers import AutoConfig

from swe_rl.check.check import check_config
from swe_rl.config.compose import compose
from swe_rl.config.composition.values import flatten_config
from swe_rl.config.folders import PACKAGE, list_options
from swe_rl.config.known_models import CHECKPOINT_FACTS, MIXTURE_FACTS, facts_of
from swe_rl.config.schema import ModelConfig
from swe_rl.host import parameter_count
from swe_rl.model.tool_parser import TOOL_PARSERS
from swe_rl.templates.formats import TEMPLATES, template_text
from tests.support.hub_configs import HUB_CONFIGS

KNOWN = [option.name for option in list_options()["model"] if option.name not in ("folder", *HUB_CONFIGS)]
SHIPPED = PACKAGE / "model" / "checkpoints"


def described(model):
    """The config.json of a model with these sizes, as the hub has it."""
    said = {name: getattr(model, key) for key, name in CHECKPOINT_FACTS.items()}
    said |= {"head_dim": model.head_dim, "max_position_embeddings": model.max_position_embeddings}
    said |= {"tie_word_embeddings": model.tie_word_embeddings, "rope_theta": model.rope_theta, "model_type": "qwen3"}
    if model.num_experts:
        said |= {"num_experts": model.num_experts, "num_experts_per_tok": model.active_experts}
        said |= {"moe_intermediate_size": model.expert_intermediate_size, "model_type": "qwen3_moe"}
    return said


def folder_of(path, content, **files):
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(content))
    for name, text in files.items():
        (path / name).write_text(text)
    return path


@pytest.mark.parametrize("option", KNOWN)
def test_a_folder_gives_what_the_option_of_that_model_says(option, tmp_path):
    ours = compose([f"model={option}"]).config.model
    template = template_text(ours.chat_template)
    folder = folder_of(tmp_path / "model", described(ours), **{"chat_template.jinja": template})
    read = compose(["model=folder", f"model.path={folder}"]).config.model
    for key, value in asdict(ours).items():
        if key in ("params_b", "active_params_b"):
            assert getattr(read, key) == pytest.approx(value, rel=0.1)  # the tiny model's is the schema's, rounded
        elif key not in ("name", "path", "system_prompt", "thinking"):
            assert (key, getattr(read, key)) == (key, value)


@pytest.mark.long  # a child process counts the parameters
@pytest.mark.parametrize("option", HUB_CONFIGS)
def test_an_option_of_another_family_says_what_its_config_json_says(option, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ours = asdict(compose([f"model={option}"]).config.model)
    said = HUB_CONFIGS[option]
    AutoConfig.for_model(**said).save_pretrained(tmp_path)
    read = facts_of(str(tmp_path))
    for key in ("params_b", "active_params_b"):
        assert read[key] == pytest.approx(ours[key], abs=0.006)
    for key in (*CHECKPOINT_FACTS, *MIXTURE_FACTS, "tie_word_embeddings"):
        assert (key, read[key]) == (key, ours[key])


@pytest.mark.parametrize("form", TEMPLATES)
@pytest.mark.parametrize("place", ["chat_template.jinja", "tokenizer_config.json"])
def test_the_chat_format_is_that_of_its_own_template(form, place, tmp_path):
    text = template_text(form)
    content = text if place.endswith(".jinja") else json.dumps({"chat_template": text})
    facts = facts_of(str(folder_of(tmp_path / "model", described(ModelConfig()), **{place: content})))
    assert facts["chat_template"] == form
    assert facts["tool_parser"] == ("qwen3_coder" if form == "qwen_coder" else "hermes") in TOOL_PARSERS


@pytest.mark.parametrize("name", ["tiny", "tiny_moe"])
def test_what_transformers_wrote_is_read(name):
    shipped = compose([f"model={name}"]).config.model
    facts = facts_of(str(SHIPPED / name))
    keys = (*CHECKPOINT_FACTS, "num_experts", "active_experts", "expert_intermediate_size")
    assert {key: facts[key] for key in keys} == {key: getattr(shipped, key) for key in keys}
    assert facts["rope_theta"] == shipped.rope_theta and facts["tie_word_embeddings"] is True
    with safe_open(SHIPPED / name / "model.safetensors", "pt") as file:
        shapes = {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118
    counts = {key: math.prod(shape) for key, shape in shapes.items()}
    spare = facts["num_experts"] - facts["active_experts"]
    idle = sum(count for key, count in counts.items() if ".experts." in key) * spare // max(1, facts["num_experts"])
    assert facts["params_b"] == pytest.approx(sum(counts.values()) / 1e9, abs=1e-6)
    assert facts["active_params_b"] == pytest.approx((sum(counts.values()) - idle) / 1e9, abs=1e-6)


def test_a_run_and_its_checkpoint_give_what_the_run_had(tmp_path):
    config = compose(["model=qwen3_4b"]).config
    saved = {key: value for key, value in flatten_config(config).items() if key.startswith("model.")}
    for step in (1, 2):
        checkpoint = tmp_path / "run" / "checkpoints" / f"step_{step:06d}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "state.json").write_text(json.dumps({"config": {**saved, "model.num_layers": 30 + step}}))
        (checkpoint / "manifest.json").write_text("{}")
    of_run, of_step = facts_of(str(tmp_path / "run")), facts_of(str(checkpoint.with_name("step_000001")))
    assert (of_run["num_layers"], of_step["num_layers"]) == (32, 31)
    names = {field.name for field in fields(ModelConfig)} - {"name", "path", "revision"}
    assert of_run.keys() == names


def test_a_name_of_the_hub_is_read_from_its_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    home = tmp_path / "models--some--model"
    folder_of(home / "snapshots" / "abc", described(ModelConfig(num_layers=3)))
    assert facts_of("some/other") == {} == facts_of("some/model", "abd")
    assert facts_of("some/model", "abc")["num_layers"] == 3
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("abc\n")
    assert facts_of("some/model")["num_layers"] == 3


@pytest.mark.parametrize("family", ["no_such_family", None, 3, ["qwen3"]])
def test_no_child_tries_to_make_a_model_of_an_unknown_family(family, tmp_path, monkeypatch):
    monkeypatch.setattr(parameter_count.subprocess, "run", None)
    facts = facts_of(str(folder_of(tmp_path / "model", {**described(ModelConfig()), "model_type": family})))
    assert facts["params_b"] > 0


ANYTHING = st.none() | st.text() | st.integers() | st.floats() | st.dictionaries(st.text(), st.integers(), max_size=1)
NAMES = [*described(ModelConfig(num_experts=4)), "rope_parameters"]


@given(st.dictionaries(st.sampled_from(NAMES), ANYTHING, max_size=3))
def test_whatever_a_file_says_nothing_raises(tmp_path_factory, wrong):
    content = {**described(ModelConfig(num_experts=4)), **wrong}
    facts = facts_of(str(folder_of(tmp_path_factory.mktemp("m") / "model", content)))
    assert not facts or facts["num_heads"] > 0


@pytest.mark.parametrize("content", ["", "[]", "{", '{"num_hidden_layers": "many"}'])
def test_a_file_that_makes_no_sense_is_refused_by_name(content, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(content)
    composed = compose(["model=folder", f"model.path={folder}"])
    assert "model_unread" in {finding.rule_id for finding in check_config(composed.config)}


def test_a_folder_passes_the_check():
    assert check_config(compose(["model=folder", f"model.path={SHIPPED / 'tiny'}", "trainer=default"]).config) == []
