"""Defines what a rule says: severity, key, value, where the value comes from, what is wrong, and the smallest fix.

Invariants:
- A Finding is plain data; rules yield it without an origin, `check` fills that in, and mostly without the value, which
  is what the configuration has at the key.
- `fix` is something that can be typed.
"""

import os
import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any

from swe_rl.config.known_hardware import known_hardware
from swe_rl.config.parts import Part
from swe_rl.config.schema import Config, HardwareConfig
from swe_rl.host.machine import this_machine
from swe_rl.host.packages import installed_version, own_requirements, pip_command

_AT_KEY: Any = object()  # stands for the value that the configuration has at the key
_NO_PATH = (OSError, ValueError, RuntimeError)  # a path is too long, has a NUL, or names a user that there is not


class Severity(StrEnum):
    error = "error"
    warning = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """Says what one rule found out about a configuration."""

    severity: Severity  # An error refuses the job, a warning does not.
    rule_id: str  # The name of the rule, as `job=check` prints it.
    key: str  # The key that is wrong, as `rollout.n`.
    value: Any  # Its value.
    message: str  # What is wrong with it.
    fix: str  # The smallest change that helps, as it can be typed.
    origin: str = ""  # Where the value came from. `check` fills it in.

    def to_record(self) -> dict[str, Any]:
        """Returns the finding as a dictionary."""
        return asdict(self)

    def valued(self, config: Config) -> "Finding":
        """Returns the finding with the value that the configuration has at its key, where the rule gave none."""
        if self.value is _AT_KEY:
            return replace(self, value=value_at(config, self.key))
        return self


def value_at(node: Any, key: str) -> Any:
    """Returns the value at a full key, `rollout.n` or `hardware.env_vars.NAME`.

    Lists are lists, as they are written.
    """
    if not key:
        if isinstance(node, tuple):
            return list(node)
        return node
    if isinstance(node, dict):  # its names may have dots
        name = next(name for name in node if key == name or key.startswith(f"{name}."))
        return value_at(node[name], key[len(name) + 1 :])
    name, _, rest = key.partition(".")
    return value_at(getattr(node, name), rest)


def file_exists(path: str) -> bool:
    with suppress(*_NO_PATH):
        return Path(path).expanduser().is_file()
    return False


def folder_writable(path: str) -> bool:
    """Tells whether the folder, or the nearest parent that exists, is a folder that this user may write to."""
    with suppress(*_NO_PATH):
        for folder in (absolute := Path(path).expanduser().absolute(), *absolute.parents):
            if folder.exists():
                return folder.is_dir() and os.access(folder, os.W_OK)
    return False


def read_text(path: str) -> str | None:
    """Returns the text of a file, or None where there is none that this user may read as text."""
    with suppress(*_NO_PATH):
        return Path(path).expanduser().read_text(encoding="utf-8")
    return None


def path_exists(path: str) -> bool:
    with suppress(*_NO_PATH):
        return Path(path).expanduser().exists()
    return False


def folder_names(path: str) -> Sequence[str]:
    """Returns the names of what a folder holds, or none where it is no folder or closed to this user."""
    with suppress(*_NO_PATH):
        return sorted(entry.name for entry in Path(path).expanduser().iterdir())
    return ()


def absolute_path(path: str) -> str:
    with suppress(*_NO_PATH):
        return str(Path(path).expanduser().absolute())
    return path


@dataclass(frozen=True, slots=True)
class Host:
    """Answers what rules may ask of this machine. Tests inject their own answers.

    With `elsewhere` the job would run on another machine than this. With `submitted` SLURM will start it, with this
    Python. With `answers` nothing is going to start, because somebody only asks. `driver` says why this machine's GPUs
    cannot be seen, or nothing.
    """

    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    file_exists: Callable[[str], bool] = file_exists
    folder_writable: Callable[[str], bool] = folder_writable
    read_text: Callable[[str], str | None] = read_text
    exists: Callable[[str], bool] = path_exists
    listing: Callable[[str], Sequence[str]] = folder_names
    absolute: Callable[[str], str] = absolute_path
    find_program: Callable[[str], str | None] = shutil.which
    version: Callable[[str], str | None] = installed_version  # takes a package, and gives None if it is not installed
    requirements: Callable[[], Sequence[str]] = own_requirements
    pip: Callable[[], str] = pip_command
    elsewhere: bool = False
    submitted: bool = False
    answers: bool = False
    driver: Callable[[], str] = lambda: this_machine().driver
    gpus: Callable[[], int] = lambda: this_machine().gpus
    known_hardware: Callable[[], Sequence[HardwareConfig]] = known_hardware


