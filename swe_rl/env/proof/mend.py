"""Finds ways to make an environment in which a gold patch passes, where it fails in the one that the row describes.

A dated environment may be broken (a package of 2019 on a Python of 2021), its test runner may name tests otherwise than
the row, a package may be missing without which tests are skipped, or the row names a release far from the base commit.

Invariants:
- A way is a change of the row's column `source` and nothing else: with it the environment is made again anywhere.
- Ways come in the order of what speaks for them; each says in words what it changes.
- Packages that make more tests fail are tried again in halves: what helps is kept without what spoils it.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from swe_rl.dataset.instance import Instance, Source
from swe_rl.env.source_build.environment import INTERPRETERS_SETTLED
from swe_rl.env.source_build.interpreter import find_prefix
from swe_rl.env.source_build.program import BuildError
from swe_rl.env.source_build.sdist import Release, days_after

# Packages may be at most so many days younger than the release; the dates are tried in this order.
_DAYS_AFTER = (365, 7, 730)
_PYTEST_COMMAND = "2016-12-31"  # Pytest 3.0 of that year was the first with a command `pytest`.
# Pytest needs these packages. It may refuse them if they are of another date than pytest.
_OF_PYTEST = (
    "pytest",
    "py",
    "pluggy",
    "attrs",
    "iniconfig",
    "packaging",
    "pyparsing",
    "toml",
    "tomli",
    "exceptiongroup",
    "importlib-metadata",
    "zipp",
    "atomicwrites",
    "more-itertools",
    "wcwidth",
    "pathlib2",
)
# At most so many nearer releases are tried, because each of them needs an environment of its own.
_MAX_RELEASES = 3
_OF_PYTHON = 2  # Another Python may be so many minor versions off.
# A package's name follows these words where a test was skipped or an import failed.
_NAMED = re.compile(
    r"(?:could not import|No module named|requires|needs|install|Missing|importorskip\()\s*[:`'\"]*([A-Za-z][\w.-]*)"
)
_SKIPPED = re.compile(r"^(?:SKIPPED\b|.*\bskipped\b|.*ModuleNotFoundError|.*ImportError).*$", re.MULTILINE)
_FOLDED = re.compile(r"SKIPPED \[(\d+)\]")  # Pytest prints so how many tests of one place were skipped.
# These words follow "requires" and its like, and are no packages.
_NOT_PACKAGES = frozenset({"the", "a", "an", "python", "python3", "at", "version", "pip", "network", "to", "module"})
# These modules are in a package of another name.
_PACKAGE_OF = {
    "yaml": "pyyaml",
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "bs4": "beautifulsoup4",
    "iris": "scitools-iris",
}
# At most so many packages are added: names in a log may be no packages.
_MAX_PACKAGES = 12
# These errors say that a test looked for another machine.
_NETWORK = re.compile(
    r"Temporary failure in name resolution|Name or service not known|Network is unreachable|getaddrinfo|"
    r"NameResolutionError|Failed to establish a new connection"
)


@dataclass(frozen=True, slots=True)
class MendingWay:
    change: str
    source: Source


@dataclass(frozen=True, slots=True)
class GoldFailure:
    """Holds what the gold patch left behind."""

    log: str = ""
    failing: int = 0  # So many tests should pass, and do not.
    runs_pytest: bool = True
    spoiled: Sequence[frozenset[str]] = ()  # The packages of each group were added together and made more tests fail.


def find_ways(
    source: Source,
    released: datetime | None,
    failure: GoldFailure,
    nearer: Callable[[], Sequence[Release]] = tuple,
) -> Iterator[MendingWay]:
    """Yields ways from `source`, with which the gold patch failed. Ways that change nothing are left out.

    `nearer` returns releases nearer to the base commit. They come first where more tests fail than were skipped, as no
    package explains that.
    """
    log = failure.log
    explained = skipped_tests(log) >= failure.failing
    if not explained:
        yield from release_ways(source, nearer())
    spoiled = [group - set(source.optional) for group in failure.spoiled]
    for packages in _package_groups(missing_packages(log, source), spoiled):
        yield MendingWay(f"with {', '.join(packages)}", replace(source, optional=(*source.optional, *packages)))
    if explained:
        yield from release_ways(source, nearer())
    for way in _other_ways(source, released, failure.runs_pytest):
        if way.source != source:
            yield way


def release_ways(source: Source, nearer: Sequence[Release]) -> Iterator[MendingWay]:
    """Yields a way for each of the nearest releases.

    A release gets the newest Python up to the row's that had settled when it came out.
    """
    for release in nearer[:_MAX_RELEASES]:
        python = _python_of_days(source.python, release.released)
        with_python = "" if python == source.python else f" on Python {python}"
        way = replace(source, sdist=release.sdist, fix=release.fix, python=python)
        if way != source:
            yield MendingWay(f"from {release.sdist}, nearer to the base commit{with_python}", way)


def skipped_tests(log: str) -> int:
    """Returns how many tests the log says were skipped for want of something."""
    folded = (_FOLDED.match(line) for line in _SKIPPED.findall(log))
    return sum(int(tests[1]) if tests else 1 for tests in folded)


def _package_groups(packages: Sequence[str], spoiled: Sequence[frozenset[str]]) -> Iterator[Sequence[str]]:
    """Yields all packages at once that spoil nothing by themselves, or halves of what holds a spoiled group.

    What is left of a spoiled group once a part of it has helped is a spoiled group itself. A group that holds a smaller
    spoiled one is explained by that one.
    """
    least = [group for group in spoiled if group and not any(other and other < group for other in spoiled)]
    rest = [name for name in packages if frozenset({name}) not in least]
    if not rest:
        return
    if not any(group <= set(rest) for group in least):
        yield rest
    else:
        half = (len(rest) + 1) // 2
        yield from _package_groups(rest[:half], spoiled)
        yield from _package_groups(rest[half:], spoiled)


def _other_ways(source: Source, released: datetime | None, runs_pytest: bool) -> Iterator[MendingWay]:
    """Yields ways with another date of pytest, then with another Python, then with another date of all packages."""
    if released and runs_pytest and not any(entry.startswith("pytest=") for entry in source.until_of):
        for until in _dates_of_pytest(source.python, released):
            dates = tuple(f"{name}={until}" for name in _OF_PYTEST if name != _name_of_origin(source))
            yield MendingWay(f"with pytest of {until}", replace(source, until_of=(*source.until_of, *dates)))
    for python in _other_pythons(source.python, released):
        yield MendingWay(f"with Python {python}", replace(source, python=python))
    for days in _DAYS_AFTER:
        if time := days_after(released, days):
            yield MendingWay(f"with packages until {time[:10]}", replace(source, until=time[:10]))


def _dates_of_pytest(python: str, released: datetime) -> Sequence[str]:
    """Returns dates for pytest: the end of the release's year, and the day by which this Python had settled.

    An older pytest may not run on this Python.
    """
    year = max(f"{released.year}-12-31", _PYTEST_COMMAND)
    return sorted({year, max(year, INTERPRETERS_SETTLED.get(python, "")[:10])})


def missing_packages(log: str, source: Source) -> list[str]:
    """Returns what skipped tests and failed imports name and nobody asked for, those first that most tests name.

    Not all need to exist: some are no packages, and some have no wheel.
    """
    counts: Counter[str] = Counter()
    for line in _SKIPPED.findall(log):
        tests = _FOLDED.match(line)
        for name in _NAMED.findall(line):
            name = name.strip(".'\"").partition(".")[0]
            package = _PACKAGE_OF.get(name, name).lower().replace("_", "-")
            if len(package) > 1 and package not in _NOT_PACKAGES:
                counts[package] += int(tests[1]) if tests else 1
    asked = {_name_of(entry) for entry in (*source.packages, *source.optional)}
    itself = _name_of_origin(source)
    return [name for name, _ in counts.most_common() if name not in asked and name != itself][:_MAX_PACKAGES]


def _name_of_origin(source: Source) -> str:
    return source.origin.rpartition("-")[0].lower()


def _name_of(requirement: str) -> str:
    return re.split(r"[<>=!~\[ ]", requirement, maxsplit=1)[0].lower()


def _other_pythons(python: str, released: datetime | None) -> Sequence[str]:
    """Returns this machine's other Pythons that were there in the days of the release, the nearest first."""
    minor = int(python.partition(".")[2])
    era = [(abs(other - minor), f"3.{other}") for other in range(minor - _OF_PYTHON, minor + _OF_PYTHON + 1)]
    latest = days_after(released, 365) or "9999"
    return [name for off, name in sorted(era) if off and _settled_time(name) <= latest and _is_here(name)]


