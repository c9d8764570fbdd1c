"""How vLLM's own arguments are read, and what follows from them, in each way to write them."""

from dataclasses import replace

import pytest

from swe_rl.check.findings import Host, Severity
from swe_rl.check.rules.engine import (
    READ_AGAIN,
    READ_ONCE,
    cpu_drafts,
    draft_weights,
    find_drafting,
    inexact_drafts,
    load_format,
    quantised_rollouts,
    quantised_weights,
)
from swe_rl.check.rules.memory import engine_memory
from swe_rl.config.choices import Correction, EngineKind, LoraServing, WeightSync
from swe_rl.config.compose import compose
from swe_rl.config.schema import AlgoConfig, Config, EngineConfig, LayoutConfig
from swe_rl.facts.server_arguments import VLLM_COMMAND, server_arguments

HOST = Host(environment={})
GPUS = LayoutConfig(name="dp4", engines=4, trainer_gpus=4, colocated=False)
PYTHON = "/opt-of-mine/bin/python"


def config_of(*extra, command=PYTHON, layout=GPUS, kind=EngineKind.vllm, correction=Correction.token_tis):
    engine = EngineConfig(kind=kind, command=command, extra_arguments=extra)
    return Config(engine=engine, layout=layout, algo=AlgoConfig(correction=correction))


def found(rule, config, host=HOST):
    return [(one.severity, one.key, one.value) for one in rule(config, host)]


def settings_of(*extra, command=PYTHON):
    asked = find_drafting(server_arguments(config_of(*extra, command=command), HOST.environment))
    return asked and dict(asked.settings)


def test_the_last_of_a_flag_wins_and_the_commands_come_first():
    config = config_of("--quantization=mxfp8", "--block-size", "32", command="vllm serve -q awq --async-scheduling -x")
    given = server_arguments(config, HOST.environment)
    assert given["--quantization"] == ("mxfp8", "engine.extra_arguments")
    assert given["--block-size"] == ("32", "engine.extra_arguments")
    assert given["--async-scheduling"] == ("", "engine.command")


@pytest.mark.parametrize("command", ["srun --overlap -q normal /opt/bin/python", "docker run -q image vllm serve"])
def test_flags_of_what_starts_the_server_are_not_the_servers(command):
    assert server_arguments(config_of(command=command), HOST.environment) == {}


def test_the_command_may_come_from_the_environment():
    host = Host(environment={VLLM_COMMAND: "vllm serve -q bitsandbytes"})
    assert found(quantised_weights, config_of(command=None), host) == [
        (Severity.error, "engine.command", "--quantization")
    ]
    assert found(quantised_weights, config_of(command=None)) == []


def test_memory_is_counted_by_the_command_of_the_environment():
    given = ["job=eval", "model=qwen3_32b", "layout=dp4", "hardware=h100x8", "engine.gpu_memory_utilization=0.8"]
    config = compose(given).config
    assert [finding.rule_id for finding in engine_memory(config, HOST)] == ["engine_memory"]
    assert not list(engine_memory(config, Host(environment={VLLM_COMMAND: "vllm serve -q fp8_per_tensor"})))


@pytest.mark.parametrize(
    ("extra", "settings"),
    [
        ((), None),
        (("--speculative-config", "no json"), {}),
        (("--speculative-config", "[1]"), {}),
        (("-sc", '{"method": "ngram"}'), {"method": "ngram"}),
        (('--speculative-config={"model": "a=b"}',), {"model": "a=b"}),
        (("--speculative_config.method", "mtp", "-sc.model=/draft"), {"method": "mtp", "model": "/draft"}),
        (("--spec-method", "ngram", "--spec-tokens", "4"), {"method": "ngram", "num_speculative_tokens": "4"}),
        (("--spec_model=/draft", "-sc", '{"draft_tensor_parallel_size": 2}'),
         {"model": "/draft", "draft_tensor_parallel_size": 2}),
    ],
)  # fmt: skip
def test_drafts_in_each_way_to_ask_for_them(extra, settings):
    assert settings_of(*extra) == settings


