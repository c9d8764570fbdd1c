"""A probe: one small question about the machine, with a name for the progress line and a key to blame.

Invariants:
- A probe that cannot be answered is a warning, never an exception and never silence.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from swe_rl.check.findings import Finding, warning
from swe_rl.check.preflight.system import System
from swe_rl.config.schema import Config
from swe_rl.host.program import Unanswered

Ask = Callable[[Config, System], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class Probe:
    """`key` is the configuration key that is shown if the probe cannot be answered.

    `where_it_runs`: asks about the machine that runs the job; pointless on one that only submits it.
    """

    name: str
    key: str
    ask: Ask
    where_it_runs: bool = False


def value_of(config: Config, key: str) -> object:
    """The value at `group.field`."""
    value: object = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def unknown(config: Config, key: str, message: str, fix: str) -> Finding:
    return warning("preflight_unknown", key, value_of(config, key), message, fix)


def answered(probe: Probe, config: Config, system: System) -> list[Finding]:
    """The probe's findings so far and, if it broke off, one that says why."""
    findings: list[Finding] = []
    try:
        findings.extend(probe.ask(config, system))
    except Unanswered as reason:
        findings.append(_broke_off(probe, config, str(reason)))
    except Exception as error:  # a probe's own mistake must not keep the others from being heard
        findings.append(_broke_off(probe, config, f"{type(error).__name__}: {error}"))
    return findings


def silent(probe: Probe, config: Config, limit_s: float) -> Finding:
    return _broke_off(probe, config, f"no answer in {limit_s:.0f} s")


def _broke_off(probe: Probe, config: Config, reason: str) -> Finding:
    return unknown(
        config,
        probe.key,
        f"the preflight probe of the {probe.name} was not answered: {reason}",
        "look into the reason and run again with job=check job.preflight=true",
    )
