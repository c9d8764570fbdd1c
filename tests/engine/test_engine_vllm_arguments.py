"""The command line and environment of a server, golden."""

from dataclasses import replace
from pathlib import Path

import pytest

import swe_rl.engine
from swe_rl.config.choices import (
    Correction,
    EngineKind,
    JobName,
    LogprobsMode,
    MaskLevel,
    RoutingReplay,
    WeightSync,
)
from swe_rl.config.compose import compose
from swe_rl.config.schema import (
    AlgoConfig,
    Config,
    EngineConfig,
    JobConfig,
    LayoutConfig,
    ModelConfig,
    RolloutConfig,
    TrainerConfig,
)
from swe_rl.engine.server.features import needs_of_run
from swe_rl.engine.vllm.arguments import (
    ServerChoice,
    VllmOptions,
    extension_files,
    server_arguments,
    server_environment,
)
from tests.support.fake_vllm.settings import settings_from

SERVE = VllmOptions(command=("vllm", "serve"))


def lines(arguments):
    """Flags with their values, one a line."""
    text = " ".join(arguments)
    return text.replace(" --", "\n--").splitlines()


def test_four_gpu_engines_of_qwen3_14b():
    config = compose(["job=rollout", "model=qwen3_14b", "layout=dp4", "hardware=h100x8", "trainer.seed=7"]).config
    found = server_arguments(config, ServerChoice(2, 8123, "Qwen/Qwen3-14B", devices="2"), SERVE)
    assert lines(found) == [
        "vllm serve Qwen/Qwen3-14B",
        "--served-model-name qwen3_14b",
        "--host 127.0.0.1",
        "--port 8123",
        "--tensor-parallel-size 1",
        f"--max-model-len {config.engine.max_model_len}",
        "--max-num-seqs 256",
        "--max-num-batched-tokens 8192",
        "--logprobs-mode processed_logprobs",
        "--seed 9",
        "--generation-config vllm",
        "--enable-prefix-caching",
        "--enable-prompt-tokens-details",
        "--enable-per-request-metrics",
        "--disable-uvicorn-access-log",
        '--hf-overrides {"head_dtype": "float32"}',
        "--gpu-memory-utilization 0.85",
    ]


def test_the_head_is_the_models_where_the_trainers_is():
    config = compose(
        ["job=rollout", "model=qwen3_14b", "layout=dp4", "hardware=h100x8", "model.float32_head=false"]
    ).config
    assert "--hf-overrides" not in server_arguments(config, ServerChoice(2, 8123, "m", devices="2"), SERVE)


def test_the_tiny_model_on_the_cpu():
    config = Config(engine=EngineConfig(kind=EngineKind.vllm, max_model_len=512, max_num_seqs=16))
    options = VllmOptions(command=("python", "-m", "vllm.entrypoints.openai.api_server"))
    found = lines(server_arguments(config, ServerChoice(0, 1, "/models/tiny"), options))
    assert found[:2] == ["python -m vllm.entrypoints.openai.api_server", "--model /models/tiny"]
    assert found[-5:] == [
        "--enforce-eager",
        "--dtype float32",
        "--block-size 32",
        # 16 full sequences of 512 tokens and vLLM's own block, in bytes twice over.
        f"--kv-cache-memory-bytes {2 * 257 * 32 * 2 * 6 * 2 * 32 * 4}",
        "--num-gpu-blocks-override 257",
    ]
    assert not any("gpu-memory-utilization" in line for line in found)


def changed(config, **engine):
    return replace(config, engine=replace(config.engine, **engine))


@pytest.mark.parametrize(
    ("config", "choice", "options", "flag"),
    [
        (changed(Config(), enforce_eager=True), {}, {}, "--enforce-eager"),
        (changed(Config(), enforce_eager=False), {"eager": True}, {}, "--enforce-eager"),
        (changed(Config(), prefix_caching=False), {}, {}, "--no-enable-prefix-caching"),
        (changed(Config(), logprobs_mode=LogprobsMode.raw), {}, {}, "--logprobs-mode raw_logprobs"),
        (changed(Config(), served_model="other"), {}, {}, "--served-model-name other"),
        (changed(Config(), max_num_batched_tokens=4, max_num_seqs=64), {}, {}, "--max-num-batched-tokens 64"),
        (Config(model=ModelConfig(revision="abc")), {}, {}, "--tokenizer-revision abc"),
        (Config(), {"devices": "0"}, {"kv_cache_tokens": 120_000}, "--num-gpu-blocks-override 7500"),
        (Config(), {"devices": "0"}, {"extra_arguments": ("--load-format", "dummy")}, "--load-format dummy"),
    ],
)
def test_one_key_one_flag(config, choice, options, flag):
    found = server_arguments(config, ServerChoice(0, 1, "m", **choice), replace(SERVE, **options))
    assert flag in lines(found)


