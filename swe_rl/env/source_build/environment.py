"""Makes the Python environment of a distribution's tests: an interpreter with packages of the release's own days.

Versions are not listed anywhere. The resolver is told to look no further than the release's date, so that a tree of
2019 gets what its authors had.

Invariants:
- An environment is complete under its own name, or not there; two processes may make the same one. What a killed
  process left half made goes when the next one is made.
- It works wherever it is mounted or copied to `layout.ENVIRONMENT`; the tree is expected at `layout.TESTBED`.
- What could not be installed is recorded in its `environment.json`, and only requirement files and optional packages
  may lose entries.
- Its files have no other names elsewhere: sandboxes share them, and see when one was changed last. A new name for a
  file counts as a change.
"""

import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from swe_rl.dataset.instance import Instance, Source
from swe_rl.env.source_build.interpreter import compile_modules, copy_interpreter, find_prefix
from swe_rl.env.source_build.layout import CONDA, ENVIRONMENT, TESTBED, activate_script
from swe_rl.env.source_build.origin import Origin
from swe_rl.env.source_build.program import BuildError, find_uv, run_program
from swe_rl.env.source_build.requirements import EXTRAS, requirements_of, tools_of
from swe_rl.env.source_build.sdist import days_after
from swe_rl.errors import UserError
from swe_rl.files.disk import write_json_atomic
from swe_rl.files.lines import lines_of
from swe_rl.sandbox.lease import made_aside

RECIPE = 5  # A change of how environments are made counts it up, so that all are made anew.
# This file of an environment records what is in it.
FACTS = "environment.json"
_INSTALL_S = 1800.0
_CHECK_S = 120.0
# What a release needs may appear, or be mended, some days after it, and may break it later. So these are tried in turn.
_DAYS_AFTER = (30, 7, 90)
# Packages of a release older than the interpreter may not run on it, so these dates are tried last. They are those of
# PEP 664, 693, 719, 745 and of the PEPs before.
INTERPRETERS_SETTLED = {
    "3.8": "2020-04-14T00:00:00Z",
    "3.9": "2021-04-05T00:00:00Z",
    "3.10": "2022-04-04T00:00:00Z",
    "3.11": "2023-04-24T00:00:00Z",
    "3.12": "2024-04-02T00:00:00Z",
    "3.13": "2025-04-07T00:00:00Z",
    "3.14": "2026-04-07T00:00:00Z",
}
# Larger files are no scripts or records, so no place is rewritten in them.
_TEXT_BYTES = 1_000_000
# The installer names so a package of which the index has no file before the cut-off date.
_GONE = re.compile(r"hint: `([\w.-]+)` was filtered by `exclude-newer`")
# At most so many packages may be newer than the cut-off date, because each costs another resolution.
_MAX_GONE = 8
# A package with this date has no cut-off date.
_FAR = "2100-01-01T00:00:00Z"
# With these options no package is built, so nothing of it is run.
_WHEELS = ("--only-binary", ":all:")
_YEARS_LATER = (1, 2, 3)  # A wheel for a new Python often came with the next release.


@dataclass(frozen=True, slots=True)
class Environment:
    """Holds an environment's folder, in which `bin/activate` and `envs/testbed` lie.

    A sandbox has to see the folder as `layout.CONDA`.
    """

    folder: Path
    key: str

    @property
    def prefix(self) -> Path:
        return self.folder / "envs" / "testbed"


def make_environment(environments: Path, instance: Instance, origin: Origin) -> Environment:
    """Returns the instance's environment, made where it is missing. Raises BuildError.

    It takes minutes the first time, then it is free: nothing is unpacked to find it.
    """
    key = environment_key(instance, origin)
    folder = environments / key
    with _lock_of(folder):
        if not folder.is_dir():
            with made_aside(folder) as aside:
                _Filling(Environment(aside, key), instance, origin, environments.parent / "interpreters").fill()
        _own_files(folder)
    return Environment(folder, key)


