"""What a rule has to say: severity, key, value, where the value comes from, what is wrong, the smallest fix.

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

_AT_KEY: Any = object()  # a value that is looked up
_NO_PATH = (OSError, ValueError, RuntimeError)  # too long, with a NUL, below the home of a user that there is not


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

    def valued(self, config: Config) -> "Finding":
        return replace(self, value=value_at(config, self.key)) if self.value is _AT_KEY else self


def value_at(node: Any, key: str) -> Any:
    """The value at a full key, `rollout.n` or `hardware.env_vars.NAME`; lists are lists, as they are written."""
    if not key:
        return list(node) if isinstance(node, tuple) else node
    if isinstance(node, dict):  # whose names may have dots
        name = next(name for name in node if key == name or key.startswith(f"{name}."))
        return value_at(node[name], key[len(name) + 1 :])
    name, _, rest = key.partition(".")
    return value_at(getattr(node, name), rest)


def file_exists(path: str) -> bool:
    with suppress(*_NO_PATH):
        return Path(path).expanduser().is_file()
    return False


def folder_writable(path: str) -> bool:
    """True if the folder, or the nearest parent that exists, is a folder that this user may write to."""
    with suppress(*_NO_PATH):
        for folder in (absolute := Path(path).expanduser().absolute(), *absolute.parents):
            if folder.exists():
                return folder.is_dir() and os.access(folder, os.W_OK)
    return False


def read_text(path: str) -> str | None:
    """The text of a file, or None where there is none that this user may read as text."""
    with suppress(*_NO_PATH):
        return Path(path).expanduser().read_text(encoding="utf-8")
    return None


def path_exists(path: str) -> bool:
    with suppress(*_NO_PATH):
        return Path(path).expanduser().exists()
    return False


def listing(path: str) -> Sequence[str]:
    """Names of what a folder holds; none where it is none, or closed to this user."""
    with suppress(*_NO_PATH):
        return sorted(entry.name for entry in Path(path).expanduser().iterdir())
    return ()


def absolute(path: str) -> str:
    with suppress(*_NO_PATH):
        return str(Path(path).expanduser().absolute())
    return path


@dataclass(frozen=True, slots=True)
class Host:
    """What rules may ask of this machine; tests inject their own answers.

    `elsewhere`: the job would run on another machine than this. `submitted`: SLURM will start it, with this Python.
    `answers`: nothing is going to start, somebody asks.
    `driver`: why this machine's GPUs cannot be seen, or nothing.
    """

    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    file_exists: Callable[[str], bool] = file_exists
    folder_writable: Callable[[str], bool] = folder_writable
    read_text: Callable[[str], str | None] = read_text
    exists: Callable[[str], bool] = path_exists
    listing: Callable[[str], Sequence[str]] = listing
    absolute: Callable[[str], str] = absolute
    find_program: Callable[[str], str | None] = shutil.which
    version: Callable[[str], str | None] = installed_version  # of a package; None: it is not installed
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
class Rule:
    """One check, and the parts of a run that it is about: where a job starts none of them it has nothing to say.

    `whole`: it is about their meeting, so all of them must be started. No parts: it is about every job.
    """

    find: Find
    parts: frozenset[Part]
    whole: bool

    @property
    def name(self) -> str:
        return str(getattr(self.find, "__name__", self.find))

    def __call__(self, config: Config, host: Host) -> Iterator[Finding]:
        """Whatever the job starts."""
        return (finding.valued(config) for finding in self.find(config, host))

    def applies(self, started: frozenset[Part]) -> bool:
        if self.whole:
            return self.parts <= started
        return not self.parts or bool(self.parts & started)


def about(*parts: Part) -> Callable[[Find], Rule]:
    """Declares a rule about any of the parts; without one, about every job."""
    return lambda find: Rule(find, frozenset(parts), whole=False)


def between(*parts: Part) -> Callable[[Find], Rule]:
    """Declares a rule about parts that must agree with each other."""
    return lambda find: Rule(find, frozenset(parts), whole=True)


def rules_of(file: ModuleType) -> list[Rule]:
    """Those that are declared there, in their order."""
    return [rule for rule in vars(file).values() if isinstance(rule, Rule) and rule.find.__module__ == file.__name__]


def below(path: str, folders: tuple[str, ...]) -> bool:
    """Whether an absolute path is one of the folders, or inside of one."""
    return any(path == folder.rstrip("/") or path.startswith(f"{folder.rstrip('/')}/") for folder in folders)


def error(rule_id: str, key: str, message: str, fix: str, *, value: Any = _AT_KEY) -> Finding:
    """`value`: where it is not the configuration's at `key`."""
    return Finding(Severity.error, rule_id, key, value, message, fix)


def warning(rule_id: str, key: str, message: str, fix: str, *, value: Any = _AT_KEY) -> Finding:
    """As `error`."""
    return Finding(Severity.warning, rule_id, key, value, message, fix)


def failing(findings: list[Finding], strict: bool) -> bool:
    """True if these findings forbid a start; `strict` counts warnings as well."""
    fatal = {Severity.error, Severity.warning} if strict else {Severity.error}
    return any(finding.severity in fatal for finding in findings)


def report_lines(finding: Finding, width: int) -> list[str]:
    """What it is about, what is wrong, where the value comes from, the way out; no line is wider that can be broken."""
    origin = _wrapped("    from: ", finding.origin, width) if finding.origin else []
    return [
        *_wrapped("", f"{finding.severity} [{finding.rule_id}] {finding.key}={finding.value}", width),
        *_wrapped("    ", finding.message, width),
        *origin,
        *_wrapped("    fix:  ", finding.fix, width),
    ]


def _wrapped(label: str, text: str, width: int) -> list[str]:
    """What follows the first line begins below the first word, or a little further to the right."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=label,
        subsequent_indent=" " * (len(label) or 4),
        break_long_words=False,
        break_on_hyphens=False,
    )