@pytest.mark.parametrize("mode", RoutingReplay)
def test_a_server_of_the_run_tells_experts_where_they_are_asked_for(mode):
    """Command line, probe and a server agree."""
    config = Config(trainer=TrainerConfig(routing_replay=mode), model=ModelConfig(num_experts=8))
    arguments = server_arguments(config, ServerChoice(0, 1, "m"), SERVE)
    settings, _, _ = settings_from([word for word in arguments if word != "m"], {})
    assert settings.routes is (needs_of_run(config).num_experts == 8) is (mode is not RoutingReplay.none)
    evaluation = replace(config, job=JobConfig(name=JobName.eval))  # nobody trains on it
    assert needs_of_run(evaluation).num_experts == 0
    assert "--enable-return-routed-experts" not in server_arguments(evaluation, ServerChoice(0, 1, "m"), SERVE)


def test_never():
    config = compose(["job=rollout", "model=qwen3_14b", "layout=dp4", "hardware=h100x8"]).config
    found = server_arguments(config, ServerChoice(0, 1, "m", devices="0"), SERVE)
    assert "--trust-remote-code" not in found and "--api-key" not in found and "--enforce-eager" not in found


def test_an_adapter_is_merged_before_the_engines_see_it():
    with_adapter = Config(trainer=TrainerConfig(lora_rank=8))
    assert server_arguments(with_adapter, ServerChoice(0, 1, "m"), SERVE) == server_arguments(
        Config(), ServerChoice(0, 1, "m"), SERVE
    )
    assert environment(with_adapter) == environment()


def test_weights_straight_into_memory():
    """By NCCL between GPUs; without them by a back end of ours, which the workers import from a folder of its own."""
    by = Config(engine=EngineConfig(kind=EngineKind.vllm), trainer=TrainerConfig(weight_sync=WeightSync.nccl))
    found = lines(server_arguments(by, ServerChoice(0, 1, "m"), SERVE))
    assert '--weight-transfer-config {"backend": "gloo"}' in found
    assert "--worker-extension-cls swe_rl_worker.Extension" in found
    there = server_environment(
        by, ServerChoice(0, 1, "m"), {"PYTHONPATH": "/mine"}, cache=Path("/c"), api_key="k", extension=Path("/x")
    )
    assert there["PYTHONPATH"] == "/x:/mine" and there["GLOO_SOCKET_IFNAME"] == "lo"
    on_gpus = replace(by, layout=LayoutConfig(trainer_gpus=1, colocated=False))
    found = lines(server_arguments(on_gpus, ServerChoice(0, 1, "m", devices="0"), SERVE))
    assert '--weight-transfer-config {"backend": "nccl"}' in found and not any("extension" in one for one in found)


@pytest.mark.parametrize(
    ("rollout", "mode", "flag", "scales"),
    [
        ({}, LogprobsMode.whole, "processed_logprobs", False),
        ({"temperature": 0.7}, LogprobsMode.whole, "processed_logprobs", False),
        ({"top_p": 0.9}, LogprobsMode.whole, "raw_logprobs", False),
        ({"top_k": 20}, LogprobsMode.whole, "raw_logprobs", False),
        ({"min_p": 0.1}, LogprobsMode.whole, "raw_logprobs", False),
        ({"top_p": 0.9, "temperature": 0.7}, LogprobsMode.whole, "raw_logprobs", True),
        ({"top_p": 0.9, "temperature": 0.7}, LogprobsMode.processed, "processed_logprobs", False),
        ({"top_p": 0.9, "temperature": 0.7}, LogprobsMode.raw, "raw_logprobs", False),
    ],
)
def test_a_server_of_the_run_reports_what_its_probe_accepts(rollout, mode, flag, scales):
    """Command line, environment and a server agree with the probe."""
    config = Config(
        engine=EngineConfig(kind=EngineKind.vllm, logprobs_mode=mode),
        rollout=RolloutConfig(**rollout),
        trainer=TrainerConfig(weight_sync=WeightSync.disk),
    )
    arguments = server_arguments(config, ServerChoice(0, 1, "m"), SERVE)
    assert f"--logprobs-mode {flag}" in lines(arguments)
    assert ("--worker-extension-cls swe_rl_logprobs.Extension" in lines(arguments)) is scales
    assert list(extension_files(config)) == ["swe_rl_logprobs.py"] * scales
    assert environment(config).get("VLLM_USE_V2_MODEL_RUNNER") == ("0" if scales else None)
    settings, _, _ = settings_from([word for word in arguments if word != "m"], {})
    assert settings.logprobs == ("whole" if scales else flag.removesuffix("_logprobs"))
    assert LogprobsMode(settings.logprobs) in needs_of_run(config).accepted


