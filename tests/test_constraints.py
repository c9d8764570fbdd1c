"""constraints.txt: the versions of the environment that the tests were run in.

SWE_RL_WRITE_GOLDEN=1 writes it anew, from the environment of the extra `dev`.
"""

import os
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
FILE = ROOT / "constraints.txt"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
OF_GPUS = {"gpu"}  # vLLM and the torch that it wants: no test environment has them
HEADER = """\
# Versions of the environment in which the tests ran (the extra `dev`, Python 3.11, torch for CPUs): no more is
# installed by this file. Use it where a newer package breaks something, not with the extra `gpu`:
#   pip install -c constraints.txt -e '.[cpu]'
"""


def declared(extras=frozenset(EXTRAS) - OF_GPUS) -> list[Requirement]:
    """The requirements of pyproject.toml, those of other extras once."""
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in EXTRAS[extra])]
    return [requirement for requirement in map(Requirement, lines) if requirement.name != PROJECT["name"]]


def needs(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    """What an installed package requires here, with these extras of it."""
    for line in distribution(name).requires or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in (*extras, "")):
            yield requirement


def installed() -> dict[str, str]:
    """Versions of what pyproject.toml requires, and of what that requires; of local builds the public one."""
    versions: dict[str, str] = {}
    seen, todo = set(), [(it.name, frozenset(it.extras)) for it in declared()]
    while todo:
        name, extras = todo.pop()
        key = (canonicalize_name(name), extras)
        if key in seen:
            continue
        seen.add(key)
        versions[key[0]] = Version(distribution(name).version).public
        todo += [(it.name, frozenset(it.extras)) for it in needs(name, extras)]
    return versions


def pinned() -> dict[str, str]:
    lines = [line for line in FILE.read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9.-]*==[0-9][\w.]*", line) for line in lines), "a name and a version each"
    return dict(line.split("==") for line in lines)


@pytest.fixture(scope="module", autouse=True)
def written_anew():
    if os.environ.get("SWE_RL_WRITE_GOLDEN"):
        FILE.write_text(HEADER + "".join(f"{name}=={version}\n" for name, version in sorted(installed().items())))


def test_each_dependency_is_pinned_within_its_range():
    pins = pinned()
    for requirement in declared():
        version = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} and {version}"


def test_pins_agree_with_each_other():
    """By the metadata of what is installed here in the pinned version: nearly all where the file is fresh."""
    pins, looked_at = pinned(), 0
    for name, version in pins.items():
        try:
            is_here = Version(distribution(name).version).public == version
        except PackageNotFoundError:
            continue
        if is_here:
            looked_at += 1
            for requirement in needs(name, frozenset()):
                allowed = requirement.specifier
                other = pins.get(canonicalize_name(requirement.name))
                assert other is not None and allowed.contains(other, prereleases=True), f"{name}: {requirement}"
    if looked_at < len(pins) // 2:
        pytest.skip(f"only {looked_at} of {len(pins)} pinned versions are installed here")


def test_it_says_how_it_is_used():
    text = FILE.read_text()
    assert text.startswith(HEADER)
    assert "-c constraints.txt" in (ROOT / "README.md").read_text()
