"""Rules of `engine=endpoint` check what the configuration says of somebody else's API, before it is asked.

Invariants:
- Whether the endpoint knows the model and takes the key is found out when the job greets it.
"""

from collections.abc import Iterator
from dataclasses import fields

from swe_rl.check.findings import Finding, Host, error, rule_about, rule_between, warning
from swe_rl.config.choices import TRAININGS, EngineKind, JobName
from swe_rl.config.parts import Part, asked_config
from swe_rl.config.schema import Config, EngineConfig
from swe_rl.config.secrets import mask_text
from swe_rl.host.addresses import base_address

# The instances of these environments have texts of their own kind.
_OWN_TEXTS = frozenset({"bugs", "harbor", "humaneval", "kodcode", "nemo_gym", "openenv", "verifiers"})
# An endpoint alone has these keys.
_KEYS = (
    "url", "model", "key", "dialect", "price_in", "price_out", "price_cached", "budget", "budget_tokens",
    "call_timeout_s",
)  # fmt: skip


@rule_about(Part.engines)
def endpoint_evaluates(config: Config, _: Host) -> Iterator[Finding]:
    if config.engine.kind is not EngineKind.endpoint:
        return
    job = asked_config(config).job.name
    if job is not JobName.eval:
        trains = Part.trainer if job in TRAININGS else None
        needs = "training needs token ids and log-probabilities"
        if not trains:
            needs = f"job={job} needs token ids"
        words = f"an endpoint answers in text alone, and {needs}"
        yield error("endpoint_job", "engine.kind", words, "job=eval, or engine=vllm")
    if config.gateway.processes > 1:
        words = "engine=endpoint is asked by the run's own process; conversations in other processes have tokens"
        yield error("endpoint_job", "gateway.processes", words, "gateway.processes=1")


@rule_about(Part.engines, Part.writer)
def endpoint_is_named(config: Config, _: Host) -> Iterator[Finding]:
    engine = config.engine
    if engine.kind is not EngineKind.endpoint:
        return
    if not engine.url:
        words = "engine=endpoint needs the address of an API of Chat, Responses or Messages"
        yield error("endpoint", "engine.url", words, "engine.url=https://HOST/v1")
    else:
        try:
            base_address(engine.url)
        except ValueError as problem:
            yield error(
                "endpoint", "engine.url", str(problem), "engine.url=https://HOST/v1", value=mask_text(engine.url)
            )
    if not engine.model:
        words = "engine=endpoint needs the name by which the endpoint knows the model"
        yield error("endpoint", "engine.model", words, "engine.model=NAME")


@rule_about(Part.engines, Part.writer)
def endpoint_key_fits_a_header(config: Config, _: Host) -> Iterator[Finding]:
    key = config.engine.key
    if config.engine.kind is not EngineKind.endpoint or key is None:
        return
    # The break of a line that a file ends with is taken off.
    shown = key.strip()
    if not shown:
        words = "is empty. Perhaps the variable that it refers to is empty, too"
        yield error("endpoint_key", "engine.key", words, "'engine.key=${oc.env:THEIR_KEY}'")
    elif not (shown.isascii() and shown.isprintable()) or " " in shown:
        words = "has a character that no key in a header can have, such as a space or the break of a line"
        yield error("endpoint_key", "engine.key", words, "'engine.key=${oc.env:THEIR_KEY}'")


@rule_about(Part.data)
def written_issues_have_a_file(config: Config, _: Host) -> Iterator[Finding]:
    env = config.env
    if env.issue_words and not env.issues:
        words = "says which texts are replaced, and no file of written issues is named"
        yield error("issues", "env.issue_words", words, "env.issues=FILE.jsonl")
    if env.issues and env.name in _OWN_TEXTS:
        words = f"env={env.name} makes the texts of its instances itself, and reads no written issues"
        yield error("issues", "env.issues", words, "leave env.issues out, or env=jsonl")


@rule_between(Part.engines, Part.rollouts)
def endpoint_call_fits_patience(config: Config, _: Host) -> Iterator[Finding]:
    engine = config.engine
    patience = config.rollout.max_wait_s
    if engine.kind is EngineKind.endpoint and engine.call_timeout_s >= patience:
        yield warning(
            "endpoint_patience",
            "engine.call_timeout_s",
            f"a call without an answer is never sent again: the calls of an attempt wait for {patience:g} s in all "
            "(rollout.max_wait_s), and then it is an engine_error",
            f"engine.call_timeout_s={patience / 4:g}",
        )


@rule_about(Part.engines, Part.writer)
def endpoint_budget_has_prices(config: Config, _: Host) -> Iterator[Finding]:
    engine = config.engine
    if engine.kind is EngineKind.endpoint and engine.budget and not engine.price_in and not engine.price_out:
        words = "is money, and without prices nothing is ever spent"
        yield error("endpoint_budget", "engine.budget", words, "engine.price_in=3 engine.price_out=15")


@rule_about(Part.engines)
def endpoint_keys_are_read(config: Config, _: Host) -> Iterator[Finding]:
    if config.engine.kind is EngineKind.endpoint:
        return
    for item in fields(EngineConfig):
        if item.name in _KEYS and getattr(config.engine, item.name) != item.default:
            words = f"nothing reads it with engine.kind={config.engine.kind}"
            fix = f"leave engine.{item.name} out, or engine=endpoint"
            yield warning("endpoint_unread", f"engine.{item.name}", words, fix)
