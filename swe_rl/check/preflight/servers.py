"""What somebody else started: engines that serve the model, a sandbox server that is well, Weights & Biases, Ray.

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
from swe_rl.config.choices import EngineKind, RuntimeKind, RuntimeProtocol, SandboxKind, WandbMode
from swe_rl.config.environment import SERVER_KEYS, key_of
from swe_rl.config.schema import Config
from swe_rl.host.addresses import base_address
from swe_rl.host.program import Unanswered
from swe_rl.layout.placement import neighbours, shortage
from swe_rl.plan.sizes import asks_ray

SERVER_S = 5.0
WANDB = "https://api.wandb.ai"
_BUILTIN = "builtin:"
_RAY_S = 9.0
_RAY = "hardware.ray_address"
_RAY_QUESTION = "swe_rl.hardware.ray_cluster"


def engines(config: Config, system: System) -> Iterator[Finding]:
    if config.engine.kind is not EngineKind.external:
        return
    environment = job_environment(config, system)
    for url in config.engine.urls:
        try:
            address = base_address(url)  # as the run reads it: with /v1 or without
        except ValueError:
            continue  # a rule says so
        yield from _engine(config, system, url, f"{address}/v1", environment)


def _engine(
    config: Config, system: System, url: str, address: str, environment: Mapping[str, str]
) -> Iterator[Finding]:
    key = key_of(environment, *SERVER_KEYS)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        answer = system.http(HttpQuestion(f"{address}/models", headers=headers, timeout_s=SERVER_S))
        models = _models(answer.json()) if answer.status == 200 else {}
    except Unanswered as reason:
        yield _bad_engine(url, f"does not answer: {reason}", "start the server, or correct engine.urls")
        return
    if answer.status in (401, 403):
        how = "refuses the key of " + " or ".join(SERVER_KEYS) if key else "wants a key"
        yield _bad_engine(url, f"{how} (status {answer.status})", "export OPENAI_API_KEY=the server's key")
    elif answer.status != 200:
        message = f"{address}/models answers with status {answer.status}"
        yield _bad_engine(url, message, "start an OpenAI-compatible server there, or correct engine.urls")
    else:
        yield from _serves(config, url, models)


def _serves(config: Config, url: str, models: Mapping[str, int | None]) -> Iterator[Finding]:
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


def _models(listing: Any) -> dict[str, int | None]:
    """Names, and what they stand for, each with the longest sequence where the server says (vLLM does).

    Raises Unanswered.
    """
    entries = listing.get("data") if isinstance(listing, dict) else None
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


def runtime(config: Config, system: System) -> Iterator[Finding]:
    """Its health, and where it is ours, whether it takes the run's key."""
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
    """The first server that wrote its address into the shared folder."""
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
    where = "sandbox.runtime_url" if config.sandbox.runtime_url else "runtime.shared_dir"
    base, ours = url.rstrip("/"), config.sandbox.runtime_protocol is RuntimeProtocol.swe_rl
    try:
        message = _status(system, f"{base}/health", {})
        if message is None and ours:
            refused = _status(system, f"{base}/sandboxes", {"X-API-Key": key} if key else {})
            if refused is not None:
                why = "it takes no request with this key" if key else "it wants a key"
                yield error("preflight_runtime_key", where, f"{why}: {refused}", fix, value=url)
    except Unanswered as reason:
        message = f"does not answer: {reason}"
    if message is not None:
        words = f"start the sandbox server there, or correct {where}"
        yield error("preflight_runtime", where, message, words, value=url)


def _status(system: System, url: str, headers: Mapping[str, str]) -> str | None:
    """What is wrong with the answer. Raises Unanswered."""
    status = system.http(HttpQuestion(url, headers=headers, timeout_s=SERVER_S)).status
    return None if status == 200 else f"/{url.rpartition('/')[2]} answers with status {status}"


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


def ray(config: Config, system: System) -> Iterator[Finding]:
    """Raises Unanswered where the question itself breaks off."""
    address, layout = config.hardware.ray_address, config.layout
    ranks = layout.trainer_gpus or layout.trainer_ranks
    if address is None or not asks_ray(config):
        return
    if system.version("ray") is None:
        return  # said by a rule, check/packages.py
    done = system.run([sys.executable, "-m", _RAY_QUESTION, address], timeout_s=_RAY_S)
    try:
        answer = json.loads(done.stdout.splitlines()[-1]) if done is not None else {}
        nodes, problem = answer["nodes"], answer["problem"]
    except (ValueError, KeyError, IndexError) as reason:
        raise Unanswered(f"Ray did not list the cluster's nodes: {done.reason if done else 'no Python'}") from reason
    if problem is not None:
        yield error("preflight_ray", _RAY, problem, f"start the cluster (docs/ray.md), or {_RAY}=null")
        return
    resource = "GPU" if layout.trainer_gpus else "CPU"
    free = {name: units[resource] for name, units in nodes.items()}
    together = neighbours(ranks, layout.sequence_parallel, layout.shard_ranks)
    if (short := shortage(free, ranks, together, resource)) is not None:
        yield error("preflight_ray", _RAY, f"the trainer's {short[0]}", short[1])
