"""Rules of servers that somebody else started: addresses that are some, each of them once.

Invariants:
- Nothing is asked of a server here; the preflight does that.
"""

from collections import Counter
from collections.abc import Iterator

from swe_rl.check.findings import Finding, Host, about, error
from swe_rl.config.choices import EngineKind, RuntimeKind, SandboxKind
from swe_rl.config.parts import Part
from swe_rl.config.schema import Config
from swe_rl.config.secrets import mask_text
from swe_rl.host.addresses import base_address


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
            yield error("address", "engine.urls", mask_text(url), str(problem), fix)
    for url, times in Counter(good).items():
        if times > 1:
            others = ",".join(dict.fromkeys(good))
            yield error(
                "address", "engine.urls", url, f"is there {times} times; each is one engine", f"engine.urls=[{others}]"
            )


@about(Part.sandboxes)
def runtime_address(config: Config, host: Host) -> Iterator[Finding]:
    sandbox, runtime = config.sandbox, config.runtime
    if sandbox.kind == SandboxKind.remote and sandbox.runtime_url:
        try:
            base_address(sandbox.runtime_url)
        except ValueError as problem:
            fix = f"sandbox.runtime_url=http://HOST:PORT, and a key in {sandbox.runtime_key_env}"
            yield error("address", "sandbox.runtime_url", mask_text(sandbox.runtime_url), str(problem), fix)
    elif runtime.kind == RuntimeKind.external and runtime.shared_dir and not host.exists(runtime.shared_dir):
        yield error(
            "runtime_folder",
            "runtime.shared_dir",
            runtime.shared_dir,
            "is not there, so no job=runtime serves in it",
            "runtime.shared_dir=FOLDER of a job=runtime, or sandbox.runtime_url=http://HOST:PORT",
        )


RULES = (engine_addresses, runtime_address)
