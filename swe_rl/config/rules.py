"""All rules over a composed configuration, in one call.

Invariants:
- Pure: the configuration and the injected Host decide; the same input gives the same findings in the same order.
- All findings are collected, errors first; a rule never raises for a wrong value.
"""

from dataclasses import replace

from swe_rl.config import rules_algo, rules_available, rules_batch, rules_host, rules_layout, rules_tokens
from swe_rl.config.findings import Finding, Host, Rule, Severity
from swe_rl.config.provenance import Origins
from swe_rl.config.schema import Config
from swe_rl.config.secrets import mask_value

RULES: tuple[Rule, ...] = (
    *rules_batch.RULES,
    *rules_tokens.RULES,
    *rules_layout.RULES,
    *rules_algo.RULES,
    *rules_host.RULES,
    *rules_available.RULES,
)
_ORDER = tuple(Severity)


def check(config: Config, origins: Origins | None = None, host: Host | None = None) -> list[Finding]:
    """Every finding, errors first, with the origin of each value where `origins` are known."""
    host = host or Host()
    findings = [finding for rule in RULES for finding in rule(config, host)]
    findings = [replace(finding, value=mask_value(finding.key, finding.value)) for finding in findings]
    if origins is not None:
        findings = [replace(finding, origin=origins.of(finding.key)) for finding in findings]
    return sorted(findings, key=lambda finding: _ORDER.index(finding.severity))
