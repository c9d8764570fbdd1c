"""Keys that are paths: known as such, expanded once, and read alike by a check and by a start."""

from dataclasses import replace
from pathlib import Path
from typing import get_args, get_origin

import pytest

from swe_rl.check.findings import Host, value_at
from swe_rl.config.compose import PATHS, compose
from swe_rl.config.composition.values import config_hash, flatten_config
from swe_rl.config.folders import PACKAGE
from swe_rl.config.keys import key_types
from swe_rl.model.load import model_folder


def test_a_path_below_home_is_one_wherever_it_is_read(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    composed = compose(['paths.outputs="~/x"', 'trainer.resume="~/x/r"', 'job.output="~nobody_has_this_name/x"'])
    config = composed.config
    assert (config.paths.outputs, config.trainer.resume) == ("/home/me/x", "/home/me/x/r")
    assert (config.sft.output, config.job.output) == ("/home/me/x/sft/tiny", "~nobody_has_this_name/x")
    assert composed.sweep_dir.startswith("/home/me/x/multirun/train/")


NO_PATHS = {  # words of the schema that name nothing of this machine, or something that only a machine may have
    "agent": "name _target_ command program_path system_prompt tools debug_entrypoint",
    "engine": "served_model command host_cache_gb url model key",
    "env": "name _target_ split eval_split revision image_template eval_image_template",
    "gateway": "host",
    "hardware": "name gpu_kind ray_address partition account qos exclude constraint gres",
    "job": "baseline_label candidate_label topic commits test_command setup python push",
    "layout": "name",
    "logger": "name _target_ otel project",
    "model": "name revision chat_template system_prompt tool_parser",
    "runtime": "containers partition qos host",
    "rollout": "concurrency compaction_request",
    "router": "name _target_",
    "sandbox": "name _target_ runtime_url runtime_key_env host image",
    "algo": "name",
    "sft": "device",
    "mine": "since python test_command",
    "trainer": "attention",
    **dict.fromkeys(("advantage", "grader", "loss", "reward", "rule"), "name _target_"),
}
PATH_KEYS = [f"{group}.{name}" for group, names in PATHS.items() for name in names]


def test_every_word_of_the_schema_is_known_as_a_path_or_as_none():
    words = {
        key for key, hint in key_types().items() if str in (hint, *get_args(hint)) and get_origin(hint) is not dict
    }
    words = {key for key in words if get_origin(key_types()[key]) is not tuple} - {"name"}
    assert words == {*PATH_KEYS, *(f"{group}.{name}" for group, names in NO_PATHS.items() for name in names.split())}


@pytest.mark.parametrize("key", PATH_KEYS)
def test_check_and_start_read_the_same_path(tmp_path, monkeypatch, key):
    """Rules expand by themselves, and a start mostly does not: none of them meets a `~`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "there").mkdir()
    config = compose([f'{key}="~/there"']).config
    path = value_at(config, key)
    assert path == Host().absolute(path) == str(tmp_path / "there") == flatten_config(config)[key]
    assert Path(path).exists() and Host().exists("~/there")
    assert config_hash(config) == config_hash(compose([f"{key}={path}"]).config)


def test_a_model_below_home_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "tiny").symlink_to(PACKAGE / "model/checkpoints/tiny")
    config = compose(['model.path="~/tiny"', 'algo.teacher="~/tiny"', 'sft.start="~/tiny"']).config
    for path in (config.model.path, config.algo.teacher, config.sft.start):
        assert model_folder(replace(config.model, path=path)) == tmp_path / "tiny"
