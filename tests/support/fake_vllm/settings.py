"""What a fake vLLM server is to be like, from code, a real server's command line or the environment.

Invariants:
- Unknown flags of a real command line are ignored; unknown fields in the environment are an error.
"""

import argparse
import dataclasses
import json
from dataclasses import dataclass

VARIABLE = "FAKE_VLLM"


@dataclass(frozen=True, slots=True)
class FakeSettings:
    version: str = "0.32.0"
    model: str = "policy"
    max_model_len: int = 4096
    max_num_seqs: int = 256
    vocab_size: int = 1000
    block_size: int = 16
    kv_capacity_tokens: int = 65536
    host_capacity_tokens: int = 0
    api_key: str | None = None
    token_delay_s: float = 0.0
    start_delay_s: float = 0.0
    dev_mode: bool = True
    generate: bool = True  # /inference/v1/generate
    completions: bool = True
    token_ids: bool = True
    timings: bool = True
    weight_spans: bool = False  # of /inference/v1/generate
    metrics: bool = True
    receives: bool = False  # tensors that come over gloo; else an update is words alone
    tensor_delay_s: float = 0.0  # after each of them
    workers: int = 1  # of the server, as tensor parallelism makes them; a program has a process for each further one
    logprobs: str = "processed"  # a LogprobsMode, of a program as its command line says
    routes_start: bool = True  # it leaves out those of tokens that nobody asked for; /v1/completions of 0.26 does not
    experts: tuple[int, int, int] = (2, 2, 4)  # layers, of a token, in all
    routes: bool = False  # replies tell them
    adapters: bool = False  # of a program: with --enable-lora, and where the environment allows new ones
    sleep_mode: bool = True  # of a program: with --enable-sleep-mode
    start_log: str = ""  # printed before anything else
    die_at_start: int = 0  # status to end with after `start_log`; 0: go on
    die_unless_eager: bool = False  # `die_at_start` without --enforce-eager only


@dataclass(slots=True)
class Fault:
    """Befalls the next completion request. `status` 0: the connection is cut. `body`: what is sent in place of it."""

    status: int = 0
    body: str | None = None
    after_s: float = 0.0


def settings_from(arguments: list[str], environ: dict[str, str]) -> tuple[FakeSettings, int, bool]:
    """The settings, the port and whether to be eager, from a real server's command line and environment."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model")
    parser.add_argument("--served-model-name")
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--max-num-seqs", type=int)
    parser.add_argument("--enforce-eager", action="store_true")
    parser.add_argument("--enable-sleep-mode", action="store_true")
    parser.add_argument("--enable-lora", action="store_true")
    parser.add_argument("--logprobs-mode", default="processed_logprobs")
    parser.add_argument("--worker-extension-cls", default="")
    parser.add_argument("--enable-return-routed-experts", action="store_true")
    known, _ = parser.parse_known_args(arguments)
    scales = known.worker_extension_cls.startswith("swe_rl_logprobs.")
    given = {
        "logprobs": "whole" if scales else known.logprobs_mode.removesuffix("_logprobs"),
        "model": known.served_model_name or known.model,
        "max_model_len": known.max_model_len,
        "max_num_seqs": known.max_num_seqs,
        "api_key": environ.get("VLLM_API_KEY") or None,
        "adapters": known.enable_lora and environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING") == "1",
        "sleep_mode": known.enable_sleep_mode,
        "routes": known.enable_return_routed_experts,
        "dev_mode": environ.get("VLLM_SERVER_DEV_MODE") == "1",
    }
    settings = FakeSettings(**{name: value for name, value in given.items() if value is not None})
    return dataclasses.replace(settings, **json.loads(environ.get(VARIABLE) or "{}")), known.port, known.enforce_eager
