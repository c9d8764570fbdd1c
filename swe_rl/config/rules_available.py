"""The rule `available`: parts that compose, are checked and planned, but that this version cannot run yet.

Invariants:
- A job that would run is refused by name; `check` and `plan` only warn, so that a set-up can be prepared.
- Whoever builds a part removes it here; nothing pretends to be there.
"""

from collections.abc import Iterator

from swe_rl.config.findings import Finding, Host, error, warning
from swe_rl.config.schema import Config, EngineKind, JobName, SandboxKind

RUNNING = frozenset({JobName.train, JobName.rollout, JobName.eval, JobName.sft})


def available(config: Config, _: Host) -> Iterator[Finding]:
    make = error if config.job.name in RUNNING else warning
    for key, value, instead in _absent(config):
        yield make("available", key, value, "not available yet in this version", instead)


def _absent(config: Config) -> Iterator[tuple[str, object, str]]:
    """Key, value, what to use instead."""
    if config.router.name != "default":
        yield "router.name", config.router.name, "router=default"
    if config.engine.kind != EngineKind.embedded:
        yield "engine.kind", config.engine.kind, "engine=embedded (with model=tiny layout=local)"
    if config.sandbox.kind != SandboxKind.process:
        yield "sandbox.kind", config.sandbox.kind, "sandbox=process"
    if config.env.name != "bugs" and not config.env.dataset.endswith(".jsonl"):
        yield "env.name", config.env.name, "env=bugs, or env=jsonl env.dataset=FILE.jsonl"
    if config.agent.name != "bash":
        yield "agent.name", config.agent.name, "agent=bash"
    if config.layout.name != "local":
        yield "layout.name", config.layout.name, "layout=local"


RULES = (available,)