@pytest.mark.parametrize("method", ["ngram", "ngram_gpu", "suffix", "[ngram]"])
def test_drafts_without_weights_need_no_update(method):
    assert found(draft_weights, config_of("--spec-method", method)) == []


def test_weights_of_drafts_are_lost_only_where_servers_sleep():
    config = config_of("--spec-method", "mtp")
    assert found(draft_weights, config) == [(Severity.warning, "engine.extra_arguments", "--spec-method")]
    shared = replace(config, layout=replace(GPUS, colocated=True))
    assert found(draft_weights, shared) == [(Severity.error, "engine.extra_arguments", "--spec-method")]


def test_what_vllm_has_no_name_for_yet_is_no_exact_acceptance():
    config = config_of("-sc", '{"method": "ngram", "rejection_sample_method": "fly"}')
    assert found(inexact_drafts, config) == [(Severity.error, "engine.extra_arguments", "--speculative-config")]


@pytest.mark.parametrize(
    "settings", ["", "null", '{"method": null}', '{"rejection_sample_method": []}', '{"model": {}}', "[" * 100_000]
)
def test_strange_settings_raise_nothing(settings):
    config = config_of("-sc", settings)
    for rule in (cpu_drafts, draft_weights, inexact_drafts, load_format, quantised_rollouts, quantised_weights):
        assert all(one.fix for one in rule(config, HOST))
    assert found(draft_weights, config) == []


def test_servers_of_others_and_the_engine_of_this_process_have_arguments_of_their_own():
    extra = ("--spec-method", "mtp", "-q", "awq", "--kv-cache-dtype", "fp8", "--load-format", "dummy")
    for kind in (EngineKind.external, EngineKind.embedded):
        config = config_of(*extra, kind=kind, layout=LayoutConfig(), correction=Correction.none)
        for rule in (cpu_drafts, draft_weights, inexact_drafts, load_format, quantised_rollouts, quantised_weights):
            assert found(rule, config) == []


@pytest.mark.parametrize("cache", ["fp8", "fp8_e5m2", "int8_per_token_head", "nvfp4", ""])
def test_a_cache_with_fewer_bits_needs_a_correction(cache):
    extra = (f"--kv-cache-dtype={cache}",)
    assert found(quantised_rollouts, config_of(*extra, correction=Correction.none))
    assert not found(quantised_rollouts, config_of(*extra))


def test_a_configuration_of_quantised_layers_needs_a_correction_too():
    extra = ("--quantization-config", '{"moe": "mxfp8"}')
    assert found(quantised_rollouts, config_of(*extra, correction=Correction.none))
    assert not found(quantised_weights, config_of(*extra))


def by_folder(config, way=WeightSync.disk, **trainer):
    return replace(config, trainer=replace(config.trainer, weight_sync=way, **trainer))


@pytest.mark.parametrize("extra", [(), ("--load-format",), *((f"--load_format={name}",) for name in READ_AGAIN)])
def test_loaders_that_read_the_folder_of_an_update(extra):
    assert found(load_format, by_folder(config_of(*extra))) == []


@pytest.mark.parametrize("name", [*sorted(READ_ONCE), "Dummy"])
def test_loaders_that_cannot_are_refused_where_weights_go_by_folder(name):
    config = config_of("--load-format", name)
    assert found(load_format, by_folder(config)) == [(Severity.error, "engine.extra_arguments", "--load-format")]
    warned = [(Severity.warning, "engine.extra_arguments", "--load-format")]  # a server that is started again
    assert [found(load_format, by_folder(config, way)) for way in (WeightSync.nccl, WeightSync.ipc)] == [warned, warned]
    assert found(load_format, by_folder(config, lora_rank=8, lora_serving=LoraServing.adapter)) == []
    named = config_of(command=f"vllm serve --load-format {name}")  # whose weights `auto` sends by folder
    assert found(load_format, named) == [(Severity.error, "engine.command", "--load-format")]