def test_one_extension_brings_all_that_workers_import():
    config = Config(
        engine=EngineConfig(kind=EngineKind.vllm),
        rollout=RolloutConfig(top_p=0.9, temperature=0.7),
        trainer=TrainerConfig(weight_sync=WeightSync.nccl),
    )
    arguments = lines(server_arguments(config, ServerChoice(0, 1, "m"), SERVE))
    [named] = [line for line in arguments if line.startswith("--worker-extension-cls")]
    assert named.endswith("swe_rl_logprobs.Extension")
    names = {"swe_rl_logprobs.py", "swe_rl_worker.py", "swe_rl_ipc_handle.py", "swe_rl_staged_layers.py"}
    assert set(extension_files(config)) == names
    assert all((Path(swe_rl.engine.__file__).parent / file).is_file() for file in extension_files(config).values())


@pytest.mark.parametrize(
    ("rollout", "algo", "job", "accepted"),
    [
        ({}, {}, JobName.train, "whole processed raw"),
        ({"temperature": 0.8}, {}, JobName.train, "whole processed"),
        ({"top_p": 0.9}, {"correction": Correction.token_tis}, JobName.train, "whole processed raw"),
        ({"top_p": 0.9}, {"correction": Correction.sequence_tis}, JobName.train, "whole raw"),
        ({"top_k": 9, "temperature": 0.8}, {"correction": Correction.sequence_tis}, JobName.train, "whole"),
        ({"top_p": 0.9}, {"correction": Correction.sequence_tis}, JobName.rollout, "whole processed raw"),
        ({"min_p": 0.1}, {"mask_low": 0.5, "mask_level": MaskLevel.geometric}, JobName.train, "whole raw"),
        ({"min_p": 0.1}, {"mask_low": 0.5, "mask_level": MaskLevel.token}, JobName.train, "whole processed raw"),
    ],
)
def test_what_a_run_can_compare(rollout, algo, job, accepted):
    config = Config(rollout=RolloutConfig(**rollout), algo=AlgoConfig(**algo), job=JobConfig(name=job))
    assert needs_of_run(config).accepted == {LogprobsMode(mode) for mode in accepted.split()}
    declared = changed(config, logprobs_mode=LogprobsMode.raw)
    assert needs_of_run(declared).accepted == needs_of_run(config).accepted | {LogprobsMode.raw}


def test_servers_that_share_gpus_with_a_trainer_can_sleep():
    shared = LayoutConfig(engines=1, trainer_gpus=1, colocated=True)
    config = Config(engine=EngineConfig(kind=EngineKind.vllm), layout=shared)
    assert "--enable-sleep-mode" in server_arguments(config, ServerChoice(0, 1, "m", devices="0"), SERVE)
    for other in (
        replace(config, layout=replace(shared, colocated=False)),
        replace(config, layout=LayoutConfig()),
        replace(config, job=JobConfig(name=JobName.rollout)),
    ):
        assert "--enable-sleep-mode" not in server_arguments(other, ServerChoice(0, 1, "m", devices="0"), SERVE)
    by_memory = replace(config, trainer=TrainerConfig(weight_sync=WeightSync.ipc))
    found = lines(server_arguments(by_memory, ServerChoice(0, 1, "m", devices="0"), SERVE))
    assert '--weight-transfer-config {"backend": "swe_rl_ipc"}' in found
    assert "--worker-extension-cls swe_rl_worker.Extension" in found


def environment(config=None, environ=None, **choice):
    return server_environment(
        config or Config(),
        ServerChoice(0, 1, "Qwen/X", **choice),
        environ or {"PATH": "/bin"},
        cache=Path("/cache"),
        api_key="k",
    )


def test_environment_of_a_gpu_server():
    found = environment(devices="MIG-a")
    assert found["CUDA_VISIBLE_DEVICES"] == "MIG-a" and found["VLLM_API_KEY"] == "k" and found["PATH"] == "/bin"
    assert found["VLLM_SERVER_DEV_MODE"] == "1" and found["VLLM_CACHE_ROOT"] == "/cache/vllm"
    assert "OMP_NUM_THREADS" not in found and "TORCH_COMPILE_DISABLE" not in found and "HF_HUB_OFFLINE" not in found


def test_environment_on_the_cpu_and_without_a_compiler():
    found = environment()
    assert found["CUDA_VISIBLE_DEVICES"] == "" and found["OMP_NUM_THREADS"] == "1"
    assert found["TORCH_COMPILE_DISABLE"] == "1" and found["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert environment(devices="0", eager=True)["TORCH_COMPILE_DISABLE"] == "1"


def test_the_users_environment_wins_but_for_the_placement():
    config = Config(hardware=replace(Config().hardware, env_vars={"NCCL_DEBUG": "INFO"}, internet=False))
    given = {"VLLM_CACHE_ROOT": "/mine", "CUDA_VISIBLE_DEVICES": "0,1,2,3", "VLLM_SERVER_DEV_MODE": "0"}
    found = environment(config, given, devices="3")
    assert found["VLLM_CACHE_ROOT"] == "/mine" and found["NCCL_DEBUG"] == "INFO" and found["HF_HUB_OFFLINE"] == "1"
    assert found["CUDA_VISIBLE_DEVICES"] == "3" and found["VLLM_SERVER_DEV_MODE"] == "1"
