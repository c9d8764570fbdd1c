"""All rules over a composed configuration, in one call.

Invariants:
- Pure: the configuration and the injected Host decide; the same input gives the same findings in the same order.
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

from swe_rl.check import imports, packages
from swe_rl.check.findings import Finding, Host, Rule, Severity, about, error, rules_of, warning
from swe_rl.check.rules import (
    agent,
    algo,
    available,
    batch,
    data,
    engine,
    extension,
    hardware,
    host,
    layout,
    memory,
    model,
    router,
    sandbox,
    time,
    trainer,
)
from swe_rl.config.folders import clash
from swe_rl.config.keys import comment_of
from swe_rl.config.known_hardware import known_hardware
from swe_rl.config.parts import ASKING, asked, reads, starts
from swe_rl.config.provenance import Origins
from swe_rl.config.ranges import Range, within, wrong_numbers
from swe_rl.config.schema import Config
from swe_rl.config.secrets import mask_value

_FILES = (
    batch,
    hardware,
    layout,
    engine,
    model,
    memory,
    algo,
    trainer,
    data,
    extension,
    agent,
    sandbox,
    router,
    time,
    host,
    imports,
    available,
    packages,
)  # fmt: skip  (the order in which findings of one severity are said)


@about()
def numbers(config: Config, _: Host) -> Iterator[Finding]:
    """Each lies in the range that the schema's type gives it; a key that the job does not read may be anything."""
    for key, value, allowed in wrong_numbers(config):
        if reads(config, key):
            comment = comment_of(key)
            meaning = f" ({comment})" if comment else ""
            yield error("range", key, f"must be {allowed.said(value)}{meaning}", _way_out(key, value, allowed))


def _way_out(key: str, value: float, allowed: Range) -> str:
    nearest = allowed.nearest(value)
    if nearest is None:
        return f"leave {key} out"
    return f"{key}={int(nearest) if nearest == int(nearest) else nearest}, or leave it out"


RULES: tuple[Rule, ...] = (numbers, *(rule for file in _FILES for rule in rules_of(file)))
_ORDER = tuple(Severity)


def check(config: Config, origins: Origins | None = None, host: Host | None = None) -> list[Finding]:
    """Every finding about what the job starts, errors first, with the origin of each value where `origins` are known.

    For `check` and `plan`: about the job that they answer for.
    """
    host = replace(host or _host(origins), answers=config.job.name in ASKING)
    config, started = asked(config), starts(config)
    wrong = list(numbers(config, host))
    sound = within(config)
    others = (finding for rule in RULES if rule.applies(started) for finding in rule(sound, host))
    findings = [*wrong, *(finding for finding in others if not _speaks_of(finding, {number.key for number in wrong}))]
    findings += _clashes(origins) if origins else []
    return sorted(_causes(with_origins(findings, origins)), key=lambda finding: _ORDER.index(finding.severity))


def _speaks_of(finding: Finding, keys: set[str]) -> bool:
    said = f"{finding.key} {finding.message} {finding.fix}"
    return any(re.search(rf"{re.escape(key)}(?!\w|\.\w)", said) for key in keys)


def _causes(findings: list[Finding]) -> list[Finding]:
    """Without the numbers that are wrong only because they follow another wrong one."""
    wrong = {finding.key for finding in findings if finding.rule_id == "range"}
    return [finding for finding in findings if not any(f"${{{key}}}" in finding.origin for key in wrong)]


def _clashes(origins: Origins) -> Iterator[Finding]:
    """Options of the user's own that were chosen, and are called as one of ours."""
    for group, members in origins.own().items():
        chosen = origins.choices.get(group, "").strip("[]").split(",")
        for option in members:
            if option.name in chosen and (said := clash(option)):
                message = f"{option.path} is {said.strip('()')}"
                yield warning(
                    "own_option", group, message, f"rename that file: {group}=my_{option.name}", value=option.name
                )


def _host(origins: Origins | None) -> Host:
    """This machine, with the options that this composition could have chosen."""
    if origins is None:
        return Host()
    folders = [Path(source) for source in origins.sources]
    submitted = origins.submitted and "SLURM_JOB_ID" not in os.environ
    return Host(elsewhere=bool(origins.assumed), submitted=submitted, known_hardware=partial(known_hardware, folders))


def with_origins(findings: list[Finding], origins: Origins | None) -> list[Finding]:
    """Secret values masked, and where `origins` are known, the place that each value comes from."""
    masked = [replace(finding, value=mask_value(finding.key, finding.value)) for finding in findings]
    if origins is None:
        return masked
    return [replace(finding, origin=finding.origin or origins.of(finding.key)) for finding in masked]
