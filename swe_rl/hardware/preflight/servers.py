"""Servers that somebody else started: engines that serve the model, and a sandbox server that is well.

Invariants:
- A key goes only to the address that the configuration names, and into no finding.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from swe_rl.config.choices import EngineKind, RuntimeKind, SandboxKind
from swe_rl.config.findings import Finding, error
from swe_rl.config.schema import Config
from swe_rl.hardware.preflight.system import Question, System, job_environment
from swe_rl.host.program import Unanswered

SERVER_S = 5.0
_KEYS = ("VLLM_API_KEY", "OPENAI_API_KEY")


def engines(config: Config, system: System) -> Iterator[Finding]:
    if config.engine.kind is not EngineKind.external:
        return
    environment = job_environment(config, system)
    for url in config.engine.urls:
        yield from _engine(config, system, url.rstrip("/"), environment)


def _engine(config: Config, system: System, url: str, environment: Mapping[str, str]) -> Iterator[Finding]:
    key = next((environment[name] for name in _KEYS if environment.get(name)), None)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        answer = system.http(Question(f"{url}/models", headers=headers, timeout_s=SERVER_S))
        models = _models(answer.json()) if answer.status == 200 else {}
    except Unanswered as reason:
        yield _bad_engine(url, f"does not answer: {reason}", "start the server, or correct engine.urls")
        return
    if answer.status in (401, 403):
        how = "refuses the key of " + " or ".join(_KEYS) if key else "wants a key"
        yield _bad_engine(url, f"{how} (status {answer.status})", "export OPENAI_API_KEY=the server's key")
    elif answer.status != 200:
        fix = f"engine.urls=[{url}/v1]" if not url.endswith("/v1") else "start an OpenAI-compatible server there"
        yield _bad_engine(url, f"{url}/models answers with status {answer.status}", fix)
    else:
        yield from _serves(config, url, models)


def _serves(config: Config, url: str, models: Mapping[str, int | None]) -> Iterator[Finding]:
    wanted = config.engine.served_model or config.model.path
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
    """Names, each with the longest sequence where the server says (vLLM does). Raises Unanswered."""
    entries = listing.get("data") if isinstance(listing, dict) else None
    if not isinstance(entries, list):
        raise Unanswered("its list of models is not OpenAI's")
    found = {}
    for entry in entries:
        if isinstance(entry, dict) and isinstance(entry.get("id"), str):
            length = entry.get("max_model_len")
            found[entry["id"]] = length if isinstance(length, int) else None
    return found


def _bad_engine(url: str, message: str, fix: str) -> Finding:
    return error("preflight_engine_url", "engine.urls", url, message, fix)


def runtime(config: Config, system: System) -> Iterator[Finding]:
    url = config.sandbox.runtime_url
    remote = config.sandbox.kind is SandboxKind.remote or config.runtime.kind is RuntimeKind.external
    if not remote or config.runtime.kind is RuntimeKind.job or not url:
        return
    try:
        status = system.http(Question(f"{url.rstrip('/')}/health", timeout_s=SERVER_S)).status
        message = None if status == 200 else f"/health answers with status {status}"
    except Unanswered as reason:
        message = f"does not answer: {reason}"
    if message is not None:
        yield error(
            "preflight_runtime",
            "sandbox.runtime_url",
            url,
            message,
            "start the sandbox server there, or correct sandbox.runtime_url",
        )
