"""This module tells which Python packages are installed here, and how a further one is installed.

Invariants:
- Nothing is imported to find out: the installed metadata is read, or a module's file is looked for.
"""

import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

# Maps the modules that all jobs import to their packages.
REQUIRED = {"hydra": "hydra-core", "prometheus_client": "prometheus-client", "dotenv": "python-dotenv"}
REQUIRED |= {name: name for name in ("omegaconf", "aiohttp", "orjson", "rich", "numpy", "psutil", "jinja2")}
REQUIRED |= {"submitit": "submitit", "pytest": "pytest"}
_OF_EXTRA = re.compile(r"([\w.-]+)([^;\[]+);")


@cache
def _version_in_metadata(distribution: str) -> str | None:
    """Returns the version that the metadata of an installed package tells, or None if there is no such metadata.

    A check asks for a dozen packages. To read their metadata takes most of its time, and nobody installs a package
    into the environment of a process that runs.
    """
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(distribution)
    return None


def installed_version(distribution: str) -> str | None:
    """Returns the version, or None if the package is not installed. It is empty for a module without metadata, such as
    a folder on PYTHONPATH."""
    version = _version_in_metadata(distribution)
    if version is not None:
        return version
    # find_spec raises ValueError for a module that somebody made by hand.
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(distribution.replace("-", ""))
        # Any folder of that name is a module without an origin.
        if spec is None or spec.origin is None:
            return None
        return ""
    return None


@cache
def own_requirements() -> tuple[str, ...]:
    """Returns the requirements of swe_rl with its extras, such as `torch==2.13.0; extra == "cpu"`; none for a copy that
    is not installed."""
    with suppress(importlib.metadata.PackageNotFoundError):
        return tuple(importlib.metadata.requires("swe_rl") or ())
    return ()


def allowed_versions(requirements: Iterable[str], package: str) -> list[str]:
    """Returns the versions that the extras allow: `==2.13.0` and `>=2.11,<2.14` for torch; none if nothing is said."""
    parts = (_OF_EXTRA.match(text) for text in requirements)
    specifiers = (part[2].split(",") for part in parts if part and part[1] == package)
    return sorted(
        {",".join(sorted((specifier.strip() for specifier in several), reverse=True)) for several in specifiers}
    )


def install_command(extras: Iterable[str], pip: str, requirements: Sequence[str]) -> str:
    """Returns the command that installs extras. pip takes the swe_rl that is installed, from a wheel or a checkout; a
    copy on PYTHONPATH is not."""
    name, where = ("swe_rl", "") if requirements else (".", " in the folder of swe_rl's pyproject.toml")
    return f"{pip} install '{name}[{','.join(dict.fromkeys(extras))}]'{where}"


def not_installed(module: str) -> str:
    """Says that this Python lacks a module: the wrong Python ran, or nobody installed swe_rl."""
    return (
        f"swe_rl needs {REQUIRED.get(module, module)}, which this Python ({_typed_python()}) does not have. Activate "
        "the environment in which swe_rl is installed (source .venv/bin/activate), or install swe_rl: "
        f"{pip_command()} install -e '.[cpu]' in the folder of its pyproject.toml."
    )


def pip_command() -> str:
    """Returns this Python's pip as it can be typed here: `pip` alone if PATH finds that one first."""
    if _is_found_first("pip"):
        return "pip"
    return f"{_typed_python()} -m pip"


def python_command() -> str:
    """Returns this Python as it can be typed here: `python` alone if PATH finds that one first."""
    if _is_found_first("python"):
        return "python"
    return _typed_python()


def _is_found_first(name: str) -> bool:
    program = shutil.which(name)
    return program is not None and Path(program).parent == Path(sys.executable).parent


def _typed_python() -> str:
    python = Path(sys.executable)
    return shlex.quote(os.path.relpath(python) if python.is_relative_to(Path.cwd()) else str(python))