Find = Callable[[Config, Host], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class ConfigRule:
    """Holds one check, and the parts of a run that it is about.

    Where a job starts none of the parts, the rule has nothing to say. With `whole` it is about their meeting, so all of
    them must be started. Without parts it is about every job.
    """

    find: Find
    parts: frozenset[Part]
    whole: bool

    @property
    def name(self) -> str:
        return str(getattr(self.find, "__name__", self.find))

    def __call__(self, config: Config, host: Host) -> Iterator[Finding]:
        """Returns the findings, whatever the job starts."""
        return (finding.valued(config) for finding in self.find(config, host))

    def applies(self, started: frozenset[Part]) -> bool:
        """Tells whether the rule is about what a job starts."""
        if self.whole:
            return self.parts <= started
        return not self.parts or bool(self.parts & started)


def rule_about(*parts: Part) -> Callable[[Find], ConfigRule]:
    """Declares a rule about any of the parts, or about every job if no part is given."""
    return lambda find: ConfigRule(find, frozenset(parts), whole=False)


def rule_between(*parts: Part) -> Callable[[Find], ConfigRule]:
    """Declares a rule about parts that must agree with each other."""
    return lambda find: ConfigRule(find, frozenset(parts), whole=True)


def rules_of(file: ModuleType) -> list[ConfigRule]:
    """Returns the rules that are declared in a module, in their order."""
    return [
        rule for rule in vars(file).values() if isinstance(rule, ConfigRule) and rule.find.__module__ == file.__name__
    ]


def is_below(path: str, folders: tuple[str, ...]) -> bool:
    """Tells whether an absolute path is one of the folders, or inside of one."""
    return any(path == folder.rstrip("/") or path.startswith(f"{folder.rstrip('/')}/") for folder in folders)


def error(rule_id: str, key: str, message: str, fix: str, *, value: Any = _AT_KEY) -> Finding:
    """Returns a finding that keeps the job from starting.

    `value` is given where it is not the configuration's at `key`.
    """
    return Finding(Severity.error, rule_id, key, value, message, fix)


def warning(rule_id: str, key: str, message: str, fix: str, *, value: Any = _AT_KEY) -> Finding:
    """Returns a finding that does not keep the job from starting.

    `value` is given where it is not the configuration's at `key`.
    """
    return Finding(Severity.warning, rule_id, key, value, message, fix)


def error_if(fatal: bool) -> Callable[..., Finding]:
    """Returns `error` where something is fatal, else `warning`."""
    if fatal:
        return error
    return warning


def forbids_start(findings: list[Finding], strict: bool) -> bool:
    """Tells whether these findings forbid a start. `strict` counts warnings as well."""
    fatal = {Severity.error, Severity.warning} if strict else {Severity.error}
    return any(finding.severity in fatal for finding in findings)


# The origin of a value that no file and no word of the command line set.
DEFAULTS = "schema"


def report_lines(finding: Finding, width: int) -> list[str]:
    """Returns lines for people: what a finding is about, what is wrong, where the value comes from, and the way out.

    No line that can be broken is wider than `width`.
    """
    origin: list[str] = []
    # That a value is the default, its user knows: nobody wrote it.
    if finding.origin and finding.origin != DEFAULTS:
        origin = _wrap_label("    from: ", finding.origin, width)
    return [
        *_wrap_label("", f"{finding.severity} [{finding.rule_id}] {finding.key}={finding.value}", width),
        *_wrap_label("    ", finding.message, width),
        *origin,
        *_wrap_label("    fix:  ", finding.fix, width),
    ]


def _wrap_label(label: str, text: str, width: int) -> list[str]:
    """Returns the text in lines. Those after the first begin below its first word, or a little further to the right."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=label,
        subsequent_indent=" " * (len(label) or 4),
        break_long_words=False,
        break_on_hyphens=False,
    )
