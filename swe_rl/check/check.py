"""Applies all rules to a composed configuration, in one call.

Invariants:
- The configuration and the injected Host alone decide: the same input gives the same findings in the same order.
- All findings are collected, errors first; a rule never raises for a wrong value.
- A number out of its range is said once: the other rules see the schema's default for it, and what they then say of
  that key is left out.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from swe_rl.check import endpoint, imitation, mix, packages, schedule, served
from swe_rl.check.findings import ConfigRule, Finding, Host, Severity, error, rule_about, rules_of, warning
from swe_rl.check.parts import ask_parts
from swe_rl.check.rules import (
    agent,
    algo,
    available,
    batch,
    chat,
    data,
    engine,
    extension,
    hardware,
    host,
    layout,
    logprobs,
    memory,
    mining,
    model,
    router,
    routers,
    sandbox,
    strength,
    time,
    trainer,
)
from swe_rl.config.folders import describe_clash
from swe_rl.config.keys import comment_of
from swe_rl.config.known_hardware import known_hardware
from swe_rl.config.parts import ASKING, asked_config, reads_key, started_parts
from swe_rl.config.provenance import Origins
from swe_rl.config.ranges import Range, replace_out_of_range, wrong_numbers
from swe_rl.config.schema import Config
from swe_rl.config.secrets import mask_value

_FILES = (
    batch,
    hardware,
    layout,
    engine,
    endpoint,
    model,
    chat,
    memory,
    mining,
    algo,
    imitation,
    trainer,
    routers,
    logprobs,
    schedule,
    data,
    served,
    mix,
    strength,
    extension,
    agent,
    sandbox,
    router,
    time,
    host,
    available,
    packages,
)  # fmt: skip  (findings of one severity are said in this order)


@rule_about()
def check_ranges(config: Config, _: Host) -> Iterator[Finding]:
    """Finds numbers outside of the range of the schema's type. A key that the job does not read may be anything."""
    for key, value, allowed in wrong_numbers(config):
        if reads_key(config, key):
            comment = comment_of(key)
            meaning = f" ({comment})" if comment else ""
            yield error("range", key, f"must be {allowed.said(value)}{meaning}", _way_out(key, value, allowed))


def _way_out(key: str, value: float, allowed: Range) -> str:
    nearest = allowed.nearest(value)
    if nearest is None:
        return f"leave {key} out"
    return f"{key}={int(nearest) if nearest == int(nearest) else nearest}, or leave it out"


RULES: tuple[ConfigRule, ...] = (check_ranges, *(rule for file in _FILES for rule in rules_of(file)))
# These look at a mix as a whole.
_OF_WHOLE = frozenset(
    {
        *rules_of(mix),
        data.enough_instances,
        data.images_fit,
        batch.informative_instances,
        host.resumed_run_is_this_one,
    }
)
_ORDER = tuple(Severity)


def check_config(config: Config, origins: Origins | None = None, host: Host | None = None) -> list[Finding]:
    """Returns every finding about what the job starts, errors first.

    Where `origins` are known, each finding has the origin of its value. For `check` and `plan` the findings are about
    the job that they answer for.
    """
    host = replace(host or _make_host(origins), answers=config.job.name in ASKING)
    config = asked_config(config)
    wrong = list(check_ranges(config, host))
    sound = replace_out_of_range(config)
    others = _ask_rules(sound, host)
    findings = [*wrong, *(finding for finding in others if not _speaks_of(finding, {number.key for number in wrong}))]
    if origins:
        findings += [*_find_clashes(origins), *mix.find_disagreements(config, origins)]
    return sorted(
        _drop_consequences(with_origins(findings, origins)), key=lambda finding: _ORDER.index(finding.severity)
    )


def _ask_rules(config: Config, host: Host) -> list[Finding]:
    """Returns what the rules find, about each part of a mix what is about one environment."""
    started = started_parts(config)
    whole = [rule for rule in RULES if rule in _OF_WHOLE and rule.applies(started)]

    def ask(part: Config) -> Iterator[Finding]:
        starts = started_parts(part)
        rules = (rule for rule in RULES if rule is not check_ranges and rule not in _OF_WHOLE)
        return (finding for rule in rules if rule.applies(starts) for finding in rule(part, host))

    return [*(finding for rule in whole for finding in rule(config, host)), *ask_parts(config, ask)]


def _speaks_of(finding: Finding, keys: set[str]) -> bool:
    """Tells whether a finding names one of the keys."""
    said = f"{finding.key} {finding.message} {finding.fix}"
    return any(re.search(rf"{re.escape(key)}(?!\w|\.\w)", said) for key in keys)


def _drop_consequences(findings: list[Finding]) -> list[Finding]:
    """Returns the findings without the numbers that are wrong only because they follow another wrong one."""
    wrong = {finding.key for finding in findings if finding.rule_id == "range"}
    return [finding for finding in findings if not any(f"${{{key}}}" in finding.origin for key in wrong)]


def _find_clashes(origins: Origins) -> Iterator[Finding]:
    """Finds chosen options of the user's own that have the name of one of ours."""
    for group, members in origins.own().items():
        chosen = origins.choices.get(group, "").strip("[]").split(",")
        for option in members:
            if option.name in chosen and (said := describe_clash(option)):
                message = f"{option.path} is {said.strip('()')}"
                yield warning(
                    "own_option", group, message, f"rename that file: {group}=my_{option.name}", value=option.name
                )


def _make_host(origins: Origins | None) -> Host:
    """Returns this machine, with the options that this composition could have chosen."""
    if origins is None:
        return Host()
    folders = [Path(source) for source in origins.sources]
    submitted = origins.submitted and "SLURM_JOB_ID" not in os.environ
    return Host(elsewhere=bool(origins.assumed), submitted=submitted, known_hardware=partial(known_hardware, folders))


def with_origins(findings: list[Finding], origins: Origins | None) -> list[Finding]:
    """Returns the findings with secret values masked, and with the place of each value where `origins` are known."""
    masked = [replace(finding, value=mask_value(finding.key, finding.value)) for finding in findings]
    if origins is None:
        return masked
    return [replace(finding, origin=finding.origin or origins.of(finding.key)) for finding in masked]
