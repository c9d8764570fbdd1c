"""Rules of the engines check their addresses and command line.

Each address is there once, and an argument is no secret, no other key decides it, and it does not quietly change what
is sampled.

Invariants:
- `engine.extra_arguments` come last and win in vLLM. What swe_rl sets itself is refused there, with the key to use.
- Arguments that change what is sampled (drafted tokens, quantised weights, a quantised KV cache) are read as vLLM reads
  them (facts/sizes.py). The rules refuse what vLLM accepts and what breaks a promise in silence: sampled tokens have
  the log-probabilities that the server says, and new weights reach all that samples. What is said of vLLM is in its
  files, compared in 0.26.0 and 0.32.0. A test of the lane `vllm` asks the installed one.
"""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from swe_rl.check.findings import Finding, Host, error, rule_about, rule_between, warning
from swe_rl.config.choices import Capture, Correction, EngineKind, WeightSync
from swe_rl.config.parts import Part
from swe_rl.config.schema import Config
from swe_rl.config.secrets import mask_text
from swe_rl.facts.server_arguments import CACHE, WEIGHTS, WEIGHTS_CONFIG, Argument, server_arguments, settings_of
from swe_rl.facts.sizes import serves_adapter, shares_gpus, uses_no_gpu, wanted_sync
from swe_rl.host.addresses import base_address

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
    "--kv-offloading-size": "engine.host_cache_gb",
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
}  # a flag has the key that decides it, or None where no key does
DRAFTS = "--speculative-config"
DRAFT_FLAGS = {"--spec-method": "method", "--spec-model": "model", "--spec-tokens": "num_speculative_tokens"}
DRAFTS_WITHOUT_WEIGHTS = frozenset({"ngram", "ngram_gpu", "suffix"})  # they look tokens up
# With these methods vLLM samples what the model alone would sample.
EXACT_ACCEPTANCE = frozenset({"standard", "block"})
PLAIN_CACHES = frozenset({"auto", "bfloat16", "float16"})
# With these methods vLLM quantises the weights of an update as well.
QUANTISED_ON_ARRIVAL = frozenset(
    {
        "fp8_per_tensor",
        "fp8_per_block",
        "fp8_per_channel",
        "mxfp8",
        "mxfp4",
        "nvfp4_per_token",
        "int8_per_channel_weight_only",
        "experts_int8",
        "online",
        "fp8",  # it is fp8_per_tensor in 0.26, and 0.32 refuses it at its start, and names fp8_per_tensor
    }
)
_ON_ARRIVAL = "fp8_per_tensor"
LOADER = "--load-format"
# These loaders read the folder of an update too, and those of READ_ONCE only what a server starts with.
READ_AGAIN = frozenset({"auto", "hf", "safetensors", "fastsafetensors", "instanttensor"})
READ_ONCE = frozenset({
    "mistral", "npcache", "pt",  # they look for files that no update has
    "bitsandbytes", "dummy", "ipc_cache", "modelexpress", "runai_streamer_sharded", "sharded_state", "tensorizer",
})  # fmt: skip


@rule_about(Part.engines)
def engine_secrets(config: Config, _: Host) -> Iterator[Finding]:
    """Refuses secrets on the command line.

    Every user of a machine can read a command line, and the configuration is written to files.
    """
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


@rule_about(Part.engines)
def engine_command(config: Config, _: Host) -> Iterator[Finding]:
    try:
        shlex.split(config.engine.command or "" if config.engine.kind is EngineKind.vllm else "")
    except ValueError as reason:
        words = f"is no command: {reason}"
        fix = "engine.command=null, or quoted as for a shell"
        yield error("engine_command", "engine.command", words, fix)


@rule_about(Part.engines)
def engine_flags(config: Config, _: Host) -> Iterator[Finding]:
    if config.engine.kind is not EngineKind.vllm:
        return
    words = [word for text in config.engine.extra_arguments for word in text.split()]
    for flag in dict.fromkeys(map(_normalize_flag, words)):
        if flag in _SET_BY:
            key = _SET_BY[flag]
            yield error(
                "engine_flags",
                "engine.extra_arguments",
                "swe_rl sets it from the configuration, which the rest of the run goes by; this one would win",
                f"{key}=VALUE, and leave it out here" if key else "leave it out: swe_rl has to know and to choose it",
                value=flag,
            )