@cache
def _own_files(folder: Path) -> None:
    """Copies what was linked to the installer's cache, as environments of earlier versions are. Raises BuildError."""
    aside = folder.with_name(f".own-{os.getpid()}-{folder.name}")
    try:
        for path in folder.rglob("*"):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                shutil.copy2(path, aside)
                aside.replace(path)
    except OSError as error:
        raise BuildError(f"the environment {folder} cannot be made its own: {error}") from error


def environment_key(instance: Instance, origin: Origin) -> str:
    """Returns a name that follows from all that an environment is made of.

    The origin's key stands for the requirement files, because they are the origin's.
    """
    source = instance.source
    assert source is not None
    known = [RECIPE, tools_of(instance.eval_script, origin.name)]
    known += [source.until, source.packages, source.until_of, source.setup]
    known += [source.optional, _YEARS_LATER] if source.optional else []
    digest = hashlib.sha256(json.dumps(known).encode()).hexdigest()[:8]
    return f"{origin.key}-py{source.python}-{digest}"


_LOCKS: dict[Path, threading.Lock] = {}
_LOCKS_LOCK = threading.Lock()


def _lock_of(folder: Path) -> threading.Lock:
    """Returns the lock of a folder, so that two threads that need the same environment make it once."""
    with _LOCKS_LOCK:
        return _LOCKS.setdefault(folder, threading.Lock())


class _Filling:
    """Fills an environment, with one cut-off date after the other until it works."""

    def __init__(self, made: Environment, instance: Instance, origin: Origin, interpreters: Path) -> None:
        assert instance.source is not None
        self._interpreters = interpreters
        self._made = made
        self._instance = instance
        self._origin = origin
        self._source = instance.source

    def fill(self) -> None:
        """Fills the environment. Raises the first date's BuildError when none works."""
        errors: list[BuildError] = []
        with tempfile.TemporaryDirectory(dir=_made_folder(self._made.folder.parent), prefix=".tree-") as aside:
            tree = Path(aside).resolve() / "tree"
            self._origin.unpack(tree)
            for until in self._cut_offs():
                shutil.rmtree(self._made.folder, ignore_errors=True)
                self._made.folder.mkdir(parents=True)
                try:
                    self._fill(tree, until)
                except BuildError as error:
                    errors.append(error)
                else:
                    return
        raise errors[0]

    def _cut_offs(self) -> list[str | None]:
        """Returns times after which no package may have been published, without repeats. None means any time."""
        if self._source.until:
            return [_as_time(self._source.until)]
        time = self._origin.released()
        times = dict.fromkeys(days_after(time, days) for days in _DAYS_AFTER)
        settled = INTERPRETERS_SETTLED.get(self._source.python)
        if settled and all(until and until < settled for until in times):
            times[settled] = None
        return list(times)

    def _fill(self, tree: Path, until: str | None) -> None:
        made = self._made
        source = self._source
        origin = self._origin
        requirements = requirements_of(tree, self._instance.eval_script, origin.name)
        prefix = find_prefix(source.python)
        interpreter = copy_interpreter(prefix, made.prefix, source.python, self._interpreters)
        installer = _Installer(interpreter, source.origin, source.until_of)
        installer.install(requirements.build, until=None)
        installer.install([self._itself(tree), *requirements.tools], until=until)
        dropped = [line for file in requirements.files for line in installer.install_file(file, until)]
        if source.packages:
            installer.install(source.packages, until=until)
        dropped += installer.install_wheels(source.optional, until)
        installer.install(requirements.build, until=None)  # A requirement may have installed other versions of them.
        _install_tree(interpreter, tree, source.origin, origin.version)
        if source.setup:
            _run_setup(source, made.prefix, tree)
        _check_pytest(interpreter, source.origin)
        changed = _relocate_environment(
            made.prefix, {str(made.prefix): ENVIRONMENT, str(prefix): ENVIRONMENT, str(tree): TESTBED}
        )
        compile_modules(interpreter, changed)
        activate = made.folder / "bin" / "activate"
        activate.parent.mkdir()
        activate.write_text(activate_script(origin.version), encoding="utf-8")
        packages = installer.frozen()
        facts = {
            "recipe": RECIPE,
            "sdist": source.origin,
            "python": source.python,
            "packages_until": until,
            "packages": packages,
            "sha256": digest_of(source.python, packages),
            "left_out": dropped,
            "seen_as": CONDA,
        }
        write_json_atomic(made.folder / FACTS, facts)

    def _itself(self, tree: Path) -> str:
        """Returns the distribution with its extras for tests, as the installer writes it."""
        extras = ",".join(EXTRAS)
        if self._source.sdist:
            return f"{self._origin.name}[{extras}] @ {self._origin.path.resolve().as_uri()}"
        return f"{tree}[{extras}]"


