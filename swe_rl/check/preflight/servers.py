"""Probes what somebody else started: engines that serve the model, a sandbox server, Weights & Biases, and Ray.

Invariants:
- A key goes only to the address that the configuration names, and into no finding; that of W&B is looked for, not read.
- Ray is asked by a process of its own, which is gone afterwards; an address that nothing listens at is told at once, as
  Ray alone would try for minutes.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from swe_rl.check.findings import Finding, error, warning
from swe_rl.check.preflight.system import HttpQuestion, System, job_environment
from swe_rl.config.choices import EngineKind, LogprobsMode, RuntimeKind, RuntimeProtocol, SandboxKind, WandbMode
from swe_rl.config.environment import SERVER_KEYS, key_of
from swe_rl.config.schema import Config
from swe_rl.facts import logprobs
from swe_rl.facts.sizes import asks_ray
from swe_rl.files.lines import lines_of
from swe_rl.host.addresses import base_address
from swe_rl.host.program import Unanswered
from swe_rl.layout.placement import describe_shortage, ranks_together

SERVER_S = 5.0
WANDB = "https://api.wandb.ai"
_BUILTIN = "builtin:"
_RAY_S = 9.0
_RAY = "hardware.ray_address"
_RAY_QUESTION = "swe_rl.hardware.ray_cluster"


def probe_engines(config: Config, system: System) -> Iterator[Finding]:
    if config.engine.kind is not EngineKind.external:
        return
    environment = job_environment(config, system)
    for url in config.engine.urls:
        try:
            address = base_address(url)  # the run takes it with /v1 or without
        except ValueError:
            continue  # a rule says so
        yield from _probe_engine(config, system, url, f"{address}/v1", environment)


def _probe_engine(
    config: Config, system: System, url: str, address: str, environment: Mapping[str, str]
) -> Iterator[Finding]:
    key = key_of(environment, *SERVER_KEYS)
    if key:
        headers = {"Authorization": f"Bearer {key}"}
    else:
        headers = {}
    try:
        answer = system.http(HttpQuestion(f"{address}/models", headers=headers, timeout_s=SERVER_S))
        if answer.status == 200:
            models = _model_lengths(answer.json())
        else:
            models = {}
    except Unanswered as reason:
        yield _bad_engine(url, f"does not answer: {reason}", "start the server, or correct engine.urls")
        return
    if answer.status in (401, 403):
        how = "wants a key"
        if key:
            how = "refuses the key of " + " or ".join(SERVER_KEYS)
        yield _bad_engine(url, f"{how} (status {answer.status})", "export OPENAI_API_KEY=the server's key")
    elif answer.status != 200:
        message = f"{address}/models answers with status {answer.status}"
        yield _bad_engine(url, message, "start an OpenAI-compatible server there, or correct engine.urls")
    else:
        findings = list(_check_served_model(config, url, models))
        yield from findings or _probe_logprobs(config, system, url, address, headers, _asked_model(config, models))


def _asked_model(config: Config, models: Mapping[str, int | None]) -> str:
    wanted = config.engine.served_model or config.model.path
    if wanted in models:
        return wanted
    return next(iter(models))


def _probe_logprobs(
    config: Config, system: System, url: str, address: str, headers: Mapping[str, str], model: str
) -> Iterator[Finding]:
    """Finds that a server reports log-probabilities over other tokens than the job needs.

    This is what the probe at the start would say. A server that does not answer is judged by that probe, which knows
    more than one way to ask.
    """
    rollout = config.rollout
    accepted = logprobs.accepted_modes(config)
    truncated = logprobs.trains_truncated(config)
    if not truncated and len(accepted) == len(LogprobsMode):
        return
    asking = logprobs.find_mode(accepted, rollout.temperature)
    try:
        question = next(asking)
        while True:
            body = json.dumps(_completion_of(question, model)).encode()
            typed = {**headers, "Content-Type": "application/json"}
            answer = system.http(HttpQuestion(f"{address}/completions", "POST", typed, SERVER_S, body))
            question = asking.send(_read_logprobs(answer.json()))
    except StopIteration as end:
        reported = end.value
    except (Unanswered, KeyError, IndexError, TypeError, ValueError):
        return
    if reported not in accepted:
        words, fix = logprobs.describe_refusal(reported, rollout.temperature, truncated)
        yield error("preflight_logprobs_mode", "engine.urls", words, fix, value=url)
    elif truncated and reported is LogprobsMode.processed:
        fix = f"start it with --logprobs-mode raw_logprobs, or sample with {logprobs.UNTRUNCATED}"
        yield warning("preflight_logprobs_mode", "engine.urls", logprobs.COUNTS_TRUNCATION, fix, value=url)


def _completion_of(question: logprobs.ProbeQuestion, model: str) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": question.prompt_ids,
        "max_tokens": logprobs.ASKED_TOKENS,
        "temperature": question.temperature,
        "top_k": 1,
        "top_p": 1.0,
        "min_p": 0.0,
        "seed": 1,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "ignore_eos": True,
        "logprobs": 0,
        "return_token_ids": True,
    }


def _read_logprobs(reply: Any) -> logprobs.ProbeAnswer:
    """Returns the tokens and log-probabilities of a reply.

    Raises KeyError, IndexError, TypeError or ValueError where it is no completion of so many tokens.
    """
    choice = reply["choices"][0]
    token_ids = choice["token_ids"]
    values = choice["logprobs"]["token_logprobs"]
    if not len(token_ids) == len(values) == logprobs.ASKED_TOKENS:
        raise ValueError("it is not a completion of as many tokens as were asked for")
    return logprobs.ProbeAnswer(token_ids, [float(value) for value in values])


def _check_served_model(config: Config, url: str, models: Mapping[str, int | None]) -> Iterator[Finding]:
    wanted = config.engine.served_model or config.model.path
    if wanted.startswith(_BUILTIN) and models:  # elsewhere it has another name: whatever is served is taken
        wanted = next(iter(models))
    if not models:
        yield _bad_engine(url, "serves no model", "start the server with a model")
    elif wanted not in models:
        message = f"the engine at {url} serves {', '.join(models)}; requests for {wanted} would fail"
        fix = f"engine.served_model={next(iter(models))}"
        yield error("preflight_served_model", "engine.served_model", message, fix)
    elif (length := models[wanted]) is not None and length < config.engine.max_model_len:
        message = f"the engine at {url} takes {length} tokens at most"
        fix = f"engine.max_model_len={length}, or start the server with --max-model-len {config.engine.max_model_len}"
        yield error("preflight_engine_length", "engine.max_model_len", message, fix)


def _model_lengths(listing: Any) -> dict[str, int | None]:
    """Returns the longest sequence of each model by its name, and by what that name stands for.

    The length is None where the server does not say it (vLLM does). Raises Unanswered.
    """
    entries = None
    if isinstance(listing, dict):
        entries = listing.get("data")
    if not isinstance(entries, list):
        raise Unanswered("its list of models is not OpenAI's")
    lengths: dict[str, int | None] = {}
    for entry in entries:
        if isinstance(entry, dict) and isinstance(entry.get("id"), str):
            length = entry.get("max_model_len")
            names = [name for name in (entry["id"], entry.get("root")) if isinstance(name, str)]
            lengths |= dict.fromkeys(names, length if isinstance(length, int) else None)
    return lengths


def _bad_engine(url: str, message: str, fix: str) -> Finding:
    return error("preflight_engine_url", "engine.urls", message, fix, value=url)


def probe_runtime(config: Config, system: System) -> Iterator[Finding]:
    """Probes the sandbox server's health and, where the server is ours, whether it takes the run's key."""
    remote = config.sandbox.kind is SandboxKind.remote or config.runtime.kind is RuntimeKind.external
    if not remote or config.runtime.kind is RuntimeKind.job:
        return
    variable = config.sandbox.runtime_key_env
    if url := config.sandbox.runtime_url:
        key = key_of(job_environment(config, system), variable)
        yield from _runtime_at(config, system, url, key, f"export {variable}")
    elif folder := config.runtime.shared_dir:
        yield from _runtime_met(config, system, folder.rstrip("/"))


def _runtime_met(config: Config, system: System, folder: str) -> Iterator[Finding]:
    """Probes the first server that wrote its address into the shared folder."""
    try:
        url = str(json.loads(system.read_text(f"{folder}/runtime.json") or "null")["url"])
    except (ValueError, TypeError, KeyError):
        message = f"no sandbox server has come there; the run waits for {config.runtime.ready_timeout_s:g} s"
        yield warning(
            "preflight_runtime", "runtime.shared_dir", message, "start job=runtime in that folder", value=folder
        )
        return
    key = (system.read_text(f"{folder}/runtime.key") or "").strip() or None
    yield from _runtime_at(config, system, url, key, f"start job=runtime anew: {folder}/runtime.key is another's")


def _runtime_at(config: Config, system: System, url: str, key: str | None, fix: str) -> Iterator[Finding]:
    where = "runtime.shared_dir"
    if config.sandbox.runtime_url:
        where = "sandbox.runtime_url"
    base = url.rstrip("/")
    ours = config.sandbox.runtime_protocol is RuntimeProtocol.swe_rl
    try:
        message = _bad_status(system, f"{base}/health", {})
        if message is None and ours:
            refused = _bad_status(system, f"{base}/sandboxes", {"X-API-Key": key} if key else {})
            if refused is not None:
                why = "it wants a key"
                if key:
                    why = "it takes no request with this key"
                yield error("preflight_runtime_key", where, f"{why}: {refused}", fix, value=url)
    except Unanswered as reason:
        message = f"does not answer: {reason}"
    if message is not None:
        words = f"start the sandbox server there, or correct {where}"
        yield error("preflight_runtime", where, message, words, value=url)


def _bad_status(system: System, url: str, headers: Mapping[str, str]) -> str | None:
    """Returns what is wrong with the answer, or None. Raises Unanswered."""
    status = system.http(HttpQuestion(url, headers=headers, timeout_s=SERVER_S)).status
    if status == 200:
        return None
    return f"/{url.rpartition('/')[2]} answers with status {status}"


def weights_and_biases(config: Config, system: System) -> Iterator[Finding]:
    if config.logger.wandb is not WandbMode.online:
        return
    environment = job_environment(config, system)
    url = environment.get("WANDB_BASE_URL", WANDB)
    host = urlsplit(url).hostname or url
    if not environment.get("WANDB_API_KEY") and not _in_netrc(host, environment, system):
        yield error(
            "preflight_wandb",
            "logger.wandb",
            f"there is no key: WANDB_API_KEY is not set, and ~/.netrc has no entry for {host}",
            "wandb login, or logger.wandb=offline",
        )
    try:
        system.http(HttpQuestion(url, method="HEAD"))
    except Unanswered as reason:
        yield error(
            "preflight_wandb",
            "logger.wandb",
            f"{host} cannot be reached from here: {reason}",
            "logger.wandb=offline, and `wandb sync` afterwards",
        )


def _in_netrc(host: str, environment: Mapping[str, str], system: System) -> bool:
    path = environment.get("NETRC") or f"{environment.get('HOME', '~')}/.netrc"
    return bool(re.search(rf"(?m)^[^#\n]*\bmachine\s+{re.escape(host)}\s", f"{system.read_text(path) or ''}\n"))


def probe_ray(config: Config, system: System) -> Iterator[Finding]:
    """Probes whether the Ray cluster has room for the trainer.

    Raises Unanswered where the question itself breaks off.
    """
    address = config.hardware.ray_address
    layout = config.layout
    ranks = layout.trainer_gpus or layout.trainer_ranks
    if address is None or not asks_ray(config):
        return
    if system.version("ray") is None:
        return  # the rule in check/packages.py says so
    done = system.run([sys.executable, "-m", _RAY_QUESTION, address], timeout_s=_RAY_S)
    try:
        if done is not None:
            answer = json.loads(lines_of(done.stdout, ends=False)[-1])
        else:
            answer = {}
        nodes = answer["nodes"]
        problem = answer["problem"]
    except (ValueError, KeyError, IndexError) as reason:
        raise Unanswered(f"Ray did not list the cluster's nodes: {done.reason if done else 'no Python'}") from reason
    if problem is not None:
        yield error("preflight_ray", _RAY, problem, f"start the cluster (docs/engineering/ray.md), or {_RAY}=null")
        return
    resource = "CPU"
    if layout.trainer_gpus:
        resource = "GPU"
    free = {name: units[resource] for name, units in nodes.items()}
    together = ranks_together(ranks, layout.sequence_parallel, layout.shard_ranks)
    if (short := describe_shortage(free, ranks, together, resource)) is not None:
        yield error("preflight_ray", _RAY, f"the trainer's {short[0]}", short[1])
