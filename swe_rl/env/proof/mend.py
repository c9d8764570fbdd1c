"""Ways to make an environment in which a gold patch passes, where the one that the row describes is not.

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

from swe_rl.env.instance import Source
from swe_rl.env.source_build.environment import INTERPRETERS_SETTLED
from swe_rl.env.source_build.interpreter import find_prefix
from swe_rl.env.source_build.program import BuildError
from swe_rl.env.source_build.sdist import Release, days_after

_DAYS_AFTER = (365, 7, 730)
_PYTEST_COMMAND = "2016-12-31"  # pytest 3.0 of that year was the first with a command `pytest`
# What pytest itself needs: of another date than pytest, it may refuse the only versions that there were.
_OF_PYTEST = (
    *("pytest", "py", "pluggy", "attrs", "iniconfig", "packaging", "pyparsing", "toml", "tomli", "exceptiongroup"),
    *("importlib-metadata", "zipp", "atomicwrites", "more-itertools", "wcwidth", "pathlib2"),
)
_MAX_RELEASES = 3
_OF_PYTHON = 2  # how many minor versions off another Python may be
_NAMED = re.compile(
    r"(?:could not import|No module named|requires|needs|install|Missing|importorskip\()\s*[:`'\"]*([A-Za-z][\w.-]*)"
)
_SKIPPED = re.compile(r"^(?:SKIPPED\b|.*\bskipped\b|.*ModuleNotFoundError|.*ImportError).*$", re.MULTILINE)
_FOLDED = re.compile(r"SKIPPED \[(\d+)\]")  # pytest: so many tests of one place
_NOT_PACKAGES = frozenset({"the", "a", "an", "python", "python3", "at", "version", "pip", "network", "to", "module"})
_PACKAGE_OF = {
    "yaml": "pyyaml",
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "bs4": "beautifulsoup4",
    "iris": "scitools-iris",
}
_MAX_PACKAGES = 12
_NETWORK = re.compile(
    r"Temporary failure in name resolution|Name or service not known|Network is unreachable|getaddrinfo|"
    r"NameResolutionError|Failed to establish a new connection"
)


@dataclass(frozen=True, slots=True)
class Way:
    change: str
    source: Source


@dataclass(frozen=True, slots=True)
class Failure:
    """What the gold patch left behind."""

    log: str = ""
    failing: int = 0  # tests that should pass, and do not
    runs_pytest: bool = True
    spoiled: Sequence[frozenset[str]] = ()  # packages that were added together and made more tests fail


def ways(
    source: Source,
    released: datetime | None,
    failure: Failure,
    nearer: Callable[[], Sequence[Release]] = tuple,
) -> Iterator[Way]:
    """From `source`, with which the gold patch failed; ways that change nothing are left out.

    `nearer`: releases nearer to the base commit. They come first where more tests fail than were skipped, as no package
    explains that.
    """
    log = failure.log
    explained = skipped_tests(log) >= failure.failing
    if not explained:
        yield from release_ways(source, nearer())
    spoiled = [group - set(source.optional) for group in failure.spoiled]
    for packages in _groups(missing_packages(log, source), spoiled):
        yield Way(f"with {', '.join(packages)}", replace(source, optional=(*source.optional, *packages)))
    if explained:
        yield from release_ways(source, nearer())
    for way in _other_ways(source, released, failure.runs_pytest):
        if way.source != source:
            yield way


def release_ways(source: Source, nearer: Sequence[Release]) -> Iterator[Way]:
    """The nearest ones, each with the newest Python up to the row's that had settled when it came out."""
    for release in nearer[:_MAX_RELEASES]:
        python = _python_of_days(source.python, release.released)
        with_python = "" if python == source.python else f" on Python {python}"
        way = replace(source, sdist=release.sdist, fix=release.fix, python=python)
        if way != source:
            yield Way(f"from {release.sdist}, nearer to the base commit{with_python}", way)


def skipped_tests(log: str) -> int:
    """How many tests the log says were skipped for want of something."""
    folded = (_FOLDED.match(line) for line in _SKIPPED.findall(log))
    return sum(int(tests[1]) if tests else 1 for tests in folded)


def _groups(packages: Sequence[str], spoiled: Sequence[frozenset[str]]) -> Iterator[Sequence[str]]:
    """All that spoil nothing by themselves at once, or halves of what holds a spoiled group.

    What is left of a spoiled group once a part of it has helped is a spoiled group itself, and one that holds a
    smaller one is explained by that.
    """
    least = [group for group in spoiled if group and not any(other and other < group for other in spoiled)]
    rest = [name for name in packages if frozenset({name}) not in least]
    if not rest:
        return
    if not any(group <= set(rest) for group in least):
        yield rest
    else:
        half = (len(rest) + 1) // 2
        yield from _groups(rest[:half], spoiled)
        yield from _groups(rest[half:], spoiled)


def _other_ways(source: Source, released: datetime | None, runs_pytest: bool) -> Iterator[Way]:
    if released and runs_pytest and not any(entry.startswith("pytest=") for entry in source.until_of):
        for until in _dates_of_pytest(source.python, released):
            dates = tuple(f"{name}={until}" for name in _OF_PYTEST if name != _name_of_origin(source))
            yield Way(f"with pytest of {until}", replace(source, until_of=(*source.until_of, *dates)))
    for python in _other_pythons(source.python, released):
        yield Way(f"with Python {python}", replace(source, python=python))
    for days in _DAYS_AFTER:
        if time := days_after(released, days):
            yield Way(f"with packages until {time[:10]}", replace(source, until=time[:10]))


def _dates_of_pytest(python: str, released: datetime) -> Sequence[str]:
    """The end of the release's year, and when this Python had settled: an older pytest may not run on it."""
    year = max(f"{released.year}-12-31", _PYTEST_COMMAND)
    return sorted({year, max(year, INTERPRETERS_SETTLED.get(python, "")[:10])})


def missing_packages(log: str, source: Source) -> list[str]:
    """What skipped tests and failed imports name, less what is asked for already: those that most tests name first.

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
    """Those of this machine that were there in the days of the release, the nearest first."""
    minor = int(python.partition(".")[2])
    era = [(abs(other - minor), f"3.{other}") for other in range(minor - _OF_PYTHON, minor + _OF_PYTHON + 1)]
    latest = days_after(released, 365) or "9999"
    return [name for off, name in sorted(era) if off and _settled(name) <= latest and _is_here(name)]


def _python_of_days(python: str, released: datetime | None) -> str:
    latest, minor = days_after(released, 30) or "9999", int(python.partition(".")[2])
    names = [f"3.{minor - off}" for off in range(_OF_PYTHON + 1)]
    return next((name for name in names if _settled(name) <= latest and (name == python or _is_here(name))), python)


def _settled(python: str) -> str:
    return INTERPRETERS_SETTLED.get(python, "" if int(python.partition(".")[2]) < 8 else "9999")


def _is_here(python: str) -> bool:
    try:
        find_prefix(python)
    except BuildError:
        return False
    return True


def wants_network(log: str) -> bool:
    """True where tests looked for another machine."""
    return bool(_NETWORK.search(log))
