"""What a tree needs to be built and tested, as its own files say.

Invariants:
- Only files are read; nothing of the tree is run.
"""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

EXTRAS = ("test", "tests", "testing")
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
_BUILD = ("pip<24", "setuptools<70", "setuptools_scm<8", "wheel")
_LINK_WITH_EDITABLES = ("hatchling", "pdm-backend")  # backends that ask for that package when a tree is only linked


@dataclass(frozen=True, slots=True)
class Requirements:
    build: tuple[str, ...]  # to install the tree without build isolation
    tools: tuple[str, ...]  # what the evaluation script runs
    files: tuple[Path, ...]  # requirement files of the tree, the tests' first


def requirements_of(tree: Path, eval_script: str, name: str) -> Requirements:
    """`name`: of the distribution, which does not need itself."""
    build = (
        *_BUILD,
        *(entry for entry in _build_system(tree) if not entry.lower().startswith(("setuptools", "wheel", "pip"))),
    )
    files = tuple(tree / path for path in _FILES if (tree / path).is_file())
    return Requirements(build, tools_of(eval_script, name), files)


def runs_tox(eval_script: str) -> bool:
    return bool(re.search(r"(^|\s)tox\s", eval_script.partition("Start Test Output")[2]))


def _build_system(tree: Path) -> list[str]:
    try:
        content = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    wanted = content.get("build-system", {}).get("requires", [])
    entries = [entry for entry in wanted if isinstance(entry, str)]
    return [*entries, *(["editables"] if any(entry.startswith(_LINK_WITH_EDITABLES) for entry in entries) else [])]


def tools_of(eval_script: str, name: str) -> tuple[str, ...]:
    """The programs that the evaluation script runs."""
    commands = eval_script.partition("Start Test Output")[2]
    tools = ("tox", "tox-current-env") if runs_tox(eval_script) else ()
    if name.lower() != "pytest" and (not commands or re.search(r"(^|\s)(pytest|tox|py\.test)\s", commands)):
        return (*tools, "pytest")
    return tools
