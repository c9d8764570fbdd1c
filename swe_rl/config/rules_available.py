"""The rule `available`: parts that compose, are checked and planned, but that this version cannot run yet.

Invariants:
- A job that would run is refused by name; `check` and `plan` only warn, so that a set-up can be prepared.
- Whoever builds a part removes it here; nothing pretends to be there.
"""

from collections.abc import Iterator

from swe_rl.config.findings import Finding, Host, error, warning
from swe_rl.config.schema import Config, DynamicSampling, JobName, RuntimeKind, SandboxKind
from swe_rl.config.sizes import uses_no_gpu

RUNNING = frozenset({JobName.train, JobName.rollout, JobName.eval, JobName.sft})
SAMPLING = frozenset({JobName.rollout, JobName.eval})  # without a trainer


def available(config: Config, _: Host) -> Iterator[Finding]:
    make = error if config.job.name in RUNNING else warning
    for key, value, instead in (*_absent_parts(config), *_absent_training(config)):
        yield make("available", key, value, "not available yet in this version", instead)


def _absent_parts(config: Config) -> Iterator[tuple[str, object, str]]:
    """Key, value, what to use instead."""
    if config.sandbox.kind != SandboxKind.process:
        yield "sandbox.kind", config.sandbox.kind, "sandbox=process"
    if config.runtime.kind != RuntimeKind.none:
        yield "runtime.kind", config.runtime.kind, "runtime=none"
    if config.env.name != "bugs" and not config.env.dataset.endswith(".jsonl"):
        yield "env.name", config.env.name, "env=bugs, or env=jsonl env.dataset=FILE.jsonl"
    if config.agent.name != "bash":
        yield "agent.name", config.agent.name, "agent=bash"
    if config.model.tool_parser != "hermes":
        yield "model.tool_parser", config.model.tool_parser, "a model whose calls are JSON (model.tool_parser=hermes)"


def _absent_training(config: Config) -> Iterator[tuple[str, object, str]]:
    trainer, algo = config.trainer, config.algo
    if not uses_no_gpu(config.layout) and config.job.name not in SAMPLING:
        yield "layout.name", config.layout.name, "layout=local, or job=rollout or job=eval, which take any layout"
    if trainer.lora_rank > 0:
        yield "trainer.lora_rank", trainer.lora_rank, "trainer.lora_rank=0"
    if trainer.max_staleness_steps > 0:
        yield "trainer.max_staleness_steps", trainer.max_staleness_steps, "trainer.max_staleness_steps=0"
    if algo.dynamic_sampling == DynamicSampling.resample:
        yield "algo.dynamic_sampling", algo.dynamic_sampling, "algo.dynamic_sampling=filter"


RULES = (available,)
