"""What a rule has to say: severity, key, value, where the value comes from, what is wrong, the smallest fix.

Invariants:
- A Finding is plain data; rules yield it without an origin, `check` fills that in.
- `fix` is something that can be typed.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from swe_rl.config.schema import Config


class Severity(StrEnum):
    error = "error"
    warning = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    rule_id: str
    key: str
    value: Any
    message: str
    fix: str
    origin: str = ""

    def to_record(self) -> dict[str, Any]:
        return asdict(self)


def file_exists(path: str) -> bool:
    return Path(path).expanduser().is_file()


def folder_writable(path: str) -> bool:
    """True if the folder, or the nearest parent that exists, is a folder that this user may write to."""
    for folder in (absolute := Path(path).expanduser().absolute(), *absolute.parents):
        if folder.exists():
            return folder.is_dir() and os.access(folder, os.W_OK)
    return False


def read_text(path: str) -> str | None:
    """The text of a file, or None where there is none that this user may read as text."""
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


@dataclass(frozen=True, slots=True)
class Host:
    """What rules may ask of this machine; tests inject their own answers."""

    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    file_exists: Callable[[str], bool] = file_exists
    folder_writable: Callable[[str], bool] = folder_writable
    read_text: Callable[[str], str | None] = read_text
    absolute: Callable[[str], str] = absolute


Rule = Callable[[Config, Host], Iterator[Finding]]


def below(path: str, folders: tuple[str, ...]) -> bool:
    """Whether an absolute path is one of the folders, or inside of one."""
    return any(path == folder.rstrip("/") or path.startswith(f"{folder.rstrip('/')}/") for folder in folders)


def error(rule_id: str, key: str, value: Any, message: str, fix: str) -> Finding:
    return Finding(Severity.error, rule_id, key, value, message, fix)


def warning(rule_id: str, key: str, value: Any, message: str, fix: str) -> Finding:
    return Finding(Severity.warning, rule_id, key, value, message, fix)


def failing(findings: list[Finding], strict: bool) -> bool:
    """True if these findings forbid a start; `strict` counts warnings as well."""
    fatal = {Severity.error, Severity.warning} if strict else {Severity.error}
    return any(finding.severity in fatal for finding in findings)


def report_lines(finding: Finding) -> list[str]:
    """Three plain lines: what is wrong, where the value comes from, the way out."""
    head = f"{finding.severity} [{finding.rule_id}] {finding.key}={finding.value}: {finding.message}"
    origin = [f"    from: {finding.origin}"] if finding.origin else []
    return [head, *origin, f"    fix:  {finding.fix}"]
