"""The pure-Python packages of the oracle: each a source distribution whose own tests need no network.

Invariants:
- A version is pinned, so that the same seed gives the same instances.
- `code` and `tests` are patterns of the distribution's tree; a file of the tests is never mutated.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"  # of the tests


@dataclass(frozen=True, slots=True)
class Package:
    sdist: str  # NAME-VERSION
    repo: str
    code: tuple[str, ...]
    tests: str  # what pytest is given

    @property
    def version(self) -> str:
        return self.sdist.rpartition("-")[2]

    def modules(self, tree: Path) -> Iterator[Path]:
        """The files that bugs are put into, below `tree`, in a fixed order."""
        for path in sorted({found for pattern in self.code for found in tree.glob(pattern)}):
            if "tests" not in path.relative_to(tree).parts:
                yield path


PACKAGES = (
    Package("boltons-24.0.0", "mahmoud/boltons", ("boltons/*utils.py",), "tests"),
    Package("cachetools-5.3.3", "tkem/cachetools", ("src/cachetools/*.py",), "tests"),
    Package("click-8.1.7", "pallets/click", ("src/click/[!_]*.py",), "tests"),
    Package("inflection-0.5.1", "jpvanhal/inflection", ("inflection/__init__.py",), "test_inflection.py"),
    Package("parse-1.20.1", "r1chardj0n3s/parse", ("parse.py",), "tests"),
    Package("sqlparse-0.5.0", "andialbrecht/sqlparse", ("sqlparse/sql.py", "sqlparse/utils.py"), "tests"),
    Package("toolz-0.12.1", "pytoolz/toolz", ("toolz/*toolz.py", "toolz/recipes.py"), "toolz/tests"),
)
