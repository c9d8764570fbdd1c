"""Rules of the engines' addresses and command line: each address once, nothing secret, nothing that other keys decide.

Invariants:
- `engine.extra_arguments` come last and win in vLLM; what swe_rl sets itself is refused there, with the key to use.
"""

from collections import Counter
from collections.abc import Iterator

from swe_rl.check.findings import Finding, Host, about, error
from swe_rl.config.choices import EngineKind
from swe_rl.config.parts import Part
from swe_rl.config.schema import Config
from swe_rl.config.secrets import mask_text
from swe_rl.host.addresses import base_address
from swe_rl.plan.sizes import uses_no_gpu

_SECRET_FLAGS_INSTEAD = {"--api-key": "VLLM_API_KEY", "--hf-token": "HF_TOKEN"}
_SET_BY = {
    "--tensor-parallel-size": "layout.engine_tp",
    "-tp": "layout.engine_tp",
    "--pipeline-parallel-size": "layout.engine_tp",
    "-pp": "layout.engine_tp",
    "--data-parallel-size": "layout.engines",
    "-dp": "layout.engines",
    "--max-model-len": "rollout.max_trajectory_tokens",
    "--gpu-memory-utilization": "engine.gpu_memory_utilization",
    "--num-gpu-blocks-override": "engine.kv_cache_tokens",
    "--kv-cache-memory-bytes": "engine.kv_cache_tokens",
    "--max-num-seqs": "engine.max_num_seqs",
    "--max-num-batched-tokens": "engine.max_num_batched_tokens",
    "--logprobs-mode": "engine.logprobs_mode",
    "--enable-prefix-caching": "engine.prefix_caching",
    "--enforce-eager": "engine.enforce_eager",
    "--model": "model.path",
    "--revision": "model.revision",
    "--tokenizer-revision": "model.revision",
    "--served-model-name": "model.name",
    "--seed": "trainer.seed",
    "--weight-transfer-config": "trainer.weight_sync",
    "--worker-extension-cls": "trainer.weight_sync",
    "--enable-sleep-mode": "layout.colocated",
    "--host": None,
    "--port": None,
    "--uds": None,
    "--generation-config": None,
}  # flag: the key that decides it; None: no key does


@about(Part.engines)
def engine_secrets(config: Config, _: Host) -> Iterator[Finding]:
    """Every user of a machine can read a command line, and the configuration is written to files."""
    engine = config.engine
    words = [word for text in (*engine.extra_arguments, engine.command or "") for word in text.split()]
    for flag in sorted({word.partition("=")[0] for word in words} & _SECRET_FLAGS_INSTEAD.keys()):
        yield error(
            "engine_secret",
            "engine.command" if flag in (engine.command or "") else "engine.extra_arguments",
            "everybody on the machine could read what follows it, and it would be written to config.yaml",
            f"leave it out, and set {_SECRET_FLAGS_INSTEAD[flag]} in the environment",
            value=flag,
        )


@about(Part.engines)
def engine_flags(config: Config, _: Host) -> Iterator[Finding]:
    if config.engine.kind is not EngineKind.vllm:
        return
    words = [word for text in config.engine.extra_arguments for word in text.split()]
    for flag in dict.fromkeys(map(_plain, words)):
        if flag in _SET_BY:
            key = _SET_BY[flag]
            yield error(
                "engine_flags",
                "engine.extra_arguments",
                "swe_rl sets it from the configuration, which the rest of the run goes by; this one would win",
                f"{key}=VALUE, and leave it out here" if key else "leave it out: swe_rl has to know and to choose it",
                value=flag,
            )


@about(Part.engines)
def float32_head(config: Config, _: Host) -> Iterator[Finding]:
    """Engines whose logits are rounded beside a trainer whose logits are not: each log-probability is off."""
    engine = config.engine
    if not config.model.float32_head or engine.kind is not EngineKind.vllm or uses_no_gpu(config.layout):
        return
    words = " ".join(engine.extra_arguments)
    if "--hf-overrides" in words.replace("_", "-") and "head_dtype" not in words:
        yield error(
            "float32_head",
            "engine.extra_arguments",
            "it replaces the one that makes the engines' head float32, as model.float32_head=true makes the trainer's",
            """add "head_dtype": "float32" to its JSON, or model.float32_head=false""",
            value="--hf-overrides",
        )


def _plain(word: str) -> str:
    """As vLLM's parser reads it: `--max_model_len=5`, `--no-enforce-eager` and `--seed` all name a flag."""
    flag = word.partition("=")[0].replace("_", "-")
    return flag.replace("--no-", "--", 1) if flag.replace("--no-", "--", 1) in _SET_BY else flag


@about(Part.engines)
def engine_cache(config: Config, _: Host) -> Iterator[Finding]:
    engine = config.engine
    if engine.kv_cache_tokens and engine.kv_cache_tokens < engine.max_model_len:
        yield error(
            "engine_cache",
            "engine.kv_cache_tokens",
            f"holds not even one sequence of engine.max_model_len={engine.max_model_len}; 0 takes what fits",
            f"engine.kv_cache_tokens={engine.max_model_len}",
        )


@about(Part.engines)
def engine_addresses(config: Config, _: Host) -> Iterator[Finding]:
    if config.engine.kind != EngineKind.external:
        return
    good: list[str] = []
    for url in config.engine.urls:
        try:
            good.append(base_address(url))
        except ValueError as problem:
            fix = "engine.urls=[http://HOST:8000/v1], and a key as VLLM_API_KEY in the environment"
            yield error("address", "engine.urls", str(problem), fix, value=mask_text(url))
    for url, times in Counter(good).items():
        if times > 1:
            others = ",".join(dict.fromkeys(good))
            yield error(
                "address",
                "engine.urls",
                f"is there {times} times; each is one engine",
                f"engine.urls=[{others}]",
                value=url,
            )