@rule_about(Part.engines)
def float32_head(config: Config, _: Host) -> Iterator[Finding]:
    """Finds engines whose logits are rounded beside a trainer whose logits are not.

    Each log-probability would be off.
    """
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


def _normalize_flag(word: str) -> str:
    """Returns a flag as vLLM's parser reads it: `--max_model_len=5`, `--no-enforce-eager` and `--seed` all name one."""
    flag = word.partition("=")[0].replace("_", "-")
    if flag.replace("--no-", "--", 1) in _SET_BY:
        return flag.replace("--no-", "--", 1)
    return flag


class Drafting(NamedTuple):
    """Holds what vLLM is asked for of speculative decoding. `flag` names it."""

    settings: Mapping[str, object]
    flag: str
    key: str


def find_drafting(given: Mapping[str, Argument]) -> Drafting | None:
    """Returns what the given arguments ask for of speculative decoding, or None where they ask for none."""
    flags = [flag for flag in given if flag.partition(".")[0] in (DRAFTS, *DRAFT_FLAGS)]
    if not flags:
        return None
    named = {name: given[flag].value for flag, name in DRAFT_FLAGS.items() if flag in given}
    return Drafting(settings_of(given, DRAFTS) | named, flags[0].partition(".")[0], given[flags[0]].key)


@rule_about(Part.engines)
def cpu_drafts(config: Config, host: Host) -> Iterator[Finding]:
    """Refuses drafted tokens where vLLM has no Triton, for two faults seen in 0.32. Greedy requests meet neither.

    `_expand_kernel_impl` (`vllm/utils/cpu_triton_utils.py`, equal in 0.26) gives drafted tokens their request's
    temperature, top_k and top_p, but writes into a copy: what is no int64 is lost, and logits are divided by memory
    that nobody wrote. `apply_top_k_only` (`topk_topp_sampler.py`) fails in a step without drafts, so that the first
    request with top_k ends the server.
    """
    asked = find_drafting(server_arguments(config, host.environment))
    if asked and uses_no_gpu(config.layout):
        yield error(
            "cpu_drafts",
            asked.key,
            "vLLM's CPU build loses the temperature and top_k of drafted tokens: it samples from another distribution "
            "than it says, or dies",
            f"leave {asked.flag} out, or choose a layout with GPUs: layout=dp4",
            value=asked.flag,
        )


@rule_between(Part.engines, Part.evaluation)
def inexact_drafts(config: Config, host: Host) -> Iterator[Finding]:
    """Refuses drafted tokens that are accepted whatever the model thinks of them.

    `rejection_sample_method=synthetic` (`vllm/config/speculative.py`) accepts them at a given rate. `standard` and
    `block` sample what the model alone would sample.
    """
    asked = find_drafting(server_arguments(config, host.environment))
    method = "standard"
    if asked:
        method = str(asked.settings.get("rejection_sample_method", "standard"))
    if asked and method not in EXACT_ACCEPTANCE:
        yield error(
            "inexact_drafts",
            asked.key,
            f"rejection_sample_method={method} takes drafted tokens that the model did not sample, while their "
            "log-probabilities are the model's",
            "leave rejection_sample_method out: vLLM's default is exact",
            value=asked.flag,
        )


@rule_between(Part.engines, Part.trainer)
def draft_weights(config: Config, host: Host) -> Iterator[Finding]:
    """Finds draft models that no update reaches.

    New weights are loaded into the target alone (`reload_weights` and the weight transfer of `gpu_worker.py`), and
    `sleep` at level 2 gives the memory of both away. Drafts from old weights are still verified by the new ones.
    """
    asked = find_drafting(server_arguments(config, host.environment))
    drafter = asked and (asked.settings.get("method") or asked.settings.get("model"))
    method = str(drafter or "").strip("[]")
    if not asked or not method or method in DRAFTS_WITHOUT_WEIGHTS:
        return
    without = f"leave {asked.flag} out, or draft without weights: --spec-method ngram --spec-tokens 4"
    if shares_gpus(config):
        words = f"layout={config.layout.name} puts servers to sleep, which forget the weights of {method} for good"
        yield error("draft_weights", asked.key, words, without, value=asked.flag)
    else:
        words = f"no update reaches the weights of {method}: the more the policy learns, the fewer drafts are accepted"
        yield warning("draft_weights", asked.key, words, without, value=asked.flag)