def digest_of(python: str, packages: Sequence[str]) -> str:
    """Returns a hash that is the same for the same Python and package versions, however an environment came about.

    The tree itself, which is a link, does not count.
    """
    versions = sorted(line for line in packages if "==" in line)
    return hashlib.sha256(json.dumps([RECIPE, python, versions]).encode()).hexdigest()


def facts_of(folder: Path) -> dict[str, Any]:
    """Returns what is recorded of a complete environment, and nothing where there is none."""
    try:
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _as_time(date: str) -> str:
    return date if "T" in date else f"{date}T23:59:59Z"


def _made_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _run_setup(source: Source, prefix: Path, tree: Path) -> None:
    """Runs the row's `setup` in a copy of the tree. Raises BuildError."""
    path = f"{prefix / 'bin'}:{os.environ.get('PATH', '')}"
    run_program(
        ["bash", "-ec", source.setup],
        what=f"environment of {source.origin}: source.setup failed",
        timeout_s=_INSTALL_S,
        cwd=tree,
        environment={"PATH": path, "PYTHONNOUSERSITE": "1"},
    )


@dataclass(frozen=True, slots=True)
class _Installer:
    python: Path
    sdist: str
    until_of: Sequence[str] = ()  # Each entry is NAME=DATE.

    def install(self, packages: Sequence[str], *, until: str | None) -> None:
        """Installs packages. Raises BuildError. One whose older files left the index may be newer than `until`."""
        newer: list[str] = []
        while True:
            try:
                self._uv(["install", *self._dated(until, newer), *packages], "its packages cannot be installed")
                return
            except BuildError as error:
                gone = [name for name in _GONE.findall(str(error)) if name not in newer]
                if not until or not gone or len(newer) >= _MAX_GONE:
                    raise
                newer += gone[:1]

    def install_file(self, path: Path, until: str | None) -> list[str]:
        """Installs a requirement file, or each of its lines that can be. Returns what was left out."""
        try:
            self._uv(["install", *self._dated(until), "--requirements", str(path)], path.name)
        except BuildError:
            return [line for line in _requirement_lines(path) if not self._can_install([line], until)]
        return []

    def install_wheels(self, packages: Sequence[str], until: str | None) -> list[str]:
        """Installs all packages, or each that can be without a build. Returns what was left out.

        No code of the packages is run. One that had no wheel for this Python in its days gets its first later one, by
        the year.
        """
        if not packages or self._can_install(packages, until, *_WHEELS):
            return []
        return [package for package in packages if not self._has_wheel(package, until)]

    def _has_wheel(self, package: str, until: str | None) -> bool:
        if self._can_install([package], until, *_WHEELS):
            return True
        years = [days_after(datetime.fromisoformat(until), 365 * years) for years in _YEARS_LATER] if until else []
        return any(
            replace(self, until_of=(*self.until_of, f"{package}={year}"))._can_install([package], until, *_WHEELS)
            for year in years
        )

    def _can_install(self, packages: Sequence[str], until: str | None, *how: str) -> bool:
        try:
            self.install([*how, *packages], until=until)
        except BuildError:
            return False
        return True

    def frozen(self) -> list[str]:
        return self._uv(["freeze"], "its packages cannot be listed").split("\n")[:-1]

    def _dated(self, until: str | None, newer: Sequence[str] = ()) -> list[str]:
        if not until:
            return []
        dates = dict(entry.split("=", 1) for entry in self.until_of) | dict.fromkeys(newer, _FAR)
        exceptions = [
            part for name, date in dates.items() for part in ("--exclude-newer-package", f"{name}={_as_time(date)}")
        ]
        return ["--exclude-newer", until, *exceptions]

    def _uv(self, arguments: Sequence[str], what: str) -> str:
        try:
            program = find_uv()
        except ImportError as error:
            raise UserError(
                f"{self.sdist} is built with uv, which is not installed: pip install 'swe_rl[data]'"
            ) from error
        command = [program, "pip", arguments[0], "--python", str(self.python), *arguments[1:]]
        environment = {"UV_NO_PROGRESS": "1", "UV_NO_CONFIG": "1", "UV_LINK_MODE": "copy"}
        return run_program(
            command, what=f"environment of {self.sdist}: {what}", timeout_s=_INSTALL_S, environment=environment
        )


