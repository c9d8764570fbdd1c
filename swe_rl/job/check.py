"""`job=check` prints every finding of the rules, with `job.preflight=true` those of this machine's probes too.

Invariants:
- Nothing is started, no folder is made. Exit status 2 on any error (with `job.strict=true` on any warning), else 0.
- It refuses what the job would refuse before it starts anything, and nothing else.
- JSON goes to stdout alone, so that it can be piped.
"""

import json
import sys
from pathlib import Path

from swe_rl.check.check import RULES, check_config, with_origins
from swe_rl.check.findings import Finding, Severity, forbids_start
from swe_rl.config.choices import OutputFormat
from swe_rl.config.composition.values import config_hash
from swe_rl.config.provenance import Origins
from swe_rl.config.ranges import replace_out_of_range
from swe_rl.config.schema import Config
from swe_rl.logger.failure import print_finding


def run(config: Config, folder: Path | None, origins: Origins | None = None) -> int:
    del folder
    findings = check_config(config, origins)
    if config.job.preflight:
        findings += with_origins(_probe_machine(config, findings), origins)
    refused = forbids_start(findings, config.job.strict)
    if config.job.format == OutputFormat.json:
        print(_as_json(config, findings, refused))
    else:
        for finding in sorted(findings, key=lambda given: given.severity is not Severity.error):
            print_finding(finding, sys.stdout)
        print(_write_verdict(findings, refused, asked=_describe_asked(config)))
    if refused:
        return 2
    return 0


def _probe_machine(config: Config, findings: list[Finding]) -> list[Finding]:
    """Returns what this machine's probes find, without what a rule has said already. Progress goes to stderr."""
    from rich.console import Console

    from swe_rl.check.preflight.run import run_preflight

    said = {f"preflight_{finding.rule_id}" for finding in findings}
    with Console(stderr=True, highlight=False).status("asking this machine") as status:
        probed = run_preflight(
            replace_out_of_range(config), progress=lambda what: status.update(f"asking this machine: {what}")
        )
    return [finding for finding in probed if finding.rule_id not in said]


def _as_json(config: Config, findings: list[Finding], refused: bool) -> str:
    records = [finding.to_record() for finding in findings]
    return json.dumps({"ok": not refused, "config_hash": config_hash(config), "findings": records}, indent=2)


def _describe_asked(config: Config) -> str:
    """Returns who was asked; nothing where this goes without saying."""
    asked = []
    if config.logger.verbosity.has_details:
        asked.append(f"{len(RULES)} rules")
    if config.job.preflight:
        asked.append("this machine")
    return " and ".join(asked)


def _write_verdict(findings: list[Finding], refused: bool, *, asked: str) -> str:
    errors = sum(finding.severity is Severity.error for finding in findings)
    warnings = sum(finding.severity is Severity.warning for finding in findings)
    outcome = "refused" if refused else "ok"
    counts = f"{_count_noun(errors, 'error')}, {_count_noun(warnings, 'warning')}"
    return f"{outcome}: {', '.join(filter(None, (asked, counts)))}"


def _count_noun(number: int, noun: str) -> str:
    if number == 1:
        return f"{number} {noun}"
    return f"{number} {noun}s"