def _python_of_days(python: str, released: datetime | None) -> str:
    """Returns the newest Python up to the row's that had settled soon after the release, and else the row's."""
    latest = days_after(released, 30) or "9999"
    minor = int(python.partition(".")[2])
    names = [f"3.{minor - off}" for off in range(_OF_PYTHON + 1)]
    return next(
        (name for name in names if _settled_time(name) <= latest and (name == python or _is_here(name))), python
    )


def _settled_time(python: str) -> str:
    """Returns the time from which packages run on a Python, as text that can be compared.

    It is the empty text for one before 3.8, and "9999" for one that nothing is known of.
    """
    return INTERPRETERS_SETTLED.get(python, "" if int(python.partition(".")[2]) < 8 else "9999")


def _is_here(python: str) -> bool:
    try:
        find_prefix(python)
    except BuildError:
        return False
    return True


def wants_network(log: str) -> bool:
    """Tells whether tests looked for another machine."""
    return bool(_NETWORK.search(log))


def spread_releases(instances: Sequence[Instance]) -> list[Instance]:
    """Returns the first instance of each release, then the second of each, in their order."""
    seen: Counter[str] = Counter()
    turns: list[int] = []
    for instance in instances:
        release = instance.source.origin if instance.source else instance.instance_id
        turns.append(seen[release])
        seen[release] += 1
    return [instance for _, instance in sorted(zip(turns, instances, strict=True), key=lambda pair: pair[0])]