def _install_tree(interpreter: Path, tree: Path, sdist: str, version: str) -> None:
    """Replaces the installed distribution by a link to the tree. Raises BuildError."""
    run_program(
        [interpreter, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--editable", tree],
        what=f"environment of {sdist}: the tree cannot be installed",
        timeout_s=_INSTALL_S,
        environment={"SETUPTOOLS_SCM_PRETEND_VERSION": version, "PYTHONNOUSERSITE": "1", "PIP_NO_INDEX": "1"},
    )


def _check_pytest(interpreter: Path, sdist: str) -> None:
    """Raises BuildError where there is a pytest that does not start with all of its plugins."""
    python = (
        "import importlib.util as u, subprocess, sys\n"
        "if u.find_spec('pytest'): sys.exit(subprocess.call([sys.executable, '-m', 'pytest', '--version']))"
    )
    what = f"environment of {sdist}: its pytest does not start"
    run_program([interpreter, "-c", python], what=what, timeout_s=_CHECK_S, cwd=interpreter.parent)


def _relocate_environment(prefix: Path, moved: dict[str, str]) -> list[Path]:
    """Rewrites the places that scripts, links to the tree and records of files name.

    Returns the folders and files whose modules have to be compiled: no cache of them is left.
    """
    packages = list(prefix.glob("lib/python*/site-packages"))
    settings = list(prefix.glob("lib/python*/_sysconfigdata*.py"))
    folders = [prefix / "bin", *packages]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    pairs = sorted(((old.encode(), new.encode()) for old, new in moved.items()), key=lambda pair: -len(pair[0]))
    for path in [*files, *settings]:
        if path.suffix == ".pyc" or path.stat().st_size > _TEXT_BYTES:
            continue
        before = after = path.read_bytes()
        if b"\0" in before:
            continue
        for old, new in pairs:
            after = after.replace(old, new)
        if after != before:
            path.write_bytes(after)
    for compiled in [compiled for folder in packages for compiled in folder.rglob("__pycache__")]:
        shutil.rmtree(compiled, ignore_errors=True)
    for compiled in prefix.glob("lib/python*/__pycache__/_sysconfigdata*.pyc"):
        compiled.unlink()
    return [*packages, *settings]


def _requirement_lines(path: Path) -> list[str]:
    lines = (line.split("#")[0].strip() for line in lines_of(path.read_text(encoding="utf-8"), ends=False))
    return [line for line in lines if line and not line.startswith("-")]
