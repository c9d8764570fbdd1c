"""Secrets stay out of what is shown, hashed and written."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.config.compose import compose, resolved_yaml
from swe_rl.config.composition.values import config_hash, flatten_config
from swe_rl.config.hydra_callback import MaskSecrets
from swe_rl.config.secrets import SecretError, hide_secrets, is_secret_key, mask_text, mask_tree, mask_value
from swe_rl.files.redactor import MASK, could_be_secret, is_secret_variable

SECRET = "not-for-any-file-8f3"


@pytest.mark.parametrize(
    "key", ["hardware.env_vars.WANDB_API_KEY", "hardware.env_vars.my_tokens", "x.api_key", "a.secret"]
)
def test_secret_keys(key):
    assert is_secret_key(key)


@pytest.mark.parametrize("key", ["rollout.max_prompt_tokens", "router.acting_token_weight", "hardware.env_vars.PATH"])
def test_other_keys(key):
    assert not is_secret_key(key)


def test_no_key_of_the_schema_is_masked_by_mistake():
    assert MASK not in [value for value in flatten_config(compose().config).values() if isinstance(value, str)]


def test_override_moves_to_the_environment():
    environment = {}
    safe = hide_secrets(["rollout.n=4", f"+hardware.env_vars.HF_TOKEN='{SECRET}'"], environment)
    [(variable, value)] = environment.items()
    assert safe == ["rollout.n=4", f"+hardware.env_vars.HF_TOKEN=${{oc.env:{variable}}}"]
    assert variable.startswith("SWE_RL_SECRET_HARDWARE_ENV_VARS_HF_TOKEN") and value == SECRET
    assert hide_secrets(safe, environment) == safe


@pytest.mark.parametrize("key", ["hardware.setup", "runtime.setup", "+hydra.launcher.setup"])
def test_a_secret_in_a_line_of_a_batch_script_is_refused_without_its_value(key):
    with pytest.raises(SecretError, match="WANDB_API_KEY") as caught:
        compose([f"{key}=['export WANDB_API_KEY={SECRET}']"])
    assert SECRET not in str(caught.value)


@given(
    st.text(st.characters(categories=["L", "N", "P"]), min_size=6)
    .filter(lambda text: not text.startswith(("$", "{", "[")) and "{" not in text)
    .filter(could_be_secret)
)
def test_no_secret_survives_in_overrides(secret):
    environment = {}
    [safe] = hide_secrets([f"+hardware.env_vars.API_TOKEN={secret}"], environment)
    [variable] = environment
    assert secret not in safe.partition("=")[2].replace(variable, "")


@pytest.mark.parametrize(
    "override",
    [
        "engine.key=null", "+agent.params.end_token=5", "+agent.params.use_key=true", "+agent.params.sort_key=[1,2]",
        "+hardware.env_vars.AUTH_TOKEN='Bearer ${oc.env:TOK}'", "rollout.compaction_request='Use {key: value}.'",
    ],
)  # fmt: skip
def test_what_is_no_secret_keeps_its_type(override):
    environment = {}
    assert hide_secrets([override], environment) == [override] and environment == {}


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (f"'${{oc.env:USER_NAME}}:{SECRET}'", "user:{}"),
        (f"${{oc.env:USER_NAME}}{SECRET}", "user{}"),
        (f"'Bearer ${{oc.env:USER_NAME}}{SECRET}'", "Bearer user{}"),
        (f"'{SECRET}${{oc.env:USER_NAME}}\\'s'", "{}user's"),
    ],
)
def test_a_literal_beside_a_reference_is_a_secret_too(monkeypatch, value, kept):
    monkeypatch.setenv("USER_NAME", "user")
    environment = {}
    [safe] = hide_secrets([f"+hardware.env_vars.API_KEY={value}"], environment)
    assert SECRET not in safe and "${oc.env:USER_NAME}" in safe
    assert hide_secrets([safe], {}) == [safe]
    for name, secret in environment.items():
        monkeypatch.setenv(name, secret)
    composed = compose([safe])
    assert composed.config.hardware.env_vars["API_KEY"] == kept.format(SECRET)
    assert SECRET not in resolved_yaml(composed)


def test_a_sweep_over_a_reference_and_a_secret_keeps_its_values():
    environment = {}
    [safe] = hide_secrets([f"engine.key=${{oc.env:A}},{SECRET},${{oc.env:B}}"], environment)
    [variable] = environment
    assert safe == f"engine.key=${{oc.env:A}},${{oc.env:{variable}}},${{oc.env:B}}"


def test_a_secret_that_stands_for_a_variable_is_refused():
    with pytest.raises(SecretError, match=r"engine\.key") as caught:
        hide_secrets([f"engine.key=${{oc.env:KEY,{SECRET}}}"], {})
    assert SECRET not in str(caught.value)
    assert hide_secrets(["engine.key=${oc.env:KEY,null}"], {}) == ["engine.key=${oc.env:KEY,null}"]


def test_an_escaped_quote_is_a_quote():
    environment = {}
    hide_secrets([r"+hardware.env_vars.API_KEY='a\'b-secret'"], environment)
    assert list(environment.values()) == ["a'b-secret"]


def test_two_keys_never_share_a_variable():
    environment = {}
    names = ("api_key", "API_KEY", "api.key", "Api_Key")
    hide_secrets([f"+hardware.env_vars.{name}=secret-{number}" for number, name in enumerate(names)], environment)
    assert list(environment.values()) == ["secret-0", "secret-1", "secret-2", "secret-3"]


@pytest.mark.parametrize(
    "override",
    [
        "+agent.params.servers=[{url: x, api_key: sk-123456}]",
        "+agent.params.server=choice({api_key: sk-123456},{api_key: sk-654321})",
        "+agent.params.api_key=[sk-123456,sk-654321]",
    ],
)
def test_a_secret_deep_inside_is_refused(override):
    with pytest.raises(SecretError):
        hide_secrets([override], {})


def test_a_secret_in_a_list_of_a_file_is_in_nothing_that_is_written(tmp_path):
    """config.yaml, the frozen record of a job and Hydra's multirun.yaml."""
    from omegaconf import OmegaConf

    (tmp_path / "agent").mkdir()
    spelled = f"defaults: [bash]\nparams: {{servers: [{{url: x, api_key: {SECRET}}}]}}\n"
    (tmp_path / "agent" / "mine.yaml").write_text(spelled)
    composed = compose(["agent=mine"], tmp_path)
    assert SECRET in str(composed.config.agent.params)
    assert SECRET not in resolved_yaml(composed) + repr(flatten_config(composed.config))
    config = OmegaConf.create({"agent": {"params": {"servers": [{"url": "x", "api_key": SECRET}]}}})
    MaskSecrets().on_multirun_start(config)
    assert OmegaConf.to_container(config)["agent"]["params"]["servers"] == [{"url": "x", "api_key": MASK}]


