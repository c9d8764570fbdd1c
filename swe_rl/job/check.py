"""`job=check`: every finding of the rules, as a table or JSON. Nothing is started, no folder is made.

Invariants:
- Exit status 2 exactly when a job with this configuration would be refused.
- JSON goes to stdout alone, so that it can be piped.
"""

import json
from pathlib import Path

from swe_rl.config.compose import config_hash
from swe_rl.config.findings import Finding, Severity, failing
from swe_rl.config.provenance import Origins
from swe_rl.config.rules import RULES, check
from swe_rl.config.schema import Config, OutputFormat


def run(config: Config, folder: Path | None, origins: Origins | None = None) -> int:
    del folder
    findings = check(config, origins)
    refused = failing(findings, config.job.strict)
    if config.job.format == OutputFormat.json:
        print(_as_json(config, findings, refused))
    else:
        _print_table(findings, refused)
    return 2 if refused else 0


def _as_json(config: Config, findings: list[Finding], refused: bool) -> str:
    records = [finding.to_record() for finding in findings]
    return json.dumps({"ok": not refused, "config_hash": config_hash(config), "findings": records}, indent=2)


def _print_table(findings: list[Finding], refused: bool) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False, soft_wrap=True)
    for finding in findings:
        color = "red" if finding.severity is Severity.error else "yellow"
        head = f"[{color}]{finding.severity:<7}[/] [bold]{escape(f'{finding.key}={finding.value}')}[/]"
        console.print(f"{head}  {escape(f'[{finding.rule_id}]')}")
        console.print(f"        {escape(finding.message)}")
        if finding.origin:
            console.print(f"        from  {escape(finding.origin)}", style="dim")
        console.print(f"        fix   {escape(finding.fix)}")
    console.print(_verdict(findings, refused))


def _verdict(findings: list[Finding], refused: bool) -> str:
    errors = sum(finding.severity is Severity.error for finding in findings)
    warnings = sum(finding.severity is Severity.warning for finding in findings)
    outcome = "refused" if refused else "ok"
    return f"{outcome}: {len(RULES)} rules, {errors} errors, {warnings} warnings"
