"""Asks about each part of a mix what is asked about one environment.

Invariants:
- What is found in every part alike is said once, as it is about the run. Anything else names its part, and its keys
  are those of the part: `env.mix.bugs.dataset`.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from swe_rl.check.findings import Finding
from swe_rl.config.schema import Config
from swe_rl.facts.mix import is_mix, part_configs

_ENV_KEY = re.compile(r"(?<![\w.@])env\.(?!mix\b)(?=\w)")
_OPTION = re.compile(r"(?<![\w.@+])env=(?=\w)")


def ask_parts(config: Config, ask: Callable[[Config], Iterable[Finding]]) -> list[Finding]:
    """Returns what `ask` finds about the run, or about each part of its mix."""
    if not is_mix(config.env):
        return list(ask(config))
    findings_by_part = {name: list(ask(part)) for name, part in part_configs(config).items()}
    lists = list(findings_by_part.values())
    everywhere = [finding for finding in (lists[0] if lists else []) if all(finding in others for others in lists)]
    of_run = [finding for finding in everywhere if not _is_about_env(finding)]
    of_parts = [
        _name_part(name, finding)
        for name, findings in findings_by_part.items()
        for finding in findings
        if finding not in of_run
    ]
    return [*of_run, *of_parts]


def _is_about_env(finding: Finding) -> bool:
    """Tells whether a finding speaks of the environment, and so of a part."""
    return any(
        pattern.search(text) for text in (finding.key, finding.message, finding.fix) for pattern in (_ENV_KEY, _OPTION)
    )


def _name_part(name: str, finding: Finding) -> Finding:
    """Returns a finding with the part's name, and with its keys in the place of those of an environment."""
    return replace(
        finding,
        key=_with_part(name, finding.key),
        message=f"part {name}: {_with_part(name, finding.message)}",
        fix=_OPTION.sub(f"+env@env.mix.{name}=", _with_part(name, finding.fix)),
    )


def _with_part(name: str, text: str) -> str:
    return _ENV_KEY.sub(f"env.mix.{name}.", text)