def test_the_hash_is_of_the_values_and_not_of_this_environment(monkeypatch):
    """A variable whose value is part of a model's name changes what is shown, and not which run it is."""
    words = [["model.name=alpha-model"], ["model.name=beta-model"], ["+agent.params.end_token=5"]]
    before = [config_hash(compose(one).config) for one in [*words, ["+agent.params.end_token=6"]]]
    assert len({*before}) == 4
    monkeypatch.setenv("KEY_A", "alpha-model")
    monkeypatch.setenv("KEY_B", "beta-model")
    assert flatten_config(compose(words[0]).config)["model.name"] == MASK
    assert [config_hash(compose(one).config) for one in words] == before[:3]


def test_repeats_and_thinking_are_runs_of_their_own():
    hashes = {config_hash(compose(words).config) for words in ([], ["job.repeat=1"], ["job.repeat=2"])}
    assert len(hashes) == 3
    idle = [["job=rollout"], ["job=rollout", "job.think_s=2"]]
    assert len({config_hash(compose(words).config) for words in idle}) == 2


@pytest.mark.parametrize("name", ["TOKENIZER", "TOKENIZERS_PARALLELISM", "KEYBOARD", "Tokenizer", "XDG_SEAT"])
def test_words_that_only_begin_so_are_no_secrets(name):
    assert not is_secret_variable(name)


@pytest.mark.parametrize(
    "name", ["KEY_A", "apiKeyId", "AWS_ACCESS_KEY_ID", "HF_TOKEN", "token1", "PGPASSWORD", "my-key"]
)
def test_names_of_secrets(name):
    assert is_secret_variable(name)


def test_secret_in_braces_is_refused():
    with pytest.raises(SecretError, match="WANDB_API_KEY"):
        hide_secrets(["+hardware.env_vars={A: 1, WANDB_API_KEY: abc}"], {})


def test_composition_has_the_value_and_shows_the_mask(monkeypatch):
    monkeypatch.setattr(os, "environ", os.environ.copy())
    composed = compose([f"+hardware.env_vars.HF_TOKEN={SECRET}", "sandbox.runtime_url=http://me:pw@host:1"])
    assert composed.config.hardware.env_vars == {"HF_TOKEN": SECRET}
    shown = resolved_yaml(composed) + repr(flatten_config(composed.config)) + repr(composed.overrides)
    assert SECRET not in shown
    assert "me:pw" not in resolved_yaml(composed)
    other = compose(["+hardware.env_vars.HF_TOKEN=another", "sandbox.runtime_url=http://you:pw@host:1"])
    assert config_hash(composed.config) == config_hash(other.config)


def test_text_is_masked_by_what_the_environment_holds(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    assert mask_text(f"login with {SECRET} failed at http://a:b@h/") == "login with *** failed at http://***@h/"


def test_tree_and_values():
    tree = {"hardware": {"env_vars": {"A_KEY": "x", "PATH": "/bin"}}, "urls": ["http://u:p@h"]}
    assert mask_tree(tree) == {"hardware": {"env_vars": {"A_KEY": MASK, "PATH": "/bin"}}, "urls": ["http://***@h"]}
    assert mask_value("a.token", None) is None


def test_sweep_callback_masks_literals():
    from omegaconf import OmegaConf

    config = OmegaConf.create({"hardware": {"env_vars": {"HF_TOKEN": SECRET, "B_KEY": "${oc.env:NOPE}"}}})
    OmegaConf.set_readonly(config, True)
    MaskSecrets().on_multirun_start(config)
    assert OmegaConf.to_container(config)["hardware"]["env_vars"] == {"HF_TOKEN": MASK, "B_KEY": "${oc.env:NOPE}"}
