"""What `model.path` may be, and one paragraph for everything else."""

import dataclasses
import json

import pytest

from swe_rl.config.compose import compose
from swe_rl.config.schema import ModelConfig
from swe_rl.model.load import ModelError, load_model, load_tokenizer, locate_model
from swe_rl.model.tiny import build_model, build_tokenizer


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A small model that its configuration describes."""
    folder = tmp_path_factory.mktemp("model")
    tiny = compose(["model=tiny"]).config.model
    config = dataclasses.replace(
        tiny, path=str(folder), num_layers=2, hidden_size=32, intermediate_size=48, vocab_size=320
    )
    build_model(config, 0).save_pretrained(folder)
    build_tokenizer(["some text to make tokens of"], 320).save_pretrained(folder)
    return config


@pytest.fixture
def copied(saved, tmp_path):
    """The same in a folder that a test may break."""
    import shutil

    folder = tmp_path / "copy"
    shutil.copytree(saved.path, folder)
    return dataclasses.replace(saved, path=str(folder)), folder


def refused(load, config, *words):
    with pytest.raises(ModelError) as caught:
        load(config)
    message = str(caught.value)
    assert "\n" not in message and caught.value.exit_status == 2
    for word in words:
        assert word in message, message


def test_a_folder(saved):
    model, tokenizer = load_model(saved), load_tokenizer(saved)
    assert model.config.num_hidden_layers == 2 and str(model.dtype) == "torch.float32"
    assert tokenizer.pad_token_id == 0 and not model.config.use_cache


def test_the_builtin_model():
    config = compose(["model=tiny"]).config.model
    assert locate_model(config).endswith("tiny")
    model, tokenizer = load_model(config), load_tokenizer(config)
    assert model.config.vocab_size == config.vocab_size >= len(tokenizer)


def test_a_builtin_name_that_is_not_shipped(saved):
    other = dataclasses.replace(saved, path="builtin:huge")
    refused(load_model, other, "model.path=builtin:huge", "job=sft")
    refused(load_tokenizer, other, "builtin:huge")


def test_nothing_there(saved, tmp_path):
    missing = dataclasses.replace(saved, path=str(tmp_path / "nowhere"))
    refused(load_model, missing, f"model.path={tmp_path / 'nowhere'}", "cannot be loaded")
    refused(load_tokenizer, missing, "cannot be loaded")


@pytest.mark.parametrize("fact", ["num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads"])
def test_numbers_that_are_not_the_checkpoints(saved, fact):
    wrong = dataclasses.replace(saved, **{fact: getattr(saved, fact) * 2})
    refused(load_model, wrong, f"model.{fact}={getattr(saved, fact) * 2}", f"={getattr(saved, fact)};")


def test_broken_weights(copied):
    config, folder = copied
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    refused(load_model, config, f"model.path={folder}", "cannot be loaded")
    path.write_bytes(b"not tensors at all")
    refused(load_model, config, "cannot be loaded")


def test_a_broken_configuration(copied):
    config, folder = copied
    (folder / "config.json").write_text("{")
    refused(load_model, config, "cannot be loaded")


def test_a_model_that_wants_to_bring_its_own_code(copied, tmp_path):
    config, folder = copied
    described = json.loads((folder / "config.json").read_text())
    described |= {"model_type": "made_up", "auto_map": {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}}
    (folder / "config.json").write_text(json.dumps(described))
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    refused(load_model, config, "cannot be loaded")
    assert not (tmp_path / "ran").exists()


def test_a_tokenizer_without_padding(copied):
    config, folder = copied
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({key: value for key, value in json.loads(path.read_text()).items() if "pad" not in key}))
    refused(load_tokenizer, config, "pad_token")


@pytest.mark.parametrize("name", ["builtin:tiny", "builtin:tiny_moe"])
def test_what_needs_no_model_is_read_as_transformers_reads_it(name):
    from transformers import AutoTokenizer

    config = ModelConfig(path=name)
    ours, theirs = load_tokenizer(config), AutoTokenizer.from_pretrained(locate_model(config))
    assert type(ours) is type(theirs) and ours.init_kwargs.keys() == theirs.init_kwargs.keys()
    assert ours.backend_tokenizer.to_str() == theirs.backend_tokenizer.to_str()
    assert ours.special_tokens_map == theirs.special_tokens_map and ours.model_max_length == theirs.model_max_length
