"""Secrets stay out of what is shown, hashed and written."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.config.compose import compose, config_hash, flatten_config, resolved_yaml
from swe_rl.config.hydra_callback import MaskSecrets
from swe_rl.config.secrets import MASK, SecretError, hide_secrets, is_secret_key, mask_text, mask_tree, mask_value

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
    assert safe == ["rollout.n=4", "+hardware.env_vars.HF_TOKEN=${oc.env:SWE_RL_SECRET_HARDWARE_ENV_VARS_HF_TOKEN}"]
    assert environment == {"SWE_RL_SECRET_HARDWARE_ENV_VARS_HF_TOKEN": SECRET}
    assert hide_secrets(safe, environment) == safe


@pytest.mark.parametrize("key", ["hardware.setup", "runtime.setup", "+hydra.launcher.setup"])
def test_a_secret_in_a_line_of_a_batch_script_is_refused_without_its_value(key):
    with pytest.raises(SecretError, match="WANDB_API_KEY") as caught:
        compose([f"{key}=['export WANDB_API_KEY={SECRET}']"])
    assert SECRET not in str(caught.value)


@given(
    st.text(st.characters(categories=["L", "N", "P"]), min_size=6).filter(lambda text: not text.startswith(("$", "{")))
)
def test_no_secret_survives_in_overrides(secret):
    safe = hide_secrets([f"+hardware.env_vars.API_TOKEN={secret}"], {})
    assert secret not in safe[0].partition("=")[2].replace("SWE_RL_SECRET_HARDWARE_ENV_VARS_API_TOKEN", "")


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
