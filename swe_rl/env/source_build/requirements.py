"""Finds what a tree needs to be built and tested, as its own files say.

Invariants:
- Only files are read; nothing of the tree is run.
"""

import ast
import configparser
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Distributions call their extra for tests by one of these names.
EXTRAS = ("test", "tests", "testing")
# Projects keep the requirements of their tests in one of these files.
_FILES = (
    "tests/requirements/py3.txt",
    "requirements/tests.txt",
    "requirements/test.txt",
    "requirements-dev.txt",
    "requirements_dev.txt",
    "test-requirements.txt",
    "requirements-test.txt",
    "dev-requirements.txt",
)
# Newer versions of these may not build older trees any more. A tree that asks for newer ones gets what it asks for.
_BUILD = {"pip": "pip<24", "setuptools": "setuptools<70", "setuptools_scm": "setuptools_scm<8", "wheel": "wheel"}
_NEWER_FROM = {"setuptools": 70, "setuptools_scm": 8}
# Earlier versions refuse a licence that is an expression (PEP 639).
_WITH_EXPRESSION = "setuptools>=77"
_LINK_WITH_EDITABLES = ("hatchling", "pdm-backend")  # These backends ask for `editables` when a tree is only linked.


@dataclass(frozen=True, slots=True)
class Requirements:
    build: tuple[str, ...]  # These install the tree without build isolation.
    tools: tuple[str, ...]  # The evaluation script runs these.
    files: tuple[Path, ...]  # These are requirement files of the tree, the tests' first.


def requirements_of(tree: Path, eval_script: str, name: str) -> Requirements:
    """Returns what a tree needs. `name` is the distribution's, which does not need itself."""
    content = _project(tree)
    entries = _build_system(content) or _setup_requires(tree)
    build = dict(_BUILD)
    if isinstance(content.get("project", {}).get("license"), str):
        build["setuptools"] = _WITH_EXPRESSION
    for entry in entries:
        tool = _name_of(entry)
        if tool in _NEWER_FROM and _least_version(entry) >= _NEWER_FROM[tool]:
            build[tool] = entry
    others = [entry for entry in entries if _name_of(entry) not in _BUILD]
    files = tuple(tree / path for path in _FILES if (tree / path).is_file())
    return Requirements((*build.values(), *others), tools_of(eval_script, name), files)


def runs_tox(eval_script: str) -> bool:
    return bool(re.search(r"(^|\s)tox\s", eval_script.partition("Start Test Output")[2]))


def _project(tree: Path) -> dict[str, Any]:
    """Returns what `pyproject.toml` says, and nothing where it cannot be read."""
    try:
        return tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _build_system(content: dict[str, Any]) -> list[str]:
    """Returns what `pyproject.toml` names to build the tree, also for hooks of hatchling."""
    wanted = content.get("build-system", {}).get("requires", [])
    entries = [entry for entry in wanted if isinstance(entry, str)]
    if not any(entry.startswith(_LINK_WITH_EDITABLES) for entry in entries):
        return entries
    return [*entries, "editables", *_needed_by_hooks(content)]


def _setup_requires(tree: Path) -> list[str]:
    """Returns what a tree without `pyproject.toml` needs to be built: setuptools would fetch it without being asked."""
    entries: list[str] = []
    settings = configparser.RawConfigParser(strict=False)
    try:
        settings.read_string(_text_of(tree / "setup.cfg"))
        entries += settings.get("options", "setup_requires", fallback="").replace(";", "\n").split("\n")
        module = ast.parse(_text_of(tree / "setup.py"))
    except (configparser.Error, ValueError, SyntaxError, RecursionError):
        return [entry.strip() for entry in entries if entry.strip()]
    for node in ast.walk(module):
        if (
            isinstance(node, ast.keyword)
            and node.arg == "setup_requires"
            and isinstance(node.value, ast.List | ast.Tuple)
        ):
            values = [item.value for item in node.value.elts if isinstance(item, ast.Constant)]
            entries += [value for value in values if isinstance(value, str)]
    return [entry.strip() for entry in entries if entry.strip()]


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _needed_by_hooks(content: dict[str, Any]) -> list[str]:
    """Returns what hatchling's hooks need: without build isolation no backend installs it."""
    try:
        build = content["tool"]["hatch"]["build"]
        hooks = list(build.get("hooks", {}).values())
        for target in build.get("targets", {}).values():
            hooks += target.get("hooks", {}).values()
        return [entry for hook in hooks for entry in hook.get("dependencies", []) if isinstance(entry, str)]
    except (KeyError, AttributeError, TypeError):
        return []


def _name_of(entry: str) -> str:
    """Returns the name of the distribution that an entry asks for: `setuptools_scm` for `setuptools-scm[toml]>=8`."""
    match = re.match(r"\s*([\w.-]+)", entry)
    return match[1].lower().replace("-", "_") if match else ""


def _least_version(entry: str) -> int:
    """Returns the first number of the version that an entry asks for at least, and 0 where it asks for none."""
    match = re.search(r"(?:>=|==|~=)\s*(\d+)", entry)
    return int(match[1]) if match else 0


def tools_of(eval_script: str, name: str) -> tuple[str, ...]:
    """Returns the programs that the evaluation script runs."""
    commands = eval_script.partition("Start Test Output")[2]
    tools = ("tox", "tox-current-env") if runs_tox(eval_script) else ()
    if name.lower() != "pytest" and (not commands or re.search(r"(^|\s)(pytest|tox|py\.test)\s", commands)):
        return (*tools, "pytest")
    return tools