@rule_between(Part.engines, Part.trainer)
def quantised_rollouts(config: Config, host: Host) -> Iterator[Finding]:
    """Refuses engines with fewer bits than the trainer where nothing corrects for it.

    They sample from another policy than the one that is trained. NeMo-RL asks for its correction too, where engines are
    FP8 (its pages on FP8).
    """
    given = server_arguments(config, host.environment)
    algo = config.algo
    flags = [flag for flag in (WEIGHTS, WEIGHTS_CONFIG) if flag in given]
    if CACHE in given and given[CACHE].value not in PLAIN_CACHES:
        flags.append(CACHE)
    traced = config.rollout.capture is Capture.traced
    corrected = algo.correction is not Correction.none and algo.stale_correction is not Correction.none
    if not flags or (traced and corrected):
        return
    fixes = []
    if algo.correction is Correction.none:
        fixes.append("algo.correction=token_tis")
    if algo.stale_correction is Correction.none:
        fixes.append("algo.stale_correction=null")
    if not traced:
        fixes.append("rollout.capture=traced")
    yield error(
        "quantised_rollouts",
        given[flags[0]].key,
        "engines compute with fewer bits than the trainer, so that tokens come from another policy than the trained "
        "one, and nothing corrects for it",
        f"{' '.join(fixes)}, or leave {' and '.join(flags)} out",
        value=flags[0],
    )


@rule_between(Part.engines, Part.trainer)
def quantised_weights(config: Config, host: Host) -> Iterator[Finding]:
    """Refuses quantised weights that an update cannot bring.

    The trainer sends plain weights, by whatever `trainer.weight_sync`. vLLM quantises them again, layer by layer
    (`model_loader/reload/layerwise.py`), where the method does so at the start (`ONLINE_QUANT_SHORTHAND_NAMES` of
    `config/quantization.py`, and `experts_int8`). Most other methods have parameters for weights that somebody
    quantised before. bitsandbytes (0.26) has a loader of its own without `get_all_weights`, which a reload from a
    folder calls.
    """
    given = server_arguments(config, host.environment)
    method = given[WEIGHTS].value if WEIGHTS in given else _ON_ARRIVAL
    if method not in QUANTISED_ON_ARRIVAL and not serves_adapter(config):
        yield error(
            "quantised_weights",
            given[WEIGHTS].key,
            f"the trainer sends plain weights, and vLLM does not quantise those of an update with {method}",
            f"{WEIGHTS} {_ON_ARRIVAL}, which quantises what arrives, or leave {WEIGHTS} out",
            value=WEIGHTS,
        )


@rule_between(Part.engines, Part.trainer)
def load_format(config: Config, host: Host) -> Iterator[Finding]:
    """Finds loaders that cannot read an update's folder, which has safetensors.

    `reload_weights` (`gpu_model_runner.py`) reads it with the loader of the server's start, which needs
    `get_all_weights`. `runai_streamer` has it in 0.32, not in 0.26, and a plugin's may have it. A server that was
    started again gets weights by folder, whatever trainer.weight_sync is (`restore` of an engine).
    """
    given = server_arguments(config, host.environment).get(LOADER, Argument("", ""))
    way = wanted_sync(config, host.environment)
    name, by_folder = given.value.lower(), way is WeightSync.disk  # vLLM reads it in small letters too
    if not name or name in READ_AGAIN or serves_adapter(config) or not (by_folder or name in READ_ONCE):
        return
    say = warning
    words = f"a server that dies cannot start again: {LOADER} {name} cannot read an update's folder"
    if by_folder:
        say, fails = (error, "fails") if name in READ_ONCE else (warning, "fails unless its loader has get_all_weights")
        words = f"weights go through folders of safetensors, and vLLM's first update with {LOADER} {name} {fails}"
    yield say("load_format", given.key, words, f"leave {LOADER} out, or {LOADER} safetensors", value=LOADER)


@rule_about(Part.engines)
def engine_cache(config: Config, _: Host) -> Iterator[Finding]:
    engine = config.engine
    if engine.kv_cache_tokens and engine.kv_cache_tokens < engine.max_model_len:
        yield error(
            "engine_cache",
            "engine.kv_cache_tokens",
            f"holds not even one sequence of engine.max_model_len={engine.max_model_len}; 0 takes what fits",
            f"engine.kv_cache_tokens={engine.max_model_len}",
        )


@rule_about(Part.engines)
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
