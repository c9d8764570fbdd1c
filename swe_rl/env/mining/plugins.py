"""Finds which packages the tests of a tree need that no file tells an installer.

Its settings give pytest options of a plugin: without the plugin pytest refuses them, and no test runs. Or its tests
import a package that the metadata does not name for tests.

Invariants:
- Only files are read. Packages are those of the tables below, and of the tree's own groups for tests (PEP 735).
- Plugins that run other tools over the tree, such as linters, are not in the table: these test no behaviour.
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from swe_rl.env.commits import is_test
from swe_rl.env.mining.recipe import NEWEST_EDITION, Edition
from swe_rl.env.source_build.requirements import EXTRAS

_SETTINGS = ("pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")
# The value may go on in lines that are indented.
_OPTIONS = re.compile(r"^[ \t]*addopts\s*=[^\n]*(?:\n[ \t]+[^\n]*)*", re.MULTILINE)
# It maps the beginning of an option to the plugin that has it.
_PLUGINS = {
    "--asyncio-": "pytest-asyncio",
    "--benchmark-": "pytest-benchmark",
    "--cov": "pytest-cov",
    "--dist": "pytest-xdist",
    "--hypothesis-": "hypothesis",
    "--no-cov": "pytest-cov",
    "--numprocesses": "pytest-xdist",
    "--reruns": "pytest-rerunfailures",
    "--snapshot": "syrupy",
    "--timeout": "pytest-timeout",
    "-n": "pytest-xdist",
}
# It maps modules that tests import to their distributions.
_MODULES = {
    "click": "click",
    "dateutil": "python-dateutil",
    "hypothesis": "hypothesis",
    "lxml": "lxml",
    "mock": "mock",
    "parameterized": "parameterized",
    "pytz": "pytz",
    "six": "six",
    "yaml": "pyyaml",
}
# These came later: rows of the first edition are made without them.
_LATER_MODULES = {
    "attr": "attrs",
    "attrs": "attrs",
    "babel": "babel",
    "bs4": "beautifulsoup4",
    "ddt": "ddt",
    "flaky": "flaky",
    "freezegun": "freezegun",
    "packaging": "packaging",
    "pydantic": "pydantic",
    "requests": "requests",
    "responses": "responses",
    "testfixtures": "testfixtures",
    "typing_extensions": "typing-extensions",
}
_IMPORT = re.compile(r"^(?:import|from)[ \t]+(\w+)(?:\.extra\.(\w+))?", re.MULTILINE)
_REQUIRED = re.compile(r"^Requires-Dist:[ \t]*([\w.-]+)([^\n]*)", re.MULTILINE)
_NAME = re.compile(r"^Name:[ \t]*([\w.-]+)", re.MULTILINE)
_EXTRA = re.compile(r"\bextra\s*==\s*[\"']([\w.-]+)")


def packages_for_tests(tree: Path, edition: Edition = NEWEST_EDITION) -> tuple[str, ...]:
    """Returns the distributions that a tree's tests need beside those of its metadata, in the order of their names."""
    if edition is Edition.first:
        return tuple(sorted({*plugins_of(tree), *_imported_packages(tree, _MODULES)}))
    packages = {*plugins_of(tree), *_imported_packages(tree, _MODULES | _LATER_MODULES), *_packages_of_groups(tree)}
    # The tree itself is installed, and pytest for the command.
    return tuple(sorted(packages - {"pytest", *map(_normal_name, _NAME.findall(_text_of(tree / "PKG-INFO"))[:1])}))


def _packages_of_groups(tree: Path) -> set[str]:
    """Returns the distributions of the groups that `pyproject.toml` has for tests, without their versions."""
    try:
        groups = tomllib.loads(_text_of(tree / "pyproject.toml")).get("dependency-groups", {})
        entries = [entry for name, group in groups.items() if name in EXTRAS for entry in group]
    except (ValueError, AttributeError, TypeError):
        return set()
    names = [re.match(r"[\w.-]+", entry) for entry in entries if isinstance(entry, str)]
    return {_normal_name(name[0]) for name in names if name}


def _imported_packages(tree: Path, packages: Mapping[str, str]) -> set[str]:
    imported: set[str] = set()
    for path in tree.rglob("*.py"):
        if is_test(path.relative_to(tree).as_posix()):
            # `hypothesis.extra.pytz` needs both.
            imported |= {module for modules in _IMPORT.findall(_text_of(path)) for module in modules}
    installed = {
        _normal_name(name)
        for name, rest in _REQUIRED.findall(_text_of(tree / "PKG-INFO"))
        if set(_EXTRA.findall(rest)) <= set(EXTRAS)
    }
    return {package for module, package in packages.items() if module in imported and package not in installed}


def plugins_of(tree: Path) -> tuple[str, ...]:
    """Returns the distributions of the plugins that a tree's settings of pytest need, in the order of their names."""
    plugins: set[str] = set()
    for name in _SETTINGS:
        words = [
            word for options in _OPTIONS.findall(_text_of(tree / name)) for word in re.split(r"[\s\"',\[\]]+", options)
        ]
        plugins |= {plugin for option, plugin in _PLUGINS.items() if any(_is_option(word, option) for word in words)}
    return tuple(sorted(plugins))


def _is_option(word: str, option: str) -> bool:
    """Tells whether a word gives an option; `-n4` and `-n` give `-n`, and `-none` does not."""
    if option.startswith("--"):
        return word.startswith(option)
    return re.fullmatch(rf"{option}(?:\d+|auto)?", word) is not None


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _normal_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
