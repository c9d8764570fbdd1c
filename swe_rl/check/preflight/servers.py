"""Servers that somebody else started: engines that serve the model, and a sandbox server that is well.

Invariants:
- A key goes only to the address that the configuration names, and into no finding.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from swe_rl.check.findings import Finding, error, warning
from swe_rl.check.preflight.system import Question, System, job_environment
from swe_rl.config.choices import EngineKind, RuntimeKind, RuntimeProtocol, SandboxKind
from swe_rl.config.schema import Config
from swe_rl.host.addresses import base_address
from swe_rl.host.program import Unanswered

SERVER_S = 5.0
_BUILTIN = "builtin:"
_KEYS = ("VLLM_API_KEY", "OPENAI_API_KEY")


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
    key = next((environment[name] for name in _KEYS if environment.get(name)), None)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        answer = system.http(Question(f"{address}/models", headers=headers, timeout_s=SERVER_S))
        models = _models(answer.json()) if answer.status == 200 else {}
    except Unanswered as reason:
        yield _bad_engine(url, f"does not answer: {reason}", "start the server, or correct engine.urls")
        return
    if answer.status in (401, 403):
        how = "refuses the key of " + " or ".join(_KEYS) if key else "wants a key"
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
        yield error("preflight_served_model", "engine.served_model", config.engine.served_model, message, fix)
    elif (length := models[wanted]) is not None and length < config.engine.max_model_len:
        message = f"the engine at {url} takes {length} tokens at most"
        fix = f"engine.max_model_len={length}, or start the server with --max-model-len {config.engine.max_model_len}"
        yield error("preflight_engine_length", "engine.max_model_len", config.engine.max_model_len, message, fix)


def _models(listing: Any) -> dict[str, int | None]:
    """Names, and what they stand for, each with the longest sequence where the server says (vLLM does).

    Raises Unanswered.
    """
    entries = listing.get("data") if isinstance(listing, dict) else None
    if not isinstance(entries, list):
        raise Unanswered("its list of models is not OpenAI's")
    found: dict[str, int | None] = {}
    for entry in entries:
        if isinstance(entry, dict) and isinstance(entry.get("id"), str):
            length = entry.get("max_model_len")
            names = [name for name in (entry["id"], entry.get("root")) if isinstance(name, str)]
            found |= dict.fromkeys(names, length if isinstance(length, int) else None)
    return found


def _bad_engine(url: str, message: str, fix: str) -> Finding:
    return error("preflight_engine_url", "engine.urls", url, message, fix)


def runtime(config: Config, system: System) -> Iterator[Finding]:
    """Its health, and where it is ours, whether it takes the run's key."""
    remote = config.sandbox.kind is SandboxKind.remote or config.runtime.kind is RuntimeKind.external
    if not remote or config.runtime.kind is RuntimeKind.job:
        return
    variable = config.sandbox.runtime_key_env
    if url := config.sandbox.runtime_url:
        yield from _runtime_at(config, system, url, job_environment(config, system).get(variable), f"export {variable}")
    elif folder := config.runtime.shared_dir:
        yield from _runtime_met(config, system, folder.rstrip("/"))


def _runtime_met(config: Config, system: System, folder: str) -> Iterator[Finding]:
    """The first server that wrote its address into the shared folder."""
    try:
        url = str(json.loads(system.read_text(f"{folder}/runtime.json") or "null")["url"])
    except (ValueError, TypeError, KeyError):
        message = f"no sandbox server has come there; the run waits for {config.runtime.ready_timeout_s:g} s"
        yield warning("preflight_runtime", "runtime.shared_dir", folder, message, "start job=runtime in that folder")
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
                yield error("preflight_runtime_key", where, url, f"{why}: {refused}", fix)
    except Unanswered as reason:
        message = f"does not answer: {reason}"
    if message is not None:
        words = f"start the sandbox server there, or correct {where}"
        yield error("preflight_runtime", where, url, message, words)


def _status(system: System, url: str, headers: Mapping[str, str]) -> str | None:
    """What is wrong with the answer. Raises Unanswered."""
    status = system.http(Question(url, headers=headers, timeout_s=SERVER_S)).status
    return None if status == 200 else f"/{url.rpartition('/')[2]} answers with status {status}"
